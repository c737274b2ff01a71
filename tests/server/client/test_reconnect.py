"""Reconnecting on demand."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from conductor.client import ClientLimits, ConnectionLost, WaitTimeout, connect
from conductor.client.session import MAX_WAITING
from conductor.events.client import TranscriptPartial
from conductor.events.server import SpeechPartial
from tests.hasty import SHORT_S, hasten
from tests.server.client.extended import soon
from tests.stand_ins.scripted_server import LIMIT_S, Peer, plain_turns, scripted_server


async def test_declared_tools_apply_to_the_next_connection() -> None:
    def tools(name: str) -> list[dict[str, Any]]:
        return [{"name": name, "inputSchema": {"type": "object"}}]

    async with scripted_server() as server, connect(server.url, tools=tools("first")) as client:
        await client.declare(tools("second"))
        client.drop()
        await client.reconnect()
        client.drop()
        with pytest.raises(ConnectionLost):
            await client.declare(tools("third"))
        await client.reconnect()
    starts = [event["payload"]["tools"] for event in server.heard if event["type"] == "session.start"]
    assert starts == [tools("first"), tools("second"), tools("third")]


async def test_invalid_tools_are_not_declared_on_the_next_connection() -> None:
    async with scripted_server() as server, connect(server.url) as client:
        with pytest.raises(TypeError):
            await client.declare([object()])
        client.drop()
        await client.reconnect()
    assert len(server.peers) == 2


async def test_events_that_no_handler_takes_close_the_connection_and_come_again() -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    async def flood(peer: Peer) -> None:
        await peer.start()
        await peer.call("notes.add", {})
        await begun.wait()
        for number in range(MAX_WAITING + 1):
            await peer.send("app.news", {}, f"evt_news_{number}")
        await peer.arrived()

    async def again(peer: Peer) -> None:
        await peer.start(resumed=True)
        await peer.send("app.news", {}, f"evt_news_{MAX_WAITING}")

    async def handler(arguments: dict[str, Any]) -> str:
        begun.set()
        await release.wait()
        return "added"

    taken: asyncio.Queue[object] = asyncio.Queue()
    async with scripted_server(flood, again) as server:
        async with connect(server.url, handlers={"notes.add": handler}) as client:
            client.on("app.news", taken.put_nowait)
            assert (
                str(await asyncio.wait_for(client.wait_lost(), LIMIT_S))
                == f"{MAX_WAITING} events are waiting for a handler."
            )
            release.set()
            async with asyncio.timeout(LIMIT_S):
                for _ in range(MAX_WAITING):
                    await taken.get()
                await client.reconnect()
                await taken.get()


async def test_a_close_by_the_server_has_its_code() -> None:
    async def script(peer: Peer) -> None:
        await peer.start()
        await peer.connection.close(4409, "superseded")

    async with scripted_server(script) as server, connect(server.url) as client:
        loss = await asyncio.wait_for(client.wait_lost(), LIMIT_S)
    assert loss.close_code == 4409
    assert str(loss) == "The server closed the connection (4409: superseded)."


async def test_a_turn_continues_after_a_reconnect() -> None:
    event_ids: list[str] = []

    async def first(peer: Peer) -> None:
        await peer.start()
        await peer.begin()
        event_ids.append(await peer.send("assistant.speech.partial", {"text": "Four"}))

    async def second(peer: Peer) -> None:
        await peer.start(resumed=True)
        await peer.send("assistant.speech.partial", {"text": "Four"}, event_id=event_ids[0])
        await peer.answer("Forty-two.")

    async with scripted_server(first, second) as server, connect(server.url) as client:
        partial = asyncio.Event()
        client.on(SpeechPartial, lambda _: partial.set())
        turn = await client.say("what is it?")
        await soon(partial)
        client.drop()
        assert not turn.is_done
        await client.reconnect()
        result = await turn.wait(LIMIT_S)
    assert result.ok
    assert result.partials == ["Four", "Forty-two."]


async def test_an_expired_transcript_ends_as_lost() -> None:
    async def first(peer: Peer) -> None:
        await peer.start()
        await peer.receive("user.audio.transcript.final")
        peer.connection.transport.abort()

    async def second(peer: Peer) -> None:
        await peer.start(resumed=True)
        await peer.state("idle")

    limits = ClientLimits(resend_s=0)
    async with scripted_server(first, second) as server, connect(server.url, limits=limits) as client:
        turn = await client.say("hello?")
        await asyncio.wait_for(client.wait_lost(), LIMIT_S)
        await client.reconnect()
        result = await turn.wait(LIMIT_S)
    assert result.ending == "lost"
    assert not result.ok


async def test_a_failed_reconnect_can_be_repeated() -> None:
    started = asyncio.Event()

    async def silent(peer: Peer) -> None:
        await peer.receive("session.start")
        started.set()

    limits = ClientLimits(start_s=SHORT_S)
    async with scripted_server(plain_turns, silent, plain_turns) as server:
        async with connect(server.url, limits=limits) as client:
            client.drop()
            reconnecting = asyncio.create_task(client.reconnect())
            await asyncio.wait_for(started.wait(), LIMIT_S)
            hasten()
            with pytest.raises(WaitTimeout):
                await reconnecting
            with pytest.raises(ConnectionLost):
                await client.send(TranscriptPartial("hel"))
            await client.reconnect()
            assert (await (await client.say("hello")).wait(LIMIT_S)).ok
        with pytest.raises(ConnectionLost):
            await client.reconnect()


async def test_an_interruption_without_a_connection_stops_the_speech() -> None:
    speaking, stopped = asyncio.Event(), asyncio.Event()

    async def speak(_text: str) -> None:
        speaking.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with scripted_server() as server, connect(server.url, speak=speak) as client:
        await client.say("hello")
        async with asyncio.timeout(LIMIT_S):
            await speaking.wait()
            client.drop()
            with pytest.raises(ConnectionLost):
                await client.interrupt()
            await stopped.wait()
