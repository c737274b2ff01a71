"""The hub: which session a connection gets, and when sessions end."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from conductor.app import make_services
from conductor.conversation.session import Session
from conductor.errors import StoreUnavailable, TooManySessions
from conductor.events import client
from conductor.events.codec import Inbound
from conductor.models.base import TextDelta
from conductor.rate_limit import ANONYMOUS
from conductor.server.sessions import SessionRegistry
from conductor.settings import load_settings
from conductor.stores.base import SessionKey
from tests.conversation.helpers import later, run, steps
from tests.models import ScriptedProvider
from tests.server.wires import WAIT, Wire, WiredStore, until

KEY = SessionKey("subject", "s-1")


BACKOFF: dict[str, Any] = {"free_takeovers": 0, "takeover_backoff": 0.001}
"""Limits with which every claim waits, for a moment."""


def make_registry(
    store: WiredStore, provider: ScriptedProvider | None = None, *, grace: float = 60.0, **limits: Any
) -> SessionRegistry:
    services = make_services(load_settings(None), provider or ScriptedProvider([]))
    limits = {"session_grace": grace, "close_timeout": 1.0, **limits}
    return SessionRegistry(replace(services, store=store, limits=replace(services.limits, **limits)))


class Leaving(Wire):
    """A client that is found gone, but not at once."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()
        self.answer = asyncio.Event()

    async def is_alive(self) -> bool:
        self.asked.set()
        await self.answer.wait()
        return False


async def bind(registry: SessionRegistry, wire: Wire, key: SessionKey = KEY) -> tuple[Session, bool]:
    async with asyncio.timeout(WAIT):
        return await registry.bind(key, wire)


async def say(session: Session, wire: Wire, text: str, event_id: str = "in-1") -> None:
    event = client.TranscriptFinal(text)
    session.attach(wire, resumed=False)
    await session.receive(Inbound(event_id, event.TYPE, KEY.session_id, 0, event), wire)


async def test_the_first_connection_makes_the_session_and_the_second_joins_it() -> None:
    store = WiredStore()
    registry = make_registry(store)
    first, existed_first = await bind(registry, Wire())
    second, existed_second = await bind(registry, Wire())
    assert first is second and (existed_first, existed_second) == (False, True)
    assert store.claims == 1 and len(registry) == 1 and registry.sessions == [first]
    await registry.close()


async def test_connections_that_bind_at_once_share_one_claim() -> None:
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


async def test_other_ids_and_other_subjects_get_other_sessions() -> None:
    registry = make_registry(WiredStore())
    keys = [KEY, SessionKey("subject", "s-2"), SessionKey("other", "s-1")]
    assert len({id((await bind(registry, Wire(), key))[0]) for key in keys}) == 3
    await registry.close()


async def test_a_session_that_the_store_knows_was_there_before() -> None:
    store = WiredStore()
    registry = make_registry(store, ScriptedProvider([[TextDelta("Hello.")]]))
    wire = Wire()
    session, _ = await bind(registry, wire)
    await say(session, wire, "hi")
    await until(lambda: not session.busy)
    again = make_registry(store)  # another process that takes it over
    _, existed = await bind(again, Wire())
    assert existed
    await again.close()
    await registry.close()


# -- a store that does not answer


@pytest.mark.parametrize("at_once", [1, 3])
async def test_a_claim_that_fails_is_raised_and_leaves_nothing_behind(at_once: int) -> None:
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


async def test_a_connection_that_gives_up_while_the_claim_is_slow_leaves_the_others_alone() -> None:
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


async def test_a_session_ends_when_nobody_comes_back_in_time() -> None:
    store = WiredStore()
    registry = make_registry(store, grace=0.01)
    wire = Wire()
    await bind(registry, wire)
    registry.unbind(KEY, wire)
    await until(lambda: len(registry) == 0 and len(store.memory) == 0)
    _, existed = await bind(registry, wire)
    assert not existed
    await registry.close()


async def test_a_grace_of_nothing_ends_it_at_once() -> None:
    store = WiredStore()
    registry = make_registry(store, grace=0.0)
    wire = Wire()
    await bind(registry, wire)
    registry.unbind(KEY, wire)
    await until(lambda: len(store.memory) == 0)
    await registry.close()


async def test_whoever_comes_back_in_time_finds_the_session_and_stops_its_clock() -> None:
    store = WiredStore()
    registry = make_registry(store, grace=0.05)
    wire, other = Wire(), Wire()
    session, _ = await bind(registry, wire)
    registry.unbind(KEY, wire)
    again, existed = await bind(registry, other)
    assert again is session and existed
    # A second session whose grace begins later, and is over: so the first one's would have been, too.
    later = Wire()
    await bind(registry, later, SessionKey("subject", "s-2"))
    registry.unbind(SessionKey("subject", "s-2"), later)
    await until(lambda: len(registry) == 1)
    assert registry.sessions == [session]
    await registry.close()


