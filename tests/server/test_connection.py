"""One connection: its queue, slow readers, pings, and starts without the store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect

from conductor.app import make_services
from conductor.events.envelope import encode_event
from conductor.events.server import SpeechFinal, SpeechPartial
from conductor.models.base import TextDelta
from conductor.plugins.auth.tokens import TokenAuthenticator
from conductor.server.connection import Connection
from conductor.server.listener import Listener
from conductor.session.transport import Frame
from conductor.settings import load_settings
from tests.app import App
from tests.conftest import IOS_CATALOG
from tests.hasty import SHORT_S, hasten
from tests.models import ScriptedProvider
from tests.server.wires import WAIT, WiredStore, until
from tests.serving import Served, serving

BIG = b'"' + b"x" * 2_000_000 + b'"'
"""A frame; several of them exceed the socket's buffers."""


def connection_of(served: Served) -> Connection:
    """Return the served connection of the only session."""
    transport = served.listener.registry.sessions[0].outbox.transport
    assert isinstance(transport, Connection)
    return transport


def partial(text: str) -> Frame:
    return Frame(encode_event(f"evt-{text}", "s-1", SpeechPartial(text)), partial=True)


def final(text: str) -> Frame:
    return Frame(encode_event(f"evt-{text}", "s-1", SpeechFinal(text)))


def texts(phone: App) -> list[str]:
    return [e["payload"]["text"] for e in phone.log if e["type"].startswith("assistant.speech.")]


def is_text(text: str) -> Any:
    return lambda event: event["payload"].get("text") == text


@asynccontextmanager
async def reader(served: Served) -> AsyncIterator[ClientConnection]:
    """Connect and start a session; only the test reads."""
    socket = await connect(served.url, proxy=None, max_queue=1, max_size=None, ping_interval=None)
    try:
        await socket.send(
            '{"id":"r-1","type":"session.start","timestamp":"t","sessionId":"s-1","payload":{}}'
        )
        assert json.loads(await asyncio.wait_for(socket.recv(), WAIT))["type"] == "session.started"
        yield socket
    finally:
        socket.transport.abort()


# -- the send queue


async def test_a_partial_replaces_a_queued_partial() -> None:
    async with serving(ScriptedProvider([])) as served, served.phone() as phone:
        connection = connection_of(served)
        for frame in (partial("a"), partial("ab"), final("abc"), partial("d"), partial("de"), partial("def")):
            connection.send(frame)
        await phone.until(is_text("def"))
        assert texts(phone) == ["ab", "abc", "def"]


async def test_dropped_partials_are_not_sent() -> None:
    async with serving(ScriptedProvider([])) as served, served.phone() as phone:
        connection = connection_of(served)
        frames = [final("a"), partial("b"), final("c"), partial("d")]
        for frame in frames:
            connection.send(frame)
        connection.drop_partials()
        connection.send(partial("e"))
        await phone.until(is_text("e"))
        assert texts(phone) == ["a", "c", "e"]
        assert [frame.is_written for frame in frames] == [True, False, True, False]


async def test_a_full_queue_cuts_the_connection_and_the_session_survives() -> None:
    async with serving(ScriptedProvider([]), max_send_queue=4) as served, served.phone() as phone:
        session = served.listener.registry.sessions[0]
        connection = connection_of(served)
        for number in range(20):
            connection.send(final(str(number)))
        await asyncio.wait_for(phone.closed.wait(), WAIT)
        await until(lambda: served.listener.connections == 0)
        await phone.open()
        started = [e["payload"]["resumed"] for e in phone.log if e["type"] == "session.started"]
        assert started == [False, True]
        assert served.listener.registry.sessions == [session]


async def test_a_closing_connection_sends_its_queue_first() -> None:
    async with serving(ScriptedProvider([])) as served, served.phone() as phone:
        connection = connection_of(served)
        for number in range(50):
            connection.send(final(str(number)))
        connection.close(4409, "another connection")
        await asyncio.wait_for(phone.closed.wait(), WAIT)
        assert texts(phone) == [str(number) for number in range(50)]
        assert phone.close_code == 4409


# -- peers that do not read


async def test_a_client_that_does_not_read_is_cut_and_its_session_survives() -> None:
    provider = ScriptedProvider([[TextDelta("Still here.")]])
    async with serving(provider, send_timeout=SHORT_S, close_timeout=SHORT_S) as served:
        async with reader(served) as socket:
            session = served.listener.registry.sessions[0]
            socket.transport.pause_reading()
            connection = connection_of(served)
            for _ in range(20):
                connection.send(Frame(BIG))
            hasten(4 * SHORT_S)
            await until(lambda: served.listener.connections == 0)
            assert session.outbox.transport is None
        async with served.phone() as phone:
            assert phone.log[0]["payload"]["resumed"] is True
            assert served.listener.registry.sessions == [session]
            await phone.ask("are you there?")
            assert phone.finals() == ["Still here."]


# -- signs of life


