"""The tool calls of one reply, from validation to one logged result each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from conductor.conversation.approvals import ApprovalBatch, Decided
from conductor.conversation.context import TurnContext
from conductor.conversation.history import lost_result
from conductor.conversation.turn_state import TurnState
from conductor.errors import Duplicate
from conductor.messages import ToolCall, ToolResult
from conductor.settings import Limits
from conductor.stores.base import AppendLog, CallRecord, FinishCall, ForgetCall, OpenCall, Operation
from conductor.tools.approvals import not_answered
from conductor.tools.base import ToolOutcome, ToolSpec, failed
from conductor.tools.executor import (
    JOB_ACCEPTED,
    ApprovalNeeded,
    Permit,
    PreparedCall,
    ToolExecutor,
    interrupted_outcome,
    with_timing,
)
from conductor.tools.permissions import Verdict
from conductor.tools.rules import arguments_digest

_CUT_OFF = (
    "The reply reached its length limit inside this call's arguments, so they were cut off. Nothing was run. "
    "Call it again with shorter arguments."
)


@dataclass(slots=True)
class ToolRound:
    """The calls of one reply.

    ``ready`` calls may run, ``asked`` ones need an approval; ``results`` are those known so far. ``refused``
    holds the ids of calls that a rule or a person denied.
    """

    calls: tuple[ToolCall, ...]
    ready: list[PreparedCall] = field(default_factory=list)
    asked: list[ApprovalNeeded] = field(default_factory=list)
    results: dict[str, ToolResult] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)

    @property
    def device_calls(self) -> list[PreparedCall]:
        return [one for one in self.ready if one.spec.source == "device"]

    @property
    def all_refused(self) -> bool:
        return len(self.refused) == len(self.calls) > 0

    def open(self, turn_id: str) -> list[Operation]:
        """Make the operations that record every call, before any of them is sent or run."""
        now = time.time_ns() // 1_000_000
        known = {one.call.call_id: one for one in (*self.ready, *(asked.ready for asked in self.asked))}
        questions = {asked.ready.call.call_id for asked in self.asked}
        operations: list[Operation] = []
        for call in self.calls:
            ready = known.get(call.call_id)
            source, effect = (ready.spec.source, ready.spec.effect) if ready is not None else ("none", "read")
            notes = ready.notes if ready is not None else ()
            result = self.results.get(call.call_id)
            untrusted = ready is not None and ready.spec.untrusted
            consent: Literal["", "asked"] = "asked" if call.call_id in questions else ""
            record = CallRecord(
                call.call_id, call.name, turn_id, source, effect, now, result, notes, untrusted, consent
            )
            operations.append(OpenCall(record))
        return operations

    def close(self) -> list[Operation]:
        """Make the operations that log one result for each call, in the model's order."""
        log = [AppendLog(self.results.get(call.call_id) or lost_result(call.call_id)) for call in self.calls]
        return [*log, *(ForgetCall(call.call_id) for call in self.calls)]


async def prepare_round(
    executor: ToolExecutor,
    calls: Sequence[ToolCall],
    limits: Limits,
    permit: Permit | None = None,
    *,
    room: int,
    whole: bool,
) -> ToolRound:
    """Validate each call and decide about it.

    ``room`` is how many more calls this turn may make. If the reply is not ``whole``, because it reached its
    length limit, no call runs (models, "Anthropic", rule 7).
    """
    prepared = ToolRound(tuple(calls))
    room = min(room, limits.max_calls_per_round)
    for number, call in enumerate(calls):
        if number:
            await asyncio.sleep(0)  # validation takes up to 30 ms with a client's hostile schema
        checked: PreparedCall | ApprovalNeeded | ToolOutcome
        if not whole:
            checked = failed("parse_error", _CUT_OFF)
        elif number >= room:
            checked = failed(
                "rate_limited", f"Too many calls at once; the first {room} were run, not this one."
            )
        else:
            checked = executor.prepare(call, permit)
        if isinstance(checked, PreparedCall):
            prepared.ready.append(checked)
        elif isinstance(checked, ApprovalNeeded):
            prepared.asked.append(checked)
        else:
            prepared.results[call.call_id] = executor.to_result(call.call_id, checked)
            if checked.error_type == "permission_denied":
                prepared.refused.add(call.call_id)
    return prepared


