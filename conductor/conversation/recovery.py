"""A turn that another process began: what of it is kept, and how it goes on from there.

What was recorded decides. A call of the device is waited for under its old id; one that only reads and runs
here is run again; one that may have changed something and whose result is nowhere is unknown, and is never
run again (durability, "Operations").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import structlog

from conductor.conversation.batch import Batch
from conductor.conversation.memos import TurnMemo
from conductor.conversation.round import Round
from conductor.messages import AssistantMessage, ToolCall, ToolResult
from conductor.stores.base import CallRecord, SessionState
from conductor.tools.approvals import DEFINITION_CHANGED, Approval, decode_approvals
from conductor.tools.base import ToolOutcome, failed
from conductor.tools.executor import Asked, Ready, ToolExecutor, interrupted_outcome, stamped
from conductor.tools.permissions import Verdict

log = structlog.get_logger(__name__)

MAX_ATTEMPTS = 2
"""So often the model is run for the same words; then the person is told that it did not work."""
_LOST = "connection_lost"


@dataclass(frozen=True, slots=True)
class Recovered:
    """A turn to go on with. ``round`` is the one whose calls were not all done, ``batch`` its questions."""

    memo: TurnMemo
    round: Round | None
    batch: Batch | None = None


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A round as it was recorded; ``standing`` are the questions that were asked about it.

    ``unknown`` are calls that may have happened, and of which nothing will ever be heard; ``changes`` names
    the tools that have changed something in it.
    """

    round: Round
    standing: list[tuple[Asked, Approval]] = field(default_factory=list)
    unknown: list[tuple[Ready, ToolOutcome]] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)


def unfinished(
    state: SessionState, executor: ToolExecutor, was_sent: Callable[[str], bool], approvals: str
) -> Unfinished | None:
    """Give the round whose results are not in the log yet; None if there is none.

    ``was_sent`` tells of a call of the device whether its event waits for an answer. ``approvals`` are the
    open questions, as they are kept.
    """
    message = state.log[-1] if state.log else None
    if not isinstance(message, AssistantMessage) or not message.calls:
        return None
    if message.calls[0].call_id not in state.calls:
        return None
    asked_about = {one.call_id: one for one in _readable(approvals)}
    found = Unfinished(Round(message.calls))
    for call in message.calls:
        record = state.calls.get(call.call_id)
        if record is not None and record.result is not None:
            found.round.results[call.call_id] = record.result
            if record.effect != "read":
                _take_recorded(found, executor, call, record.result)
        elif record is not None:
            approval = asked_about.get(call.call_id)
            how = _go_on(executor, call, record, approval, sent=was_sent(call.call_id))
            _take(found, executor, record, call, how, approval)
    return found


def _take_recorded(found: Unfinished, executor: ToolExecutor, call: ToolCall, result: ToolResult) -> None:
    """Know what a call that changes something has come to, although its round is not over."""
    if not result.is_error:
        found.changes.append(call.name)
        return
    outcome = msgspec.json.decode(result.content, type=ToolOutcome)
    ready = executor.again(call, ())
    if outcome.error_type == "unknown" and ready is not None:
        found.unknown.append((ready, outcome))


def _take(
    found: Unfinished,
    executor: ToolExecutor,
    record: CallRecord,
    call: ToolCall,
    how: Ready | Asked | ToolOutcome,
    approval: Approval | None,
) -> None:
    match how:
        case Ready():
            found.round.ready.append(how)
        case Asked():
            found.round.asked.append(how)
            if approval is not None:
                found.standing.append((how, approval))
        case ToolOutcome():
            outcome = stamped(how, 0.0, record.notes)
            found.round.results[call.call_id] = executor.settle(call.call_id, outcome)
            ready = executor.again(call, record.notes)
            if outcome.error_type == "unknown" and ready is not None:
                found.unknown.append((ready, outcome))


def _go_on(
    executor: ToolExecutor, call: ToolCall, record: CallRecord, approval: Approval | None, *, sent: bool
) -> Ready | Asked | ToolOutcome:
    """Say how an open call goes on: run or waited for, asked about, or given up."""
    arguments = approval.arguments if approval is not None else None
    ready = executor.again(call, record.notes, arguments)
    if ready is None:  # the tool is not there any more
        return interrupted_outcome(record.effect, sent=sent or record.consent != "asked", reason=_LOST)
    if record.consent == "asked":
        if approval is None:
            return Asked(ready, Verdict("ask", ("It was to be asked about.",), None, warn=False))
        if approval.fingerprint != ready.spec.fingerprint:
            return failed("permission_denied", DEFINITION_CHANGED, reason="definition_changed")
        return Asked(ready, Verdict("ask", approval.reasons, None, warn=False))
    if record.source == "device":
        return ready if sent else interrupted_outcome(record.effect, sent=True, reason=_LOST)
    if record.effect == "read" and not record.consent:
        return ready
    return interrupted_outcome(record.effect, sent=True, reason=_LOST)


def _readable(approvals: str) -> tuple[Approval, ...]:
    try:
        return decode_approvals(approvals)
    except ValueError:
        log.error("open questions not readable")
        return ()