async def test_session_pings_repeat_with_new_ids() -> None:
    async with serving(ScriptedProvider([]), ping_interval=SHORT_S) as served, served.phone() as phone:
        hasten(10 * SHORT_S)
        started = len(phone.log)  # a ping before the start belongs to no session yet
        for _ in range(3):
            await phone.until("session.ping", since=len(phone.log))
        pings = [e for e in phone.log[started:] if e["type"] == "session.ping"]
        assert len({ping["id"] for ping in pings}) == len(pings) >= 3
        assert all(ping["sessionId"] == "s-1" and ping["payload"] == {} for ping in pings)


async def test_a_websocket_ping_is_answered_while_a_turn_runs_and_while_the_store_is_slow() -> None:
    store = WiredStore()
    async with stored(store) as served:
        store.claim_gate.clear()
        socket = await connect(served.url, proxy=None)
        await socket.send(
            '{"id":"r-1","type":"session.start","timestamp":"t","sessionId":"s-1","payload":{}}'
        )
        await until(store.claiming.is_set)
        await asyncio.wait_for(await socket.ping(), WAIT)
        store.claim_gate.set()
        await socket.close()


async def test_a_client_that_leaves_before_its_claim_claims_nothing() -> None:
    """By then another process may serve the client, and a claim would fence it."""
    store = WiredStore()
    async with stored(store, ping_interval=SHORT_S) as served:
        store.claim_gate.clear()
        phone = served.phone()
        await phone.open(start=False)
        phone.send("session.start", {})
        phone.say("one")
        await until(store.claiming.is_set)
        phone.socket.close_s = 0.01  # the server reads no frame here
        await phone.close()
        hasten(4 * SHORT_S)
        await until(lambda: served.listener.connections == 0)
        store.claim_gate.set()
        assert (store.claims, len(store.memory), len(served.listener.registry)) == (1, 0, 0)


# -- an unreachable store


@asynccontextmanager
async def stored(
    store: WiredStore, provider: ScriptedProvider | None = None, **limits: Any
) -> AsyncIterator[Served]:
    services = make_services(
        load_settings(None, device_tools_file=IOS_CATALOG),
        provider or ScriptedProvider(lambda _: [TextDelta("Hi.")]),
    )
    bounds = replace(services.limits, close_timeout=1.0, **limits)
    listener = Listener(replace(services, store=store, limits=bounds), TokenAuthenticator([]))
    await listener.start("127.0.0.1", 0)
    try:
        yield Served(listener)
    finally:
        await asyncio.wait_for(listener.stop(drain_s=0), WAIT)


@pytest.mark.parametrize(
    ("payload", "code"),
    [({"text": "hi"}, "store_unavailable"), ({"text": "x" * 70_000}, "invalid_event"), ({}, "invalid_event")],
)
async def test_a_first_transcript_while_the_store_is_away_reopens_the_microphone(
    payload: dict[str, str], code: str
) -> None:
    store = WiredStore()
    store.away = True
    async with stored(store) as served:
        phone = served.phone()
        await phone.open(start=False)
        event_id = phone.send("user.audio.transcript.final", payload)
        await phone.until("state idle")
        assert phone.shapes() == ["error", "state idle"]
        assert phone.errors()[0]["code"] == code and phone.errors()[0]["eventId"] == event_id
        assert {event["sessionId"] for event in phone.log} == {"s-1"}
        store.away = False
        since = len(phone.log)
        phone.say("and now?")
        await phone.until("state idle", since=since)
        assert phone.finals() == ["Hi."] and not phone.closed.is_set()
        await phone.close()


async def test_a_start_that_the_store_refused_is_tried_until_it_succeeds() -> None:
    store, provider = WiredStore(), ScriptedProvider(lambda _: [TextDelta("Hi.")])
    store.away = True
    async with stored(store, provider, store_retry=0.01) as served:
        tool = {"name": "lamp.on", "description": "x", "inputSchema": {"type": "object", "properties": {}}}
        phone = served.phone(start_fields={"capabilities": ["tools"], "tools": [tool]})
        await phone.open(start=False)
        event_id = phone.start()
        await until(lambda: store.claims >= 3)
        message = "The session store cannot be reached."
        assert phone.errors() == [{"code": "store_unavailable", "message": message, "eventId": event_id}]
        store.away = False
        await phone.until("session.started")
        await phone.ask("hi")
        assert "lamp.on" in [definition.name for definition in provider.requests[-1].tools]
        await phone.close()


async def test_a_store_that_fails_later_ends_the_turn_and_not_the_connection() -> None:
    store = WiredStore()
    async with stored(store) as served, served.phone() as phone:
        store.away = True
        phone.say("hi")
        await phone.until("state idle")
        assert "store_unavailable" in [error["code"] for error in phone.errors()]
        store.away = False
        await phone.ask("and now?")
        assert phone.finals() == ["Hi."]


# -- frames from the client


async def test_an_event_above_the_hard_limit_closes_the_connection_and_not_the_session() -> None:
    provider = ScriptedProvider([[TextDelta("Hi.")]])
    async with serving(provider) as served, served.phone() as phone:
        phone.socket.write(b'{"x":"' + b"y" * 1_100_000 + b'"}')
        await asyncio.wait_for(phone.closed.wait(), WAIT)
        assert phone.close_code == 1009
        await until(lambda: served.listener.connections == 0)
        await phone.open()
        await phone.ask("hi")
        assert phone.finals() == ["Hi."]
