"""The common parts of requests to all model services."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from conductor.messages import AssistantMessage, Message, Note, ToolCall, ToolResult, UserMessage
from conductor.models.base import running_turn
from conductor.plugins.models.rendering import object_schema

WORDS, NOTE, REPLY, RESULT = (
    UserMessage("Go."),
    Note("It ended."),
    AssistantMessage("Yes."),
    ToolResult("c", "ok"),
)
CALL = AssistantMessage("", (ToolCall("c", "agent.spawn", "{}"),))


@pytest.mark.parametrize(
    ("messages", "index"),
    [
        ([], 0),
        ([CALL, RESULT], 0),
        ([WORDS], 1),
        ([WORDS, REPLY, WORDS], 3),
        ([WORDS, REPLY, WORDS, CALL, RESULT, CALL, RESULT], 3),
        ([WORDS, CALL, RESULT, NOTE], 4),
        ([NOTE, WORDS, CALL, RESULT], 2),
    ],
)
def test_a_turn_runs_since_the_last_words_that_are_not_the_models(
    messages: Sequence[Message], index: int
) -> None:
    assert running_turn(messages) == index


# -- schemas


@pytest.mark.parametrize(
    ("schema", "rendered"),
    [
        (True, {}),
        (False, {}),
        ({"type": ["string"]}, {"type": "string"}),
        (
            {"type": ["string", "null"], "description": "Name.", "minLength": 1, "default": None},
            {
                "anyOf": [
                    {"type": "string", "description": "Name.", "minLength": 1},
                    {"type": "null", "description": "Name.", "default": None},
                ]
            },
        ),
        (
            {"type": ["integer", "string", "null"], "minimum": 0, "enum": [1, "all", True]},
            {"anyOf": [{"type": "integer", "minimum": 0, "enum": [1]}, {"type": "string", "enum": ["all"]}]},
        ),
        (
            {"type": ["array", "object"], "items": True, "properties": {"a": True}},
            {"anyOf": [{"type": "array", "items": {}}, {"type": "object", "properties": {"a": {}}}]},
        ),
        ({"type": ["string", "null"], "const": "a"}, {"type": "string", "const": "a"}),
        (
            {"items": {"type": ["number", "null"]}},
            {"items": {"anyOf": [{"type": "number"}, {"type": "null"}]}},
        ),
        ({"oneOf": [True, {"not": True}]}, {"oneOf": [{}, {"not": {}}]}),
        (
            {"type": "object", "additionalProperties": False},
            {"type": "object", "additionalProperties": False},
        ),
        (
            {"enum": [True, ["string", "null"]], "default": True},
            {"enum": [True, ["string", "null"]], "default": True},
        ),
    ],
)
def test_a_schema_has_neither_lists_of_types_nor_boolean_schemas(schema: Any, rendered: Any) -> None:
    assert object_schema({"properties": {"value": schema}})["properties"] == {"value": rendered}


def test_the_top_of_a_schema_is_an_object_without_branches() -> None:
    schema = {"type": ["object", "null"], "anyOf": [{"required": ["a"]}], "properties": {"a": {}}}
    assert object_schema(schema) == {"type": "object", "properties": {"a": {}}}
