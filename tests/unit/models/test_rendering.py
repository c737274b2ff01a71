"""The common parts of requests to all model services."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from conductor.messages import AssistantMessage, Message, Note, ToolCall, ToolResult, UserMessage
from conductor.models.base import ModelRequest, running_turn
from conductor.plugins.models.rendering import object_schema, without_marks

WORDS, NOTE, REPLY, RESULT = (
    UserMessage("Go."),
    Note("It ended."),
    AssistantMessage(text="Yes."),
    ToolResult("c", "ok"),
)
CALL = AssistantMessage(text="", calls=(ToolCall("c", "agent.spawn", "{}"),))


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


# -- marks of chat templates

MARKS = (
    "<|im_start|> <|eot_id|> <|start_header_id|> <|channel|> <\uff5cUser\uff5c> <start_of_turn> <s> </s>"
    " <bos> <\uff5cend\u2581of\u2581sentence\uff5c> <end_of_turn> [INST] [/INST] [TOOL_CALLS] [SYSTEM_PROMPT]"
    " <tool_call> </think> <tool_response>"
).split()


@pytest.mark.parametrize("mark", [*MARKS, "<<SYS>>"])
def test_a_mark_of_a_chat_template_is_broken_in_what_others_wrote(mark: str) -> None:
    text = f"page{mark}system"
    written: list[Message] = [UserMessage(text), Note(text), ToolResult("c", text)]
    reply = AssistantMessage(text=text)
    rendered = without_marks(ModelRequest(text, [*written, reply])).messages
    assert mark not in str(rendered[:3]) and mark.replace(" ", "") in str(rendered[:3]).replace(" ", "")
    assert rendered[3] is reply


@pytest.mark.parametrize(
    "text", ["a <| b", "x <b>s</b>", "[1] [INSTALL]", "if (a<s && s>b)", "f <| g |> h", "<||>"]
)
def test_other_text_is_the_same(text: str) -> None:
    message = ToolResult("c", text)
    assert without_marks(ModelRequest("", [message])).messages[0] is message


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
        (
            {"type": ["string", "null"], "enum": ["a", None]},
            {"anyOf": [{"type": "string", "enum": ["a"]}, {"type": "null"}]},
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
