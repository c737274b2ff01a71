"""Cards with hostile texts, and their answers."""

from __future__ import annotations

import json

import pytest
from msgspec import structs
from rich.console import Console

from conductor.client.approvals import Approval
from conductor.commands.output import escape
from conductor.talk.cards import card, decide, read_arguments


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("plain ünïcode 🔊", "plain ünïcode 🔊"),
        ("\x00\x7f\x9b\n\t", "\\u0000\\u007f\\u009b\\n\\t"),
        ("\u202e\u200b\u2028\u00a0\U000e0041", "\\u202e\\u200b\\u2028\\u00a0\\udb40\\udc41"),
    ],
)
def test_invisible_characters_become_json_escapes(text: str, escaped: str) -> None:
    assert escape(text) == escaped
    assert json.loads(f'"{escaped}"') == text


@pytest.mark.parametrize("text", ["{path: a.txt}", "[1]", '{"n": NaN}', "[" * 5_000, "", '{"a": "\udc80"}'])
def test_arguments_must_be_a_json_object(text: str) -> None:
    with pytest.raises(ValueError):
        read_arguments(text)


APPROVAL = Approval(
    "appr_1", "batch_1", "call_1", "write_file", {"path": "a.txt"}, "", "high", (), "May I?", ("once",), ""
)


def test_a_card_shows_the_preview() -> None:
    console = Console(width=80)
    with console.capture() as capture:
        console.print(card(structs.replace(APPROVAL, preview="-old\n+new\x1b")))
    assert "│   -old" in capture.get() and "│   +new\\u001b" in capture.get()


def test_a_typing_error_is_ignored_and_a_sentence_is_sent() -> None:
    assert {decide(line, APPROVAL) for line in ("", "q", "1", "42", " ² ", "s")} == {None}
    assert {decide(line, APPROVAL) for line in ("yes please", "/help", "да, конечно")} == {"words"}