async def test_the_grace_begins_with_the_last_connection_that_leaves() -> None:
    store = WiredStore()
    registry = make_registry(store, grace=0.0)
    wires = [Wire(), Wire()]
    for wire in wires:
        await bind(registry, wire)
    registry.unbind(KEY, wires[0])
    other = Wire()
    await bind(registry, other, SessionKey("subject", "s-2"))
    registry.unbind(SessionKey("subject", "s-2"), other)
    await until(lambda: len(registry) == 1)
    assert [session.key for session in registry.sessions] == [KEY]
    registry.unbind(KEY, wires[1])
    await until(lambda: len(registry) == 0)
    await registry.close()


async def test_a_session_whose_turn_still_runs_outlives_its_grace_until_the_turn_ends() -> None:
    store = WiredStore()
    go_on = asyncio.Event()
    provider = ScriptedProvider([[TextDelta("A long "), go_on, TextDelta("answer.")]])
    registry = make_registry(store, provider, grace=0.0)
    wire, other = Wire(), Wire()
    session, _ = await bind(registry, wire)
    await say(session, wire, "hi")
    await asyncio.wait_for(provider.record(0).started.wait(), WAIT)
    registry.unbind(KEY, wire)
    await bind(registry, other, SessionKey("subject", "s-2"))
    registry.unbind(SessionKey("subject", "s-2"), other)
    await until(lambda: len(registry) == 1)  # the idle one is gone
    assert session.busy and registry.sessions == [session]
    go_on.set()
    await until(lambda: len(registry) == 0 and len(store.memory) == 0)
    assert not provider.record(0).closed_early
    await registry.close()


@pytest.mark.parametrize("key", [KEY, SessionKey("subject", "no such")])
async def test_unbinding_a_stranger_changes_nothing(key: SessionKey) -> None:
    registry = make_registry(WiredStore(), grace=0.0)
    wire = Wire()
    session, _ = await bind(registry, wire)
    session.attach(wire, resumed=False)
    registry.unbind(key, Wire())
    served = [session.transport]
    registry.unbind(KEY, wire)
    registry.unbind(KEY, wire)
    served.append(session.transport)
    assert served == [wire, None]
    await until(lambda: len(registry) == 0)
    await registry.close()


async def test_a_connection_that_comes_while_the_old_session_closes_gets_a_new_one_that_stays() -> None:
    store = WiredStore()
    store.release_gate.clear()
    registry = make_registry(store, grace=0.0)
    wire, other = Wire(), Wire()
    old, _ = await bind(registry, wire)
    registry.unbind(KEY, wire)
    await until(store.releasing.is_set)
    new, _ = await bind(registry, other)
    assert new is not old
    store.release_gate.set()
    await until(lambda: not registry._closing)
    assert registry.sessions == [new] and len(store.memory) == 1
    await say(new, other, "hi")  # and it may still write
    await until(lambda: not new.busy)
    assert "store_unavailable" not in str([msgspec.json.decode(frame.data) for frame in other.frames])
    await registry.close()


def test_a_grace_is_counted_from_the_last_time_that_its_client_left() -> None:
    async def scenario() -> None:
        registry = make_registry(WiredStore(), grace=10.0)
        wire, other = Wire(), Wire()
        await bind(registry, wire)
        registry.unbind(KEY, wire)
        await later(5.0)
        await bind(registry, other)
        registry.unbind(KEY, other)
        await later(9.0)
        assert len(registry) == 1
        await later(2.0)
        assert len(registry) == 0
        await registry.close()

    run(scenario())


def test_a_grace_is_counted_from_when_the_last_of_several_left() -> None:
    async def scenario() -> None:
        registry = make_registry(WiredStore(), grace=10.0)
        wire, other = Wire(), Wire()
        await bind(registry, wire)
        await bind(registry, other)
        registry.unbind(KEY, wire)
        await later(5.0)
        registry.unbind(KEY, other)
        await later(9.0)
        assert len(registry) == 1
        await registry.close()

    run(scenario())


async def test_a_claim_that_its_only_connection_gives_up_is_not_made() -> None:
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


