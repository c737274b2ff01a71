"""The Anthropic provider: its requests, replies and failures."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import msgspec
import pytest

from conductor.errors import ModelError, ModelFailure
from conductor.messages import AssistantMessage, ToolCall, ToolResult, UserMessage
from conductor.models.base import Finished, ModelEvent, TextDelta, Usage
from conductor.plugins.models import anthropic_client
from conductor.plugins.models.anthropic import AnthropicProvider
from conductor.plugins.models.anthropic_request import Account
from conductor.plugins.models.anthropic_stream import ReplyDecoder, WarmingDecoder
from conductor.plugins.models.service_errors import retry_after_s
from conductor.plugins.models.tool_names import ToolNameMap
from tests.models import AnthropicService, Break, Call, HttpFailure, JsonObject, Reply
from tests.server.wires import WAIT
from tests.stand_ins.anthropic_binding import BOUND_ELSEWHERE
from tests.stand_ins.anthropic_rules import BINDING_BETA
from tests.unit.models.replies import SECRET, ask, collect, failure_of, finished_of, text_of

assert anthropic_client  # imported here: it takes a while, and no test's wait should hold that


@pytest.fixture
async def service() -> AsyncIterator[AnthropicService]:
    async with AnthropicService() as service:
        yield service


@pytest.fixture
async def provider(service: AnthropicService) -> AsyncIterator[AnthropicProvider]:
    provider = service.provider()
    yield provider
    await provider.aclose()


async def test_a_reply_s_names_ids_usage_and_thinking_come_through(
    service: AnthropicService, provider: AnthropicProvider
) -> None:
    usage = {
        "input_tokens": 7,
        "output_tokens": 9,
        "cache_read_input_tokens": 3,
        "cache_creation_input_tokens": 2,
    }
    reply = Reply(
        text="Yes.",
        calls=(Call("agent_spawn", {"task": "x"}, "t7"),),
        thinking="Let me see.",
        redacted="R",
        usage=usage,
    )
    service.replies.append(reply)
    events = await collect(provider)
    assert events[:-1] == [TextDelta("Yes."), ToolCall("t7", "agent.spawn", '{"task":"x"}')]
    finished = finished_of(events)
    assert finished.usage == Usage(7, 9, 3, 2)
    assert [block["type"] for block in reasoning_in(finished)] == ["thinking", "redacted_thinking"]
    assert reasoning_in(finished)[0]["thinking"] == "Let me see."


def reasoning_in(finished: Finished) -> list[JsonObject]:
    """Give the thinking that a reply holds for its way back."""
    blocks = msgspec.json.decode(finished.opaque or "")["blocks"]
    return [block["block"] for block in blocks if block["type"] == "reasoning"]


@pytest.mark.parametrize("refusals", [1, 2])
async def test_a_request_refused_for_its_thinking_is_sent_again_without_it(
    service: AnthropicService, provider: AnthropicProvider, refusals: int
) -> None:
    service.replies.append(Reply(calls=(Call("agent_spawn", {"task": "x"}, "t7"),), thinking="Hm."))
    *_, call, finished = await collect(provider)
    assert isinstance(call, ToolCall) and isinstance(finished, Finished)
    service.replies += [HttpFailure(400, "invalid_request_error", BOUND_ELSEWHERE)] * refusals
    service.replies.append(Reply(text="Done."))
    reply = AssistantMessage(text="", calls=(call,), opaque=finished.opaque, provider=provider.name)
    second = ask(UserMessage("Hello."), reply, ToolResult("t7", "ok"))
    if refusals == 1:
        assert TextDelta("Done.") in await collect(provider, second)
    else:
        assert (await failure_of(provider, second)).reason == "protocol"
    _, refused, last = service.requests
    assert refused["thinking"]["block_binding"] == {"prefix_mismatch_behavior": "drop_block"}
    assert refused["messages"][1]["content"][0]["type"] == "thinking"
    assert [block["type"] for block in last["messages"][1]["content"]] == ["tool_use"]
    assert "block_binding" not in last.get("thinking", {})
    assert [headers.get("anthropic-beta") for headers in service.headers] == [None, BINDING_BETA, None]


@pytest.mark.parametrize(
    ("reason", "stop"),
    [
        ("end_turn", "end_turn"),
        ("stop_sequence", "end_turn"),
        ("max_tokens", "max_tokens"),
        ("refusal", "refusal"),
        ("pause_turn", "pause_turn"),
        ("model_context_window_exceeded", "context_window"),
        ("something_new", "end_turn"),
    ],
)
async def test_stop_reasons(
    service: AnthropicService, provider: AnthropicProvider, reason: str, stop: str
) -> None:
    service.replies.append(Reply(text="Well.", stop_reason=reason))
    assert finished_of(await collect(provider)).stop == stop


STOP: list[JsonObject] = [
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
    {"type": "message_stop"},
]


def decoded(*events: JsonObject) -> list[ModelEvent]:
    """Decode a stream of these events."""
    decoder = ReplyDecoder(ToolNameMap([]), str)
    stream = b"".join(b"data: " + msgspec.json.encode(event) + b"\n\n" for event in events)
    return list(decoder.feed(stream))


def block(content: JsonObject, *deltas: JsonObject) -> list[JsonObject]:
    """Make the events of a content block."""
    return [
        {"type": "content_block_start", "index": 0, "content_block": content},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": 0},
    ]


def test_events_that_are_not_known_are_ignored() -> None:
    assert decoded(
        {"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 5, "new": {"x": 1}}}},
        {"type": "brand_new", "x": 1},
        *block({"type": "novel"}, {"type": "novel_delta", "x": 1}),
        *STOP,
    ) == [Finished("end_turn", Usage(5, 2))]


def test_a_call_that_never_ended_is_not_taken_for_whole() -> None:
    start, _ = block({"type": "tool_use", "id": "t1", "name": "a", "input": {}})
    with pytest.raises(ModelError) as caught:
        decoded(start, {"type": "message_delta", "delta": {"stop_reason": "tool_use"}}, STOP[1])
    assert caught.value.reason == "protocol"


def test_arguments_may_come_with_the_start_of_their_call() -> None:
    start = {"type": "tool_use", "id": "t1", "name": "a", "input": {"path": "/x"}}
    assert decoded(*block(start), *STOP)[0] == ToolCall("t1", "a", '{"path":"/x"}')


def raw(*events: JsonObject | str) -> bytes:
    """Make a stream of events and other lines."""
    lines = (event if isinstance(event, str) else msgspec.json.encode(event).decode() for event in events)
    return "".join(f"data: {line}\n\n" for line in lines).encode()


def said(*texts: str | None) -> list[JsonObject]:
    return block({"type": "text", "text": ""}, *({"type": "text_delta", "text": text} for text in texts))


# Of services that speak this API nearly; the SDK's own stream takes all of them.
NEARLY: dict[str, bytes] = {
    "OpenAI's end mark behind the end": raw(*said("Hi."), *STOP, "[DONE]"),
    "OpenAI's end mark for the end": raw(*said("Hi."), STOP[0], "[DONE]"),
    "no end": raw(*said("Hi."), STOP[0]),
    "words that keep the connection alive": raw("ping", *said("Hi."), "keep-alive", *STOP),
    "figures with a fraction": raw(
        {"type": "message_start", "message": {"usage": {"input_tokens": 3.0, "output_tokens": 0.0}}},
        *said("Hi."),
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2.0}},
        STOP[1],
    ),
    "figures that are none": raw(
        {"type": "message_start", "message": {"usage": {"input_tokens": "3", "output_tokens": None}}},
        *said("Hi."),
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": []},
        STOP[1],
    ),
    "the text at the start of its block": raw(*block({"type": "text", "text": "Hi."}), *STOP),
    "half of the text at the start of its block": raw(
        *block({"type": "text", "text": "H"}, {"type": "text_delta", "text": "i."}), *STOP
    ),
    "texts null": raw(*block({"type": "text", "text": None}), *said(None, "Hi.", None), *STOP),
    "an empty stop reason": raw(
        *said("Hi."), {"type": "message_delta", "delta": {"stop_reason": ""}}, STOP[1]
    ),
    "a stop reason that is null behind the true one": raw(
        *said("Hi."), STOP[0], {"type": "message_delta", "delta": {"stop_reason": None}}, STOP[1]
    ),
    "a byte order mark": b"\xef\xbb\xbf" + raw(*said("Hi."), *STOP),
    "lines that end by CR": raw(*said("Hi."), *STOP).replace(b"\n", b"\r"),
}


@pytest.mark.parametrize("stream", NEARLY.values(), ids=NEARLY)
async def test_a_whole_reply_of_a_service_that_speaks_nearly_this_api_is_taken(
    service: AnthropicService, provider: AnthropicProvider, stream: bytes
) -> None:
    service.play(HttpFailure(200, body=stream, headers={"content-type": "text/event-stream"}))
    events = await collect(provider)
    assert text_of(events) == "Hi." and finished_of(events).stop == "end_turn"
    assert service.received == 1


async def test_a_reply_without_a_stop_reason_is_cut_off(
    service: AnthropicService, provider: AnthropicProvider
) -> None:
    cut = HttpFailure(200, body=raw(*said("Hi."), "[DONE]"), headers={"content-type": "text/event-stream"})
    service.play(cut)
    assert (await failure_of(provider)).reason == "connection"


@pytest.mark.parametrize("signature", ["", None])
def test_thinking_and_its_signature_may_come_in_parts(signature: str | None) -> None:
    thinking = block(
        {"type": "thinking", "thinking": "", "signature": signature},
        {"type": "thinking_delta", "thinking": "Let "},
        {"type": "thinking_delta", "thinking": "me see."},
        {"type": "signature_delta", "signature": "sig"},
        {"type": "signature_delta", "signature": "nature"},
    )
    assert reasoning_in(finished_of(decoded(*thinking, *STOP))) == [
        {"type": "thinking", "thinking": "Let me see.", "signature": "signature"}
    ]


@pytest.mark.parametrize("stream", [b"data: {\n\n", b'data: {"type":"\xff"}\n\n', b"x" * 5_000_000])
def test_an_invalid_event_is_undecodable(stream: bytes) -> None:
    with pytest.raises(ModelError) as caught:
        ReplyDecoder(ToolNameMap([]), str).feed(stream)
    assert caught.value.reason == "undecodable"


def test_an_end_without_stop_reason_is_no_end() -> None:
    with pytest.raises(ModelError) as caught:
        ReplyDecoder(ToolNameMap([]), str).feed(b'data: {"type":"message_stop"}\n\n')
    assert caught.value.reason == "connection"


# How it fails

FAILURES: list[tuple[HttpFailure, ModelFailure, int]] = [
    (HttpFailure(401, "authentication_error", SECRET), "authentication", 1),
    (HttpFailure(429, "rate_limit_error", SECRET, {"retry-after": "0"}), "rate_limited", 3),
    (HttpFailure(503, body=b"<html>" + SECRET.encode()), "overloaded", 3),
    (HttpFailure(400, "invalid_request_error", f"prompt is too long: 5 > 4 {SECRET}"), "context_too_long", 1),
    (HttpFailure(302, headers={"location": "/v1/elsewhere"}), "protocol", 1),
    (HttpFailure(200, body=b"<html>" + SECRET.encode()), "protocol", 1),
]


@pytest.mark.parametrize(
    ("answer", "reason", "tries"), FAILURES, ids=lambda value: getattr(value, "status", None)
)
async def test_statuses(
    service: AnthropicService,
    provider: AnthropicProvider,
    answer: HttpFailure,
    reason: ModelFailure,
    tries: int,
) -> None:
    service.default = answer
    assert (await failure_of(provider)).reason == reason
    assert service.received == tries


def test_retry_after_is_read_in_all_its_forms() -> None:
    assert retry_after_s({"retry-after": "7"}) == 7.0
    assert retry_after_s({"retry-after-ms": "250", "retry-after": "7"}) == 0.25
    assert retry_after_s({"retry-after": "-1"}) == 0.0
    assert retry_after_s({"retry-after": "soon"}) is None
    assert retry_after_s({}) is None
    day = "Sat, 28 Nov 2026 12:0"
    assert retry_after_s({"retry-after": f"{day}1:00 GMT", "date": f"{day}0:20 GMT"}) == 40.0
    assert retry_after_s({"retry-after": f"{day}0:00 GMT", "date": f"{day}0:20 GMT"}) == 0.0
    assert retry_after_s({"retry-after": f"{day}1:00 GMT"}) is None
    assert retry_after_s({"retry-after": f"{day}1:00", "date": f"{day}0:20 GMT"}) is None


@pytest.fixture
def no_exceptions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)


@pytest.mark.usefixtures("no_exceptions")
@pytest.mark.parametrize("trust_env", [False, True])
async def test_the_environments_proxy_is_used_only_where_it_is_trusted(
    service: AnthropicService, monkeypatch: pytest.MonkeyPatch, trust_env: bool
) -> None:
    monkeypatch.setenv("HTTP_PROXY", service.base_url)
    account = Account("test-key", "http://models.invalid")
    provider = AnthropicProvider(account, "m", 1, trust_env=trust_env)
    await failure_of(provider, ask(may_retry=False))
    assert (service.received > 0) is trust_env
    await provider.aclose()


@pytest.mark.usefixtures("no_exceptions")
@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
async def test_a_service_on_this_machine_needs_no_proxy(
    service: AnthropicService, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    address = service.base_url.replace("127.0.0.1", name)
    provider = AnthropicProvider(Account("test-key", address), "m", 1)
    assert await collect(provider)
    await provider.aclose()


# Connections


async def test_an_answer_that_is_no_stream_is_closed_at_once(
    service: AnthropicService, provider: AnthropicProvider
) -> None:
    service.replies.append(Reply(text="One", content_type="text/html", broken=Break("stall", 0)))
    error = await failure_of(provider)  # its traceback holds the response, so that nothing else closes it
    assert error.reason == "protocol"
    await service.wait_disconnects(1)


async def test_a_connection_is_kept_and_used_again(
    service: AnthropicService, provider: AnthropicProvider
) -> None:
    for _ in range(5):
        await collect(provider)
    assert service.connections == 1


async def test_a_connection_is_kept_even_if_the_reader_leaves_before_the_response_has_ended(
    service: AnthropicService, provider: AnthropicProvider
) -> None:
    end = asyncio.Event()
    service.replies.append(Reply(text="One", hold_end=end))
    async with asyncio.timeout(WAIT), aclosing(provider.stream(ask())) as stream:
        async for event in stream:
            if isinstance(event, Finished):
                break
    await collect(provider)  # by now the service would have seen the first connection closed
    assert service.disconnects == []
    end.set()
    await service.wait_completed(2)
    assert service.connections == 2


async def test_closing_the_provider_ends_running_streams(service: AnthropicService) -> None:
    provider = service.provider()
    service.default = Reply(text="One two", broken=Break("stall", 1))
    with pytest.raises(ModelError, match="connection"):
        async with asyncio.timeout(WAIT), aclosing(provider.stream(ask())) as stream:
            async for _ in stream:
                await provider.aclose()
    await service.wait_disconnects(1)


async def test_streams_that_begin_together_start_the_provider_once(service: AnthropicService) -> None:
    provider = service.provider()
    await asyncio.gather(*(collect(provider) for _ in range(10)))
    assert service.completed == 10
    await provider.aclose()


def test_importing_the_provider_does_not_import_the_http_client() -> None:
    code = (
        "import sys, conductor.plugins.models.anthropic as a; a.AnthropicProvider(a.Account('k'), 'm', 1); "
        "sys.exit(any(m in sys.modules for m in ('anthropic', 'httpx2', 'aiohttp')))"
    )
    root = Path(__file__).parents[3]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, timeout=60, check=False).returncode == 0


def test_the_answer_to_a_warming_is_its_usage() -> None:
    for data, usage in (
        (b'{"content":[],"usage":{"cache_creation_input_tokens":7,"input_tokens":2}}', Usage(2, 0, 0, 7)),
        (b"{}", Usage()),
    ):
        decoder = WarmingDecoder()
        assert decoder.feed(data[:9]) == decoder.feed(data[9:]) == []
        assert decoder.end() == [Finished("max_tokens", usage)] and decoder.finished
    with pytest.raises(ModelError, match="do not speak the same protocol"):
        WarmingDecoder().end()
