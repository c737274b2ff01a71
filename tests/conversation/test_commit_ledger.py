"""Commit, then send: in that order, whatever the store does."""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Sequence

import pytest

from conductor.conversation.commit import CallLimits, Committer, EventEncoder
from conductor.conversation.outbox import Outbox
from conductor.conversation.tasks import Tasks
from conductor.errors import Duplicate, Fenced, StoreError, StoreUnavailable
from conductor.events.server import ErrorEvent, SpeechFinal, append_message, set_state
from conductor.messages import UserMessage
from conductor.settings import Limits
from conductor.stores.base import (
    AckOutbound,
    AppendLog,
    Claim,
    Operation,
    PutOutbound,
    RememberInbound,
    SessionKey,
    SetField,
)
from conductor.stores.memory import MemoryStore
from tests.conversation.helpers import KEY, SlowStore, randomly_slow, steps
from tests.conversation.test_outbox import Wire

Operations = Sequence[Operation]


class FailingOver(SlowStore):
    """A store that can be put back to an earlier state, as a failover does that lost the last commits."""

    def __init__(self) -> None:
        super().__init__()
        self._earlier: MemoryStore | None = None

    def remember(self) -> None:
        self._earlier = copy.deepcopy(self.inner)

    def fail_over(self) -> None:
        assert self._earlier is not None
        self.inner = copy.deepcopy(self._earlier)


async def make_ledger(store: SlowStore, lost: list[bool] | None = None) -> tuple[Committer, Outbox, Wire]:
    outbox = Outbox(Limits(), lambda record: None)
    encoder = EventEncoder("s-1", outbox, Limits(), lambda name: CallLimits(30.0, "write"))
    wire = Wire()
    outbox.attach(wire)
    on_lost = (lambda stale: None) if lost is None else lost.append
    return Committer(store, await store.claim(KEY), encoder, Tasks(), on_lost), outbox, wire


async def test_nothing_leaves_before_its_commit_is_acknowledged() -> None:
    store = SlowStore()
    committer, _, wire = await make_ledger(store)
    store.hold_answer = asyncio.Event()
    commit = asyncio.ensure_future(
        committer.commit([AppendLog(UserMessage("hi"))], [set_state("c1", "thinking"), SpeechFinal("x")])
    )
    await steps(20)
    assert wire.frames == []
    assert committer.state.log == []
    store.hold_answer.set()
    await commit
    assert len(wire.frames) == 2
    assert committer.state.log == [UserMessage("hi")]


@pytest.mark.parametrize("seed", range(5))
async def test_events_leave_in_the_order_of_their_commits(seed: int) -> None:
    committer, _, wire = await make_ledger(randomly_slow(random.Random(seed)))
    await asyncio.gather(
        *(committer.commit([], [append_message(f"c{n}", "user", str(n))]) for n in range(20))
    )
    assert wire.call_ids() == [f"c{n}" for n in range(20)]


@pytest.mark.parametrize("error", [StoreUnavailable("away"), Duplicate("seen")])
async def test_a_commit_that_fails_sends_and_changes_nothing(error: StoreError) -> None:
    store = SlowStore(fail=lambda operations: error)
    committer, outbox, wire = await make_ledger(store)
    with pytest.raises(type(error)):
        await committer.commit(
            [AppendLog(UserMessage("hi"))], [set_state("c1", "idle"), ErrorEvent("internal_error", "x")]
        )
    assert wire.frames == []
    assert len(outbox) == 0
    assert committer.state.log == []


async def test_what_was_acknowledged_is_dropped_by_the_next_commit_that_succeeds() -> None:
    store = SlowStore()
    committer, outbox, _ = await make_ledger(store)
    await committer.commit([], [set_state("c1", "idle")])
    (put,) = [o.event.event_id for o in store.commits[0] if isinstance(o, PutOutbound)]
    outbox.acknowledge("c1")
    failures = iter([StoreUnavailable("away")])
    store.fail = lambda operations: next(failures, None)
    with pytest.raises(StoreUnavailable):
        await committer.commit([RememberInbound("e1")])
    await committer.commit([RememberInbound("e1")])
    assert store.commits[-1] == [RememberInbound("e1"), AckOutbound(put)]
    await committer.commit([])
    assert len(store.commits) == 2


async def test_a_commit_whose_caller_gives_up_leaves_the_mirror_like_the_store() -> None:
    store = SlowStore()
    committer, _, _ = await make_ledger(store)
    store.hold_answer = asyncio.Event()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5.0):  # as a turn's end does
            await committer.commit([AppendLog(UserMessage("hi"))])
    store.hold_answer.set()
    await committer.commit([AppendLog(UserMessage("ho"))])
    assert (await store.claim(KEY)).state.log == committer.state.log


