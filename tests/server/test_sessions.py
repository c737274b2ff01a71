"""The registry: the session that a connection gets, and when sessions end."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from conductor.app import make_services
from conductor.errors import StoreUnavailable, TooManySessions
from conductor.events import client
from conductor.events.codec import Inbound
from conductor.identity import ANONYMOUS
from conductor.models.base import TextDelta
from conductor.plugins.auth.tokens import TokenAuthenticator
from conductor.server.listener import Listener
from conductor.server.sessions import SessionRegistry
from conductor.session.inbound import handle
from conductor.session.session import Session
from conductor.settings import load_settings
from conductor.stores.base import SessionKey
from tests.app import App
from tests.models import ScriptedProvider
from tests.server.wires import WAIT, Wire, WiredStore, until
from tests.session.helpers import later, run, steps

KEY = SessionKey("subject", "s-1")


BACKOFF: dict[str, Any] = {"free_takeovers": 0, "takeover_backoff": 0.001}
"""Limits with a short wait before every claim."""


def make_registry(
    store: WiredStore, provider: ScriptedProvider | None = None, *, grace: float = 60.0, **limits: Any
) -> SessionRegistry:
    services = make_services(load_settings(None), provider or ScriptedProvider([]))
    limits = {"session_grace": grace, "close_timeout": 1.0, **limits}
    return SessionRegistry(replace(services, store=store, limits=replace(services.limits, **limits)))


class Leaving(Wire):
    """A client whose end is detected after some time."""

    def __init__(self) -> None:
        super().__init__()
        self.pinged = asyncio.Event()
        self.answer = asyncio.Event()

    async def is_alive(self) -> bool:
        self.pinged.set()
        await self.answer.wait()
        return False


async def bind(registry: SessionRegistry, wire: Wire, key: SessionKey = KEY) -> tuple[Session, bool]:
    async with asyncio.timeout(WAIT):
        return await registry.bind(key, wire)


async def say(session: Session, wire: Wire, text: str, event_id: str = "in-1") -> None:
    event = client.TranscriptFinal(text)
    await session.clients.attach(wire, resumed=False)
    await handle(
        session, Inbound(id=event_id, type=event.TYPE, session_id=KEY.session_id, size=0, event=event), wire
    )


async def test_simultaneous_connections_share_one_claim() -> None:
    store = WiredStore()
    store.claim_gate.clear()
    registry = make_registry(store)
    binding = [asyncio.create_task(bind(registry, Wire())) for _ in range(5)]
    await until(store.claiming.is_set)
    assert registry.sessions == [], "it is not there yet"
    store.claim_gate.set()
    bound = await asyncio.gather(*binding)
    assert len({id(session) for session, _ in bound}) == 1
    assert store.claims == 1
    await registry.close()


# -- a silent store


@pytest.mark.parametrize("at_once", [1, 3])
async def test_a_failed_claim_is_raised_and_leaves_no_session(at_once: int) -> None:
    store = WiredStore()
    store.away = True
    registry = make_registry(store)
    results = await asyncio.gather(*(bind(registry, Wire()) for _ in range(at_once)), return_exceptions=True)
    assert [type(result) for result in results] == [StoreUnavailable] * at_once
    assert len(registry) == 0 and registry.sessions == []
    store.away = False
    _, existed = await bind(registry, Wire())
    assert not existed and len(registry) == 1
    await registry.close()


async def test_a_connection_that_leaves_during_a_claim_does_not_affect_others() -> None:
    store = WiredStore()
    store.claim_gate.clear()
    registry = make_registry(store)
    leaving = asyncio.create_task(bind(registry, Wire()))
    staying = asyncio.create_task(bind(registry, Wire()))
    await until(store.claiming.is_set)
    leaving.cancel()
    await asyncio.wait([leaving], timeout=WAIT)
    store.claim_gate.set()
    session, _ = await asyncio.wait_for(staying, WAIT)
    assert registry.sessions == [session]
    await registry.close()


# -- grace


async def test_a_running_turn_extends_the_grace_period() -> None:
    store = WiredStore()
    go_on = asyncio.Event()
    provider = ScriptedProvider([[TextDelta("A long "), go_on, TextDelta("answer.")]])
    registry = make_registry(store, provider, grace=0.0)
    wire, second = Wire(), Wire()
    session, _ = await bind(registry, wire)
    await say(session, wire, "hi")
    await asyncio.wait_for(provider.record(0).started.wait(), WAIT)
    registry.unbind(KEY, wire)
    await bind(registry, second, SessionKey("subject", "s-2"))
    registry.unbind(SessionKey("subject", "s-2"), second)
    await until(lambda: len(registry) == 1)  # the idle one is leaving
    assert session.busy and registry.sessions == [session]
    go_on.set()
    await until(lambda: len(registry) == 0 and len(store.memory) == 0)
    assert not provider.record(0).closed_early
    await registry.close()


async def test_a_connection_during_a_close_gets_a_new_session() -> None:
    store = WiredStore()
    store.release_gate.clear()
    registry = make_registry(store, grace=0.0)
    wire, second = Wire(), Wire()
    old, _ = await bind(registry, wire)
    registry.unbind(KEY, wire)
    await until(store.releasing.is_set)
    new, _ = await bind(registry, second)
    assert new is not old
    store.release_gate.set()
    await until(lambda: not registry._closing)
    assert registry.sessions == [new] and len(store.memory) == 1
    await say(new, second, "hi")  # and it may still write
    await until(lambda: not new.busy)
    assert "store_unavailable" not in str([msgspec.json.decode(frame.data) for frame in second.frames])
    await registry.close()


def test_the_grace_period_starts_again_after_a_reconnect() -> None:
    async def scenario() -> None:
        registry = make_registry(WiredStore(), grace=10.0)
        wire, second = Wire(), Wire()
        await bind(registry, wire)
        registry.unbind(KEY, wire)
        await later(5.0)
        await bind(registry, second)
        registry.unbind(KEY, second)
        await later(9.0)
        assert len(registry) == 1
        await later(2.0)
        assert len(registry) == 0
        await registry.close()

    run(scenario())


async def test_a_claim_without_a_connection_is_cancelled() -> None:
    store = WiredStore()
    store.claim_gate.clear()
    registry = make_registry(store)
    leaving = asyncio.create_task(bind(registry, Wire()))
    await until(store.claiming.is_set)
    leaving.cancel()
    await asyncio.wait([leaving])
    store.claim_gate.set()
    await steps(20)
    assert len(registry) == 0 and len(store.memory) == 0
    await registry.close()


async def test_a_fenced_session_does_not_end_its_successor() -> None:
    store = WiredStore()
    store.release_gate.clear()
    registry = make_registry(store, grace=0.0)
    wire, second = Wire(), Wire()
    old, _ = await bind(registry, wire)
    registry.unbind(KEY, wire)
    await until(store.releasing.is_set)
    new, _ = await bind(registry, second)
    await say(old, wire, "hi")  # it is fenced, and learns that now
    assert registry.sessions == [new]
    await say(new, second, "hello")
    await until(lambda: not new.busy)
    assert registry.sessions == [new]
    store.release_gate.set()
    await registry.close()


async def test_a_session_with_a_running_turn_is_not_evicted() -> None:
    go_on = asyncio.Event()
    provider = ScriptedProvider([[go_on, TextDelta("Done.")]])
    registry = make_registry(WiredStore(), provider, max_sessions=1)
    wire = Wire()
    session, _ = await bind(registry, wire)
    await say(session, wire, "hi")
    await asyncio.wait_for(provider.record(0).started.wait(), WAIT)
    registry.unbind(KEY, wire)
    with pytest.raises(TooManySessions):
        await bind(registry, Wire(), SessionKey("subject", "s-2"))
    assert registry.sessions == [session]
    go_on.set()
    await registry.close()


# -- the end of sessions


async def test_closing_ends_every_session() -> None:
    store = WiredStore()
    go_on = asyncio.Event()
    provider = ScriptedProvider([[go_on]])
    registry = make_registry(store, provider, grace=60.0)
    wire, idle = Wire(), Wire()
    session, _ = await bind(registry, wire)
    await say(session, wire, "hi")
    await asyncio.wait_for(provider.record(0).started.wait(), WAIT)
    await bind(registry, idle, SessionKey("subject", "s-2"))
    registry.unbind(SessionKey("subject", "s-2"), idle)
    await asyncio.wait_for(registry.close(), WAIT)
    assert len(registry) == 0 and not session.busy and len(store.memory) == 0
    assert provider.record(0).closed.is_set()


async def test_closing_waits_for_a_session_that_is_already_closing() -> None:
    store = WiredStore()
    store.release_gate.clear()
    registry = make_registry(store, grace=0.0)
    wire = Wire()
    await bind(registry, wire)
    registry.unbind(KEY, wire)
    await until(store.releasing.is_set)
    closing = asyncio.create_task(registry.close())
    await asyncio.wait([closing], timeout=0.01)
    assert not closing.done()
    store.release_gate.set()
    await asyncio.wait_for(closing, WAIT)
    assert len(store.memory) == 0


async def test_a_bind_during_closing_is_closed_too() -> None:
    store = WiredStore()
    store.claim_gate.clear()
    registry = make_registry(store)
    binding = asyncio.create_task(bind(registry, Wire()))
    await until(store.claiming.is_set)
    closing = asyncio.create_task(registry.close())
    await until(lambda: len(registry) == 0)
    store.claim_gate.set()
    await asyncio.wait_for(closing, WAIT)
    await asyncio.wait([binding], timeout=WAIT)
    assert len(store.memory) == 0 and len(registry) == 0


async def test_over_a_subjects_limit_its_oldest_session_without_a_connection_ends() -> None:
    registry = make_registry(WiredStore(), max_sessions_per_subject=3)
    keys = [SessionKey("token-1", f"s-{number}") for number in range(5)]
    wires = [Wire() for _ in keys]
    foreign = SessionKey("token-2", "s-0")
    await bind(registry, Wire(), foreign)
    for wire, key in zip(wires[:3], keys[:3], strict=True):
        await bind(registry, wire, key)
    with pytest.raises(TooManySessions):
        await bind(registry, wires[3], keys[3])
    registry.unbind(keys[2], wires[2])
    registry.unbind(keys[0], wires[0])
    for wire, key in zip(wires[3:], keys[3:], strict=True):
        await bind(registry, wire, key)
    assert {session.key for session in registry.sessions} == {foreign, keys[1], keys[3], keys[4]}
    await bind(registry, Wire(), keys[1])  # one that is open takes no more room
    for number in range(5):
        await bind(registry, Wire(), SessionKey(ANONYMOUS, f"s-{number}"))  # they are many people
    await registry.close()


@pytest.mark.parametrize("alive", [True, False])
async def test_a_delayed_claim_needs_a_connected_client(
    alive: bool,
) -> None:
    store, wire = WiredStore(), Wire()
    registry = make_registry(store, **BACKOFF)
    wire.alive = alive
    if alive:
        assert (await bind(registry, wire))[0] in registry.sessions
    else:
        with pytest.raises(StoreUnavailable):
            await bind(registry, wire)
    assert store.claims == 1 + alive and len(registry) == alive
    await registry.close()


async def test_a_delayed_claim_serves_a_later_connection() -> None:
    store, leaving = WiredStore(), Leaving()
    registry = make_registry(store, **BACKOFF)
    first = asyncio.create_task(bind(registry, leaving))
    await leaving.pinged.wait()
    second = asyncio.create_task(bind(registry, Wire()))
    await asyncio.sleep(0)
    leaving.answer.set()
    assert (await first)[0] is (await second)[0]
    await registry.close()


async def test_a_delayed_claim_is_not_made_after_closing() -> None:
    store = WiredStore()
    registry = make_registry(store, **BACKOFF)
    store.release_gate.clear()
    binding = asyncio.create_task(bind(registry, Wire()))
    await store.releasing.wait()
    closing = asyncio.create_task(registry.close())
    await asyncio.sleep(0)
    store.release_gate.set()
    with pytest.raises(StoreUnavailable):
        await binding
    await closing
    assert store.claims == 1


# -- reload


async def test_a_session_that_is_claimed_during_a_reload_uses_the_new_services() -> None:
    store = WiredStore()
    provider = ScriptedProvider(lambda _: [TextDelta("Hi.")])
    services = replace(make_services(load_settings(None), provider), store=store)
    listener = Listener(services, TokenAuthenticator([]))
    await listener.start("127.0.0.1", 0)
    store.claim_gate.clear()
    phone = App(f"ws://127.0.0.1:{listener.port}/ws")
    await phone.open(start=False)
    phone.start()
    await until(store.claiming.is_set)
    listener.reload(replace(services, system_prompt="You are a goldfish."))
    store.claim_gate.set()
    await phone.ask("hi")
    await listener.stop(drain_s=0)
    assert provider.requests[0].system.startswith("You are a goldfish.")
