"""Rehearsal files: their values, and one sentence with the file and the field for a mistake."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from conductor.errors import SettingsError
from conductor.rehearse.script import load
from tests.server.rehearse.conftest import Rehearse


def read(tmp_path: Path, text: str) -> str:
    """Load an invalid file; return the error's sentence."""
    path = tmp_path / "x.yaml"
    path.write_text(textwrap.dedent(text).lstrip(), encoding="utf-8")
    with pytest.raises(SettingsError) as raised:
        load(path)
    return str(raised.value).removeprefix(str(path))


STEPS = "steps: [{say: Hello}]"
NEEDS_REPLIES = ": replies are required for model: scripted, and not allowed otherwise."


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("- say: Hello", " must be a mapping of fields."),
        ("steps: [", ", line 1 is not valid YAML: expected the node content, but found '<stream end>'."),
        ("model: demo", ": steps or a person are required."),
        ("steps: []", ": steps or a person are required."),
        ("steps: {say: Hello}", ": steps must be a list."),
        ("steps: [Hello]", ": steps.1 must be an object."),
        ("steps:\n- say: {[a]: b}", ", line 2 is not valid YAML: found unhashable key."),
        ("steps:\n- say: \x07", " is not valid YAML: special characters are not allowed."),
        (
            f"model: scripted\nreplies:\n- The answer: 42\n{STEPS}",
            ": there is no replies.1.The answer; put a text in quotes.",
        ),
        ("steps:\n- expect: {}", ": steps.1.say is missing."),
        ("steps:\n- sya: hello", ": there is no steps.1.sya."),
        ("steps:\n- say: Hi\n  expct: {}", ": there is no steps.1.expct."),
        ("steps:\n- say: 12", ": steps.1.say must be a text; put it in quotes."),
        ("steps:\n- say: Hi\n- say: Ho\n  say: Hu", ", line 4 is not valid YAML: duplicate field say."),
        (
            "steps:\n- say: Hi\n  expect:\n    said: '('",
            ": steps.1.expect.said is not valid: it is not a regular expression: "
            "missing ), unterminated subpattern at position 0.",
        ),
        (
            "steps:\n- say: Hi\n  cut: soon",
            ": steps.1.cut is not valid: it must be 'transcript', 'card', 'call', 'answer', "
            "'speech' or 'random'.",
        ),
        (
            "steps:\n- say: Hi\n  interrupt: {heard: Hel}",
            ": steps.1.interrupt is not valid: it needs either after_characters or after_ms.",
        ),
        (
            "steps:\n- say: Hi\n  approve: {by: voice, edit: {}}",
            ": steps.1.approve.1 is not valid: edit and scope need by: tap.",
        ),
        (
            "steps:\n- say: Hi\n  approve: {by: tap, words: yes please}",
            ": steps.1.approve.1 is not valid: words need by: voice or by: deny.",
        ),
        (f"model: scripted\n{STEPS}", NEEDS_REPLIES),
        (f"model: demo\nreplies: [Hi]\n{STEPS}", NEEDS_REPLIES),
        (
            "cards: false\nsteps: [{say: Hi, approve: tap}]",
            ": approve needs cards; without cards a separate step answers the spoken question.",
        ),
        (
            "steps: [{say: Hi, expect: {called: [{tool: calculator, arguments: {x: 1}}]}}]",
            ": arguments of calculator are unknown: it is not one of the file's tools.",
        ),
        (
            f"{STEPS}\nsettings: {{LOG_LEVL: info}}",
            ": settings is not valid: LOG_LEVL is not a setting.",
        ),
        (
            f"{STEPS}\nsettings: {{PORT: 80}}",
            ": settings is not valid: PORT has a fixed value in rehearsals.",
        ),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    assert read(tmp_path, text) == sentence


def test_a_missing_or_binary_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "none.yaml"
    with pytest.raises(SettingsError, match=r"none.yaml cannot be read: no such file or directory\.$"):
        load(path)
    path.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(SettingsError, match=r"cannot be read: it is not UTF-8 text\.$"):
        load(path)


def test_an_invalid_file_is_exit_code_2(rehearse: Rehearse) -> None:
    assert rehearse("steps: []")[:2] == (2, "")


def test_short_forms_and_the_name_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "short.yaml"
    path.write_text(
        "model: scripted\nreplies: [Hello.]\n"
        "steps: [{say: Hi, approve: tap, expect: {called: [lamp.switch]}}]"
    )
    rehearsal = load(path)
    assert rehearsal.name == "short"
    assert rehearsal.replies[0].say == "Hello."
    assert rehearsal.steps[0].approve[0].by == "tap"
    assert rehearsal.steps[0].expect.called[0].tool == "lamp.switch"


def test_plain_values_have_their_types(tmp_path: Path) -> None:
    path = tmp_path / "plain.yaml"
    path.write_text(
        "tools: [{name: x}]\nsteps: [{say: yes, expect: {called: [{tool: x, arguments: "
        "{on: true, at: 12:30, day: 2026-03-01, none: null, n: -3, x: 1.5e3, zip: 01234}}]}}]"
    )
    step = load(path).steps[0]
    assert step.say == "yes"
    assert step.expect.called[0].arguments == {
        "on": True,
        "at": "12:30",
        "day": "2026-03-01",
        "none": None,
        "n": -3,
        "x": 1500.0,
        "zip": "01234",
    }
