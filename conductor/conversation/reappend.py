"""What a store has lost of a session that is still in memory, as the operations that bring it back."""

from __future__ import annotations

from collections.abc import Sequence

from conductor.messages import AssistantMessage, Message
from conductor.stores.base import (
    MAX_SEEN,
    AckOutbound,
    Amendment,
    AppendLog,
    CallRecord,
    ForgetCall,
    OpenCall,
    Operation,
    OutboundRecord,
    PutOutbound,
    RememberInbound,
    SessionState,
    SetField,
    TrimLog,
)


def is_earlier(kept: SessionState, known: SessionState) -> bool:
    """Tell whether ``kept`` can be an earlier state of ``known``, with nothing of anybody else's in it."""
    forgets = len(known.seen) >= MAX_SEEN  # the oldest ids have given way
    if not forgets and not kept.seen.keys() <= known.seen.keys():
        return False
    if kept.log_end > known.log_end or kept.log_start > known.log_start:
        return False
    both = range(known.log_start, kept.log_end)
    pairs = ((kept.log[at - kept.log_start], known.log[at - known.log_start]) for at in both)
    return all(
        one == other or (isinstance(one, AssistantMessage) and isinstance(other, AssistantMessage))
        for one, other in pairs
    )


def missing(kept: SessionState, known: SessionState, outbound: Sequence[OutboundRecord]) -> list[Operation]:
    """List what makes ``kept``, an earlier state of the same session, into ``known``.

    ``outbound`` are the events that are unacknowledged now.
    """
    operations: list[Operation] = []
    if kept.log_start < known.log_start:
        operations.append(TrimLog(known.log_start))
    end = max(kept.log_end, known.log_start)
    for position in range(max(kept.log_start, known.log_start), min(end, known.log_end)):
        before = kept.log[position - kept.log_start]
        operations += _amended(position, before, known.log[position - known.log_start])
    operations += [AppendLog(entry) for entry in known.log[end - known.log_start :]]
    operations += _calls(kept.calls, known.calls)
    operations += [RememberInbound(event_id) for event_id in known.seen if event_id not in kept.seen]
    operations += [SetField(name, "") for name in kept.fields if name not in known.fields]
    operations += [
        SetField(name, value) for name, value in known.fields.items() if kept.fields.get(name) != value
    ]
    open_ids = {record.event_id for record in outbound}
    operations += [AckOutbound(event_id) for event_id in kept.outbound if event_id not in open_ids]
    operations += [PutOutbound(record) for record in outbound if record.event_id not in kept.outbound]
    return operations


def _amended(position: int, before: Message, after: Message) -> list[Operation]:
    if isinstance(after, AssistantMessage) and before != after:
        return [AppendLog(Amendment(position, after.text))]
    return []


def _calls(kept: dict[str, CallRecord], known: dict[str, CallRecord]) -> list[Operation]:
    operations: list[Operation] = [ForgetCall(call_id) for call_id in kept if call_id not in known]
    for call_id, call in known.items():
        before = kept.get(call_id)
        if before is None:
            operations.append(OpenCall(call))
        elif before != call:
            operations += [ForgetCall(call_id), OpenCall(call)]
    return operations
