"""What a record is for the app's backend: `webhook_events` as a table.

A row of `EVENTS`: its name in words, the state before, the record, and the events in order: their types and
their data, without the record's number.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec
import pytest

from conductor.conversation import records as r
from conductor.conversation.state import Conversation, Form, LateCall, Notice, UnknownCall
from conductor.conversation.webhook_events import WEBHOOK_EVENTS, webhook_events
from tests.conversation.build import (
    CLAIM,
    NOW,
    STARTED,
    VOICE,
    asking,
    device,
    finished,
    fold,
    local,
    question,
    replied,
)

LATER = NOW + 1_500
Told: TypeAlias = tuple[str, dict[str, Any]]

# -- records and states. The claim is their first record, the start of a turn the second.

ALL = r.Claimed(CLAIM, WEBHOOK_EVENTS)
UNKNOWN = UnknownCall("digest c1", NOW + 60_000)
LOST = finished("c1", "unknown", reason="lost", unknown=UNKNOWN)
LATE = LateCall(call_id="c1", name="device.do", effect="write", expires_at=NOW + 60_000)
LATE_RESULT = r.LateFinished("c1", Notice(text="A lamp."), starts_turn=True)
FORM = Form("builtin", "Which?", {})


def after(before: Conversation, *records: r.Record) -> Conversation:
    return fold(*records, state=before)


def told(state: Conversation, kinds: Sequence[str] = WEBHOOK_EVENTS) -> Conversation:
    """Make a state whose backend wants these events."""
    return msgspec.structs.replace(state, webhooks=tuple(kinds))


def decided(outcome: Any, **fields: Any) -> r.QuestionDecided:
    return r.QuestionDecided(question_id="q1", call_id="c1", outcome=outcome, **fields)


def ended(reason: Any = "answered", **fields: Any) -> r.TurnEnded:
    return r.TurnEnded(reason=reason, **fields)


# Turns that the second and the third record start.
TURN_ID, THIRD = "turn_claim_800", "turn_claim_c00"
NEW = told(fold())
TURN = told(fold(STARTED))
CALLED = after(TURN, replied(device(), local("c2")))
THREE_CALLS = after(
    TURN, replied(device(limit_ms=9_000), device("c2", limit_ms=1_000), device("c3", consent="held"))
)
ASKED = told(asking(question()))
PAID = after(TURN, msgspec.structs.replace(replied(text="Yes."), usage=(12, 3, 0.5)), ended())
TIMED_OUT = after(CALLED, finished("c1", "unknown", late=LATE))
FORM_SHOWN = after(CALLED, r.QuestionsAsked((question(form=FORM),)))

# -- what the backend is told, in short


def waiting(question_id: str = "q1", call_id: str = "c1") -> Told:
    return "approval.waiting", {
        "approval": question_id,
        "call": call_id,
        "tool": "device.do",
        "argumentsDigest": f"digest {call_id}",
        "risk": "medium",
        "expiresAt": "2026-05-28T20:36:40.000Z",
    }


def decision(outcome: str, by: str | None) -> Told:
    facts = {"approval": "q1", "call": "c1", "tool": "device.do"}
    return "approval.decided", {**facts, "outcome": outcome, "decidedBy": by}


def turn_ended(reason: str, error: str | None = None, *, turn: str = TURN_ID, calls: int = 0) -> Told:
    facts = {"turn": turn, "cause": "transcript", "reason": reason, "error": error}
    return "turn.ended", {**facts, "calls": calls, "ms": 1_500}


def wanted(call_id: str, expires: str) -> Told:
    return "device.wanted", {
        "call": call_id,
        "tool": "device.do",
        "expiresAt": f"2026-05-28T20:26:{expires}Z",
    }


UNKNOWN_CALL: Told = "call.unknown", {"call": "c1", "tool": "device.do", "reason": "lost"}

Row: TypeAlias = tuple[str, Conversation, r.Record, list[Told]]

EVENTS: list[Row] = [
    ("a new session", NEW, r.SessionOpened(), [("session.started", {"new": True})]),
    ("a session that is opened again", PAID, r.SessionOpened(), [("session.started", {"new": False})]),
    (
        "the end of a session, with its price",
        PAID,
        r.SessionClosed(),
        [("session.ended", {"inputTokens": 12, "outputTokens": 3, "cost": 0.5})],
    ),
    ("an answer", TURN, ended(), [turn_ended("answered")]),
    ("an answer after calls", CALLED, ended(), [turn_ended("answered", calls=2)]),
    ("a failure", TURN, ended("failed", error="turn_timeout"), [turn_ended("failed", "turn_timeout")]),
    (
        "a spent budget",
        TURN,
        ended("failed", error="rate_limited"),
        [turn_ended("failed", "rate_limited"), ("budget.spent", {"turn": TURN_ID})],
    ),
    (
        "an end with a lost call and an open question",
        ASKED,
        ended("interrupted", results=(LOST,), superseded=("q1",)),
        [
            UNKNOWN_CALL,
            decision("superseded", None),
            turn_ended("interrupted", turn="turn_claim_c00", calls=1),
        ],
    ),
    ("an end after the end", NEW, ended(), []),
    ("a question", CALLED, r.QuestionsAsked((question(),)), [waiting()]),
    (
        "two questions, one of which waits already",
        ASKED,
        r.QuestionsAsked((question(), question(2, "c2"))),
        [waiting("q2", "c2")],
    ),
    ("a spoken yes", ASKED, decided("allowed", text="yes"), [decision("allowed", "voice")]),
    ("a tap on no", ASKED, decided("denied"), [decision("denied", "card")]),
    ("an edit by a key", ASKED, decided("edited", decided_by="key:desk"), [decision("edited", "key:desk")]),
    ("no answer in time", ASKED, decided("expired"), [decision("expired", None)]),
    ("a decision after the decision", NEW, decided("allowed"), []),
    ("a claim while a tool asks: its process is gone", FORM_SHOWN, ALL, [decision("superseded", None)]),
    ("a claim while a call waits for a person", ASKED, ALL, []),
    ("a claim that ends the subscription", FORM_SHOWN, r.Claimed("b"), []),
    ("a call that may have changed something", CALLED, LOST, [UNKNOWN_CALL]),
    ("a result", CALLED, finished(), []),
    ("a second result", after(CALLED, finished()), LOST, []),
    (
        "a late result",
        TIMED_OUT,
        LATE_RESULT,
        [("call.late", {"call": "c1", "tool": "device.do"})],
    ),
    (
        "a late result that nobody waits for",
        CALLED,
        LATE_RESULT,
        [],
    ),
    (
        "calls for an absent device, which takes one after the other",
        THREE_CALLS,
        r.DeviceWanted(("c1", "c2")),
        [wanted("c1", "50.500"), wanted("c2", "51.500")],
    ),
    (
        "a call behind one that was told before",
        THREE_CALLS,
        r.DeviceWanted(("c2",)),
        [wanted("c2", "51.500")],
    ),
    (
        "a call behind one that has ended",
        after(THREE_CALLS, finished("c1")),
        r.DeviceWanted(("c2",)),
        [wanted("c2", "42.500")],
    ),
    ("a call that has not started", THREE_CALLS, r.DeviceWanted(("c3",)), []),
    ("a server's call", CALLED, r.DeviceWanted(("c2",)), []),
    ("a profile", TURN, r.ProfileDeclared(VOICE), []),
    ("words", NEW, STARTED, []),
]


@pytest.mark.parametrize(
    ("before", "record", "expected"), [row[1:] for row in EVENTS], ids=[row[0] for row in EVENTS]
)
def test_a_record_is_told_as_this_and_no_more(
    before: Conversation, record: r.Record, expected: list[Told]
) -> None:
    number = {"number": before.record_count}
    assert [(event.type, event.data) for event in webhook_events(before, record, LATER)] == [
        (kind, {**number, **data}) for kind, data in expected
    ]


def test_each_event_of_a_record_has_a_row() -> None:
    # A reminder of a person who is away belongs to no session.
    assert {kind for *_, expected in EVENTS for kind, _ in expected} == {*WEBHOOK_EVENTS} - {
        "reminder.due_offline"
    }


LOST_IN_QUESTION = ended("interrupted", results=(LOST,), superseded=("q1",))


@pytest.mark.parametrize(
    ("kinds", "told_as"),
    [
        ((), []),
        (("call.unknown",), [("msg_claim_1800", "call.unknown")]),
        (
            ("turn.ended", "call.unknown"),
            [("msg_claim_1800", "call.unknown"), ("msg_claim_1802", "turn.ended")],
        ),
    ],
)
def test_a_receiver_gets_what_it_wants_under_the_same_ids(
    kinds: tuple[str, ...], told_as: list[tuple[str, str]]
) -> None:
    events = webhook_events(told(ASKED, kinds), LOST_IN_QUESTION, LATER)
    assert [(event.id, event.type) for event in events] == told_as
    assert {event.at for event in events} <= {LATER}


def test_the_state_is_read_alone() -> None:
    for name, before, record, _ in EVENTS:
        kept = copy.deepcopy(before)
        webhook_events(before, record, LATER)
        assert before == kept, name
