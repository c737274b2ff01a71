"""Recovery of a turn that another process started, and backoff against repeated takeovers.

A device call keeps its id and waits for its result. A server call that only reads runs again. A call that may
have changed something and has no result is reported as unknown, and never runs again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec
import structlog

from conductor.conversation.approvals import FIELD as APPROVALS
from conductor.conversation.context import TurnContext
from conductor.conversation.pending_approvals import ApprovalBatch
from conductor.conversation.snapshot import ClaimsSnapshot, TurnSnapshot, decode, encode
from conductor.conversation.tool_round import ToolRound
from conductor.messages import AssistantMessage, ToolCall, ToolResult
from conductor.settings import Limits
from conductor.stores.base import CallRecord, SessionState
from conductor.tools.approvals import DEFINITION_CHANGED, Approval, decode_approvals
from conductor.tools.base import ToolOutcome, failed
from conductor.tools.executor import (
    ApprovalNeeded,
    PreparedCall,
    ToolExecutor,
    interrupted_outcome,
    with_timing,
)
from conductor.tools.permissions import Verdict

log = structlog.get_logger(__name__)


FIELD = "claims"
# Seconds in which the claims of a session are counted: two clients may take it from each other.
_TAKEOVER_WINDOW_S = 30.0
_MAX_BACKOFF_S = 5.0


def takeover_delay(fields: Mapping[str, str], limits: Limits) -> float:
    """Return the takeover backoff in seconds, from the session's recent claims."""
    over = len(_recent(fields)) - limits.free_takeovers
    return 0.0 if over < 0 else min(_MAX_BACKOFF_S, limits.takeover_backoff * 2.0**over)


def add_claim(fields: Mapping[str, str], limits: Limits) -> str:
    """Encode the recent claims and a new one."""
    return encode(ClaimsSnapshot((*_recent(fields), time.time())[-2 * limits.free_takeovers :]))


def _recent(fields: Mapping[str, str]) -> tuple[float, ...]:
    snapshot = decode(fields.get(FIELD), ClaimsSnapshot)
    now, times = time.time(), snapshot.times if snapshot is not None else ()
    return tuple(at for at in times if abs(now - at) < _TAKEOVER_WINDOW_S)


_LOST = "connection_lost"


@dataclass(frozen=True, slots=True)
class Recovered:
    """A turn to resume. ``round`` is its unfinished tool round, ``batch`` that round's approvals."""

    snapshot: TurnSnapshot
    round: ToolRound | None
    batch: ApprovalBatch | None = None


@dataclass(frozen=True, slots=True)
class UnfinishedRound:
    """A tool round as it was recorded; ``standing`` are its pending approvals.

    ``unknown`` are calls that may have run and will get no result; ``changes`` are the tools that changed
    something.
    """

    round: ToolRound
    standing: list[tuple[ApprovalNeeded, Approval]] = field(default_factory=list)
    unknown: list[tuple[PreparedCall, ToolOutcome]] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)


def recover(context: TurnContext, snapshot: TurnSnapshot) -> Recovered:
    """Restore the tool round and the approvals of another process's turn."""
    state = context.committer.state
    approvals = state.fields.get(APPROVALS, "")
    tool_round = find_unfinished(state, context.executor, context.outbox.is_outstanding, approvals)
    if tool_round is None:
        return Recovered(snapshot, None)
    for ready in tool_round.round.device_calls:
        context.pending.expect(ready.call.call_id)
    for ready, outcome in tool_round.unknown:
        context.ends(ready, outcome)
    snapshot = msgspec.structs.replace(snapshot, actions=(*snapshot.actions, *tool_round.changes))
    return Recovered(snapshot, tool_round.round, context.approvals.restore(tool_round.standing))


def find_unfinished(
    state: SessionState, executor: ToolExecutor, was_sent: Callable[[str], bool], approvals: str
) -> UnfinishedRound | None:
    """Return the tool round whose results are not in the log yet, if there is one.

    ``was_sent`` tells whether a device call's event waits for an answer. ``approvals`` are the pending
    approvals as stored.
    """
    message = state.log[-1] if state.log else None
    if not isinstance(message, AssistantMessage) or not message.calls:
        return None
    if message.calls[0].call_id not in state.calls:
        return None
    approvals_by_call = {one.call_id: one for one in _readable(approvals)}
    unfinished = UnfinishedRound(ToolRound(message.calls))
    for call in message.calls:
        record = state.calls.get(call.call_id)
        if record is not None and record.result is not None:
            unfinished.round.results[call.call_id] = record.result
            if record.effect != "read":
                _take_recorded(unfinished, executor, call, record.result)
        elif record is not None:
            approval = approvals_by_call.get(call.call_id)
            how = _go_on(executor, call, record, approval, was_sent=was_sent(call.call_id))
            _take(unfinished, executor, record, call, how, approval)
    return unfinished


def _take_recorded(
    unfinished: UnfinishedRound, executor: ToolExecutor, call: ToolCall, result: ToolResult
) -> None:
    if not result.is_error:
        unfinished.changes.append(call.name)
        return
    outcome = msgspec.json.decode(result.content, type=ToolOutcome)
    ready = executor.restore(call, ())
    if outcome.error_type == "unknown" and ready is not None:
        unfinished.unknown.append((ready, outcome))


def _take(
    unfinished: UnfinishedRound,
    executor: ToolExecutor,
    record: CallRecord,
    call: ToolCall,
    decision: PreparedCall | ApprovalNeeded | ToolOutcome,
    approval: Approval | None,
) -> None:
    match decision:
        case PreparedCall():
            (unfinished.round.backlog if record.consent == "held" else unfinished.round.ready).append(
                decision
            )
        case ApprovalNeeded():
            unfinished.round.gated.append(decision)
            if approval is not None:
                unfinished.standing.append((decision, approval))
        case ToolOutcome():
            outcome = with_timing(decision, 0.0, record.notes)
            unfinished.round.results[call.call_id] = executor.to_result(call.call_id, outcome)
            ready = executor.restore(call, record.notes)
            if outcome.error_type == "unknown" and ready is not None:
                unfinished.unknown.append((ready, outcome))


def _go_on(
    executor: ToolExecutor, call: ToolCall, record: CallRecord, approval: Approval | None, *, was_sent: bool
) -> PreparedCall | ApprovalNeeded | ToolOutcome:
    arguments = approval.arguments if approval is not None else None
    ready = executor.restore(call, record.notes, arguments)
    if ready is None:  # the tool was removed
        return interrupted_outcome(
            record.effect, sent=was_sent or record.consent not in ("asked", "held"), reason=_LOST
        )
    if record.consent == "asked":
        if approval is None:
            return ApprovalNeeded(ready, Verdict("ask", ("It was to be asked about.",), None, warn=False))
        if approval.fingerprint != ready.spec.fingerprint:
            return failed("permission_denied", DEFINITION_CHANGED, reason="definition_changed")
        return ApprovalNeeded(ready, Verdict("ask", approval.reasons, None, warn=False))
    if record.consent == "held":
        return ready
    # The device still has the call, or its result is unknown: do not send it again.
    if record.source == "device":
        return ready if was_sent else interrupted_outcome(record.effect, sent=True, reason=_LOST)
    if record.effect == "read" and not record.consent:
        return ready
    return interrupted_outcome(record.effect, sent=True, reason=_LOST)


def _readable(approvals: str) -> tuple[Approval, ...]:
    try:
        return decode_approvals(approvals)
    except ValueError:
        log.error("stored approvals not readable")
        return ()
