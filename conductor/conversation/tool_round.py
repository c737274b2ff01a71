"""The tool calls of one reply, from validation to one logged result each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Literal

from conductor.conversation.client_profile import ClientProfile
from conductor.conversation.commit import Committer
from conductor.conversation.history import lost_result
from conductor.events.server import ServerEvent
from conductor.messages import ToolCall, ToolResult
from conductor.settings import Limits
from conductor.stores.base import AppendLog, CallRecord, FinishCall, ForgetCall, OpenCall, Operation
from conductor.tools.base import ToolOutcome, failed
from conductor.tools.executor import ApprovalNeeded, DryRun, Permit, PreparedCall, ToolExecutor, with_timing

_CUT_OFF = (
    "The reply reached its length limit inside this call's arguments, so they were cut off. Nothing was run. "
    "Call it again with shorter arguments."
)


@dataclass(slots=True)
class ToolRound:
    """The calls of one reply.

    ``ready`` calls may run, ``gated`` calls need an approval. ``backlog`` calls write and need none, but an
    earlier gated call writes too, and the model's order counts. ``refused`` holds the ids of calls that a
    rule or a person denied. ``closed``: the results are in the log.
    """

    calls: tuple[ToolCall, ...]
    ready: list[PreparedCall] = field(default_factory=list)
    gated: list[ApprovalNeeded] = field(default_factory=list)
    backlog: list[PreparedCall] = field(default_factory=list)
    results: dict[str, ToolResult] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    closed: bool = False

    @property
    def device_calls(self) -> list[PreparedCall]:
        return [ready for ready in self.ready if ready.spec.source == "device"]

    @property
    def all_refused(self) -> bool:
        return len(self.refused) == len(self.calls) > 0

    def add(self, ready: PreparedCall) -> None:
        """Take a call that needs no approval."""
        writes = ready.spec.effect != "read"
        waits = writes and any(need.ready.spec.effect != "read" for need in self.gated)
        (self.backlog if waits else self.ready).append(ready)

    def released(self) -> list[PreparedCall]:
        """Return the backlog's calls whose earlier gated writes are all decided, in the model's order."""
        decided = {ready.call.call_id for ready in self.ready} | self.results.keys()
        undecided = {
            need.ready.call.call_id
            for need in self.gated
            if need.ready.spec.effect != "read" and need.ready.call.call_id not in decided
        }
        earlier = {call.call_id for call in takewhile(lambda call: call.call_id not in undecided, self.calls)}
        return [ready for ready in self.backlog if ready.call.call_id in earlier]

    def open(self, turn_id: str) -> list[Operation]:
        """Make the operations that record the calls, before they are sent or run."""
        now = time.time_ns() // 1_000_000
        gated = {need.ready.call.call_id: need.ready for need in self.gated}
        backlog = {ready.call.call_id: ready for ready in self.backlog}
        prepared = gated | backlog | {ready.call.call_id: ready for ready in self.ready}
        operations: list[Operation] = []
        for call in self.calls:
            ready = prepared.get(call.call_id)
            source, effect = (ready.spec.source, ready.spec.effect) if ready is not None else ("none", "read")
            notes = ready.notes if ready is not None else ()
            result = self.results.get(call.call_id)
            untrusted = ready is not None and ready.spec.untrusted
            consent: Literal["", "asked", "held"] = (
                "asked" if call.call_id in gated else "held" if call.call_id in backlog else ""
            )
            record = CallRecord(
                call.call_id, call.name, turn_id, source, effect, now, result, notes, untrusted, consent
            )
            operations.append(OpenCall(record))
        return operations

    def close(self) -> list[Operation]:
        """Make the operations that log one result for each call, in the model's order."""
        log = [AppendLog(self.results.get(call.call_id) or lost_result(call.call_id)) for call in self.calls]
        return [*log, *(ForgetCall(call.call_id) for call in self.calls)]

    def with_last(self, result: ToolResult) -> ToolRound | None:
        """Return the finished round, if only this result is missing."""
        missing = {call.call_id for call in self.calls} - self.results.keys()
        if missing != {result.call_id}:
            return None
        return replace(self, results=self.results | {result.call_id: result})


async def prepare_round(
    executor: ToolExecutor,
    calls: Sequence[ToolCall],
    limits: Limits,
    permit: Permit | None = None,
    *,
    max_calls: int,
    complete: bool,
) -> ToolRound:
    """Validate each call and decide about it.

    ``max_calls`` is the number of calls that this turn may still make. No call of an incomplete reply runs.
    """
    prepared = ToolRound(tuple(calls))
    max_calls = min(max_calls, limits.max_calls_per_round)
    for number, call in enumerate(calls):
        if number:
            await asyncio.sleep(0)  # validation takes up to 30 ms with a client's hostile schema
        checked: PreparedCall | ApprovalNeeded | DryRun | ToolOutcome
        if not complete:
            checked = failed("parse_error", _CUT_OFF)
        elif number >= max_calls:
            message = f"Too many calls at once; the first {max_calls} were run, not this one."
            checked = failed("rate_limited", message)
        else:
            checked = executor.prepare(call, permit)
        if isinstance(checked, DryRun):
            checked = await executor.dry_run(checked.ready)
        if isinstance(checked, PreparedCall):
            prepared.add(checked)
        elif isinstance(checked, ApprovalNeeded):
            prepared.gated.append(checked)
        else:
            prepared.results[call.call_id] = executor.to_result(call.call_id, checked)
            if checked.error_type == "permission_denied":
                prepared.refused.add(call.call_id)
    return prepared


class CallResults:
    """Records one result for each call of a session; the last one of ``round`` with the round's messages."""

    def __init__(self, profile: ClientProfile, committer: Committer) -> None:
        self.round: ToolRound | None = None
        self._profile = profile
        self._committer = committer

    def open(self, call_id: str) -> CallRecord | None:
        """Find a call that has no result."""
        record = self._committer.state.calls.get(call_id)
        return None if record is None or record.result is not None else record

    async def settle(
        self, record: CallRecord, outcome: ToolOutcome, events: Sequence[ServerEvent] = ()
    ) -> None:
        """Record a call's outcome, then send the events.

        Raises `Duplicate` for a call that has a result, and `StoreError`.
        """
        # `ToolExecutor.run` adds the notes of other calls.
        outcome = with_timing(outcome, 0.0, record.notes if record.source == "device" else ())
        result = self._profile.executor.to_result(record.call_id, outcome, untrusted=record.untrusted)
        tool_round: ToolRound | None = None
        finished: ToolRound | None = None

        # Called when the commit runs: then the other results are known.
        def operations() -> list[Operation]:
            nonlocal tool_round, finished
            tool_round = self.round
            finished = tool_round.with_last(result) if tool_round is not None else None
            return [FinishCall(record.call_id, result), *(finished.close() if finished is not None else ())]

        def settled() -> None:
            if tool_round is not None:
                tool_round.results[record.call_id] = result
                tool_round.closed = finished is not None

        await self._committer.commit(operations, events, after=settled)
