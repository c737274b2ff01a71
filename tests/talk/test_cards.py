"""What a card shows of hostile texts, and what answers it takes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from rich.console import Console

from conductor.client.approvals import Approval
from conductor.talk.cards import card, decide, read_arguments, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ünïcode 🔊", "plain ünïcode 🔊"),
        ("\x00\x7f\x9b\n\t", "\\u0000\\u007f\\u009b\\n\\t"),
        ("\u202e\u200b\u2028\u00a0\U000e0041", "\\u202e\\u200b\\u2028\\u00a0\\udb40\\udc41"),
    ],
)
def test_characters_without_a_shape_are_written_as_json_escapes(text: str, shown: str) -> None:
    assert visible(text) == shown
    assert json.loads(f'"{shown}"') == text


@pytest.mark.parametrize("text", ["{path: a.txt}", "[1]", '{"n": NaN}', "[" * 5_000, "", '{"a": "\udc80"}'])
def test_what_is_no_json_object_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        read_arguments(text)


APPROVAL = Approval(
    "appr_1", "call_1", "batch_1", "write_file", {"path": "a.txt"}, "high", (), "May I?", ("once",), None
)


def test_a_card_shows_what_the_call_would_do() -> None:
    console = Console(width=80)
    with console.capture() as drawn:
        console.print(card(replace(APPROVAL, preview="-old\n+new\x1b")))
    assert "│   -old" in drawn.get() and "│   +new\\u001b" in drawn.get()


def test_a_slip_of_one_key_is_not_said() -> None:
    assert {decide(line, APPROVAL) for line in ("", "q", "1", "42", " ² ", "s")} == {None}
    assert {decide(line, APPROVAL) for line in ("yes please", "/help", "да, конечно")} == {"said"}