async def test_a_commit_whose_caller_gives_up_forgets_no_acknowledgement() -> None:
    store = SlowStore()
    committer, outbox, _ = await make_ledger(store)
    await committer.commit([], [set_state("c1", "idle")])
    outbox.acknowledge("c1")
    store.hold = asyncio.Event()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5.0):
            await committer.commit([AppendLog(UserMessage("hi"))])
    store.hold.set()
    await committer.commit([AppendLog(UserMessage("ho"))])
    await steps(20)
    await committer.commit([])
    assert not (await store.claim(KEY)).state.outbound


# -- snapshots


async def test_a_memo_is_recorded_with_the_commit_that_changes_it_and_read_when_its_turn_has_come() -> None:
    store = SlowStore()
    committer, _, _ = await make_ledger(store)
    store.hold = asyncio.Event()
    text = "early"
    first = asyncio.ensure_future(committer.commit([AppendLog(UserMessage("one"))]))
    second = asyncio.ensure_future(
        committer.commit([AppendLog(UserMessage("two"))], snapshots={"turn": lambda: text})
    )
    await steps(20)
    text = "late"
    store.hold.set()
    await asyncio.gather(first, second)
    assert store.commits == [
        [AppendLog(UserMessage("one"))],
        [AppendLog(UserMessage("two")), SetField("turn", "late")],
    ]
    assert committer.state.fields == {"turn": "late"}


async def test_what_follows_a_commit_is_done_before_the_next_one_is_made_ready() -> None:
    store = SlowStore(after=lambda: 3)
    committer, _, wire = await make_ledger(store)
    turn, sent = "running", list[int]()

    def end() -> None:
        nonlocal turn
        turn = ""
        sent.append(len(wire.frames))

    await asyncio.gather(
        committer.commit([], [set_state("c1", "idle")], snapshots={"turn": lambda: turn}, then=end),
        committer.commit([], [set_state("c2", "idle")], snapshots={"turn": lambda: turn}),
    )
    first, second = store.commits
    assert SetField("turn", "running") in first and SetField("turn", "") in second
    assert sent == [0], "it is done before the events leave"


async def test_what_follows_a_commit_is_not_done_where_the_commit_failed() -> None:
    committer, _, _ = await make_ledger(SlowStore(fail=lambda operations: StoreUnavailable("away")))
    done: list[bool] = []
    with pytest.raises(StoreUnavailable):
        await committer.commit([RememberInbound("e1")], then=lambda: done.append(True))
    assert not done


async def test_a_memo_that_has_changed_waits_for_the_next_commit_that_succeeds() -> None:
    store = SlowStore()
    committer, _, _ = await make_ledger(store)
    text = "one"
    committer.register("profile", lambda: text)
    committer.register("other", lambda: "never")
    committer.mark_dirty("profile")
    failures = iter([StoreUnavailable("away"), StoreUnavailable("away")])
    store.fail = lambda operations: next(failures, None)
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await committer.commit([RememberInbound("e1")])
    assert not committer.state.fields
    text = "two"
    await committer.flush()
    await committer.flush()
    assert store.commits == [[SetField("profile", "two")]]
    assert committer.state.fields == {"profile": "two"}


async def test_a_memo_that_changes_while_it_is_recorded_is_recorded_again() -> None:
    store = SlowStore()
    committer, _, _ = await make_ledger(store)
    text = "one"
    committer.register("profile", lambda: text)
    committer.mark_dirty("profile")
    store.hold = asyncio.Event()
    first = asyncio.ensure_future(committer.flush())
    await steps(20)
    text = "two"
    committer.mark_dirty("profile")
    store.hold.set()
    await first
    await committer.flush()
    assert store.commits == [[SetField("profile", "one")], [SetField("profile", "two")]]


# -- a session that is another's, or other in the store


async def test_a_session_that_another_has_claimed_is_lost_and_silent_ever_after() -> None:
    store, lost = SlowStore(), list[bool]()
    committer, outbox, wire = await make_ledger(store, lost)
    other = await store.claim(KEY)
    for _ in range(3):
        with pytest.raises(Fenced):
            await committer.commit([AppendLog(UserMessage("hi"))], [set_state("c1", "idle")])
        assert not await committer.verify()
    assert lost == [False] and committer.lost
    assert wire.frames == [] and len(outbox) == 0 and committer.state.log == []
    await committer.release()
    await store.commit(other, "commit-1", [SetField("a", "b")])


