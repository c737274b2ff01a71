"""Backchannels, answers, half sentences and noises in four languages, from files of cases."""

from __future__ import annotations

import pytest

from tests.session.turn_cases import FOLDER, Case, play, problems, read_cases

FILES = sorted(path.name for path in FOLDER.glob("turn_cases*.jsonl"))
CASES = [(f"{name}:{number}", case) for name in FILES for number, case in enumerate(read_cases(name), 1)]


@pytest.mark.parametrize("case", [case for _, case in CASES], ids=[name for name, _ in CASES])
async def test_words_have_this_effect(case: Case) -> None:
    assert problems(case, await play(case)) == []
