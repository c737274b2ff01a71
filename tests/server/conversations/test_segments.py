"""Replies in segments, over a real connection, with the Python library."""

from __future__ import annotations

import asyncio

from conductor.client import connect
from conductor.messages import AssistantMessage, ToolCall
from conductor.models.base import TextDelta
from tests.models import ScriptedProvider
from tests.serving import Served, serving

SENTENCES = ["I look at the lamps.", "This may take a little while.", "Please wait until it is done."]
TOOL = {"name": "lamp.status", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}


class Voice:
    """Speaks each text when the test lets it; ``texts`` were spoken to their end."""

    def __init__(self) -> None:
        self.starts: asyncio.Queue[str] = asyncio.Queue()
        self.go = asyncio.Semaphore(0)
        self.texts: list[str] = []

    async def speak(self, text: str) -> None:
        self.starts.put_nowait(text)
        await self.go.acquire()
        self.texts.append(text)


def messages(served: Served) -> list[str]:
    (session,) = served.listener.registry.sessions
    return [message.text for message in session.state.log if isinstance(message, AssistantMessage)]


async def test_a_tool_runs_while_the_app_speaks_the_words_before_it() -> None:
    provider = ScriptedProvider(
        [[TextDelta(" ".join(SENTENCES)), ToolCall("", "lamp.status", "{}")], [TextDelta("All are off.")]]
    )
    voice, ran = Voice(), asyncio.Event()
    async with (
        serving(provider) as served,
        connect(
            served.url,
            tools=[TOOL],
            handlers={"lamp.status": lambda arguments: ran.set()},
            speak=voice.speak,
            capabilities=["resume", "segments"],
        ) as client,
    ):
        turn = await client.say("the lamps?")
        assert await voice.starts.get() == SENTENCES[0]
        await ran.wait()
        await turn
        assert voice.texts == []
        for _ in range(4):
            voice.go.release()
        assert [await voice.starts.get() for _ in range(3)] == [*SENTENCES[1:], "All are off."]
        await client.say("thanks")
