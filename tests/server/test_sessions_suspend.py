"""A suspended node: other nodes may own its sessions when it resumes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import cast

import pytest
import structlog

from conductor.models.base import TextDelta
from conductor.rate_limit import STILL_S
from conductor.server.sessions import SuspendDetector
from conductor.server.websocket import MAX_WRITE, Socket, Writer
from conductor.session.transport import Frame
from conductor.settings import Limits
from tests.app import App
from tests.hasty import SHORT_S, hasten
from tests.server.nodes import Node, Shelf, calm, comes, shapes_sent, still_open, two_nodes
from tests.server.wires import WiredStore, until

TICK_S = 0.001
SAID = [[TextDelta("One."), TextDelta(" And two.")], [TextDelta("Three.")]]


@asynccontextmanager
async def deaf(phone: App) -> AsyncIterator[None]:
    """Let no ping reach a client, as after a silent loss of the network."""
    phone.socket.transport.pause_reading()
    try:
        yield
    finally:
        phone.socket.transport.abort()


@pytest.mark.parametrize(("late", "calls"), [(STILL_S + 0.1, 1), (STILL_S - 0.1, 0), (-3.0, 0)])
async def test_a_late_tick_is_reported_once(late: float, calls: int) -> None:
    suspends: list[float] = []
    ticks = 0

    def clock() -> float:
        """By this clock each tick but the third is on time."""
        nonlocal ticks
        ticks += 1
        return ticks * TICK_S + (late if ticks >= 3 else 0)

    watch = SuspendDetector(suspends.append, clock, TICK_S)
    await until(lambda: ticks > 6)
    watch.close()
    assert len(suspends) == calls


async def _holds_a_speech(a: Node, old: App) -> str:
    """Queue a speech behind one that the client still plays; returns the first call."""
    old.say("one")
    first = await old.until("tts.speak")
    await old.until("state idle")
    since = len(old.log)
    old.say("two")
    await old.until("assistant.speech.final", since=since)
    await a.quiet()
    call_id: str = first["payload"]["callId"]
    return call_id


@pytest.mark.parametrize("suspended_for", [True, False])
async def test_a_resumed_node_does_not_send_its_queued_speech(shelf: Shelf, suspended_for: bool) -> None:
    """Without the watch the held speech is played."""
    async with two_nodes(shelf, SAID, mode="queue") as (a, b):
        old = a.phone(acknowledge=lambda name: name != "tts.speak")
        async with old:
            call_id = await _holds_a_speech(a, old)
            new = b.phone()
            await comes(new)
            since = len(old.log)
            if suspended_for:
                a.listener.registry.recheck_ownership()
            old.result(call_id, '{"spoken":true}')
            if not suspended_for:
                await old.until("tts.speak", since=since)
            else:
                await a.until_lost()
                assert await still_open(old)
                assert shapes_sent(old, since) == []
            await new.close()


async def test_a_resumed_node_keeps_its_sessions(shelf: Shelf) -> None:
    async with two_nodes(shelf) as (a, _):
        async with a.phone() as phone:
            await phone.ask("one")
            a.listener.registry.recheck_ownership()
            a.listener.registry.recheck_ownership()
            since = len(phone.log)
            await phone.ask("two")
            assert phone.finals(since) == ["Heard one, two."]


async def test_verification_without_the_store_has_a_time_limit(
    shelf: Shelf,
) -> None:
    async with two_nodes(Shelf(lambda: WiredStore(shelf.make())), verify_timeout=SHORT_S) as (a, _):
        async with a.phone() as phone:
            await phone.ask("one")
            await calm(a)
            assert isinstance(a.store, WiredStore)
            a.store.append_gate.clear()
            a.listener.registry.recheck_ownership()
            hasten()
            await a.listener.registry.ownership_verified.wait()
            a.store.append_gate.set()
            since = len(phone.log)
            await phone.ask("two")
            assert phone.finals(since) == ["Heard one, two."]


@pytest.mark.parametrize("alive", [True, False])
async def test_a_first_event_from_before_a_suspend_needs_a_connected_client(
    shelf: Shelf, alive: bool
) -> None:
    async with two_nodes(shelf, alive_timeout=SHORT_S) as (a, b):
        async with b.phone() as new:
            await new.ask("one")
            await calm(b)
            old = a.phone()
            await old.open(start=False)
            a.listener.registry.recheck_ownership()
            if alive:
                old.start()
                await old.idle()
                new.interrupt()
                await b.until_lost()
                await old.close()
                return
            async with deaf(old):
                with structlog.testing.capture_logs() as lines:
                    old.start()
                    old.send("user.audio.transcript.partial", {"text": "more"})
                    hasten()
                    await until(lambda: any(".partial" in str(line.get("type")) for line in lines))
            since = len(new.log)
            await new.ask("two")
            assert new.finals(since) == ["Heard one, two."] and not len(a.listener.registry)


@pytest.mark.parametrize("alive", [True, False])
async def test_a_claim_from_before_a_suspend_needs_a_connected_client(shelf: Shelf, alive: bool) -> None:
    async with two_nodes(Shelf(lambda: WiredStore(shelf.make())), alive_timeout=SHORT_S) as (a, b):
        assert isinstance(a.store, WiredStore)
        a.store.claim_gate.clear()
        a.store.claiming.clear()
        old = a.phone()
        await old.open(start=False)
        old.send("session.start", {})
        await until(a.store.claiming.is_set)
        async with b.phone() as new:
            await new.ask("one")
            await calm(b)
            if alive:
                a.listener.registry.recheck_ownership()
                a.store.claim_gate.set()
                await old.until("session.started")
                await old.close()
                return
            async with deaf(old):
                a.listener.registry.recheck_ownership()
                a.store.claim_gate.set()
                hasten()
                await until(lambda: not len(a.listener.registry))
            since = len(new.log)
            await new.ask("two")
            assert new.finals(since) == ["Heard one, two."]


async def test_a_second_suspend_verifies_again(shelf: Shelf) -> None:
    async with two_nodes(shelf) as (a, _):
        async with a.phone() as phone:
            await phone.ask("one")
            await calm(a)
            registry = a.listener.registry
            (session,) = registry.sessions
            async with session.commits._lock:
                registry.recheck_ownership()
                await asyncio.sleep(0)
                first = registry._verifying
                registry.recheck_ownership()
                assert first is not None
                await asyncio.wait([first])
                assert not registry.ownership_verified.is_set(), "what was found out before is old"
            await registry.ownership_verified.wait()


async def test_queued_frames_wait_for_the_verification() -> None:
    room, trust = asyncio.Event(), asyncio.Event()
    written_texts: list[bytes] = []

    class Full:
        async def send_texts(self, texts: Iterable[bytes], seconds: float) -> None:
            written_texts.extend(texts)
            await room.wait()

    trust.set()
    writer = Writer(cast(Socket, Full()), Limits(), trust, "s-1")
    writing = asyncio.create_task(writer.write())
    for number in range(MAX_WRITE + 1):
        writer.send(Frame(b"%d" % number))
    await until(lambda: len(written_texts) == MAX_WRITE)
    trust.clear()
    room.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(written_texts) == MAX_WRITE
    trust.set()
    await until(lambda: len(written_texts) == MAX_WRITE + 1)
    writing.cancel()
