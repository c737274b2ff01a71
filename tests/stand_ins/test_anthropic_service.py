"""Tests of the stand-in for the Messages API: what it refuses, and what it answers."""

from __future__ import annotations

import asyncio
import copy
import json
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from conductor.models.sse import SSEParser
from tests.stand_ins.anthropic_binding import Prefix
from tests.stand_ins.anthropic_cache import PromptCache
from tests.stand_ins.anthropic_message_rules import Refused
from tests.stand_ins.anthropic_persona import BenchPersona, rounds_so_far
from tests.stand_ins.anthropic_rules import BINDING_BETA, check_betas, check_body
from tests.stand_ins.anthropic_script import (
    Break,
    Call,
    HttpFailure,
    JsonObject,
    Reply,
    redacted_data,
    signature_of,
)
from tests.stand_ins.anthropic_service import AnthropicService

HEADERS = {"x-api-key": "test-key", "anthropic-version": "2023-06-01", "content-type": "application/json"}
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
DROPS = {"prefix_mismatch_behavior": "drop_block"}
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

ACCEPTED = {
    "two rounds of tools": good(),
    "no tools": good(HELLO, tools=[]),
    "neighbouring user messages": good(HELLO, HELLO),
    "a user message after the results": good(HELLO, assistant(use()), user(result()), HELLO),
    "a result without content": good(
        HELLO, assistant(use()), user({"type": "tool_result", "tool_use_id": "t1"})
    ),
    "an assistant message at the end": good(HELLO, assistant(text("I"))),
    "an empty assistant message at the end": good(HELLO, {"role": "assistant", "content": []}),
    "white space at the end of an assistant message before the last": good(
        HELLO, assistant(text("I ")), HELLO
    ),
    "a system prompt in blocks": good(system=[text("Be brief.", **CACHED)]),
    "an empty system prompt": good(system=""),
    "four breakpoints": good(
        user(*[text("Hello.", **CACHED)] * 2), system=[text("a", **CACHED)], tools=[tool(**CACHED)]
    ),
    "thinking": good(HELLO, assistant(THOUGHT, HIDDEN, use()), user(result())),
    "thinking in two replies": good(*ROUND, assistant(SECOND, text("b")), HELLO),
    "thinking whose oldest part is left out": good(
        HELLO, assistant(text("a"), use()), user(result()), assistant(SECOND, text("b")), HELLO
    ),
    "thinking before which a cache mark was moved": good(user(text("Hello.", **CACHED)), *ROUND[1:]),
    "bindings to be dropped": good(thinking={"type": "adaptive", "block_binding": DROPS}),
    "no tools now": good(tool_choice={"type": "none"}),
    "max_tokens 0": good(max_tokens=0, stream=False),
}

