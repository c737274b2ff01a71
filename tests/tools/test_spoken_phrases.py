"""Sets of spoken answers: no unsafe approval, and most answers are understood at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conductor.tools.judge import Answer
from tests.tools.phrase_sets import Judged, is_unsafe, judge_set, main, report

FOLDER = Path(__file__).parent / "phrases"
LEAST: dict[str, dict[str, float]] = json.loads((FOLDER / "manifest.json").read_text("utf-8"))
SETS = sorted(path.stem for path in FOLDER.glob("*.jsonl"))


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


def test_the_script_lists_unsafe_and_missed_phrases(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tool = {
        "id": "t",
        "name": "delete_files",
        "title": None,
        "risk": "high",
        "arguments": {"paths": ["a", "b"]},
    }
    tools, phrases = tmp_path / "tools.json", tmp_path / "phrases.jsonl"
    tools.write_text(json.dumps([tool]))
    meanings = {"{words}": "consent", "Yes.": "consent", "No.": "refusal", "{words}!": "neither"}
    lines = [json.dumps({"tool": "t", "say": say, "meaning": meaning}) for say, meaning in meanings.items()]
    phrases.write_text("\n".join(lines))
    assert main([str(tools), str(phrases)]) == 1
    output = capsys.readouterr().out
    assert "unsafe: neither taken for allow once: t: {words}!" in output
    assert "missed: consent taken for unclear: t: Yes." in output
    assert "consent: 1 of 2 understood, 50.0%" in output and "refusal: 1 of 1 understood" in output
    phrases.write_text(lines[0])
    assert main([str(tools), str(phrases)]) == 0
    assert main([]) == 2
