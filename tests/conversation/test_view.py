"""A session as decisions read it, and the records of calls that end, as tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace as changed

from conductor.conversation import records as r
from conductor.conversation.state import Call, Conversation, LateCall, UnknownCall
from conductor.conversation.view import finish, finish_without_result, late_call, lost_result
from conductor.tools.outcomes import ToolOutcome, failed, succeeded
from tests.conversation.build import NOW, RULES, STARTED, device, finished, fold, local, result, view
from tests.conversation.stories import HALF

QUEUED = fold(r.InputQueued("e1", "one"), state=fold(STARTED))
Facts = dict[str, Any]

FOLLOWS: list[tuple[str, Conversation, Facts, bool]] = [
    ("nobody has spoken", fold(STARTED), {}, False),
    ("the person has spoken", QUEUED, {}, True),
    ("the person has spoken, and the server stops", QUEUED, {"draining": True}, True),
    ("the person has said half a sentence", fold(HALF, state=fold(STARTED)), {}, False),
    (
        "the person has said half a sentence, and then nothing",
        fold(HALF, state=fold(STARTED)),
        {"now": NOW + 1_000},
        True,
    ),
    (
        "the person has said half a sentence, and the server stops",
        fold(HALF, state=fold(STARTED)),
        {"draining": True},
        True,
    ),
    ("the person has spoken, and the session ends", QUEUED, {"closing": True}, False),
    ("the person has spoken, and another process goes on", QUEUED, {"is_suspended": True}, False),
]


@pytest.mark.parametrize(
    ("state", "facts", "follows"), [row[1:] for row in FOLLOWS], ids=[row[0] for row in FOLLOWS]
)
def test_another_turn_follows(state: Conversation, facts: Facts, follows: bool) -> None:
    assert view(state, **facts).follows is follows


@pytest.mark.parametrize(("at_ms", "seconds"), [(NOW - 1_500, 1.5), (NOW, 0.0), (NOW + 1_500, 0.0), (0, 0.0)])
def test_seconds_are_counted_since_a_time(at_ms: int, seconds: float) -> None:
    assert view(fold()).seconds_since(at_ms) == seconds


def test_the_history_has_the_bound_of_the_settings() -> None:
    rules = replace(RULES, history_tokens=1_000, window_tokens=8_192)
    history = view(fold(), rules).live.model.history
    assert history.tokens == 1_000
    assert history.room("", (), 9_000) == 8_192 - 1_024


# -- calls that end

TIMED = failed("tool_error", "It broke.", reason="broke", took_s=0.25)
DENIED = failed("permission_denied", "No.", reason="denied")
WHAT_MAY_COME = LateCall(call_id="c1", name="device.do", effect="write", expires_at=NOW + 1)
WHAT_MAY_BE = UnknownCall("digest c1", NOW + 1)

FINISHED: list[tuple[str, Call, ToolOutcome, r.CallFinished]] = [
    ("a call that ran", device(started_at=NOW), succeeded("hello"), finished(size=5)),
    (
        "a call that failed",
        device(started_at=NOW),
        TIMED,
        finished("c1", "tool_error", reason="broke", took_ms=250),
    ),
    (
        "a call that never ran",
        device(),
        DENIED,
        finished("c1", "permission_denied", tool="", source="", reason="denied"),
    ),
    (
        "a call with notes of the gate, before those of its tool",
        local(started_at=NOW, notes=("The user allowed this call.",)),
        succeeded(None, notes=("Two were found.",)),
        finished(
            tool="local.sum",
            source="builtin",
            size=4,
            result=result("c1", "none", "The user allowed this call.", "Two were found."),
        ),
    ),
    (
        "a call with others' words",
        device(started_at=NOW, untrusted=True),
        succeeded(None),
        finished(size=4, result=result(untrusted=True)),
    ),
]


@pytest.mark.parametrize(
    ("call", "outcome", "record"), [row[1:] for row in FINISHED], ids=[row[0] for row in FINISHED]
)
def test_a_call_ends_with_one_record(call: Call, outcome: ToolOutcome, record: r.CallFinished) -> None:
    state = fold()
    assert finish(view(state), call, outcome) == record
    expected = changed(record, late=WHAT_MAY_COME, unknown=WHAT_MAY_BE)
    assert finish(view(state), call, outcome, late=WHAT_MAY_COME, unknown=WHAT_MAY_BE) == expected


UNKNOWN = failed("unknown", "It may have happened.", reason="interrupted")
CANCELLED = failed("cancelled", "It was not started.", reason="interrupted")
LATE = LateCall(
    call_id="c1",
    name="device.do",
    effect="write",
    expires_at=NOW + 600_000,
    started_at=NOW,
    starts_turn=False,
    arguments="{}",
)
MAYBE = UnknownCall("digest c1", NOW + 600_000)
LOST = finished("c1", "unknown", reason="interrupted")
NOT_RUN = finished("c1", "cancelled", reason="interrupted")

WITHOUT_RESULT: list[tuple[str, Call, ToolOutcome, r.CallFinished]] = [
    ("a write of the device", device(started_at=NOW), UNKNOWN, changed(LOST, late=LATE, unknown=MAYBE)),
    ("a write that was not started", device(started_at=NOW), CANCELLED, changed(NOT_RUN, late=LATE)),
    (
        "a read of the device",
        device(effect="read", started_at=NOW),
        UNKNOWN,
        changed(LOST, late=changed(LATE, effect="read")),
    ),
    (
        "a write of the server",
        local(effect="write", started_at=NOW),
        UNKNOWN,
        changed(LOST, tool="local.sum", source="builtin", unknown=MAYBE),
    ),
    (
        "a read of the server",
        local(started_at=NOW),
        CANCELLED,
        changed(NOT_RUN, tool="local.sum", source="builtin"),
    ),
]


@pytest.mark.parametrize("starts_turn", [False, True])
@pytest.mark.parametrize(
    ("call", "outcome", "record"), [row[1:] for row in WITHOUT_RESULT], ids=[row[0] for row in WITHOUT_RESULT]
)
def test_the_true_result_may_still_come_from_a_device(
    call: Call, outcome: ToolOutcome, record: r.CallFinished, starts_turn: bool
) -> None:
    if record.late is not None:
        record = changed(record, late=changed(record.late, starts_turn=starts_turn))
    assert finish_without_result(view(fold()), call, outcome, starts_turn=starts_turn) == record


# -- what is kept of a call whose result may come

CALL = device(started_at=NOW, untrusted=True)
REMEMBERED = LateCall(
    call_id="c1",
    name="device.do",
    effect="write",
    expires_at=NOW + 9,
    started_at=NOW,
    untrusted=True,
    arguments="{}",
)

LATE_CALLS: list[tuple[str, Call, Facts, LateCall]] = [
    ("a call", CALL, {}, REMEMBERED),
    ("a call that starts no turn", CALL, {"starts_turn": False}, changed(REMEMBERED, starts_turn=False)),
    ("a job", CALL, {"job": True}, changed(REMEMBERED, job=True)),
    (
        "a call with the most arguments",
        changed(CALL, arguments="x" * 1_000),
        {},
        changed(REMEMBERED, arguments="x" * 1_000),
    ),
    (
        "a call with more arguments",
        changed(CALL, arguments="x" * 1_001),
        {},
        changed(REMEMBERED, arguments="x" * 954 + "\n[shortened: 47 of 1,001 bytes are missing]"),
    ),
]


@pytest.mark.parametrize(
    ("call", "options", "late"), [row[1:] for row in LATE_CALLS], ids=[row[0] for row in LATE_CALLS]
)
def test_a_call_is_remembered_until_its_result_is_late(call: Call, options: Facts, late: LateCall) -> None:
    assert late_call(call, NOW + 9, **options) == late


def test_a_lost_result_may_have_happened() -> None:
    lost = lost_result("c1")
    assert (lost.call_id, lost.is_error) == ("c1", True)
    outcome = msgspec.json.decode(lost.content, type=ToolOutcome)
    assert (outcome.error_type, outcome.metadata.reason) == ("unknown", "interrupted")
