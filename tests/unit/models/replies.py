"""Replies of any provider: how tests ask for them, and their parts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import aclosing
from typing import Any

import pytest

from conductor.errors import ModelError
from conductor.messages import Message, ToolCall, UserMessage
from conductor.models.base import Finished, ModelEvent, ModelProvider, ModelRequest, TextDelta, ToolDefinition
from tests.server.wires import WAIT

SCHEMA = {"type": "object", "properties": {"task": {"type": "string"}}}
SPAWN = ToolDefinition("agent.spawn", "Start an agent.", SCHEMA)
STATUS = ToolDefinition("agent.status", "Say how an agent is.", SCHEMA)
SECRET = "the service's own words"


def ask(
    *messages: Message, system: str = "Be brief.", tools: tuple[ToolDefinition, ...] = (SPAWN,), **more: Any
) -> ModelRequest:
    """Make a request; without messages it greets."""
    return ModelRequest(system, messages or (UserMessage("Hello."),), tools, **more)


async def collect(provider: ModelProvider, request: ModelRequest | None = None) -> list[ModelEvent]:
    """Give all events of a reply, within 5 s."""
    async with asyncio.timeout(WAIT), aclosing(provider.stream(request or ask())) as stream:
        return [event async for event in stream]


async def failure_of(
    provider: ModelProvider, request: ModelRequest | None = None, on_text: Callable[[str], object] = str
) -> ModelError:
    """Give the failure of a reply, within 5 s; ``on_text`` is called with each piece of its text."""
    with pytest.raises(ModelError) as caught:
        async with asyncio.timeout(WAIT), aclosing(provider.stream(request or ask())) as stream:
            async for event in stream:
                assert isinstance(event, TextDelta)
                on_text(event.text)
    assert SECRET not in str(caught.value) and str(caught.value).endswith(".")
    return caught.value


def text_of(events: Iterable[ModelEvent]) -> str:
    """Join the words of a reply."""
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def calls_of(events: Iterable[ModelEvent]) -> tuple[ToolCall, ...]:
    """List the calls of a reply."""
    return tuple(event for event in events if isinstance(event, ToolCall))


def finished_of(events: list[ModelEvent]) -> Finished:
    """Give the end of a reply, which is its last event."""
    (finished,) = (event for event in events if isinstance(event, Finished))
    assert events[-1] is finished
    return finished