REFUSED: dict[str, tuple[Any, str]] = {
    "no object": ([], "valid dictionary"),
    "no model": (without("model"), "model: Field required"),
    "an empty model": (good(model=""), "model: String"),
    "no max_tokens": (without("max_tokens"), "max_tokens: Field required"),
    "no messages": (without("messages"), "messages: Field required"),
    "an empty list of messages": ({**good(), "messages": []}, "at least one message"),
    "messages that are no list": ({**good(), "messages": "Hello."}, "messages: Input should be a valid list"),
    "max_tokens below 0": (good(max_tokens=-1), "max_tokens: must be greater"),
    "max_tokens 0 in a stream": (good(max_tokens=0), "max_tokens: 0 cannot be combined with streaming"),
    "max_tokens as text": (good(max_tokens="100"), "max_tokens: Input should be a valid integer"),
    "max_tokens as boolean": (good(max_tokens=True), "max_tokens: Input should be a valid integer"),
    "an unknown field": (good(max_output_tokens=5), "max_output_tokens: Extra inputs"),
    "stream as text": (good(stream="yes"), "stream: Input should be a valid boolean"),
    "a temperature of 2": (good(temperature=2), "temperature: range"),
    "a blank stop sequence": (good(stop_sequences=[" "]), "stop_sequences.0"),
    "a blank system block": (good(system=[text(" ")]), "system: text content blocks must contain"),
    "an empty system block": (good(system=[text("")]), "system: text content blocks must be non-empty"),
    "a dot in a tool's name": (good(tools=[tool("agent.spawn")]), "tools.0.custom.name: String should match"),
    "an overlong tool name": (good(tools=[tool("x" * 129)]), "tools.0.custom.name: String should match"),
    "two tools of one name": (good(tools=[tool(), tool()]), "Tool names must be unique"),
    "a tool without schema": (good(tools=[{"name": "agent_spawn"}]), "input_schema: Field required"),
    "a schema of an array": (good(tools=[tool(input_schema={"type": "array"})]), "input_schema.type"),
    "a schema without type": (good(tools=[tool(input_schema={})]), "input_schema.type"),
    "anyOf at a schema's top": (
        good(tools=[tool(input_schema={"type": "object", "anyOf": []})]),
        "does not support oneOf",
    ),
    "a property with a space": (
        good(tools=[tool(input_schema={"type": "object", "properties": {"a b": {}}})]),
        "Property keys should match",
    ),
    "an unknown field of a tool": (good(tools=[tool(parameters={})]), "parameters: Extra inputs"),
    "tool_choice without tools": (
        good(HELLO, tools=[], tool_choice={"type": "none"}),
        "only be specified while providing tools",
    ),
    "an unknown tool_choice": (good(tool_choice={"type": "off"}), "tool_choice: Input tag"),
    "tool_choice as text": (good(tool_choice="none"), "tool_choice: Input tag"),
    "tool_choice of another tool": (
        good(tool_choice={"type": "tool", "name": "other"}),
        "not found in provided",
    ),
    "tool_use in the history without tools": (without("tools"), "must define tools"),
    "an unknown role": (good({"role": "tool", "content": "done"}), "messages.0.role"),
    "the system's role": (good({"role": "system", "content": "Be brief."}, HELLO), "messages.0.role"),
    "an unknown field of a message": (good({**HELLO, "name": "Ann"}), "role and content are required"),
    "a message without content": (good({"role": "user"}), "role and content are required"),
    "the assistant first": (good(assistant(text("Hello.")), HELLO), "first message must use the"),
    "empty content": (good(user(), HELLO), "must have non-empty content"),
    "empty content as text": (good({"role": "user", "content": ""}), "must have non-empty content"),
    "an empty assistant message before the last": (
        good(HELLO, assistant(), HELLO),
        "must have non-empty content",
    ),
    "an empty text block": (good(user(text(""))), "text content blocks must be non-empty"),
    "a blank text block": (good(user(text(" \n"))), "must contain non-whitespace text"),
    "blank content as text": (good({"role": "user", "content": "  "}), "must contain non-whitespace text"),
    "text that is no string": (good(user(text("a", text=5))), "text: Input should be a valid string"),
    "an unknown block": (good(user({"type": "speech"})), "does not match any of the expected tags"),
    "an unknown field of a block": (good(user(text("a", id="b"))), "id: Extra inputs"),
    "a block that is a string": (good({"role": "user", "content": ["Hello."]}), "does not match any"),
    "white space at the end of the last assistant message": (
        good(HELLO, assistant(text("I am "))),
        "final assistant content cannot end with trailing whitespace",
    ),
    "tool_use from the user": (good(user(use())), "not permitted in a message of role 'user'"),
    "tool_result from the assistant": (
        good(HELLO, assistant(result())),
        "not permitted in a message of role",
    ),
    "a call without result": (good(HELLO, assistant(use()), HELLO), "found without `tool_result` blocks"),
    "a call without result at the end": (good(HELLO, assistant(use())), "found without `tool_result` blocks"),
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
    "another call's result": (
        good(HELLO, assistant(use()), user(result(), result("t9"))),
        "unexpected `tool_use_id` found in `tool_result` blocks: t9",
    ),
    "a result twice": (good(HELLO, assistant(use()), user(result(), result())), "must have a single result"),
    "a result again later": (
        good(HELLO, assistant(use()), user(result()), assistant(text("a")), user(result())),
        "unexpected `tool_use_id`",
    ),
    "text before results": (
        good(HELLO, assistant(use()), user(text("Also:"), result())),
        "`tool_result` blocks must come first",
    ),
    "one id for two calls": (good(HELLO, assistant(use(), use()), user(result())), "ids must be unique"),
    "one id for calls of two rounds": (
        good(HELLO, assistant(use()), user(result()), assistant(use()), user(result())),
        "ids must be unique",
    ),
    "arguments as text": (
        good(HELLO, assistant(use(input="{}")), user(result())),
        "input: Input should be a valid",
    ),
    "arguments as a list": (
        good(HELLO, assistant(use(input=[])), user(result())),
        "input: Input should be a valid",
    ),
    "a dot in a call's id": (
        good(HELLO, assistant(use("a.b")), user(result("a.b"))),
        "tool_use.id: String should",
    ),
    "a dot in a call's name": (
        good(HELLO, assistant(use(name="a.b")), user(result())),
        "tool_use.name: String",
    ),
    "a call without input": (
        good(HELLO, assistant({"type": "tool_use", "id": "t1", "name": "agent_spawn"}), user(result())),
        "input: Field required",
    ),
    "a number as a result": (
        good(HELLO, assistant(use()), user(result(content=5))),
        "content: Input should be",
    ),
    "an empty text in a result": (
        good(HELLO, assistant(use()), user(result(content=[text("")]))),
        "text content blocks must be non-empty",
    ),
    "is_error as text": (good(HELLO, assistant(use()), user(result(is_error="no"))), "is_error"),
    "five breakpoints": (good(user(*[text("a", **CACHED)] * 5)), "A maximum of 4 blocks"),
    "an unknown cache_control": (
        good(user(text("a", cache_control={"type": "forever"}))),
        "cache_control.type",
    ),
    "an unknown ttl": (
        good(user(text("a", cache_control={"type": "ephemeral", "ttl": "9m"}))),
        "cache_control.ttl",
    ),
    "cache_control on an empty text": (good(user(text("", **CACHED))), "cannot be set for empty text"),
    "changed thinking": (
        good(HELLO, assistant({**THOUGHT, "thinking": "Hm!"}, text("a")), HELLO),
        "Invalid `signature` in `thinking` block",
    ),
    "thinking without signature": (
        good(HELLO, assistant({"type": "thinking", "thinking": "Hm."}, text("a")), HELLO),
        "signature: Field required",
    ),
    "thinking of other tools": (good(*ROUND, tools=[tool(), tool("more")]), BOUND),
    "thinking of another prompt": (good(*ROUND, system="Be brief."), BOUND),
    "thinking of another transcript": (good(user(text("Hi.")), *ROUND[1:]), BOUND),
    "thinking that was moved": (good(HELLO, assistant(text("a"), THOUGHT, use()), user(result())), BOUND),
    "thinking in the wrong order": (
        good(HELLO, assistant(HIDDEN, THOUGHT, use()), user(result())),
        BOUND,
    ),
    "thinking before which some was added": (
        good(*ROUND, assistant(ALONE, text("b")), HELLO),
        BOUND,
    ),
    "thinking of an unknown kind": (good(thinking={"type": "some"}), "is not supported for this model"),
    "bindings of no thinking": (good(thinking={"type": "disabled", "block_binding": DROPS}), "Extra inputs"),
    "bindings to be kept": (
        good(thinking={"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "keep"}}),
        "prefix_mismatch_behavior",
    ),
    "changed redacted thinking": (
        good(HELLO, assistant({**HIDDEN, "data": "x" + HIDDEN["data"]}, text("a")), HELLO),
        "Invalid `data`",
    ),
    "thinking at a message's end": (
        good(HELLO, assistant(text("a"), THOUGHT), HELLO),
        "cannot be `thinking`",
    ),
}


@pytest.mark.parametrize("body", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_it_accepts(body: JsonObject) -> None:
    assert check_body(body, {}) == body


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


def test_a_block_binding_needs_the_header_of_its_beta() -> None:
    body = good(thinking={"type": "adaptive", "block_binding": DROPS})
    check_betas({"anthropic-beta": BINDING_BETA}, body)
    with pytest.raises(Refused, match=r"block_binding: Extra inputs"):
        check_betas({}, body)


async def test_thinking_between_calls_is_bound_to_them(
    service: AnthropicService, client: httpx2.AsyncClient
) -> None:
    service.default = BenchPersona(rounds=2, thinks=True)
    messages: list[JsonObject] = [HELLO]
    for _ in range(2):
        reply = (await client.post("/v1/messages", json=good(*messages, stream=False))).json()["content"]
        calls = [block["id"] for block in reply if block["type"] == "tool_use"]
        messages += [assistant(*reply), user(*(result(call) for call in calls))]
    assert [block["type"] for block in reply] == ["thinking", "tool_use"] * 2
    assert (await client.post("/v1/messages", json=good(*messages))).status_code == 200
    first = messages[1]["content"]
    for changed in ([first[0], first[2], first[1], first[3]], [*first[:2], first[3]]):
        response = await client.post("/v1/messages", json=good(HELLO, assistant(*changed), *messages[2:]))
        assert response.status_code == 400
    assert len(service.refused) == 2


@pytest.fixture
async def service() -> AsyncIterator[AnthropicService]:
    async with AnthropicService() as service:
        yield service


@pytest.fixture
async def client(service: AnthropicService) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(
        base_url=service.base_url, headers=HEADERS, timeout=5, trust_env=False
    ) as client:
        yield client


def events_of(body: bytes) -> list[JsonObject]:
    events = SSEParser().feed(body)
    for event in events:
        assert json.loads(event.data)["type"] == event.event.decode()
    return [json.loads(event.data) for event in events]


@pytest.mark.parametrize(
    ("headers", "status", "kind"),
    [
        ({"x-api-key": ""}, 401, "authentication_error"),
        ({"x-api-key": "wrong"}, 401, "authentication_error"),
        ({"x-api-key": "", "authorization": "Bearer wrong"}, 401, "authentication_error"),
        ({"x-api-key": "", "authorization": "Basic test-key"}, 401, "authentication_error"),
        ({"anthropic-version": ""}, 400, "invalid_request_error"),
        ({"anthropic-version": "latest"}, 400, "invalid_request_error"),
        ({"content-type": "text/plain"}, 400, "invalid_request_error"),
    ],
)
async def test_it_refuses_headers(
    service: AnthropicService, client: httpx2.AsyncClient, headers: dict[str, str], status: int, kind: str
) -> None:
    response = await client.post("/v1/messages", json=good(), headers=headers)
    assert response.status_code == status
    body = response.json()
    assert body["type"] == "error"
    assert body["error"]["type"] == kind
    assert body["request_id"].startswith("req_")
    assert len(service.refused) == 1
    assert len(service.requests) == 0


async def test_it_refuses_a_request_without_version(service: AnthropicService) -> None:
    headers = {name: value for name, value in HEADERS.items() if name != "anthropic-version"}
    async with httpx2.AsyncClient(base_url=service.base_url, trust_env=False) as client:
        response = await client.post("/v1/messages", json=good(), headers=headers)
    assert response.status_code == 400
    assert "anthropic-version: header is required" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "headers",
    [
        {"x-api-key": "test-key"},
        {"authorization": "Bearer test-key"},
        {"authorization": "Bearer test-key", "anthropic-version": "2026-10-21"},
    ],
)
async def test_it_accepts_the_keys_of_old_and_new_clients(
    service: AnthropicService, headers: dict[str, str]
) -> None:
    rest = {name: value for name, value in HEADERS.items() if name != "x-api-key"}
    async with httpx2.AsyncClient(base_url=service.base_url, trust_env=False) as client:
        response = await client.post("/v1/messages", json=good(), headers={**rest, **headers})
    assert response.status_code == 200


@pytest.mark.parametrize(
    "body", [b"{", b"", b"\xff\xfe", b'{"model": "\xff"}', json.dumps(good(user(text("\ud83d")))).encode()]
)
async def test_it_refuses_what_is_no_json(client: httpx2.AsyncClient, body: bytes) -> None:
    response = await client.post("/v1/messages", content=body)
    assert response.status_code == 400
    assert "not valid JSON" in response.json()["error"]["message"]


async def test_it_knows_no_other_address_or_method(client: httpx2.AsyncClient) -> None:
    assert (await client.post("/v1/complete", json=good())).status_code == 404
    assert (await client.get("/v1/messages")).status_code == 405


async def test_a_prompt_over_the_window_is_too_long() -> None:
    async with AnthropicService(max_input_tokens=50) as service:
        async with httpx2.AsyncClient(base_url=service.base_url, headers=HEADERS, trust_env=False) as client:
            response = await client.post("/v1/messages", json=good())
    assert response.status_code == 400
    assert "prompt is too long" in response.json()["error"]["message"]


async def test_a_stream_has_the_documented_events_in_order(
    service: AnthropicService, client: httpx2.AsyncClient
) -> None:
    call = Call("agent_spawn", {"task": "look around in the garden"}, id="t7")
    service.replies.append(Reply(text="I will.", calls=(call,), thinking="Hm.", usage={"output_tokens": 9}))
    response = await client.post("/v1/messages", json=good())
    assert response.headers["content-type"].startswith("text/event-stream")
    events = events_of(response.content)
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["message_start", "ping"]
    assert kinds[-2:] == ["message_delta", "message_stop"]
    starts = [event["content_block"]["type"] for event in events if event["type"] == "content_block_start"]
    assert starts == ["thinking", "text", "tool_use"]
    raw = "".join(event["delta"].get("partial_json", "") for event in events if "delta" in event)
    assert json.loads(raw) == call.arguments
    assert events[-2]["delta"]["stop_reason"] == "tool_use"
    assert events[-2]["usage"]["output_tokens"] == 9
    assert events[0]["message"]["usage"]["input_tokens"] > 10
    assert service.completed == 1


async def test_without_stream_it_answers_with_one_message(
    service: AnthropicService, client: httpx2.AsyncClient
) -> None:
    service.replies.append(Reply(text="I will.", calls=(Call("agent_spawn", '{"task":"cut o'),)))
    message = (await client.post("/v1/messages", json=good(stream=False))).json()
    assert [block["type"] for block in message["content"]] == ["text", "tool_use"]
    assert message["content"][1]["input"] == {}  # what naive clients take for whole
    assert message["stop_reason"] == "tool_use"


async def test_a_script_may_look_at_the_request(
    service: AnthropicService, client: httpx2.AsyncClient
) -> None:
    service.default = lambda request: Reply(text=f"{len(request['messages'])} messages")
    message = (await client.post("/v1/messages", json=good(stream=False))).json()
    assert message["content"][0]["text"] == "3 messages"
    assert service.requests[0]["messages"][0]["content"] == "Start two agents."


async def test_a_script_that_fails_is_told_to_the_client_and_to_the_test() -> None:
    def broken(request: JsonObject) -> Reply:
        raise LookupError("no such reply")

    with pytest.raises(LookupError):
        async with AnthropicService(default=broken) as service:
            async with httpx2.AsyncClient(
                base_url=service.base_url, headers=HEADERS, trust_env=False
            ) as client:
                assert (await client.post("/v1/messages", json=good())).status_code == 500


async def test_a_failure_has_its_status_and_headers(
    service: AnthropicService, client: httpx2.AsyncClient
) -> None:
    service.replies.append(HttpFailure(429, "rate_limit_error", headers={"retry-after": "7"}))
    response = await client.post("/v1/messages", json=good())
    assert response.status_code == 429
    assert response.headers["retry-after"] == "7"
    assert response.json()["error"]["type"] == "rate_limit_error"


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (Break("error", 1), lambda body: b"event: error" in body),
        (Break("garbage", 1), lambda body: b"{not json" in body),
        (Break("end", 1), lambda body: body.endswith(b"\n\n")),
    ],
    ids=["error", "garbage", "end"],
)
async def test_a_stream_may_break(
    service: AnthropicService, client: httpx2.AsyncClient, broken: Break, check: Callable[[bytes], bool]
) -> None:
    service.replies.append(Reply(text="One two three", broken=broken))
    body = (await client.post("/v1/messages", json=good())).content
    assert b'"One "' in body
    assert b"two" not in body
    assert b"message_stop" not in body
    assert check(body)


