"""Events are recorded, then sent, with a slow or failing store, too."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Sequence
from typing import Any

import pytest

from conductor.conversation.commit import CallLimits, Committer, EncodedEvent, EventEncoder
from conductor.conversation.outbox import Outbox
from conductor.conversation.tasks import Tasks
from conductor.errors import Duplicate, Fenced, StoreError, StoreUnavailable
from conductor.events.server import (
    ApprovalRequest,
    ErrorEvent,
    ServerEvent,
    SpeechFinal,
    SpeechPartial,
    ToolCallEvent,
    append_message,
    set_state,
    speak,
)
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
from tests.conversation.helpers import KEY, SlowStore, steps
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


async def make_committer(
    store: SlowStore, losses: list[bool] | None = None
) -> tuple[Committer, Outbox, Wire]:
    outbox = Outbox(Limits(), lambda record: None)
    encoder = EventEncoder("s-1", outbox, Limits(), lambda name: CallLimits(30.0, "write"))
    wire = Wire()
    outbox.attach(wire)
    on_lost = (lambda stale: None) if losses is None else losses.append
    return Committer(store, await store.claim(KEY), encoder, Tasks(), on_lost), outbox, wire


async def test_no_event_is_sent_before_its_commit_is_acknowledged() -> None:
    store = SlowStore()
    committer, _, wire = await make_committer(store)
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


@pytest.mark.parametrize("error", [StoreUnavailable("away"), Duplicate("seen")])
async def test_a_failed_commit_sends_and_changes_nothing(error: StoreError) -> None:
    store = SlowStore(fail=lambda operations: error)
    committer, outbox, wire = await make_committer(store)
    events: list[ServerEvent] = [set_state("c1", "idle"), ErrorEvent("internal_error", "x")]
    recorded: list[bool] = []
    with pytest.raises(type(error)):
        await committer.commit([AppendLog(UserMessage("hi"))], events, after=lambda: recorded.append(True))
    assert not recorded
    assert wire.frames == []
    assert outbox.records() == []
    assert committer.state.log == []


async def test_acknowledgements_are_recorded_by_the_next_successful_commit() -> None:
    store = SlowStore()
    committer, outbox, _ = await make_committer(store)
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


async def test_a_cancelled_caller_does_not_stop_its_commit() -> None:
    store = SlowStore()
    committer, outbox, _ = await make_committer(store)
    await committer.commit([], [set_state("c1", "idle")])
    outbox.acknowledge("c1")
    store.hold = asyncio.Event()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5.0):  # as a turn's end does
            await committer.commit([AppendLog(UserMessage("hi"))])
    store.hold.set()
    await committer.commit([AppendLog(UserMessage("ho"))])
    state = (await store.claim(KEY)).state
    assert state.log == committer.state.log
    assert not state.outbound, "the acknowledgement was recorded, too"


# -- snapshots


async def test_a_snapshot_is_read_when_its_commit_holds_the_lock() -> None:
    store = SlowStore()
    committer, _, _ = await make_committer(store)
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


async def test_a_commits_callback_runs_before_its_events_leave_and_the_next_commit_starts() -> None:
    store = SlowStore(after=lambda: 3)
    committer, _, wire = await make_committer(store)
    turn, frames_before = "running", list[int]()

    def end() -> None:
        nonlocal turn
        turn = ""
        frames_before.append(len(wire.frames))

    await asyncio.gather(
        committer.commit([], [set_state("c1", "idle")], snapshots={"turn": lambda: turn}, after=end),
        committer.commit([], [set_state("c2", "idle")], snapshots={"turn": lambda: turn}),
    )
    first, second = store.commits
    assert SetField("turn", "running") in first and SetField("turn", "") in second
    assert frames_before == [0], "it is done before the events leave"


async def test_a_dirty_snapshot_is_recorded_by_the_next_successful_commit() -> None:
    store = SlowStore()
    committer, _, _ = await make_committer(store)
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


async def test_a_snapshot_that_changes_during_its_commit_is_recorded_again() -> None:
    store = SlowStore()
    committer, _, _ = await make_committer(store)
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


# -- lost claims and lost commits


async def test_a_session_with_another_claim_is_lost_and_stays_silent() -> None:
    store, losses = SlowStore(), list[bool]()
    committer, outbox, wire = await make_committer(store, losses)
    second_claim = await store.claim(KEY)
    for _ in range(3):
        with pytest.raises(Fenced):
            await committer.commit([AppendLog(UserMessage("hi"))], [set_state("c1", "idle")])
        assert not await committer.verify()
    assert losses == [False] and committer.is_lost
    assert wire.frames == [] and outbox.records() == [] and committer.state.log == []
    await committer.release()
    await store.commit(second_claim, "commit-1", [SetField("a", "b")])


async def test_a_recorded_commit_that_seemed_to_fail_makes_the_mirror_stale() -> None:
    store, losses = SlowStore(), list[bool]()
    committer, _, wire = await make_committer(store, losses)
    await store.inner.commit(copy.deepcopy(committer._claim), "lost", [AppendLog(UserMessage("hi"))])
    for _ in range(3):
        with pytest.raises(Fenced):
            await committer.commit([AppendLog(UserMessage("ho"))], [set_state("c1", "idle")])
        assert not await committer.verify()
    assert losses == [True] and committer.is_lost
    assert wire.frames == [] and committer.state.log == []
    assert (await store.claim(KEY)).state.log == [UserMessage("hi")]


async def test_commits_that_the_store_lost_are_written_again() -> None:
    store, losses = FailingOver(), list[bool]()
    committer, outbox, wire = await make_committer(store, losses)
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
    assert losses == []
    stored = (await store.claim(KEY)).state
    assert stored.log == committer.state.log
    assert [message.text for message in stored.log if isinstance(message, UserMessage)] == [
        "one",
        "two",
        "again 0",
        "again 1",
        "again 2",
    ]
    assert stored.fields == {"a": "b2"} and list(stored.seen) == ["e1"]
    assert [r.event_id for r in stored.outbound.values()] == [r.event_id for r in outbox.records()]


async def test_verifying_a_session_writes_lost_commits_again() -> None:
    store = FailingOver()
    committer, _, _ = await make_committer(store)
    store.remember()
    await committer.commit([AppendLog(UserMessage("one"))])
    store.fail_over()
    assert await committer.verify()
    assert (await store.claim(KEY)).state.log == [UserMessage("one")]


async def test_lost_commits_are_written_again_until_the_store_has_them() -> None:
    store, losses = FailingOver(), list[bool]()
    committer, _, wire = await make_committer(store, losses)
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
    assert losses == [] and wire.call_ids() == ["c2"]
    assert (await store.claim(KEY)).state.log == [UserMessage("one"), UserMessage("three")]


async def test_lost_commits_are_not_written_over_those_of_another_claim() -> None:
    store, losses = FailingOver(), list[bool]()
    committer, _, _ = await make_committer(store, losses)
    store.remember()
    await committer.commit([AppendLog(UserMessage("one")), SetField("mine", "x")])
    store.fail_over()
    claim = store.claim

    async def overtaken(key: SessionKey) -> Claim:
        second_claim = await claim(key)  # another node, a moment earlier
        await store.inner.commit(second_claim, "other", [AppendLog(UserMessage("theirs"))])
        return await claim(key)

    store.claim = overtaken  # type: ignore[method-assign]  # the moment cannot be had otherwise
    with pytest.raises(Fenced):
        await committer.commit([AppendLog(UserMessage("two"))])
    assert losses and (await claim(KEY)).state.log == [UserMessage("theirs")]


# -- encoding


def encode(event: ServerEvent) -> EncodedEvent:
    terms = {"device.look": CallLimits(7.0, "read"), "device.do": CallLimits(30.0, "write")}
    encoder = EventEncoder("s-1", Outbox(Limits(), lambda record: None), Limits(), terms.__getitem__)
    (encoded,) = encoder.make_ready([event], "t1")
    return encoded


@pytest.mark.parametrize(
    ("event", "kind", "limit", "effect"),
    [
        (set_state("c1", "idle"), "state", Limits().ui_timeout, ""),
        (append_message("c1", "user", "hi"), "message", Limits().ui_timeout, ""),
        (SpeechFinal("hi"), "final", Limits().ui_timeout, ""),
        (ToolCallEvent("c1", "device.look", "{}"), "call", 7.0, "read"),
        (ToolCallEvent("c1", "device.do", "{}"), "call", 30.0, "write"),
    ],
)
def test_a_durable_event_has_a_record_with_the_id_of_its_frame(
    event: ServerEvent, kind: str, limit: float, effect: str
) -> None:
    encoded = encode(event)
    record = encoded.record
    assert record is not None
    assert encoded.frame is None
    assert (record.kind, record.turn_id, encoded.limit, record.effect) == (kind, "t1", limit, effect)
    frame: dict[str, Any] = json.loads(bytes(record.frame))
    assert frame["id"] == record.event_id
    assert frame["payload"].get("callId", "") == record.call_id
    assert set(frame) == {"id", "type", "timestamp", "sessionId", "protocolVersion", "payload"}


def test_a_card_is_durable_and_has_its_approval_id_for_a_call_id() -> None:
    request = ApprovalRequest(
        "appr1", "b1", "c1", "device.do", {}, "0" * 64, "medium", (), "Do it?", ("once",), "2027-01-15"
    )
    record = encode(request).record
    assert record is not None
    assert (record.kind, record.call_id, record.effect) == ("approval", "appr1", "")


@pytest.mark.parametrize("event", [SpeechPartial("hi"), ErrorEvent("internal_error", "Sorry.")])
def test_a_transient_event_has_only_a_frame(event: ServerEvent) -> None:
    encoded = encode(event)
    assert encoded.record is None
    assert encoded.frame is not None
    assert encoded.frame.partial == isinstance(event, SpeechPartial)


def test_a_longer_speech_has_a_longer_limit() -> None:
    short, long = encode(speak("c1", "x" * 10)), encode(speak("c2", "x" * 1_000))
    assert long.limit - short.limit == pytest.approx(990 * Limits().speech_seconds_per_char)
    assert short.limit > Limits().speech_timeout