async def test_a_session_that_was_claimed_again_here_is_not_ended_by_the_one_before() -> None:
    store = WiredStore()
    store.release_gate.clear()
    registry = make_registry(store, grace=0.0)
    wire, other = Wire(), Wire()
    old, _ = await bind(registry, wire)
    registry.unbind(KEY, wire)
    await until(store.releasing.is_set)
    new, _ = await bind(registry, other)
    await say(old, wire, "hi")  # it is fenced, and learns that now
    assert registry.sessions == [new]
    await say(new, other, "hello")
    await until(lambda: not new.busy)
    assert registry.sessions == [new]
    store.release_gate.set()
    await registry.close()


async def test_a_session_with_a_running_turn_does_not_make_room() -> None:
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


# -- the end


async def test_closing_ends_every_session_and_forgets_the_clocks() -> None:
    store = WiredStore()
    go_on = asyncio.Event()
    provider = ScriptedProvider([[go_on]])
    registry = make_registry(store, provider, grace=60.0)
    wire, left = Wire(), Wire()
    session, _ = await bind(registry, wire)
    await say(session, wire, "hi")
    await asyncio.wait_for(provider.record(0).started.wait(), WAIT)
    await bind(registry, left, SessionKey("subject", "s-2"))
    registry.unbind(SessionKey("subject", "s-2"), left)
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


async def test_closing_does_not_wait_for_ever_for_a_claim() -> None:
    store = WiredStore()
    store.claim_gate.clear()
    registry = make_registry(store, close_timeout=0.05)
    binding = asyncio.create_task(bind(registry, Wire()))
    await until(store.claiming.is_set)
    await asyncio.wait_for(registry.close(), WAIT)
    await asyncio.wait([binding], timeout=WAIT)
    assert binding.cancelled() and len(registry) == 0


async def test_a_bind_that_races_with_closing_is_closed_too() -> None:
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


async def test_a_session_that_cannot_be_closed_does_not_keep_the_others() -> None:
    store = WiredStore()
    registry = make_registry(store)
    for number in range(3):
        await bind(registry, Wire(), SessionKey("subject", f"s-{number}"))
    store.away = True
    await asyncio.wait_for(registry.close(), WAIT)
    assert len(registry) == 0


async def test_of_too_many_sessions_the_oldest_that_nobody_is_connected_to_ends_early() -> None:
    registry = make_registry(WiredStore(), max_sessions=3)
    wires = [Wire() for _ in range(4)]
    keys = [SessionKey("subject", f"s-{number}") for number in range(4)]
    for wire, key in zip(wires[:3], keys[:3], strict=True):
        await bind(registry, wire, key)
    with pytest.raises(TooManySessions):
        await bind(registry, wires[3], keys[3])
    registry.unbind(keys[1], wires[1])
    await bind(registry, wires[3], keys[3])
    assert [session.key for session in registry.sessions] == [keys[0], keys[2], keys[3]]
    await registry.close()


async def test_of_a_subjects_sessions_the_one_that_was_left_first_makes_room_and_others_stay() -> None:
    registry = make_registry(WiredStore(), max_sessions_per_subject=3)
    keys = [SessionKey("token-1", f"s-{number}") for number in range(5)]
    wires = [Wire() for _ in keys]
    other = SessionKey("token-2", "s-0")
    await bind(registry, Wire(), other)
    for wire, key in zip(wires[:3], keys[:3], strict=True):
        await bind(registry, wire, key)
    with pytest.raises(TooManySessions):
        await bind(registry, wires[3], keys[3])
    registry.unbind(keys[2], wires[2])
    registry.unbind(keys[0], wires[0])
    for wire, key in zip(wires[3:], keys[3:], strict=True):
        await bind(registry, wire, key)
    assert {session.key for session in registry.sessions} == {other, keys[1], keys[3], keys[4]}
    await bind(registry, Wire(), keys[1])  # one that is open takes no more room
    await registry.close()


async def test_without_tokens_sessions_are_not_those_of_one_person() -> None:
    registry = make_registry(WiredStore(), max_sessions_per_subject=1)
    for number in range(3):
        await bind(registry, Wire(), SessionKey(ANONYMOUS, f"s-{number}"))
    assert len(registry) == 3
    await registry.close()


@pytest.mark.parametrize("alive", [True, False])
async def test_a_claim_that_had_to_wait_is_made_only_for_a_client_that_is_still_there(
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


async def test_a_claim_that_had_to_wait_is_made_for_whoever_has_come_meanwhile() -> None:
    store, gone = WiredStore(), Leaving()
    registry = make_registry(store, **BACKOFF)
    first = asyncio.create_task(bind(registry, gone))
    await gone.asked.wait()
    second = asyncio.create_task(bind(registry, Wire()))
    await asyncio.sleep(0)
    gone.answer.set()
    assert (await first)[0] is (await second)[0]
    await registry.close()


async def test_a_claim_that_had_to_wait_while_the_hub_was_closed_is_not_made() -> None:
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
