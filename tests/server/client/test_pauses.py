"""The Python client pauses its voice: against a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from conductor.client import Client, Reconnect, connect
from conductor.models.base import TextDelta
from tests.models import ScriptedProvider
from tests.server.client.extended import cut, start
from tests.serving import serving
from tests.stand_ins.scripted_server import LIMIT_S, Peer, scripted_server

TEXTS = ["The table is for four, at eight. ", "It is by the window, and there is a garden. "]


class Voice:
    """Plays its first speech until the test ends it, or it is cancelled."""

    def __init__(self) -> None:
        self.begun, self.end = asyncio.Event(), asyncio.Event()
        self.stopped, self.resumed = asyncio.Event(), asyncio.Event()
        self.spoken: list[str] = []

    async def speak(self, text: str) -> None:
        self.spoken.append(text)
        if len(self.spoken) > 1:
            return
        self.begun.set()
        try:
            await self.end.wait()
        except asyncio.CancelledError:
            self.stopped.set()
            raise


@asynccontextmanager
async def talking(
    voice: Voice, capabilities: tuple[str, ...] | None = None, pause_timeout: float = 60.0
) -> AsyncIterator[Client]:
    """Run a server and a client that has begun to speak."""
    provider = ScriptedProvider(lambda request: [TextDelta(text) for text in TEXTS])
    async with serving(provider, pause_timeout=pause_timeout) as served:
        client = connect(
            served.url,
            capabilities=capabilities,
            speak=voice.speak,
            reconnect=Reconnect(first_s=0.0, most_s=0.0),
        )
        client.on_resume(voice.resumed.set)
        async with client:
            await client.say("book a table")
            await asyncio.wait_for(voice.begun.wait(), LIMIT_S)
            yield client


@pytest.mark.parametrize(
    "capabilities", [None, ("pause", "turns", "segments", "resume")], ids=["serial", "segments"]
)
async def test_a_backchannel_lets_the_voice_go_on(capabilities: tuple[str, ...] | None) -> None:
    voice = Voice()
    async with talking(voice, capabilities) as client:
        assert await client.pause(spoken_text="The table")
        assert await client.pause(spoken_text="The table is"), "it is paused already"
        turn = await client.say("mhm")
        await asyncio.wait_for(voice.resumed.wait(), LIMIT_S)
        voice.end.set()
        assert (await turn.wait(LIMIT_S)).reason == "resumed"
        assert not voice.stopped.is_set()


@pytest.mark.parametrize(
    "capabilities", [None, ("pause", "turns", "segments", "resume")], ids=["serial", "segments"]
)
async def test_words_stop_the_paused_voice_and_what_waits_behind_it(
    capabilities: tuple[str, ...] | None,
) -> None:
    voice = Voice()
    async with talking(voice, capabilities) as client:
        assert await client.pause(spoken_text="The table")
        turn = await client.say("for six people")
        await asyncio.wait_for(voice.stopped.wait(), LIMIT_S)
        await turn.wait(LIMIT_S)
        assert not voice.resumed.is_set()
        assert voice.spoken.count(TEXTS[1].strip()) <= 1, "the second sentence of the first reply is skipped"


@pytest.mark.parametrize(
    "capabilities", [None, ("cancel", "pause", "turns", "segments", "resume")], ids=["serial", "segments"]
)
async def test_a_stop_in_a_pause_drops_the_paused_voice(capabilities: tuple[str, ...] | None) -> None:
    voice = Voice()
    async with talking(voice, capabilities) as client:
        assert await client.pause(spoken_text="The table")
        assert await client.cancel_response()
        await asyncio.wait_for(voice.stopped.wait(), LIMIT_S)
        await (await client.say("and now?")).wait(LIMIT_S)
        assert not voice.resumed.is_set()


async def test_the_next_speech_waits_for_the_end_of_a_pause() -> None:
    voice = Voice()
    async with talking(voice, ("pause", "turns", "segments", "resume")) as client:
        assert await client.pause()
        voice.end.set()
        turn = await client.say("mhm")
        assert (await turn.wait(LIMIT_S)).reason == "resumed"
        await asyncio.wait_for(voice.resumed.wait(), LIMIT_S)


async def test_a_pause_outlasts_a_lost_connection() -> None:
    voice = Voice()
    async with talking(voice, pause_timeout=0.2) as client:
        client.drop()
        assert await client.pause()
        await asyncio.wait_for(voice.resumed.wait(), LIMIT_S)
        voice.end.set()


async def test_a_paused_voice_goes_on_where_the_next_connection_is_without_pauses() -> None:
    voice, answered = Voice(), asyncio.Event()

    async def speaking(peer: Peer) -> None:
        await start(peer, "pause", "resume")
        await peer.call("tts.speak", {"text": TEXTS[0]})
        await peer.receive("audio.output.paused")
        cut(peer)

    async def without_pauses(peer: Peer) -> None:
        await start(peer, "resume", resumed=True)
        await asyncio.wait_for(voice.resumed.wait(), LIMIT_S)
        voice.end.set()
        await peer.receive("tool.result")
        answered.set()

    async with scripted_server(speaking, without_pauses) as server:
        async with connect(
            server.url, speak=voice.speak, reconnect=Reconnect(first_s=0.0, most_s=0.0)
        ) as client:
            client.on_resume(voice.resumed.set)
            await asyncio.wait_for(voice.begun.wait(), LIMIT_S)
            assert await client.pause(spoken_text="The table")
            await asyncio.wait_for(answered.wait(), LIMIT_S)
    assert server.types_heard().count("audio.output.paused") == 1


async def test_without_a_speech_or_the_capability_nothing_is_paused() -> None:
    voice = Voice()
    async with talking(voice, ("resume", "turns")) as client:
        assert not await client.pause()
        voice.end.set()
    provider = ScriptedProvider([])
    async with serving(provider) as served, connect(served.url) as client:
        assert not await client.pause()


async def test_a_handler_that_fails_leaves_the_client_as_it_is() -> None:
    voice = Voice()
    async with talking(voice) as client:

        async def fail() -> None:
            voice.resumed.set()
            raise RuntimeError("no voice")

        client.on_resume(fail)
        assert await client.pause()
        await client.say("mhm")
        await asyncio.wait_for(voice.resumed.wait(), LIMIT_S)
        voice.end.set()
