"""States and records that several tables share: moments of short conversations."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from msgspec.structs import replace as changed

from conductor.conversation import records as r
from conductor.conversation.apply import advance
from conductor.conversation.state import (
    Conversation,
    LateCall,
    Notice,
    Profile,
    UnknownCall,
)
from tests.conversation.build import (
    CLAIM,
    NOW,
    RULES,
    STARTED,
    asking,
    device,
    finished,
    fold,
    question,
    replied,
)

Facts = dict[str, Any]
UNTIL = NOW + 600_000  # of notices, of questions, and of results that come late
TURN = fold(STARTED)
TURN_ID = TURN.turn.id if TURN.turn is not None else ""


def in_turn(*records: r.Record) -> Conversation:
    return fold(*records, state=TURN)


def over(state: Conversation) -> Conversation:
    """End the turn of a state."""
    return fold(r.TurnEnded(reason="answered"), state=state)


def speech(state: Conversation, number: int = 0) -> str:
    return list(state.speeches)[number]


def heard(state: Conversation, at: int = NOW - 1_000) -> Facts:
    """Make the facts after the app has spoken all speeches of a state."""
    return {"finished_speeches": dict.fromkeys(state.speeches, at)}


def acknowledged(state: Conversation) -> Conversation:
    """Make the state after the client has acknowledged all events."""
    state = copy.deepcopy(state)
    advance(state, r.Commit(claim=CLAIM, at=NOW, acked=tuple(state.outbound)))
    return state


QUEUE: Facts = {"conduct": replace(RULES, cancels=False)}
ASKED = asking(question())
ONE_TWO = replied(text="One two.", speech_text="One two.")
SAID = over(in_turn(ONE_TWO))
SAID_THEN_CALLED = in_turn(replied(device(), text="One two.", speech_text="One two."))
SEGMENTS = in_turn(r.SegmentSpoken("One. ", "One."), r.SegmentSpoken("Two. ", "Two."))
SEGMENTS_SAID = over(fold(replied(text="One. Two."), state=SEGMENTS))
SAID_ELSEWHERE = acknowledged(SAID)
TWO_SAID = over(fold(STARTED, ONE_TWO, state=SAID))
CALLED = in_turn(replied(device()))
CALLED_TO_READ = in_turn(replied(device(effect="read")))
DONE = in_turn(replied(device()), finished())
BEFORE_INPUT = in_turn(r.InputQueued("w1", "one"))
LATE_CALL = LateCall(
    call_id="c1", name="device.do", effect="write", expires_at=UNTIL, started_at=NOW, arguments="{}"
)
LATE_READ = changed(LATE_CALL, effect="read")
LISTENS = Profile(capabilities=("hints",))
HALF = r.InputQueued("h1", "milk and", until=NOW + 1_000)
HALF_SAID = fold(r.ProfileDeclared(LISTENS), HALF)
UNKNOWN = UnknownCall("digest c1", UNTIL)
STARTS = r.TurnStarted(cause="transcript", limit_ms=120_000, event_id="e1", text="hi")
REPLACED = r.TurnEnded(reason="interrupted", follows=True)
NOTHING_SENT: Facts = {"was_sent": ()}
FOR_ANOTHER: Facts = {"is_suspended": True}
OWLS: Facts = {"memories": "Likes owls."}
REMEMBERED = r.NoticeTaken("", Notice(text="Likes owls.", untrusted=True, late=True))
CONTINUES = r.TurnEnded(reason="interrupted", follows=True, continues=True)
STOPPED = r.TurnEnded(reason="interrupted")
BARGED_IN = r.TurnEnded(reason="interrupted", event_id="e1")
NO_ANSWER = finished("c1", "approval_timeout", tool="", source="", reason="superseded")
LOST = finished("c1", "unknown", reason="interrupted", late=LATE_CALL, unknown=UNKNOWN)
NOT_SENT = finished("c1", "cancelled", reason="interrupted", late=LATE_CALL)
