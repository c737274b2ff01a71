"""Calls that a model wrote into its text although its service takes calls."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.plugins.models.text_protocol.written import WrittenCalls

TOOLS = {"lamp.switch": {"properties": {"room": {"type": "string"}, "on": {"type": "boolean"}}}}
LAMP = '{"name": "lamp_switch", "arguments": {"room": "hall", "on": true}}'
SWITCH: list[tuple[str, Any]] = [("lamp.switch", {"room": "hall", "on": True})]
Read = tuple[str, list[tuple[str, Any]], bool]


def read(text: str, size: int = 1) -> Read:
    """Give the words, the calls, and whether a call is lost."""
    written = WrittenCalls(TOOLS)
    words = "".join(written.feed(text[at : at + size]) for at in range(0, len(text), size)) + written.end()
    return words, [(call.name, json.loads(call.arguments)) for call in written.calls], written.is_lost


CALLS: dict[str, Read] = {
    f"<tool_call>\n{LAMP}\n</tool_call>": ("", [*SWITCH], False),
    f"<tool_call>{LAMP}</tool_call>\n<tool_call>{LAMP}</tool_call>": ("", SWITCH * 2, False),
    LAMP: ("", [*SWITCH], False),
    f"  {LAMP}\n": ("", [*SWITCH], False),
    f"I do it.\n{LAMP}": ("I do it.\n", [*SWITCH], False),
    f"[TOOL_CALLS][{LAMP}]": ("", [*SWITCH], False),
    '[TOOL_CALLS]lamp_switch{"room": "hall", "on": true}': ("", [*SWITCH], False),
    "<function=lamp_switch><parameter=room>hall</parameter></function>": (
        "",
        [("lamp.switch", {"room": "hall"})],
        False,
    ),
    f"I do it. <tool_call>{LAMP}</tool_call>": ("I do it. ", [*SWITCH], False),
    f"I do it:[TOOL_CALLS] [{LAMP}]": ("I do it:", [*SWITCH], False),
    f"I do it.\n[{LAMP}, {LAMP}]": ("I do it.\n", SWITCH * 2, False),
    # A call that is shown, not made.
    f"It is <tool_call>{LAMP}</tool_call>, as you see.": (
        f"It is <tool_call>{LAMP}</tool_call>, as you see.",
        [],
        False,
    ),
    f"It is `<tool_call>{LAMP}</tool_call>`": (f"It is `<tool_call>{LAMP}</tool_call>`", [], False),
    "<tool_call> is a tag of Qwen.": ("<tool_call> is a tag of Qwen.", [], False),
    "Mistral writes [TOOL_CALLS] first.": ("Mistral writes [TOOL_CALLS] first.", [], False),
    '[{"name": "Ann", "age": 3}]': ('[{"name": "Ann", "age": 3}]', [], False),
    f"For example {LAMP} would do.": (f"For example {LAMP} would do.", [], False),
    f"```json\n{LAMP}\n```": (f"```json\n{LAMP}\n```", [], False),
    f"For example:\n{LAMP}\nShall I?": ("For example:\nShall I?", [], False),
    f"```\nlamp\n```\n{LAMP}": ("```\nlamp\n```\n", [*SWITCH], False),
    f"```\nlamp\n``` {LAMP}": (f"```\nlamp\n``` {LAMP}", [], False),
    # Calls that cannot be read.
    f" <tool_call>{LAMP}a": ("", [], True),
    f"{' ' * 41}<tool_call>{LAMP}a": (f"{' ' * 41}<tool_call>{LAMP}a", [], False),
    f"the[(\n{LAMP}<function=": ("the[(\n", [], True),
    '<tool_call>{"name": "lamp': ("", [], True),
    '<tool_call>\n{"name": "other", "arguments": [}\n</tool_call>': ("", [], True),
    "I do it.\n<function=lamp_switch>on</function>": ("I do it.\n", [], True),
    'I do it. <tool_call>{"name": "lamp': ("I do it. ", [], True),
    # Words.
    "": ("", [], False),
    "Hello.\nAnd <b>you</b>?\n{": ("Hello.\nAnd <b>you</b>?\n{", [], False),
    '{"name": "Ann", "age": 3}': ('{"name": "Ann", "age": 3}', [], False),
    '{"answer": "It is four."}': ("It is four.", [], False),
    'The settings:\n{"volume": 3}\nThat is all.': ('The settings:\n{"volume": 3}\nThat is all.', [], False),
    "User: Hello.\nAssistant: Hi.": ("User: Hello.\nAssistant: Hi.", [], False),
}


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
@pytest.mark.parametrize(("text", "expected"), CALLS.items())
def test_only_calls_that_end_a_reply_are_calls(text: str, expected: Read, size: int) -> None:
    assert read(text, size) == expected


PARTS = [
    "<tool_call>",
    LAMP,
    "{",
    '{"',
    "\n",
    "\r",
    " ",
    " " * 39,
    "a",
    "`",
    "```",
    "[TOOL",
    "_CALLS]",
    "<function=",
    "(",
]


@given(st.lists(st.sampled_from(PARTS)), st.integers(1, 9))
def test_pieces_do_not_change_the_meaning(parts: list[str], size: int) -> None:
    text = "".join(parts)
    assert read(text, size) == read(text, 1 + len(text))


def test_a_text_that_is_too_long_for_a_call_is_words() -> None:
    text = '{"story": "' + "Once upon a time. " * 3_000
    written = WrittenCalls(TOOLS)
    words = [written.feed(text[at : at + 100]) for at in range(0, len(text), 100)]
    assert "".join(words) + written.end() == text and sum(map(bool, words)) > 200
    assert read(text, len(text)) == (text, [], False)


def test_words_are_given_as_they_arrive() -> None:
    written = WrittenCalls(TOOLS)
    pieces = ("He", "llo.\n", "<", "b> ", "x\n<to", "ol_call>")
    assert [written.feed(piece) for piece in pieces] == ["He", "llo.\n", "", "<b> ", "x\n", ""]