async def test_a_stream_may_be_cut(service: AnthropicService, client: httpx2.AsyncClient) -> None:
    service.replies.append(Reply(text="One two three", broken=Break("cut", 1)))
    with pytest.raises(httpx2.TransportError):
        await client.post("/v1/messages", json=good())


async def test_it_sees_a_client_that_leaves(service: AnthropicService, client: httpx2.AsyncClient) -> None:
    service.replies.append(Reply(text="One two three", broken=Break("stall", 1)))
    async with client.stream("POST", "/v1/messages", json=good()) as response:
        await anext(response.aiter_raw())
        assert service.open_streams == 1
    await service.wait_disconnects(1)
    await service.wait_open(0)
    assert service.completed == 0


async def test_a_held_stream_goes_on_when_it_is_let(
    service: AnthropicService, client: httpx2.AsyncClient
) -> None:
    hold = asyncio.Event()
    service.replies.append(Reply(text="One two three", hold=hold, hold_at=1))
    async with client.stream("POST", "/v1/messages", json=good()) as response:
        chunks = response.aiter_raw()
        first = b""
        async with asyncio.timeout(5):
            while b"One" not in first:
                first += await anext(chunks)
        assert b"two" not in first
        hold.set()
        rest = b"".join([chunk async for chunk in chunks])
    assert b"three" in rest


