"""The events that a record is for the app's backend, as a pure function."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

from conductor.conversation import records as r
from conductor.conversation.events import iso_time
from conductor.conversation.ids import slot_id
from conductor.conversation.state import Conversation, Question, WebhookEvent

WEBHOOK_EVENTS = (
    *("session.started", "session.ended", "turn.ended", "approval.waiting", "approval.decided"),
    *("call.unknown", "call.late", "device.wanted", "budget.spent", "reminder.due_offline"),
)
_Fact: TypeAlias = tuple[str, dict[str, Any]]


def webhook_events(state: Conversation, record: r.Record, at: int) -> list[WebhookEvent]:
    """Make the events of a record to which the receiver subscribes; ``state`` is the one before it."""
    wanted = record.webhooks if isinstance(record, r.Claimed) else state.webhooks
    if not wanted:
        return []
    return [
        WebhookEvent(f"msg_{slot_id(state, number)}", kind, at, {"number": state.record_count, **data})
        for number, (kind, data) in enumerate(_facts(state, record, at))
        if kind in wanted
    ]


def _facts(  # noqa: C901 -- a branch a record
    state: Conversation, record: r.Record, at: int
) -> Iterator[_Fact]:
    """Make the facts of a record; ``state`` is the one before it."""
    match record:
        case r.SessionOpened():
            yield "session.started", {"new": state.is_new}
        case r.SessionClosed():
            tokens_in, tokens_out, cost = state.usage
            yield "session.ended", {"inputTokens": tokens_in, "outputTokens": tokens_out, "cost": cost}
        case r.TurnEnded():
            yield from _ended(state, record, at)
        case r.QuestionsAsked():
            for question in record.questions:
                if question.id not in state.questions:
                    yield "approval.waiting", _waiting(question)
        case r.QuestionDecided():
            by_person = record.outcome in ("allowed", "edited", "denied")
            by = record.channel if by_person else None
            yield from _decided(state, record.question_id, record.outcome, by)
        case r.Claimed():
            for question in state.questions.values():
                if question.form is not None:
                    yield from _decided(state, question.id, "superseded")
        case r.CallFinished():
            yield from _unknown(state, record)
        case r.LateFinished() if (late := state.late_calls.get(record.call_id)) is not None:
            yield "call.late", {"call": late.call_id, "tool": late.name}
        case r.DeviceWanted():
            yield from _wanted(state, record, at)


def _waiting(question: Question) -> dict[str, Any]:
    return {
        "approval": question.id,
        "call": question.call_id,
        "tool": question.tool,
        "argumentsDigest": question.digest,
        "risk": question.risk,
        "expiresAt": iso_time(question.expires_at),
    }


def _decided(state: Conversation, question_id: str, outcome: str, by: str | None = None) -> Iterator[_Fact]:
    question = state.questions.get(question_id)
    if question is not None:
        facts = {"approval": question_id, "call": question.call_id, "tool": question.tool}
        yield "approval.decided", {**facts, "outcome": outcome, "decidedBy": by}


def _unknown(state: Conversation, record: r.CallFinished) -> Iterator[_Fact]:
    call = state.open_call(record.result.call_id)
    if call is not None and record.unknown is not None:
        yield "call.unknown", {"call": call.id, "tool": call.name, "reason": record.reason}


def _wanted(state: Conversation, record: r.DeviceWanted, at: int) -> Iterator[_Fact]:
    expires = at
    for call in state.calls:
        if call.is_open and call.is_device and call.started_at:
            # A device takes one call after the other.
            expires = max(expires, call.started_at) + call.limit_ms
            if call.id in record.calls:
                data = {"call": call.id, "tool": call.name, "expiresAt": iso_time(expires)}
                yield "device.wanted", data


def _ended(state: Conversation, record: r.TurnEnded, at: int) -> Iterator[_Fact]:
    for finished in record.results:
        yield from _unknown(state, finished)
    for question_id in record.superseded:
        yield from _decided(state, question_id, "superseded")
    if (turn := state.turn) is None:
        return
    facts = {"turn": turn.id, "cause": turn.cause, "reason": record.reason, "error": record.error}
    yield "turn.ended", {**facts, "calls": turn.calls_made, "ms": at - turn.started_at}
    if record.error == "rate_limited":  # within a turn only the person's budget raises it
        yield "budget.spent", {"turn": turn.id}
