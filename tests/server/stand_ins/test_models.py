"""The scripted model plays the same script in the process and over HTTP, and records each stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from conductor.errors import ModelError
from conductor.messages import ToolCall, UserMessage
from conductor.models.base import (
    Finished,
    ModelEvent,
    ModelProvider,
    ModelRequest,
    TextDelta,
    ToolDefinition,
)
from tests.models import (
    Answer,
    AnthropicService,
    Break,
    Call,
    HttpFailure,
    ModelService,
    OpenAIService,
    Reply,
    ScriptedProvider,
)

DIM = ToolDefinition("lamp.dim", "Dim the lamp.", {"type": "object"})
REQUEST = ModelRequest("", (UserMessage("hello"),), (DIM,), may_retry=False)


async def collect(provider: ModelProvider) -> list[ModelEvent]:
    async with asyncio.timeout(60):  # the import of the SDK takes seconds on a busy machine
        return [event async for event in provider.stream(REQUEST)]


@pytest.mark.parametrize("service", [AnthropicService, OpenAIService], ids=["anthropic", "openai"])
async def test_a_script_gives_the_same_events_in_the_process_and_over_http(
    service: Callable[[], ModelService],
) -> None:
    script: list[Answer] = [
        Reply(text="Let me look.", calls=(Call("lamp_dim", {"level": 3}, id="c1"),)),
        Reply(text="Once upon a", stop_reason="max_tokens"),
        HttpFailure(401, "authentication_error"),
        Reply(text="One two", broken=Break("cut", 0)),
    ]
    async with service() as served:
        served.play(*script)
        provider = served.provider()
        over_http = [await outcome(provider) for _ in script]
        await provider.aclose()
    in_process = ScriptedProvider(script)
    assert [await outcome(in_process) for _ in script] == over_http
    assert over_http[0] == ("Let me look.", [ToolCall("c1", "lamp.dim", '{"level":3}')], "tool_use")
    assert over_http[2:] == ["authentication", "connection"]


async def outcome(provider: ModelProvider) -> object:
    """Give a reply's text, calls and stop reason, or the reason of its failure."""
    try:
        events = await collect(provider)
    except ModelError as error:
        return error.reason
    text = "".join(event.text for event in events if isinstance(event, TextDelta))
    calls = [event for event in events if isinstance(event, ToolCall)]
    assert isinstance(events[-1], Finished)
    return text, calls, events[-1].stop