async def test_a_commit_that_was_recorded_although_it_seemed_to_fail_makes_what_is_here_old() -> None:
    store, lost = SlowStore(), list[bool]()
    committer, _, wire = await make_ledger(store, lost)
    await store.inner.commit(copy.deepcopy(committer._claim), "lost", [AppendLog(UserMessage("hi"))])
    for _ in range(3):
        with pytest.raises(Fenced):
            await committer.commit([AppendLog(UserMessage("ho"))], [set_state("c1", "idle")])
        assert not await committer.verify()
    assert lost == [True] and committer.lost
    assert wire.frames == [] and committer.state.log == []
    assert (await store.claim(KEY)).state.log == [UserMessage("hi")]


async def test_what_the_store_has_lost_is_written_again_and_the_events_leave() -> None:
    store, lost = FailingOver(), list[bool]()
    committer, outbox, wire = await make_ledger(store, lost)
    await committer.commit([AppendLog(UserMessage("one"))], [set_state("c1", "thinking")])
    store.remember()
    await committer.commit([AppendLog(UserMessage("two")), SetField("a", "b")], [set_state("c2", "idle")])
    outbox.acknowledge("c1")
    for number in range(3):
        store.fail_over()
        text = UserMessage(f"again {number}")
        await committer.commit([AppendLog(text)], [SpeechFinal(text.text)])
        assert len(wire.frames) == 3 + number
        store.remember()
        await committer.commit([SetField("a", f"b{number}")])
    await committer.commit([RememberInbound("e1")])
    assert lost == []
    kept = (await store.claim(KEY)).state
    assert kept.log == committer.state.log
    assert [one.text for one in kept.log if isinstance(one, UserMessage)] == [
        "one",
        "two",
        "again 0",
        "again 1",
        "again 2",
    ]
    assert kept.fields == {"a": "b2"} and list(kept.seen) == ["e1"]
    assert [r.event_id for r in kept.outbound.values()] == [r.event_id for r in outbox.records()]


async def test_asking_whether_a_session_is_still_here_brings_back_what_the_store_has_lost() -> None:
    store = FailingOver()
    committer, _, _ = await make_ledger(store)
    store.remember()
    await committer.commit([AppendLog(UserMessage("one"))])
    store.fail_over()
    assert await committer.verify()
    assert (await store.claim(KEY)).state.log == [UserMessage("one")]


async def test_what_is_written_again_counts_only_once_the_store_has_it() -> None:
    store, lost = FailingOver(), list[bool]()
    committer, _, wire = await make_ledger(store, lost)
    store.remember()
    await committer.commit([AppendLog(UserMessage("one"))])
    store.fail_over()
    tries = 0

    def fails_second(operations: Operations) -> StoreError | None:
        nonlocal tries
        tries += 1
        return StoreUnavailable("away") if tries == 2 else None

    store.fail = fails_second
    with pytest.raises(StoreUnavailable):
        await committer.commit([AppendLog(UserMessage("two"))], [set_state("c1", "idle")])
    assert wire.frames == []
    await committer.commit([AppendLog(UserMessage("three"))], [set_state("c2", "idle")])
    assert lost == [] and wire.call_ids() == ["c2"]
    assert (await store.claim(KEY)).state.log == [UserMessage("one"), UserMessage("three")]


async def test_a_repeated_event_is_told_as_that_also_where_the_store_has_lost_commits() -> None:
    store, lost = FailingOver(), list[bool]()
    committer, _, _ = await make_ledger(store, lost)
    store.remember()
    await committer.commit([RememberInbound("e1")])
    store.fail_over()
    with pytest.raises(Duplicate):
        await committer.commit([RememberInbound("e1")])
    await committer.commit([RememberInbound("e2")])
    assert lost == []
    assert list((await store.claim(KEY)).state.seen) == ["e1", "e2"]


async def test_what_another_has_recorded_meanwhile_is_not_undone_by_bringing_back_what_was_lost() -> None:
    store, lost = FailingOver(), list[bool]()
    committer, _, _ = await make_ledger(store, lost)
    store.remember()
    await committer.commit([AppendLog(UserMessage("one")), SetField("mine", "x")])
    store.fail_over()
    claim = store.claim

    async def overtaken(key: SessionKey) -> Claim:
        other = await claim(key)  # another node, a moment earlier
        await store.inner.commit(other, "other", [AppendLog(UserMessage("theirs"))])
        return await claim(key)

    store.claim = overtaken  # type: ignore[method-assign]  # the moment cannot be had otherwise
    with pytest.raises(Fenced):
        await committer.commit([AppendLog(UserMessage("two"))])
    assert lost and (await claim(KEY)).state.log == [UserMessage("theirs")]
