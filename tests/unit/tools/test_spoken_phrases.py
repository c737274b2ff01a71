"""Sets of spoken answers: no unsafe approval, and most answers are understood at once."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from conductor.tools.judge import Answer
from tests.unit.tools.phrase_sets import Judged, is_unsafe, judge_set, report

FOLDER = Path(__file__).parent / "phrases"
LEAST: dict[str, dict[str, float]] = json.loads((FOLDER / "manifest.json").read_text("utf-8"))
SETS = sorted(path.stem for path in FOLDER.glob("*.jsonl"))


@cache
def judged(name: str) -> Judged:
    return judge_set(FOLDER / f"{name}.tools.json", FOLDER / f"{name}.jsonl")


def test_each_set_has_its_shares() -> None:
    assert sorted(LEAST) == SETS


@pytest.mark.parametrize("name", SETS)
def test_no_phrase_of_a_set_is_unsafe(name: str) -> None:
    assert not judged(name).unsafe, report(judged(name))


@pytest.mark.parametrize("name", SETS)
def test_most_consents_and_refusals_of_a_set_are_understood(name: str) -> None:
    result = judged(name)
    for meaning, least in LEAST[name].items():
        assert result.share(meaning) >= least, report(result)


@pytest.mark.parametrize(
    ("meaning", "scope", "unsafe"),
    [
        ("neither", "once", True),
        ("refusal", "once", True),
        ("consent", "once", False),
        ("consent", "session", True),
        ("session", "session", False),
        ("always", "once", False),
        ("always", "session", True),
    ],
)
def test_an_approval_is_unsafe_without_consent_or_with_a_wider_scope(
    meaning: str, scope: str, unsafe: bool
) -> None:
    assert is_unsafe(meaning, Answer("allow", "session" if scope == "session" else "once", "")) is unsafe
    assert not is_unsafe(meaning, Answer("unclear", "once", ""))
