"""The contract of the providers of services, each over the stand-in of its service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from functools import partial
from typing import Any

import msgspec
import pytest

from conductor.errors import ModelFailure
from conductor.messages import AssistantMessage, Message, ToolCall, ToolResult, UserMessage
from conductor.models.base import ModelProvider, TextDelta
from tests.hasty import SHORT_S, hasten
from tests.models import AnthropicService, Break, Call, HttpFailure, ModelService, OpenAIService, Reply
from tests.server.wires import WAIT, until
from tests.stand_ins.bedrock_service import BedrockService
from tests.unit.models.replies import SPAWN, STATUS, ask, calls_of, collect, failure_of, finished_of, text_of

TOOLS = (SPAWN, STATUS)
OVERLOADED = HttpFailure(529, "overloaded_error")
LOOK = Call("agent_spawn", '{"task":"look"}', "call_1")
_SERVICES: dict[str, Callable[[], ModelService]] = {
    "anthropic": AnthropicService,
    "openai chat": partial(OpenAIService, "chat"),
    "openai responses": partial(OpenAIService, "responses"),
    "bedrock": BedrockService,
}


@pytest.fixture(params=_SERVICES)
async def service(request: pytest.FixtureRequest) -> AsyncIterator[ModelService]:
    async with _SERVICES[request.param]() as service:
        yield service
        assert list(service.refused) == []


@pytest.fixture
async def provider(service: ModelService) -> AsyncIterator[ModelProvider]:
    provider = service.provider()
    yield provider
    await provider.aclose()


def broken(kind: Any, after: int = 0, **more: Any) -> Reply:
    return Reply(text="One two", broken=Break(kind, after), **more)


# -- replies


@pytest.mark.parametrize("text", [(), ("I will ", "look."), ("Hello ", "wide ", "wörld 😀.")])
@pytest.mark.parametrize("calls", [(), (LOOK,), (LOOK, Call("agent_status", "{}", "call_2"))])
async def test_text_and_calls_arrive_in_order(
    service: ModelService, provider: ModelProvider, text: tuple[str, ...], calls: tuple[Call, ...]
) -> None:
    service.play(Reply(text="".join(text), chunks=text or None, calls=calls))
    events = await collect(provider, ask(tools=TOOLS))
    assert text_of(events) == "".join(text)
    expected = [ToolCall(str(call.id), call.name.replace("_", "."), call.raw) for call in calls]
    assert [event for event in events[:-1] if not isinstance(event, TextDelta)] == expected
    assert events[len(events) - 1 - len(expected) : -1] == expected
    assert finished_of(events).stop == ("tool_use" if calls else "end_turn")


async def test_a_stream_in_single_bytes_is_put_together(
    service: ModelService, provider: ModelProvider
) -> None:
    arguments = {"task": 'naïve "quotes" and 😀'}
    service.play(Reply(text="Öl 😀", calls=(Call("agent_spawn", arguments),), split_bytes=1))
    events = await collect(provider)
    assert text_of(events) == "Öl 😀"
    assert [msgspec.json.decode(call.arguments) for call in calls_of(events)] == [arguments]


async def test_arguments_that_the_limit_cut_are_not_completed(
    service: ModelService, provider: ModelProvider
) -> None:
    cut = '{"task":"write a very lo'
    service.play(Reply(calls=(Call("agent_spawn", cut),), stop_reason="max_tokens"))
    events = await collect(provider)
    assert finished_of(events).stop == "max_tokens"
    assert {call.arguments for call in calls_of(events)} <= {cut}


async def test_a_conversation_of_twenty_turns_is_never_refused(
    service: ModelService, provider: ModelProvider
) -> None:
    calls = (Call("agent_spawn", {"task": "x"}), Call("agent_status"))
    round_of_calls = Reply(text="One moment. ", calls=calls, thinking="Hm. So.", redacted="Ah.", pings=True)
    history: list[Message] = []
    for turn in range(20):
        service.play(round_of_calls, Reply(text="Done. "))
        history.append(UserMessage(f"Turn {turn}."))
        while not isinstance(history[-1], AssistantMessage):
            events = await collect(provider, ask(*history, tools=TOOLS))
            reply = AssistantMessage(
                text=text_of(events),
                calls=calls_of(events),
                opaque=finished_of(events).opaque,
                provider=provider.name,
            )
            history += [reply, *(ToolResult(call.call_id, '{"success":true}') for call in reply.calls)]
    assert service.received == service.completed == 40
    ids = [
        call.call_id for message in history if isinstance(message, AssistantMessage) for call in message.calls
    ]
    assert len(set(ids)) == 40


# -- failures


@pytest.mark.parametrize("failures", [(OVERLOADED, broken("error")), (broken("garbage"), broken("end"))])
async def test_a_failure_before_the_first_word_is_retried_twice(
    service: ModelService, provider: ModelProvider, failures: tuple[HttpFailure | Reply, ...]
) -> None:
    service.play(*failures, Reply(text="Here."))
    assert text_of(await collect(provider)) == "Here."
    assert service.received == 3
    service.play(*[OVERLOADED] * 3)
    assert (await failure_of(provider)).reason == "overloaded"
    assert service.received == 6


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("error", "overloaded"),
        ("stall", "timeout"),
        ("cut", "connection"),
        ("garbage", "undecodable"),
        ("end", "connection"),
    ],
)
async def test_a_failure_behind_the_first_word_is_not_retried(
    service: ModelService, provider: ModelProvider, kind: str, reason: ModelFailure
) -> None:
    hold = asyncio.Event()
    service.play(broken(kind, 1, hold=hold, hold_at=1))
    texts: list[str] = []

    def on_text(text: str) -> None:
        texts.append(text)
        hold.set()
        if kind == "stall":
            hasten(20 * SHORT_S)

    assert (await failure_of(provider, ask(silence_s=10 * SHORT_S), on_text)).reason == reason
    assert "".join(texts) == "One " and service.received == 1
    if kind == "stall":
        await service.wait_disconnects(1)
    assert await collect(provider)


async def test_a_service_that_is_silent_at_once_times_out(
    service: ModelService, provider: ModelProvider
) -> None:
    service.play(broken("stall"))
    failing = asyncio.create_task(failure_of(provider, ask(silence_s=10 * SHORT_S)))
    await until(lambda: service.received == 1)
    hasten(20 * SHORT_S)
    assert (await failing).reason == "timeout"
    await service.wait_disconnects(1)


# -- the end of a request


async def test_closing_the_stream_stops_the_request(service: ModelService, provider: ModelProvider) -> None:
    service.play(broken("stall", 1))
    async with asyncio.timeout(WAIT), aclosing(provider.stream(ask())) as stream:
        assert text_of([await anext(stream)]) == "One "
    await service.wait_disconnects(1)


@pytest.mark.parametrize("after", [0, 1])
async def test_cancelling_its_task_stops_the_request(
    service: ModelService, provider: ModelProvider, after: int
) -> None:
    service.play(broken("stall", after))
    first = asyncio.Event()

    async def consume() -> None:
        async with aclosing(provider.stream(ask())) as stream:
            async for _ in stream:
                first.set()

    task = asyncio.create_task(consume())
    await (asyncio.wait_for(first.wait(), WAIT) if after else service.wait_received(1))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, WAIT)
    await service.wait_disconnects(1)
