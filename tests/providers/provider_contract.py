"""The contract of every model provider: cases that run over a `Harness`.

A provider's tests write a harness that scripts its own service, and run each of `CASES` over it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec
import pytest

from conductor.errors import ModelError
from conductor.messages import ToolCall, UserMessage
from conductor.models.base import (
    Finished,
    ModelEvent,
    ModelProvider,
    ModelRequest,
    StopReason,
    TextDelta,
    ToolDefinition,
)

SCHEMA = {"type": "object", "properties": {"task": {"type": "string"}}}
TOOLS = (
    ToolDefinition("agent.spawn", "Start an agent.", SCHEMA),
    ToolDefinition("agent.status", "Say how an agent is.", SCHEMA),
)


@dataclass(frozen=True)
class Answer:
    """A service's answer, without the format of any service.

    ``text`` is a delta an item. A call's ``name`` is the tool's dotted name. ``split_bytes`` sends the
    stream in pieces of this size. ``fails`` happens after ``after`` deltas, and after ``hold``
    if that is given, which is set when the deltas before were heard; ``status`` is an error instead of a
    stream, which says that the service is overloaded.
    """

    text: tuple[str, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    stop: StopReason = "end_turn"
    split_bytes: int | None = None
    fails: Literal["error", "stall", "cut", "status"] | None = None
    after: int = 0
    hold: asyncio.Event | None = None


class Harness(Protocol):
    """A provider and the service behind it. The provider tries twice again, with waits near zero."""

    @property
    def provider(self) -> ModelProvider:
        """The provider under test."""
        ...

    @property
    def received(self) -> int:
        """How many requests the service had."""
        ...

    def script(self, *answers: Answer) -> None:
        """Set the next answers of the service, in order."""
        ...

    async def wait_disconnects(self, count: int) -> None:
        """Wait, at most 5 s, until the client has dropped this number of requests."""
        ...

    async def wait_received(self, count: int) -> None:
        """Wait, at most 5 s, until the service has had this number of requests."""
        ...


def request(*, silence_s: float = 5.0) -> ModelRequest:
    """Make a request with a little of everything."""
    return ModelRequest(
        "Be brief.", [UserMessage("Start an agent.")], TOOLS, silence_s=silence_s, deadline_s=5.0
    )


async def collect(harness: Harness, *, silence_s: float = 5.0) -> list[ModelEvent]:
    """Give all events of one reply, within 5 s."""
    events: list[ModelEvent] = []
    async with asyncio.timeout(5), aclosing(harness.provider.stream(request(silence_s=silence_s))) as stream:
        async for event in stream:
            events.append(event)
    return events


async def hear_until_it_fails(
    harness: Harness, hold: asyncio.Event, *, silence_s: float = 5.0
) -> tuple[str, ModelError]:
    """Give the words of a reply that fails, and how it failed; ``hold`` is set at the first of them."""
    text = ""
    with pytest.raises(ModelError) as caught:
        async with (
            asyncio.timeout(5),
            aclosing(harness.provider.stream(request(silence_s=silence_s))) as stream,
        ):
            async for event in stream:
                text += text_of([event])
                hold.set()
    return text, caught.value


def text_of(events: list[ModelEvent]) -> str:
    """Join the words of a reply."""
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def calls_of(events: list[ModelEvent]) -> list[ToolCall]:
    """List the calls of a reply."""
    return [event for event in events if isinstance(event, ToolCall)]


def stop_of(events: list[ModelEvent]) -> StopReason:
    """Give the stop reason; a reply ends with exactly one `Finished`."""
    finished = [event for event in events if isinstance(event, Finished)]
    assert len(finished) == 1
    assert events[-1] is finished[0]
    return finished[0].stop


async def gives_text(harness: Harness) -> None:
    harness.script(Answer(text=("Hello ", "wide ", "wörld 😀.")))
    events = await collect(harness)
    assert text_of(events) == "Hello wide wörld 😀."
    assert calls_of(events) == []
    assert stop_of(events) == "end_turn"


async def gives_text_then_a_call(harness: Harness) -> None:
    call = ToolCall("call_1", "agent.spawn", '{"task":"look"}')
    harness.script(Answer(text=("I will ", "look."), calls=(call,), stop="tool_use"))
    events = await collect(harness)
    assert text_of(events) == "I will look."
    assert calls_of(events) == [call]
    assert isinstance(events[0], TextDelta)
    assert stop_of(events) == "tool_use"


async def gives_two_calls_in_order(harness: Harness) -> None:
    first = ToolCall("call_1", "agent.spawn", '{"task":"a"}')
    second = ToolCall("call_2", "agent.status", "{}")
    harness.script(Answer(calls=(first, second), stop="tool_use"))
    events = await collect(harness)
    assert calls_of(events) == [first, second]
    assert stop_of(events) == "tool_use"


async def gives_a_call_without_text(harness: Harness) -> None:
    call = ToolCall("call_1", "agent.status", "{}")
    harness.script(Answer(calls=(call,), stop="tool_use"))
    events = await collect(harness)
    assert text_of(events) == ""
    assert calls_of(events) == [call]


async def puts_arguments_together_from_single_bytes(harness: Harness) -> None:
    call = ToolCall("call_1", "agent.spawn", '{"task":"naïve \\"quotes\\" and 😀"}')
    harness.script(Answer(text=("Öl ", "😀"), calls=(call,), stop="tool_use", split_bytes=1))
    events = await collect(harness)
    assert text_of(events) == "Öl 😀"
    assert [msgspec.json.decode(found.arguments) for found in calls_of(events)] == [
        {"task": 'naïve "quotes" and 😀'}
    ]


async def says_that_length_stopped_it_inside_arguments(harness: Harness) -> None:
    cut_off = ToolCall("call_1", "agent.spawn", '{"task":"write a very lo')
    harness.script(Answer(calls=(cut_off,), stop="max_tokens"))
    events = await collect(harness)
    assert stop_of(events) == "max_tokens"
    for call in calls_of(events):  # a provider may leave it out; it must never make it whole
        assert call.arguments == cut_off.arguments


async def tries_again_after_an_error_before_the_stream(harness: Harness) -> None:
    harness.script(Answer(fails="status"), Answer(fails="error"), Answer(text=("Here.",)))
    assert text_of(await collect(harness)) == "Here."
    assert harness.received == 3


async def gives_up_after_two_more_tries(harness: Harness) -> None:
    harness.script(*[Answer(fails="status")] * 3)
    with pytest.raises(ModelError) as caught:
        await collect(harness)
    assert caught.value.reason == "overloaded"
    assert harness.received == 3


async def raises_an_error_in_the_middle_without_trying_again(harness: Harness) -> None:
    hold = asyncio.Event()
    harness.script(Answer(text=("One ", "two ", "three."), fails="error", after=2, hold=hold))
    text, error = await hear_until_it_fails(harness, hold)
    assert text == "One two "
    assert error.reason == "overloaded"
    assert harness.received == 1


async def tries_again_after_an_error_that_nothing_was_heard_before(harness: Harness) -> None:
    harness.script(Answer(text=("One ",), fails="error"), Answer(text=("Here.",)))
    assert text_of(await collect(harness)) == "Here."


async def times_out_when_the_service_falls_silent_at_once(harness: Harness) -> None:
    harness.script(Answer(text=("One ",), fails="stall"))
    with pytest.raises(ModelError) as caught:
        await collect(harness, silence_s=0.1)
    assert caught.value.reason == "timeout"
    await harness.wait_disconnects(1)


async def times_out_when_the_service_falls_silent_in_the_middle(harness: Harness) -> None:
    harness.script(Answer(text=("One ", "two."), fails="stall", after=1))
    text, error = await hear_until_it_fails(harness, asyncio.Event(), silence_s=0.1)
    assert text == "One "
    assert error.reason == "timeout"
    await harness.wait_disconnects(1)


async def says_that_the_connection_was_cut(harness: Harness) -> None:
    hold = asyncio.Event()
    harness.script(Answer(text=("One ", "two."), fails="cut", after=1, hold=hold))
    text, error = await hear_until_it_fails(harness, hold)
    assert text == "One "
    assert error.reason == "connection"
    assert harness.received == 1


async def stops_the_request_when_it_is_closed(harness: Harness) -> None:
    harness.script(Answer(text=("One ", "two."), fails="stall", after=1))
    async with asyncio.timeout(5), aclosing(harness.provider.stream(request())) as stream:
        async for event in stream:
            assert text_of([event]) == "One "
            break
    await harness.wait_disconnects(1)


async def stops_the_request_when_its_task_is_cancelled(harness: Harness) -> None:
    harness.script(Answer(text=("One ", "two."), fails="stall", after=1))
    started = asyncio.Event()

    async def consume() -> None:
        async with aclosing(harness.provider.stream(request())) as stream:
            async for _ in stream:
                started.set()

    task = asyncio.create_task(consume())
    async with asyncio.timeout(5):
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await harness.wait_disconnects(1)


async def stops_the_request_when_cancelled_before_its_first_event(harness: Harness) -> None:
    harness.script(Answer(text=("One ",), fails="stall"))
    task = asyncio.create_task(collect(harness))
    async with asyncio.timeout(5):
        await harness.wait_received(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await harness.wait_disconnects(1)


async def gives_an_empty_reply_its_end(harness: Harness) -> None:
    harness.script(Answer())
    events = await collect(harness)
    assert text_of(events) == ""
    assert stop_of(events) == "end_turn"


async def answers_again_after_a_failure(harness: Harness) -> None:
    hold = asyncio.Event()
    failing = Answer(text=("One ", "two."), fails="error", after=1, hold=hold)
    harness.script(failing, Answer(text=("Fine.",)))
    await hear_until_it_fails(harness, hold)
    assert text_of(await collect(harness)) == "Fine."


CASES: tuple[Callable[[Harness], Awaitable[None]], ...] = (
    gives_text,
    gives_text_then_a_call,
    gives_two_calls_in_order,
    gives_a_call_without_text,
    puts_arguments_together_from_single_bytes,
    says_that_length_stopped_it_inside_arguments,
    tries_again_after_an_error_before_the_stream,
    gives_up_after_two_more_tries,
    raises_an_error_in_the_middle_without_trying_again,
    tries_again_after_an_error_that_nothing_was_heard_before,
    times_out_when_the_service_falls_silent_at_once,
    times_out_when_the_service_falls_silent_in_the_middle,
    says_that_the_connection_was_cut,
    stops_the_request_when_it_is_closed,
    stops_the_request_when_its_task_is_cancelled,
    stops_the_request_when_cancelled_before_its_first_event,
    gives_an_empty_reply_its_end,
    answers_again_after_a_failure,
)
