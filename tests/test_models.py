"""The scripted model in the process plays a test's script and records each stream."""

from __future__ import annotations

import asyncio

import pytest

from conductor.errors import ModelError
from conductor.messages import ToolCall, UserMessage
from conductor.models.base import Finished, ModelEvent, ModelRequest, TextDelta
from tests.models import Break, Call, HttpFailure, Reply, ScriptedProvider

REQUEST = ModelRequest("", (UserMessage("hello"),))


async def collect(provider: ScriptedProvider) -> list[ModelEvent]:
    async with asyncio.timeout(5):
        return [event async for event in provider.stream(REQUEST)]


async def test_scripts_are_played_in_order_and_end_with_a_stop_reason() -> None:
    call = ToolCall("c1", "lamp.dim", "{}")
    provider = ScriptedProvider([[TextDelta("one"), call], [], [TextDelta("x"), Finished("max_tokens")]])
    assert await collect(provider) == [TextDelta("one"), call, Finished("tool_use")]
    assert await collect(provider) == [Finished("end_turn")]
    assert await collect(provider) == [TextDelta("x"), Finished("max_tokens")]
    assert provider.requests == [REQUEST] * 3
    with pytest.raises(ModelError, match="no reply left"):
        await collect(provider)


async def test_an_answer_of_a_service_is_played_as_its_events() -> None:
    reply = Reply(text="Let me look.", calls=(Call("look", {"at": "it"}, id="c1"),))
    provider = ScriptedProvider([reply, HttpFailure(529), Reply(text="One two", broken=Break("cut", 1))])
    texts = [TextDelta("Let "), TextDelta("me "), TextDelta("look.")]
    assert await collect(provider) == [*texts, ToolCall("c1", "look", '{"at":"it"}'), Finished("tool_use")]
    for reason in ("overloaded", "connection"):
        with pytest.raises(ModelError) as caught:
            await collect(provider)
        assert caught.value.reason == reason


async def test_closed_early_is_true_only_for_a_stream_closed_before_its_end() -> None:
    provider = ScriptedProvider([[TextDelta("a"), TextDelta("b")], [asyncio.Event()], [TextDelta("c")]])
    stream = provider.stream(REQUEST)
    await anext(stream)
    await stream.aclose()
    waiting = asyncio.create_task(collect(provider))
    async with asyncio.timeout(5):
        await provider.record(1).started.wait()
        waiting.cancel()
        await provider.record(1).closed.wait()
    await collect(provider)
    assert [provider.record(number).closed_early for number in range(3)] == [True, True, False]