async def test_it_serves_500_streams_at_once(service: AnthropicService) -> None:
    hold = asyncio.Event()
    service.default = Reply(text="One two three", hold=hold, hold_at=1)
    port = int(service.base_url.rpartition(":")[2])
    body = json.dumps(good())
    head = "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items())
    message = f"POST /v1/messages HTTP/1.1\r\n{head}content-length: {len(body)}\r\n\r\n{body}".encode()

    async def ask() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(message)
        answer = await reader.readuntil(b"\r\n0\r\n\r\n")
        writer.close()
        await writer.wait_closed()
        return answer

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(asyncio.wait_for(ask(), 5)) for _ in range(500)]
        await service.wait_open(500)
        hold.set()
    assert all(b"three" in task.result() for task in tasks)
    assert service.completed == 500


def test_the_bench_persona_calls_three_times_and_then_answers() -> None:
    persona = BenchPersona(rounds=3, tokens=40)
    messages: list[JsonObject] = [user(text("Go."))]
    for turn in range(2):
        for number in range(3):
            reply = persona(good(*messages))
            assert reply.calls == (Call("agent_spawn", {"task": "sample"}),)
            call_id = f"t{turn}_{number}"
            messages += [assistant(use(call_id)), user(result(call_id))]
        reply = persona(good(*messages))
        assert reply.calls == ()
        assert len(reply.chunks or ()) == 40
        messages += [assistant(text(reply.text.strip())), user(text("Again."))]
    assert rounds_so_far(messages) == 0


