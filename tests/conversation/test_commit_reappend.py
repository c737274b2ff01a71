"""What a store has lost is brought back from memory: the session is as it was, whatever was lost."""

from __future__ import annotations

import itertools
import random
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from conductor.conversation.commit import missing
from conductor.messages import AssistantMessage, Message, Note, ToolCall, ToolResult, UserMessage
from conductor.stores.base import (
    MAX_SEEN,
    AckOutbound,
    Amendment,
    AppendLog,
    CallRecord,
    FinishCall,
    ForgetCall,
    OpenCall,
    Operation,
    OutboundRecord,
    PutOutbound,
    RememberInbound,
    SessionKey,
    SessionState,
    SetField,
    TrimLog,
)
from conductor.stores.sqlite import SqliteStore
from tests.conversation.helpers import LocalTools, SlowStore, at_rest, make_services, run, steps
from tests.conversation.test_recovery import Phone, three_rounds
from tests.stores.contract import contents

SEEDS = range(20)
FIELDS = ("turn", "waiting", "approvals", "profile")


def copied(state: SessionState) -> SessionState:
    """Copy a state; what it holds never changes."""
    log, calls, fields = list(state.log), dict(state.calls), dict(state.fields)
    return SessionState(
        log, state.log_start, calls, OrderedDict(state.seen), OrderedDict(state.outbound), fields
    )


def followed(state: SessionState, operations: Sequence[Operation]) -> SessionState:
    """Give the state after a commit, checked as a store checks it."""
    assert state.duplicate(operations) is None, operations
    after = copied(state)
    for operation in operations:
        after.apply(operation)
    return after


def brought_back(earlier: SessionState, later: SessionState) -> list[Operation]:
    """Say what is missing to a session whose unacknowledged events its outbox has, as they are."""
    known = copied(later)
    outbound, known.outbound = list(known.outbound.values()), OrderedDict()
    return missing(earlier, known, outbound)


# -- histories of random operations


def histories(rng: random.Random, commits: int) -> Iterator[SessionState]:
    """Give the state after each of many random commits, the empty one first."""
    state, numbers = SessionState(), itertools.count(1)
    yield state
    for _ in range(commits):
        state = followed(state, [])
        for _ in range(rng.randint(1, 4)):
            for operation in something(rng, state, next(numbers)):
                state = followed(state, [operation])
        yield state


def something(rng: random.Random, state: SessionState, number: int) -> list[Operation]:
    """Do one of the things that sessions do."""
    name = f"{rng.randint(1, 3)}-{number}"
    match rng.choice(
        ("say", "reply", "round", "finish", "close", "cut", "put", "ack", "set", "trim", "many")
    ):
        case "say":
            return [RememberInbound(name), AppendLog(UserMessage(f"words {name}"))]
        case "reply":
            if rng.random() < 0.3:
                return [AppendLog(Note(f"note {name}"))]
            return [AppendLog(AssistantMessage(f"reply {name}"))]
        case "round":
            calls = tuple(ToolCall(f"call-{n}-{name}", "device.do", "{}") for n in range(rng.randint(1, 3)))
            return [
                AppendLog(AssistantMessage("", calls)),
                *(OpenCall(call_record(call.call_id)) for call in calls),
            ]
        case "finish" | "close" as what:
            return settled(rng, state, name, what)
        case "cut" if state.log:
            return [AppendLog(Amendment(rng.randrange(state.log_start, state.log_end), f"cut {name}"))]
        case "put":
            return [PutOutbound(outbound_record(name))]
        case "ack" if state.outbound:
            return [AckOutbound(rng.choice(list(state.outbound)))]
        case "set":
            return [SetField(rng.choice(FIELDS), rng.choice(["", name]))]
        case "trim" if state.log:
            return [TrimLog(rng.randint(state.log_start, state.log_end))]
        case "many" if rng.random() < 0.3:
            return [RememberInbound(f"many-{n}-{name}") for n in range(rng.randint(1, MAX_SEEN))]
    return []


