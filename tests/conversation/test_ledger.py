"""Commit, then send: in that order, whatever the store does."""

from __future__ import annotations

import asyncio
import random

import pytest

from conductor.conversation.delivery import CallTerms, Delivery
from conductor.conversation.ledger import Ledger
from conductor.conversation.outbox import Outbox
from conductor.conversation.tasks import Tasks
from conductor.errors import Duplicate, StoreError, StoreUnavailable
from conductor.events.server import ErrorEvent, SpeechFinal, append_message, set_state
from conductor.messages import UserMessage
from conductor.settings import Limits
from conductor.stores.base import AckOutbound, AppendLog, PutOutbound, RememberInbound
from tests.conversation.helpers import KEY, SlowStore, randomly_slow, run, steps
from tests.conversation.test_outbox import Wire


async def make_ledger(store: SlowStore) -> tuple[Ledger, Outbox, Wire]:
    outbox = Outbox(Limits(), lambda record: None)
    delivery = Delivery("s-1", outbox, Limits(), lambda name: CallTerms(30.0, "write"))
    wire = Wire()
    outbox.attach(wire)
    return Ledger(store, await store.claim(KEY), delivery, Tasks()), outbox, wire


def test_nothing_leaves_before_its_commit_is_acknowledged() -> None:
    async def scenario() -> None:
        store = SlowStore()
        ledger, _, wire = await make_ledger(store)
        store.hold_answer = asyncio.Event()
        commit = asyncio.ensure_future(
            ledger.commit([AppendLog(UserMessage("hi"))], [set_state("c1", "thinking"), SpeechFinal("x")])
        )
        await steps(20)
        assert wire.frames == []
        assert ledger.state.log == []
        store.hold_answer.set()
        await commit
        assert len(wire.frames) == 2
        assert ledger.state.log == [UserMessage("hi")]

    run(scenario())


@pytest.mark.parametrize("seed", range(5))
def test_events_leave_in_the_order_of_their_commits(seed: int) -> None:
    async def scenario() -> None:
        ledger, _, wire = await make_ledger(randomly_slow(random.Random(seed)))
        await asyncio.gather(
            *(ledger.commit([], [append_message(f"c{n}", "user", str(n))]) for n in range(20))
        )
        assert wire.call_ids() == [f"c{n}" for n in range(20)]

    run(scenario())


@pytest.mark.parametrize("error", [StoreUnavailable("away"), Duplicate("seen")])
def test_a_commit_that_fails_sends_and_changes_nothing(error: StoreError) -> None:
    async def scenario() -> None:
        store = SlowStore(fail=lambda operations: error)
        ledger, outbox, wire = await make_ledger(store)
        with pytest.raises(type(error)):
            await ledger.commit(
                [AppendLog(UserMessage("hi"))], [set_state("c1", "idle"), ErrorEvent("internal_error", "x")]
            )
        assert wire.frames == []
        assert len(outbox) == 0
        assert ledger.state.log == []

    run(scenario())


def test_what_was_acknowledged_is_dropped_by_the_next_commit_that_succeeds() -> None:
    async def scenario() -> None:
        store = SlowStore()
        ledger, outbox, _ = await make_ledger(store)
        await ledger.commit([], [set_state("c1", "idle")])
        (put,) = [o.event.event_id for o in store.commits[0] if isinstance(o, PutOutbound)]
        outbox.acknowledge("c1")
        failures = iter([StoreUnavailable("away")])
        store.fail = lambda operations: next(failures, None)
        with pytest.raises(StoreUnavailable):
            await ledger.commit([RememberInbound("e1")])
        await ledger.commit([RememberInbound("e1")])
        assert store.commits[-1] == [RememberInbound("e1"), AckOutbound(put)]
        await ledger.commit([])
        assert len(store.commits) == 2

    run(scenario())


def test_a_commit_whose_caller_gives_up_leaves_the_mirror_like_the_store() -> None:
    async def scenario() -> None:
        store = SlowStore()
        ledger, _, _ = await make_ledger(store)
        store.hold_answer = asyncio.Event()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5.0):  # as a turn's end does
                await ledger.commit([AppendLog(UserMessage("hi"))])
        store.hold_answer.set()
        await ledger.commit([AppendLog(UserMessage("ho"))])
        assert (await store.claim(KEY)).state.log == ledger.state.log

    run(scenario())


def test_a_commit_whose_caller_gives_up_forgets_no_acknowledgement() -> None:
    async def scenario() -> None:
        store = SlowStore()
        ledger, outbox, _ = await make_ledger(store)
        await ledger.commit([], [set_state("c1", "idle")])
        outbox.acknowledge("c1")
        store.hold = asyncio.Event()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5.0):
                await ledger.commit([AppendLog(UserMessage("hi"))])
        store.hold.set()
        await ledger.commit([AppendLog(UserMessage("ho"))])
        await steps(20)
        await ledger.commit([])
        assert not (await store.claim(KEY)).state.outbound

    run(scenario())