def test_the_bench_persona_only_talks_when_tools_are_off() -> None:
    persona = BenchPersona()
    assert persona(good(HELLO, tool_choice={"type": "none"})).calls == ()
    assert persona(good(HELLO, tools=[])).calls == ()


async def test_it_runs_as_a_process_of_its_own() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.stand_ins.anthropic_service",
        "--tokens",
        "5",
        cwd=Path(__file__).parents[2],
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(5):
            url = (await process.stdout.readline()).decode().strip()
            async with httpx2.AsyncClient(base_url=url, headers=HEADERS, trust_env=False) as client:
                response = await client.post("/v1/messages", json=good(tool_choice={"type": "none"}))
        assert sum(event["type"] == "content_block_delta" for event in events_of(response.content)) == 5
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), 5)


# The prompt cache. A block has 4 KB, which is 1,000 tokens and a few.

LONG = "word " * 800


def prompt(*messages: JsonObject, **more: Any) -> JsonObject:
    """Make a body with a mark at its tool, its system prompt and its last message."""
    messages[-1]["content"][-1].update(CACHED)
    given = {
        "model": "claude-sonnet-5-5",
        "tools": [tool(description=LONG, **CACHED)],
        "system": [text(LONG, **CACHED)],
    }
    return {**good(*messages), **given, **more}


