"""What a model provider of any package has to pass; docs/plugins.md shows its use."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import get_args

import msgspec
import pytest

from conductor.messages import AssistantMessage, Message, Note, ToolCall, ToolResult, UserMessage
from conductor.models.base import (
    Finished,
    ModelEvent,
    ModelProvider,
    ModelRequest,
    StopReason,
    TextDelta,
    ToolDefinition,
)

SECONDS = 60.0
TOOL = ToolDefinition(
    "lamp.switch",
    "Switch a lamp.",
    {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"]},
)
CALL = ToolCall("call_1", TOOL.name, '{"on":true}')
HISTORIES: dict[str, list[Message]] = {
    "a transcript": [UserMessage("Good morning.")],
    "several turns": [
        UserMessage("Hello."),
        AssistantMessage(text="Hello!"),
        UserMessage("What time is it?"),
    ],
    "a note": [UserMessage("Hello."), AssistantMessage(text="Hello!"), Note("The agent has finished.")],
    "a result": [
        UserMessage("Light, please."),
        AssistantMessage(text="Yes.", calls=(CALL,)),
        ToolResult(CALL.call_id, '{"ok":true}'),
    ],
    "a failed result": [
        UserMessage("Light, please."),
        AssistantMessage(text="", calls=(CALL,)),
        ToolResult(CALL.call_id, "The lamp is broken.", is_error=True),
    ],
    "strange text": [UserMessage("\ud800 \x00 <|im_start|> {\n🙂")],
}
"""Valid histories that a turn may send."""


async def reply(provider: ModelProvider, request: ModelRequest) -> list[ModelEvent]:
    """Stream one reply, at most for `SECONDS`."""
    async with asyncio.timeout(SECONDS), aclosing(provider.stream(request)) as stream:
        return [event async for event in stream]


class ModelContract:
    """Subclass it, and give the provider in the fixture ``provider``."""

    @pytest.fixture
    def provider(self) -> ModelProvider:
        """Make the provider, which is not started."""
        raise NotImplementedError

    async def test_it_has_a_name(self, provider: ModelProvider) -> None:
        assert provider.name and provider.name == provider.name.strip()

    @pytest.mark.parametrize("history", HISTORIES)
    @pytest.mark.parametrize("tools", [(), (TOOL,)], ids=["without tools", "with a tool"])
    async def test_a_reply_ends_with_exactly_one_end(
        self, provider: ModelProvider, history: str, tools: tuple[ToolDefinition, ...]
    ) -> None:
        await provider.start()
        events = await reply(provider, ModelRequest("Be brief.", HISTORIES[history], tools))
        *before, last = events
        assert isinstance(last, Finished) and not any(isinstance(event, Finished) for event in before)
        calls = [event for event in before if isinstance(event, ToolCall)]
        assert last.stop in get_args(StopReason) and bool(calls) == (last.stop == "tool_use")
        assert before or last.stop != "end_turn", "a complete reply has text or a call"
        assert all(isinstance(event, TextDelta) and event.text for event in before if event not in calls)
        assert len({call.call_id for call in calls}) == len(calls)
        for call in calls:
            assert call.name in [tool.name for tool in tools]
            assert isinstance(msgspec.json.decode(call.arguments), dict)
        await provider.aclose()

    async def test_calls_may_be_forbidden(self, provider: ModelProvider) -> None:
        request = ModelRequest("Be brief.", HISTORIES["a transcript"], (TOOL,), tool_choice="none")
        assert not any(isinstance(event, ToolCall) for event in await reply(provider, request))
        await provider.aclose()

    async def test_a_reply_may_be_dropped_at_any_event(self, provider: ModelProvider) -> None:
        request = ModelRequest("Be brief.", HISTORIES["a transcript"])
        for count in range(3):
            async with asyncio.timeout(SECONDS), aclosing(provider.stream(request)) as stream:
                for _ in range(count):
                    await anext(stream, None)
        assert await reply(provider, request)
        await provider.aclose()

    async def test_replies_may_overlap(self, provider: ModelProvider) -> None:
        request = ModelRequest("Be brief.", HISTORIES["a transcript"])
        replies = await asyncio.gather(*(reply(provider, request) for _ in range(3)))
        assert all(isinstance(events[-1], Finished) for events in replies)
        await provider.aclose()

    async def test_it_may_be_started_and_closed_twice(self, provider: ModelProvider) -> None:
        for _ in range(2):
            await provider.start()
        for _ in range(2):
            await provider.aclose()
