"""The stand-in for the Messages API refuses by the service's rules."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.stand_ins.anthropic_binding import Prefix
from tests.stand_ins.anthropic_rules import check_body
from tests.stand_ins.anthropic_script import JsonObject, Refused, redacted_data, signature_of

SCHEMA = {"type": "object", "properties": {"task": {"type": "string"}}, "required": ["task"]}


def tool(name: str = "agent_spawn", **more: Any) -> JsonObject:
    return {"name": name, "description": "Start an agent.", "input_schema": SCHEMA, **more}


def text(words: str, **more: Any) -> JsonObject:
    return {"type": "text", "text": words, **more}


def use(call_id: str = "t1", **more: Any) -> JsonObject:
    return {"type": "tool_use", "id": call_id, "name": "agent_spawn", "input": {}, **more}


def result(call_id: str = "t1", **more: Any) -> JsonObject:
    return {"type": "tool_result", "tool_use_id": call_id, "content": "done", **more}


def user(*blocks: JsonObject) -> JsonObject:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: JsonObject) -> JsonObject:
    return {"role": "assistant", "content": list(blocks)}


def good(*messages: JsonObject, **more: Any) -> JsonObject:
    """Make a body that is accepted, with these messages or two rounds of tools."""
    default = (
        {"role": "user", "content": "Start two agents."},
        assistant(text("Yes."), use("t1"), use("t2")),
        user(result("t1"), result("t2", content=[text("done")], is_error=True), text("And now?")),
    )
    return {
        "model": "test-model",
        "max_tokens": 100,
        "messages": copy.deepcopy(list(messages or default)),
        "tools": [tool()],
        "stream": True,
        **more,
    }


def without(name: str) -> JsonObject:
    body = good()
    del body[name]
    return body


BOUND = "bound to a different conversation"
CACHED: JsonObject = {"cache_control": {"type": "ephemeral"}}
HELLO = user(text("Hello."))


def thought(*before: JsonObject, words: str = "Hm.", **body: Any) -> JsonObject:
    """Make a thinking block that is bound to these messages."""
    binding = Prefix({**good(HELLO, **body), "messages": list(before)}).bind()
    return {"type": "thinking", "thinking": words, "signature": signature_of(words, binding)}


THOUGHT = thought(HELLO)
HIDDEN = {
    "type": "redacted_thinking",
    "data": redacted_data("Hm.", Prefix(good(HELLO, assistant(THOUGHT))).bind()),
}
ROUND = (HELLO, assistant(THOUGHT, text("a"), use()), user(result()))
SECOND = thought(*ROUND, words="Then.")
ALONE = thought(HELLO, assistant(text("a"), use()), user(result()), words="Then.")


REFUSED: dict[str, tuple[Any, str]] = {
    "max_tokens 0 in a stream": (good(max_tokens=0), "max_tokens: 0 cannot be combined with streaming"),
    "two tools of one name": (good(tools=[tool(), tool()]), "Tool names must be unique"),
    "a schema without type": (good(tools=[tool(input_schema={})]), "input_schema.type"),
    "anyOf at a schema's top": (
        good(tools=[tool(input_schema={"type": "object", "anyOf": []})]),
        "does not support oneOf",
    ),
    "a property with a space": (
        good(tools=[tool(input_schema={"type": "object", "properties": {"a b": {}}})]),
        "Property keys should match",
    ),
    "tool_choice without tools": (
        good(HELLO, tools=[], tool_choice={"type": "none"}),
        "only be specified while providing tools",
    ),
    "tool_use in the history without tools": (without("tools"), "must define tools"),
    "the assistant first": (good(assistant(text("Hello.")), HELLO), "first message must use the"),
    "empty content": (good(user(), HELLO), "must have non-empty content"),
    "a blank text block": (good(user(text(" \n"))), "content[0].text"),
    "white space at the end of the last assistant message": (
        good(HELLO, assistant(text("I am "))),
        "final assistant content cannot end with trailing whitespace",
    ),
    "a call without result": (good(HELLO, assistant(use()), HELLO), "found without `tool_result` blocks"),
    "one result of two": (
        good(HELLO, assistant(use("t1"), use("t2")), user(result("t1"))),
        "found without `tool_result` blocks immediately after: t2",
    ),
    "results in two messages": (
        good(HELLO, assistant(use("t1"), use("t2")), user(result("t1")), user(result("t2"))),
        "found without `tool_result` blocks immediately after: t2",
    ),
    "a late result": (
        good(HELLO, assistant(use()), HELLO, assistant(text("a")), user(result())),
        "found without `tool_result` blocks",
    ),
    "a result without call": (good(user(result())), "unexpected `tool_use_id`"),
    "a result twice": (good(HELLO, assistant(use()), user(result(), result())), "must have a single result"),
    "text before results": (
        good(HELLO, assistant(use()), user(text("Also:"), result())),
        "`tool_result` blocks must come first",
    ),
    "one id for two calls": (good(HELLO, assistant(use(), use()), user(result())), "ids must be unique"),
    "a dot in a tool's name": (good(tools=[tool("agent.spawn")]), "tools[0].name"),
    "a dot in a call's id": (good(HELLO, assistant(use("a.b")), user(result("a.b"))), "content[0].id"),
    "five breakpoints": (good(user(*[text("a", **CACHED)] * 5)), "A maximum of 4 blocks"),
    "changed thinking": (
        good(HELLO, assistant({**THOUGHT, "thinking": "Hm!"}, text("a")), HELLO),
        "Invalid `signature` in `thinking` block",
    ),
    "thinking of other tools": (good(*ROUND, tools=[tool(), tool("more")]), BOUND),
    "thinking of another prompt": (good(*ROUND, system="Be brief."), BOUND),
    "thinking of another transcript": (good(user(text("Hi.")), *ROUND[1:]), BOUND),
    "thinking that was moved": (good(HELLO, assistant(text("a"), THOUGHT, use()), user(result())), BOUND),
    "thinking in the wrong order": (good(HELLO, assistant(HIDDEN, THOUGHT, use()), user(result())), BOUND),
    "thinking before which some was added": (good(*ROUND, assistant(ALONE, text("b")), HELLO), BOUND),
    "changed redacted thinking": (
        good(HELLO, assistant({**HIDDEN, "data": "x" + HIDDEN["data"]}, text("a")), HELLO),
        "Invalid `data`",
    ),
    "thinking at a message's end": (
        good(HELLO, assistant(text("a"), THOUGHT), HELLO),
        "cannot be `thinking`",
    ),
}


@pytest.mark.parametrize(("body", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_it_refuses(body: Any, message: str) -> None:
    with pytest.raises(Refused) as caught:
        check_body(body, {})
    assert message in str(caught.value)
    assert (caught.value.status, caught.value.error_type) == (400, "invalid_request_error")


def test_it_refuses_a_call_whose_thinking_was_left_out_in_part() -> None:
    issued = {"t1": [THOUGHT, HIDDEN]}
    with pytest.raises(Refused, match="cannot be modified"):
        check_body(good(HELLO, assistant(THOUGHT, use()), user(result())), issued)
    check_body(good(HELLO, assistant(THOUGHT, HIDDEN, use()), user(result())), issued)
    check_body(good(HELLO, assistant(use()), user(result())), issued)
