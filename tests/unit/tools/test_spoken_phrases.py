"""Sets of spoken answers: no unsafe approval, and as many answers are understood at once as the rule gives.

What a set labels as no consent and the grammar takes for one is in ``argued.json``, each with its reason.
"""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path

import pytest

from conductor.tools.judge import Answer
from tests.unit.tools.phrase_sets import (
    ARGUED,
    FOLDER,
    Judged,
    answers,
    is_argued,
    is_unsafe,
    judge_answer,
    judge_set,
    question_of,
    report,
    said,
)

LEAST: dict[str, dict[str, float]] = json.loads((FOLDER / "manifest.json").read_text("utf-8"))
SETS = sorted(path.stem for path in FOLDER.glob("*.jsonl"))


@cache
def judged(name: str) -> Judged:
    return judge_set(FOLDER / f"{name}.tools.json", FOLDER / f"{name}.jsonl")


def test_each_set_has_its_shares() -> None:
    assert sorted(LEAST) == SETS
    assert {*ARGUED} <= {*SETS} and all(why for reasons in ARGUED.values() for why in reasons.values())


def test_a_tenth_of_all_phrases_has_nothing_unsafe() -> None:
    seed = random.SystemRandom().randrange(2**32)
    rng = random.Random(seed)
    for name in SETS:
        tools = {tool["id"]: tool for tool in json.loads((FOLDER / f"{name}.tools.json").read_text("utf-8"))}
        questions = {key: question_of(tool) for key, tool in tools.items()}
        for line in (FOLDER / f"{name}.jsonl").read_text("utf-8").splitlines():
            if rng.random() < 0.1 and "dialogue" not in (phrase := json.loads(line)):
                question = questions[phrase["tool"]]
                answer = judge_answer(phrase["say"].replace("{words}", question.repeat), question)
                unsafe = is_unsafe(phrase["meaning"], answer)
                assert not unsafe or is_argued(name, phrase["tool"], phrase["say"]), (seed, name, phrase)


@pytest.mark.extended
@pytest.mark.parametrize("name", SETS)
def test_no_phrase_of_a_set_is_unsafe(name: str) -> None:
    unsafe = [(p["tool"], said(p)) for p, _ in judged(name).unsafe]
    assert [(tool, words) for tool, words in unsafe if not is_argued(name, tool, words)] == []
    taken = {f"{tool}: {words}" for tool, words in unsafe}
    assert {*ARGUED.get(name, {})} <= taken, "an argument that is no longer needed"


@pytest.mark.extended
@pytest.mark.parametrize("name", SETS)
def test_as_many_answers_of_a_set_are_understood_as_the_rule_gives(name: str) -> None:
    result = judged(name)
    for meaning, least in LEAST[name].items():
        assert result.share(meaning) >= least, report(result)


def test_a_dialogue_is_decided_by_its_first_clear_answer(tmp_path: Path) -> None:
    tool = {"id": "a", "name": "lamp.switch", "risk": "medium", "arguments": {"room": "hall"}}
    (tmp_path / "s.tools.json").write_text(json.dumps([tool, {**tool, "id": "b", "risk": "high"}]))
    lines = [
        {"tool": "a", "dialogue": ["whatever you like", "yes"], "meaning": "consent"},
        {"tool": "b", "dialogue": ["yes", "{words}"], "meaning": "consent"},
        {"tool": "a", "dialogue": ["no thanks", "yes"], "meaning": "refusal"},
        {"tool": "a", "dialogue": ["hm", "not sure"], "meaning": "consent"},
    ]
    (tmp_path / "s.jsonl").write_text("\n".join(map(json.dumps, lines)))
    result = judge_set(tmp_path / "s.tools.json", tmp_path / "s.jsonl")
    assert (result.understood["dialogue"], result.count["dialogue"]) == (3, 4)
    assert [a.kind for _, _, a in answers(tmp_path / "s.tools.json", tmp_path / "s.jsonl")][:3] == [
        "allow",
        "allow",
        "deny",
    ]


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