def settled(rng: random.Random, state: SessionState, name: str, what: str) -> list[Operation]:
    """Record a call's result, or put it into the log, if there is such a call."""
    calls = [call for call in state.calls.values() if (call.result is None) == (what == "finish")]
    if not calls:
        return []
    call = rng.choice(calls)
    if call.result is None:
        return [FinishCall(call.call_id, ToolResult(call.call_id, f'"{name}"'))]
    return [AppendLog(call.result), ForgetCall(call.call_id)]


def call_record(call_id: str) -> CallRecord:
    return CallRecord(call_id, "device.do", "turn-1", "device", "write", 1_772_366_400_123)


def outbound_record(name: str) -> OutboundRecord:
    frame = msgspec.Raw(f'"{name}"'.encode())
    return OutboundRecord(f"evt-{name}", "state", f"call-{name}", "turn-1", 1_772_366_400_123, frame)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_lost_makes_any_earlier_state_the_later_one(seed: int) -> None:
    rng = random.Random(seed)
    states = list(histories(rng, 40))
    for _ in range(40):
        first, second = sorted(rng.sample(range(len(states)), 2))
        earlier, later = states[first], states[second]
        before = contents(earlier)
        after = followed(earlier, brought_back(earlier, later))
        assert contents(earlier) == before
        assert contents(after) == contents(later), f"seed {seed}: from commit {first} to {second}"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_session_that_is_wholly_lost_is_written_anew_at_its_old_positions(seed: int) -> None:
    for number, later in enumerate(histories(random.Random(seed), 40)):
        after = followed(SessionState(), brought_back(SessionState(), later))
        assert contents(after) == contents(later), f"seed {seed}: commit {number}"


def test_nothing_is_missing_where_nothing_was_lost() -> None:
    for state in histories(random.Random(1), 100):
        assert brought_back(state, state) == []


def test_a_log_that_was_trimmed_beyond_all_that_is_left_keeps_its_positions() -> None:
    earlier = followed(SessionState(), [AppendLog(UserMessage(f"old {n}")) for n in range(3)])
    kept: list[Message] = [UserMessage("new"), AssistantMessage("reply")]
    later = SessionState(kept, log_start=7)
    after = followed(earlier, brought_back(earlier, later))
    assert (after.log, after.log_start) == (kept, 7)


async def test_a_real_store_takes_what_was_lost_as_it_is(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "sessions.db")
    await store.open()
    try:
        for seed in range(12):
            rng = random.Random(seed)
            states = list(histories(rng, 25))
            earlier, later = (states[n] for n in sorted(rng.sample(range(len(states)), 2)))
            claim = await store.claim(SessionKey("ann", f"s-{seed}"))
            await store.commit(claim, "commit-1", brought_back(SessionState(), earlier))
            claim = await store.claim(claim.key)
            assert contents(claim.state) == contents(earlier), f"seed {seed}"
            await store.commit(claim, "commit-2", brought_back(claim.state, later))
            assert contents((await store.claim(claim.key)).state) == contents(later), f"seed {seed}"
    finally:
        await store.aclose()


# -- a session's own commits


def test_a_session_is_brought_back_to_its_last_commit_from_any_before() -> None:
    async def commits() -> list[list[Operation]]:
        store, local = SlowStore(), LocalTools()
        local.go.set()
        services = make_services(three_rounds, store=store, toolsets=[local], max_turns=2)
        phone = Phone(services, store, resume=False)
        session = await phone.connect()
        for number in range(4):
            phone.app.say("go", f"words-{number}")
            await steps(5)
            await at_rest(session)
        await session.close()
        await phone.app.close()
        return store.commits

    states = [SessionState()]
    for operations in run(commits()):
        states.append(followed(states[-1], operations))
    assert len(states) > 30 and states[-1].log_start > 0
    for first, second in itertools.combinations(range(len(states)), 2):
        after = followed(states[first], brought_back(states[first], states[second]))
        assert contents(after) == contents(states[second]), f"from commit {first} to {second}"