def turns(count: int) -> list[JsonObject]:
    said = [(user(text(f"{number} {LONG}")), assistant(text("Yes."))) for number in range(count)]
    return [message for turn in said for message in turn]


def thousands(cache: PromptCache, body: JsonObject, now: float = 0.0) -> tuple[int, int]:
    """Give the tokens read and stored, in thousands."""
    usage = cache.count(body, now)
    return usage["cache_read_input_tokens"] // 1000, usage["cache_creation_input_tokens"] // 1000


def test_the_cache_reads_what_was_stored_and_stores_what_is_new() -> None:
    cache = PromptCache()
    assert thousands(cache, prompt(*turns(1)[:1])) == (0, 3)
    assert thousands(cache, prompt(*turns(2)[:3])) == (3, 1)
    assert thousands(cache, prompt(*turns(2)[:3])) == (4, 0)
    # Without a mark behind them the last words are neither.
    unmarked = good(*turns(2)[:3])
    body = {**prompt(*turns(2)[:3]), "messages": unmarked["messages"]}
    assert thousands(cache, body) == (2, 0) and cache.count(body, 0.0)["input_tokens"] > 2000


@pytest.mark.parametrize(
    ("changed", "read"),
    [
        ({"tools": [tool(description=f"{LONG}.", **CACHED)]}, 0),
        ({"model": "claude-opus-5-5"}, 0),
        ({"thinking": {"type": "adaptive"}}, 0),
        ({"system": [text(f"{LONG}.", **CACHED)]}, 1),
        ({"tool_choice": {"type": "none"}}, 2),
        ({"messages": [user(text(f"0 {LONG}.", **CACHED))]}, 2),
        ({"max_tokens": 7, "stream": False}, 3),
    ],
)
def test_a_change_spoils_the_cache_from_there_on(changed: JsonObject, read: int) -> None:
    cache = PromptCache()
    cache.count(prompt(*turns(1)[:1]), 0.0)
    assert thousands(cache, {**prompt(*turns(1)[:1]), **changed})[0] == read


