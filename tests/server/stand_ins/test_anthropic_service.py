"""The stand-in for the Messages API refuses, binds and caches by the service's rules."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from tests.stand_ins.anthropic_binding import Prefix
from tests.stand_ins.anthropic_cache import PromptCache
from tests.stand_ins.anthropic_persona import BenchPersona
from tests.stand_ins.anthropic_rules import BINDING_BETA, check_betas, check_body
from tests.stand_ins.anthropic_script import JsonObject, Refused, Reply, redacted_data, signature_of
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
    "a result without content": good(
        HELLO, assistant(use()), user({"type": "tool_result", "tool_use_id": "t1"})
    ),
    "an empty assistant message at the end": good(HELLO, {"role": "assistant", "content": []}),
    "a system prompt in blocks": good(system=[text("Be brief.", **CACHED)]),
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


@pytest.mark.parametrize(
    ("headers", "status", "kind"),
    [
        ({"x-api-key": "wrong"}, 401, "authentication_error"),
        ({"anthropic-version": "latest"}, 400, "invalid_request_error"),
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


async def test_an_exception_of_a_script_fails_the_request_and_the_test() -> None:
    def broken(request: JsonObject) -> Reply:
        raise LookupError("no such reply")

    with pytest.raises(LookupError):
        async with AnthropicService(default=broken) as service:
            async with httpx2.AsyncClient(
                base_url=service.base_url, headers=HEADERS, trust_env=False
            ) as client:
                assert (await client.post("/v1/messages", json=good())).status_code == 500


# The prompt cache. A block has 4 KB, which is 1,000 tokens and a few.

LONG = "word " * 800


def prompt(*messages: JsonObject, **more: Any) -> JsonObject:
    """Make a body with a mark at its tool, its system prompt and its last message."""
    messages[-1]["content"][-1].update(CACHED)
    head = {"tools": [tool(description=LONG, **CACHED)], "system": [text(LONG, **CACHED)]}
    return {**good(*messages), "model": "claude-sonnet-5-5", **head, **more}


def turns(count: int) -> list[JsonObject]:
    pairs = [(user(text(f"{number} {LONG}")), assistant(text("Yes."))) for number in range(count)]
    return [message for pair in pairs for message in pair]


def thousands(cache: PromptCache, body: JsonObject, now: float = 0.0) -> tuple[int, int]:
    """Give the tokens read and stored, in thousands."""
    usage = cache.count(body, now)
    return usage["cache_read_input_tokens"] // 1000, usage["cache_creation_input_tokens"] // 1000


def test_the_cache_reads_the_stored_prefix_and_stores_the_new_blocks() -> None:
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