class ToolCallRunner:
    """Runs tool rounds, one at a time. ``batch`` holds the approvals of the current one."""

    def __init__(self, context: TurnContext, turn: TurnState) -> None:
        self._context = context
        self._turn = turn
        self.batch = ApprovalBatch()
        self._running: dict[asyncio.Task[ToolOutcome], PreparedCall] = {}
        self._denied: set[str] = set()

    @property
    def waits_for_device(self) -> bool:
        return bool(self._running) and all(one.spec.source == "device" for one in self._running.values())

    def permit(self, spec: ToolSpec, arguments: Mapping[str, Any]) -> Verdict:
        """Decide about a call; one that the person denied in this turn is denied without asking."""
        if self._denied and arguments_digest(spec.name, arguments) in self._denied:
            return Verdict("deny", ("The user said no to this very call already.",), None, warn=False)
        return self._context.permit(spec, arguments)

    async def run(self, prepared: ToolRound, asked: ApprovalBatch | None = None) -> None:
        """Run the permitted calls, then ask about the others, and run those that are allowed.

        ``asked`` are approvals that are already pending.
        """
        running = self._running = {self._begin(one): one for one in prepared.ready}
        self.batch = asked or self.batch
        try:
            await self._see_to(prepared, running)
            if prepared.asked and asked is None:
                self._turn.check()
                self.batch = await self._context.approvals.ask(self._turn.id, prepared.asked)
                await self._see_to(prepared, running)
        finally:
            for task in running:
                task.cancel()
            if running:
                await asyncio.wait(running, timeout=self._context.limits.close_timeout)
            self._running = {}

    def _begin(self, ready: PreparedCall) -> asyncio.Task[ToolOutcome]:
        self._context.begins(ready)
        context = self._context.profile.context(ready.call.call_id)
        return asyncio.create_task(self._context.executor.run(ready, context))

    async def _see_to(
        self, prepared: ToolRound, running: dict[asyncio.Task[ToolOutcome], PreparedCall]
    ) -> None:
        decision: asyncio.Task[Decided] | None = None
        try:
            while running or decision is not None or self.batch.open:
                if decision is None and self.batch.open:
                    decision = asyncio.create_task(self.batch.next())
                waits: set[asyncio.Task[Any]] = {*running} if decision is None else {*running, decision}
                # The turn's limit is for machines: a person may take minutes to answer.
                person = decision is not None or any(one.spec.interactive for one in running.values())
                with self._turn.interruptible(), self._turn.paused(person):
                    done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                if decision in done:
                    decided, decision = decision.result(), None
                    await self._take_decision(prepared, decided, running)
                for task in [task for task in running if task in done]:
                    await self._record(prepared, running.pop(task), task.result())
        finally:
            if decision is not None and not decision.cancel():
                self.batch.put(decision.result())  # it came as the turn stopped; its call may be sent

    async def _take_decision(
        self, prepared: ToolRound, decided: Decided, running: dict[asyncio.Task[ToolOutcome], PreparedCall]
    ) -> None:
        asked = decided.asked
        self._turn.stats.trace.append("allowed" if decided.ready is not None else "not allowed")
        if decided.ready is not None:
            prepared.ready.append(decided.ready)
            running[self._begin(decided.ready)] = decided.ready
        elif decided.outcome is not None:
            if decided.outcome.metadata.reason == "denied":  # an expired one may be asked again
                self._denied.add(arguments_digest(asked.ready.spec.name, asked.ready.arguments))
            prepared.refused.add(asked.ready.call.call_id)
            await self._record(prepared, asked.ready, decided.outcome)

    async def _record(self, prepared: ToolRound, ready: PreparedCall, outcome: ToolOutcome) -> None:
        call_id = ready.call.call_id
        record = self._context.record(call_id)
        if record is not None and record.result is not None:
            prepared.results[call_id] = record.result
        else:
            prepared.results[call_id] = result = self._settled(ready, outcome)
            try:
                await self._context.commit([FinishCall(call_id, result)])
            except Duplicate:
                # The device's own result was recorded during the commit.
                recorded = self._context.record(call_id)
                if recorded is not None and recorded.result is not None:
                    prepared.results[call_id] = recorded.result
        if call_id in {one.call.call_id for one in prepared.ready}:
            self._context.ends(ready, outcome)
        # If the user interrupts the speech about it, the model still has to know what was done.
        done = outcome.success and outcome.metadata.reason != JOB_ACCEPTED
        if done and ready.spec.effect != "read":
            self._turn.actions.append(ready.spec.name)

    def _settled(self, ready: PreparedCall, outcome: ToolOutcome) -> ToolResult:
        call_id = ready.call.call_id
        return self._context.executor.to_result(call_id, outcome, untrusted=ready.spec.untrusted)

    def give_up(self, prepared: ToolRound, cause: str) -> None:
        """Give the calls without a result an honest one: not run, or unknown."""
        for ready in prepared.ready:
            call_id = ready.call.call_id
            self._context.pending.forget(call_id)
            record = self._context.record(call_id)
            if record is not None and record.result is not None and call_id not in prepared.results:
                # Its result was recorded just as the turn stopped.
                prepared.results[call_id] = record.result
                self._context.ends(ready, msgspec.json.decode(record.result.content, type=ToolOutcome))
            if call_id not in prepared.results:
                # Only of a call that no socket took it is certain that the device did not run it.
                sent = ready.spec.source != "device" or not self._context.outbox.withdraw(call_id)
                outcome = interrupted_outcome(ready.spec.effect, sent=sent, reason=cause)
                outcome = with_timing(outcome, 0.0, ready.notes)
                prepared.results[call_id] = self._context.executor.to_result(call_id, outcome)
                self._context.ends(ready, outcome)
        for asked in prepared.asked:
            call_id = asked.ready.call.call_id
            record = self._context.record(call_id)
            if record is not None and record.result is not None:
                prepared.results.setdefault(call_id, record.result)
            if call_id not in prepared.results:
                outcome = not_answered("superseded" if cause == "interrupted" else "interrupted")
                prepared.results[call_id] = self._context.executor.to_result(call_id, outcome)