def test_a_mark_looks_back_over_twenty_blocks() -> None:
    for blocks, read in ((19, 3), (20, 2)):
        cache = PromptCache()
        cache.count(prompt(*turns(1)[:1]), 0.0)
        more = user(*[text("Hm.") for _ in range(blocks - 1)])
        assert thousands(cache, prompt(*turns(1), more))[0] == read


def test_the_cache_forgets_after_five_minutes_without_use() -> None:
    cache = PromptCache()
    for now, read in ((0.0, 0), (299.0, 3), (598.0, 3), (898.0, 0)):
        assert thousands(cache, prompt(*turns(1)[:1]), now)[0] == read


@pytest.mark.parametrize(("model", "stored"), [("claude-haiku-5-5", 2), ("claude-opus-4-6", 0)])
def test_a_short_prompt_is_not_cached(model: str, stored: int) -> None:
    body = prompt(user(text("Hello.")), model=model)
    assert thousands(PromptCache(), body) == (0, stored)


async def test_a_request_that_only_fills_the_cache_uses_no_script(
    service: AnthropicService, client: httpx2.AsyncClient
) -> None:
    service.replies.append(Reply(text="Hello."))
    body = prompt(*turns(1)[:1], max_tokens=0, stream=False)
    message = (await client.post("/v1/messages", json=body)).json()
    assert (message["content"], message["stop_reason"]) == ([], "max_tokens")
    assert message["usage"]["output_tokens"] == 0 and message["usage"]["cache_creation_input_tokens"] > 3000
    assert (service.received, len(service.replies), service.warmings) == (0, 1, [body])
