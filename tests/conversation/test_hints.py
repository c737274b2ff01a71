"""The words to listen for, as a table: the phrases, the newest first."""

from __future__ import annotations

import json
from typing import Any

import pytest

from conductor.conversation.hints import phrases
from conductor.events.server import MAX_HINTS
from conductor.messages import ToolResult, UserMessage
from conductor.tools.base import ToolSpec

LAMP = ToolSpec(
    name="lamp.switch",
    description="Switches the Lamp of a Room.",
    title="Switch a lamp",
    input_schema={
        "type": "object",
        "properties": {
            "room": {"type": "string", "enum": ["kitchen", "living room", "kitchen"]},
            "mode": {"anyOf": [{"enum": ["party", 7, None]}, {"type": "array", "items": {"enum": ["x2"]}}]},
        },
    },
)
OF_LAMP = ["Switch a lamp", "kitchen", "living room", "party"]
SIZES = ToolSpec(
    name="pizza.order",
    description="",
    input_schema={
        "type": "object",
        "properties": {
            "size": {"oneOf": [{"const": "s", "title": "small"}, {"const": "large"}, {"const": 7}]},
            "const": {"type": "string", "title": "A field"},
        },
    },
)
UNTITLED = ToolSpec(name="clock.read", description="", input_schema={"type": "object"})


def told(value: Any, *, is_error: bool = False) -> ToolResult:
    return ToolResult("c1", value if isinstance(value, str) else json.dumps(value), is_error)


def names(word: str) -> list[dict[str, str]]:
    """Make fifty named values."""
    return [{"name": f"{word} {'x' * number}"} for number in range(50)]


def listed(word: str) -> list[str]:
    return [value["name"].strip() for value in names(word)]


# The words that count for a question, and its values.
ANSWERS = ["yes", "no"]
TRAIN = "The train to Bad Homburg leaves at 7, says Anna."
ADDRESSES = {"name": "https://a.example/B", "title": "41b7", "label": "a@b.example"}
MANY = [told(names("first")), told(names("second")), told(names("third"))]

ROWS: list[tuple[str, dict[str, Any], list[str]]] = [
    ("nothing", {}, []),
    ("a tool", {"tools": [LAMP]}, OF_LAMP),
    ("a tool without a title", {"tools": [UNTITLED]}, []),
    ("a tool with a list of constants, one by its title", {"tools": [SIZES]}, ["small", "large"]),
    (
        "a question",
        {"answers": ANSWERS, "arguments": ['{"to":"Zoë Bäcker","n":3}']},
        [*ANSWERS, "Zoë Bäcker"],
    ),
    (
        "a question, before a tool",
        {"answers": ANSWERS, "arguments": ['{"room":"Kitchen"}'], "tools": [LAMP]},
        [*ANSWERS, "Kitchen", "Switch a lamp", "living room", "party"],
    ),
    ("a question with a secret", {"arguments": ['{"key":"[REDACTED:api_key]"}']}, []),
    (
        "values of a result that are called names",
        {"log": [told({"name": "anna", "items": [{"title": "the old man"}]})]},
        ["anna", "the old man"],
    ),
    (
        "values of a result that are written as names",
        {"log": [told({"to": "Ben Okri", "state": "on", "id": "A7-x"})]},
        ["Ben Okri"],
    ),
    (
        "marks in place of data and secrets",
        {"log": [told("a lamp [image/png, 40 KB] of Anna [REDACTED:api_key]")]},
        ["Anna"],
    ),
    ("names in the sentences of a result", {"log": [told(TRAIN)]}, ["Bad Homburg", "Anna"]),
    (
        "two results, the newest first",
        {"log": [told({"name": "old"}), UserMessage("hi"), told({"name": "new"})]},
        ["new", "old"],
    ),
    ("a failure", {"log": [told({"name": "anna"}, is_error=True)]}, []),
    ("the person's words", {"log": [UserMessage("Call Anna Karenina")]}, []),
    ("addresses, ids and numbers", {"log": [told(ADDRESSES)]}, []),
    ("too long a name", {"log": [told({"name": "a " * 40})]}, []),
    ("two spellings", {"answers": ["Yes"], "arguments": ['{"a":"yes"}']}, ["Yes"]),
    ("more than enough", {"log": MANY, "tools": [LAMP]}, [*listed("third"), *listed("second")]),
]


@pytest.mark.parametrize(("given", "expected"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_these_words_are_listened_for(given: dict[str, Any], expected: list[str]) -> None:
    assert phrases(**{"answers": [], "arguments": [], "log": [], "tools": [], **given}) == expected
    assert len(expected) <= MAX_HINTS


def test_any_result_can_be_read() -> None:
    nested = '{"name":' * 200 + '"Anna"' + "}" * 200
    for text in ("A" * 100_000, "A " * 50_000, "a A-" * 25_000, '{"name":' * 10_000, nested):
        phrases([], [], [told(text)] * 20, [])
