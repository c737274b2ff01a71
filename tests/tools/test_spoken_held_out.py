"""Phrases written apart from the grammar: none that is no clear consent may approve."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from conductor.tools.base import Effect
from conductor.tools.spoken import judge
from conductor.tools.spoken_prompt import make_question

PHRASES: list[dict[str, Any]] = [
    phrase
    for name in ("spoken_held_out.json", "spoken_held_out_more.json")
    for phrase in json.loads((Path(__file__).parent / name).read_text(encoding="utf-8"))
]
FITS = {
    "not_allow": {"deny", "unclear", "other"},
    "unclear_or_allow": {"unclear", "allow"},
}


def verdict(phrase: dict[str, Any]) -> str:
    effect: Effect = "irreversible" if phrase["risk"] == "high" else "write"
    question = make_question(phrase["tool"], phrase["risk"], effect, phrase["arguments"])
    return judge(phrase["text"], question).kind


@pytest.mark.parametrize("phrase", PHRASES, ids=lambda phrase: f"{phrase['risk']}: {phrase['text'][:60]}")
def test_nothing_but_consent_approves(phrase: dict[str, Any]) -> None:
    if phrase["expected"] not in ("allow", "unclear_or_allow"):
        assert verdict(phrase) != "allow"


def test_most_of_what_people_say_is_understood() -> None:
    found: Counter[tuple[str, bool]] = Counter()
    for phrase in PHRASES:
        expected = phrase["expected"]
        found[expected, verdict(phrase) in FITS.get(expected, {expected})] += 1
    assert len(PHRASES) >= 220
    for expected, least in LEAST.items():
        understood = found[expected, True] / (found[expected, True] + found[expected, False])
        assert understood >= least, f"{expected}: {understood:.2f}"


LEAST = {"allow": 0.85, "deny": 0.9}
