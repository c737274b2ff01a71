"""The scripted provider plays what a test wrote, and tells what became of each stream."""

from __future__ import annotations

import asyncio

import pytest

from conductor.errors import ModelError
from conductor.messages import ToolCall, UserMessage
from conductor.models.base import Finished, ModelEvent, ModelRequest, TextDelta
from conductor.models.scripted import Script, ScriptedProvider

REQUEST = ModelRequest("", (UserMessage("hello"),))


async def collect(provider: ScriptedProvider, request: ModelRequest = REQUEST) -> list[ModelEvent]:
    async with asyncio.timeout(5):
        return [event async for event in provider.stream(request)]


async def test_scripts_are_played_in_order_and_end_with_a_stop_reason() -> None:
    call = ToolCall("c1", "lamp.dim", "{}")
    provider = ScriptedProvider([[TextDelta("one"), call], [], [TextDelta("x"), Finished("max_tokens")]])
    assert await collect(provider) == [TextDelta("one"), call, Finished("tool_use")]
    assert await collect(provider) == [Finished("end_turn")]
    assert await collect(provider) == [TextDelta("x"), Finished("max_tokens")]
    assert provider.requests == [REQUEST] * 3
    assert not provider.closed.is_set()


async def test_a_function_decides_from_the_request() -> None:
    def script(request: ModelRequest) -> Script:
        return [TextDelta(request.system[::-1])]

    provider = ScriptedProvider(script)
    assert await collect(provider, ModelRequest("heron", ())) == [TextDelta("noreh"), Finished("end_turn")]


async def test_an_error_is_raised_where_it_stands() -> None:
    provider = ScriptedProvider([[TextDelta("so far"), ModelError("overloaded", "Too busy.")]])
    stream = provider.stream(REQUEST)
    assert await anext(stream) == TextDelta("so far")
    with pytest.raises(ModelError, match="Too busy"):
        await anext(stream)
    assert provider.record(0).closed.is_set()
    assert not provider.record(0).closed_early


async def test_a_request_without_a_script_fails() -> None:
    with pytest.raises(ModelError, match="no reply left"):
        await collect(ScriptedProvider([]))


async def test_a_stream_waits_for_an_event_and_sleeps_by_the_given_clock() -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    gate = asyncio.Event()
    provider = ScriptedProvider([[0.25, gate, TextDelta("now")]], sleep=sleep)
    task = asyncio.create_task(collect(provider))
    async with asyncio.timeout(5):
        await provider.record(0).started.wait()
        gate.set()
        assert await task == [TextDelta("now"), Finished("end_turn")]
    assert slept == [0.25]


async def test_a_stream_closed_early_is_told_apart() -> None:
    provider = ScriptedProvider([[TextDelta("a"), TextDelta("b")], [TextDelta("c")]])
    stream = provider.stream(REQUEST)
    await anext(stream)
    await stream.aclose()
    assert provider.closed.is_set()
    assert provider.record(0).closed_early
    await collect(provider)
    assert not provider.record(1).closed_early


async def test_cancelling_a_waiting_stream_closes_it_early() -> None:
    provider = ScriptedProvider([[asyncio.Event()]])
    task = asyncio.create_task(collect(provider))
    async with asyncio.timeout(5):
        await provider.record(0).started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await provider.closed.wait()
    assert provider.record(0).closed_early
