"""The hub: which session a connection gets, and when sessions end."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from conductor.app import make_services
from conductor.conversation import duel
from conductor.conversation.session import Session
from conductor.errors import StoreUnavailable
from conductor.events import client
from conductor.events.codec import Inbound
from conductor.models.base import TextDelta
from conductor.models.scripted import ScriptedProvider
from conductor.server.hub import Hub
from conductor.settings import load_settings
from conductor.stores.base import SessionKey
from tests.server.wires import WAIT, Wire, WiredStore, until

KEY = SessionKey("subject", "s-1")


def make_hub(
    store: WiredStore, provider: ScriptedProvider | None = None, *, grace: float = 60.0, **limits: Any
) -> Hub:
    services = make_services(load_settings(None), provider or ScriptedProvider([]))
    limits = {"session_grace": grace, "close_timeout": 1.0, **limits}
    return Hub(replace(services, store=store, limits=replace(services.limits, **limits)))


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


async def bind(hub: Hub, wire: Wire, key: SessionKey = KEY) -> tuple[Session, bool]:
    async with asyncio.timeout(WAIT):
        return await hub.bind(key, wire)


async def say(session: Session, wire: Wire, text: str, event_id: str = "in-1") -> None:
    event = client.TranscriptFinal(text)
    session.attach(wire, resumed=False)
    await session.receive(Inbound(event_id, event.TYPE, KEY.session_id, 0, event), wire)


async def test_the_first_connection_makes_the_session_and_the_second_joins_it() -> None:
    store = WiredStore()
    hub = make_hub(store)
    first, existed_first = await bind(hub, Wire())
    second, existed_second = await bind(hub, Wire())
    assert first is second and (existed_first, existed_second) == (False, True)
    assert store.claims == 1 and len(hub) == 1 and hub.sessions == [first]
    await hub.close()


async def test_connections_that_bind_at_once_share_one_claim() -> None:
    store = WiredStore()
    store.claim_gate.clear()
    hub = make_hub(store)
    binding = [asyncio.create_task(bind(hub, Wire())) for _ in range(5)]
    await until(store.claiming.is_set)
    assert hub.sessions == [], "it is not there yet"
    store.claim_gate.set()
    bound = await asyncio.gather(*binding)
    assert len({id(session) for session, _ in bound}) == 1
    assert store.claims == 1
    await hub.close()


async def test_other_ids_and_other_subjects_get_other_sessions() -> None:
    hub = make_hub(WiredStore())
    keys = [KEY, SessionKey("subject", "s-2"), SessionKey("other", "s-1")]
    assert len({id((await bind(hub, Wire(), key))[0]) for key in keys}) == 3
    await hub.close()


async def test_a_session_that_the_store_knows_was_there_before() -> None:
    store = WiredStore()
    hub = make_hub(store, ScriptedProvider([[TextDelta("Hello.")]]))
    wire = Wire()
    session, _ = await bind(hub, wire)
    await say(session, wire, "hi")
    await until(lambda: not session.busy)
    again = make_hub(store)  # another process that takes it over
    _, existed = await bind(again, Wire())
    assert existed
    await again.close()
    await hub.close()


# -- a store that does not answer


@pytest.mark.parametrize("at_once", [1, 3])
async def test_a_claim_that_fails_is_raised_and_leaves_nothing_behind(at_once: int) -> None:
    store = WiredStore()
    store.away = True
    hub = make_hub(store)
    results = await asyncio.gather(*(bind(hub, Wire()) for _ in range(at_once)), return_exceptions=True)
    assert [type(result) for result in results] == [StoreUnavailable] * at_once
    assert len(hub) == 0 and hub.sessions == []
    store.away = False
    _, existed = await bind(hub, Wire())
    assert not existed and len(hub) == 1
    await hub.close()


async def test_a_connection_that_gives_up_while_the_claim_is_slow_leaves_the_others_alone() -> None:
    store = WiredStore()
    store.claim_gate.clear()
    hub = make_hub(store)
    leaving = asyncio.create_task(bind(hub, Wire()))
    staying = asyncio.create_task(bind(hub, Wire()))
    await until(store.claiming.is_set)
    leaving.cancel()
    await asyncio.wait([leaving], timeout=WAIT)
    store.claim_gate.set()
    session, _ = await asyncio.wait_for(staying, WAIT)
    assert hub.sessions == [session]
    await hub.close()


# -- grace


async def test_a_session_ends_when_nobody_comes_back_in_time() -> None:
    store = WiredStore()
    hub = make_hub(store, grace=0.01)
    wire = Wire()
    await bind(hub, wire)
    hub.unbind(KEY, wire)
    await until(lambda: len(hub) == 0 and len(store.memory) == 0)
    _, existed = await bind(hub, wire)
    assert not existed
    await hub.close()


async def test_a_grace_of_nothing_ends_it_at_once() -> None:
    store = WiredStore()
    hub = make_hub(store, grace=0.0)
    wire = Wire()
    await bind(hub, wire)
    hub.unbind(KEY, wire)
    await until(lambda: len(store.memory) == 0)
    await hub.close()


async def test_whoever_comes_back_in_time_finds_the_session_and_stops_its_clock() -> None:
    store = WiredStore()
    hub = make_hub(store, grace=0.05)
    wire, other = Wire(), Wire()
    session, _ = await bind(hub, wire)
    hub.unbind(KEY, wire)
    again, existed = await bind(hub, other)
    assert again is session and existed
    # A second session whose grace begins later, and is over: so the first one's would have been, too.
    later = Wire()
    await bind(hub, later, SessionKey("subject", "s-2"))
    hub.unbind(SessionKey("subject", "s-2"), later)
    await until(lambda: len(hub) == 1)
    assert hub.sessions == [session]
    await hub.close()


async def test_the_grace_begins_with_the_last_connection_that_leaves() -> None:
    store = WiredStore()
    hub = make_hub(store, grace=0.0)
    wires = [Wire(), Wire()]
    for wire in wires:
        await bind(hub, wire)
    hub.unbind(KEY, wires[0])
    other = Wire()
    await bind(hub, other, SessionKey("subject", "s-2"))
    hub.unbind(SessionKey("subject", "s-2"), other)
    await until(lambda: len(hub) == 1)
    assert [session.key for session in hub.sessions] == [KEY]
    hub.unbind(KEY, wires[1])
    await until(lambda: len(hub) == 0)
    await hub.close()


async def test_a_session_whose_turn_still_runs_outlives_its_grace_until_the_turn_ends() -> None:
    store = WiredStore()
    go_on = asyncio.Event()
    provider = ScriptedProvider([[TextDelta("A long "), go_on, TextDelta("answer.")]])
    hub = make_hub(store, provider, grace=0.0)
    wire, other = Wire(), Wire()
    session, _ = await bind(hub, wire)
    await say(session, wire, "hi")
    await asyncio.wait_for(provider.record(0).started.wait(), WAIT)
    hub.unbind(KEY, wire)
    await bind(hub, other, SessionKey("subject", "s-2"))
    hub.unbind(SessionKey("subject", "s-2"), other)
    await until(lambda: len(hub) == 1)  # the idle one is gone
    assert session.busy and hub.sessions == [session]
    go_on.set()
    await until(lambda: len(hub) == 0 and len(store.memory) == 0)
    assert not provider.record(0).closed_early
    await hub.close()


@pytest.mark.parametrize("key", [KEY, SessionKey("subject", "no such")])
async def test_unbinding_a_stranger_changes_nothing(key: SessionKey) -> None:
    hub = make_hub(WiredStore(), grace=0.0)
    wire = Wire()
    session, _ = await bind(hub, wire)
    session.attach(wire, resumed=False)
    hub.unbind(key, Wire())
    served = [session.transport]
    hub.unbind(KEY, wire)
    hub.unbind(KEY, wire)
    served.append(session.transport)
    assert served == [wire, None]
    await until(lambda: len(hub) == 0)
    await hub.close()


async def test_a_connection_that_comes_while_the_old_session_closes_gets_a_new_one_that_stays() -> None:
    store = WiredStore()
    store.release_gate.clear()
    hub = make_hub(store, grace=0.0)
    wire, other = Wire(), Wire()
    old, _ = await bind(hub, wire)
    hub.unbind(KEY, wire)
    await until(store.releasing.is_set)
    new, _ = await bind(hub, other)
    assert new is not old
    store.release_gate.set()
    await until(lambda: not hub._closing)
    assert hub.sessions == [new] and len(store.memory) == 1
    await say(new, other, "hi")  # and it may still write
    await until(lambda: not new.busy)
    assert "store_unavailable" not in str([msgspec.json.decode(frame.data) for frame in other.frames])
    await hub.close()


# -- the end


async def test_closing_ends_every_session_and_forgets_the_clocks() -> None:
    store = WiredStore()
    go_on = asyncio.Event()
    provider = ScriptedProvider([[go_on]])
    hub = make_hub(store, provider, grace=60.0)
    wire, left = Wire(), Wire()
    session, _ = await bind(hub, wire)
    await say(session, wire, "hi")
    await asyncio.wait_for(provider.record(0).started.wait(), WAIT)
    await bind(hub, left, SessionKey("subject", "s-2"))
    hub.unbind(SessionKey("subject", "s-2"), left)
    await asyncio.wait_for(hub.close(), WAIT)
    assert len(hub) == 0 and not session.busy and len(store.memory) == 0
    assert provider.record(0).closed.is_set()


async def test_closing_waits_for_a_session_that_is_already_closing() -> None:
    store = WiredStore()
    store.release_gate.clear()
    hub = make_hub(store, grace=0.0)
    wire = Wire()
    await bind(hub, wire)
    hub.unbind(KEY, wire)
    await until(store.releasing.is_set)
    closing = asyncio.create_task(hub.close())
    await asyncio.wait([closing], timeout=0.01)
    assert not closing.done()
    store.release_gate.set()
    await asyncio.wait_for(closing, WAIT)
    assert len(store.memory) == 0


async def test_closing_does_not_wait_for_ever_for_a_claim() -> None:
    store = WiredStore()
    store.claim_gate.clear()
    hub = make_hub(store, close_timeout=0.05)
    binding = asyncio.create_task(bind(hub, Wire()))
    await until(store.claiming.is_set)
    await asyncio.wait_for(hub.close(), WAIT)
    await asyncio.wait([binding], timeout=WAIT)
    assert binding.cancelled() and len(hub) == 0


async def test_a_bind_that_races_with_closing_is_closed_too() -> None:
    store = WiredStore()
    store.claim_gate.clear()
    hub = make_hub(store)
    binding = asyncio.create_task(bind(hub, Wire()))
    await until(store.claiming.is_set)
    closing = asyncio.create_task(hub.close())
    await until(lambda: len(hub) == 0)
    store.claim_gate.set()
    await asyncio.wait_for(closing, WAIT)
    await asyncio.wait([binding], timeout=WAIT)
    assert len(store.memory) == 0 and len(hub) == 0


async def test_a_session_that_cannot_be_closed_does_not_keep_the_others() -> None:
    store = WiredStore()
    hub = make_hub(store)
    for number in range(3):
        await bind(hub, Wire(), SessionKey("subject", f"s-{number}"))
    store.away = True
    await asyncio.wait_for(hub.close(), WAIT)
    assert len(hub) == 0


async def test_of_too_many_sessions_the_oldest_that_nobody_is_connected_to_ends_early() -> None:
    hub = make_hub(WiredStore(), max_sessions=3)
    wires = [Wire() for _ in range(4)]
    keys = [SessionKey("subject", f"s-{number}") for number in range(4)]
    for wire, key in zip(wires[:3], keys[:3], strict=True):
        await bind(hub, wire, key)
    with pytest.raises(StoreUnavailable):
        await bind(hub, wires[3], keys[3])
    hub.unbind(keys[1], wires[1])
    await bind(hub, wires[3], keys[3])
    assert [session.key for session in hub.sessions] == [keys[0], keys[2], keys[3]]
    await hub.close()


@pytest.mark.parametrize("alive", [True, False])
async def test_a_claim_that_had_to_wait_is_made_only_for_a_client_that_is_still_there(
    monkeypatch: pytest.MonkeyPatch, alive: bool
) -> None:
    monkeypatch.setattr(duel, "FREE", 0)
    monkeypatch.setattr(duel, "_FIRST_S", 0.001)
    store, wire = WiredStore(), Wire()
    hub = make_hub(store)
    wire.alive = alive
    if alive:
        assert (await bind(hub, wire))[0] in hub.sessions
    else:
        with pytest.raises(StoreUnavailable):
            await bind(hub, wire)
    assert store.claims == 1 + alive and len(hub) == alive
    await hub.close()


async def test_a_claim_that_had_to_wait_is_made_for_whoever_has_come_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(duel, "FREE", 0)
    monkeypatch.setattr(duel, "_FIRST_S", 0.001)
    store, gone = WiredStore(), Leaving()
    hub = make_hub(store)
    first = asyncio.create_task(bind(hub, gone))
    await gone.asked.wait()
    second = asyncio.create_task(bind(hub, Wire()))
    await asyncio.sleep(0)
    gone.answer.set()
    assert (await first)[0] is (await second)[0]
    await hub.close()


async def test_a_claim_that_had_to_wait_while_the_hub_was_closed_is_not_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(duel, "FREE", 0)
    monkeypatch.setattr(duel, "_FIRST_S", 0.001)
    store = WiredStore()
    hub = make_hub(store)
    store.release_gate.clear()
    binding = asyncio.create_task(bind(hub, Wire()))
    await store.releasing.wait()
    closing = asyncio.create_task(hub.close())
    await asyncio.sleep(0)
    store.release_gate.set()
    with pytest.raises(StoreUnavailable):
        await binding
    await closing
    assert store.claims == 1
