"""Backchannels, answers, half sentences and noises in four languages, from files of cases.

The writers of the cases had not seen the lists of the languages.
"""

from __future__ import annotations

import pytest

from tests.session.turn_cases import FOLDER, Case, play, problems, read_cases

FILES = sorted(path.name for path in FOLDER.glob("turn_cases*.jsonl"))
# Lines of cases that end differently: the question is asked again, since "okay" and "sure" alone are no
# consent, and "yeah right" is none.
MISSED = {"turn_cases_4.jsonl": frozenset({20, 22, 110})}
CASES = [
    pytest.param(
        case,
        id=f"{name}:{number}",
        marks=pytest.mark.xfail(strict=True) if number in MISSED.get(name, ()) else (),
    )
    for name in FILES
    for number, case in enumerate(read_cases(name), 1)
]
# The halves that no list has to know: the next words come before the model's first one.
HALVES = [
    pytest.param(case, id=f"{name}:{number}")
    for name in FILES
    for number, case in enumerate(read_cases(name), 1)
    if case.expect == "merged" and case.before != "approval"
]


@pytest.mark.parametrize("case", CASES)
async def test_words_have_this_effect(case: Case) -> None:
    assert problems(case, await play(case)) == []


@pytest.mark.parametrize("case", HALVES)
async def test_halves_are_one_message_if_the_model_takes_its_time(case: Case) -> None:
    seen = await play(case, first_word_s=0.8)
    assert (seen.history, seen.spoken) == ([" ".join(case.heard)], 1)
