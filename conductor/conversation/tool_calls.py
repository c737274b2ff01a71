"""Runs the tool calls of one reply, and asks for approvals."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from conductor.conversation.approvals import QUESTION
from conductor.conversation.context import TurnContext
from conductor.conversation.pending_approvals import ApprovalBatch, Decided
from conductor.conversation.snapshot import TURN
from conductor.conversation.tool_round import ToolRound
from conductor.conversation.turn_state import TurnState
from conductor.errors import Duplicate, StoreError
from conductor.events.envelope import new_call_id
from conductor.events.server import ServerEvent, set_state
from conductor.messages import ToolCall
from conductor.stores.base import ForgetCall, OpenCall
from conductor.tools.approvals import not_answered
from conductor.tools.base import PersonQuestion, ToolOutcome, ToolSpec, failed
from conductor.tools.executor import (
    JOB_ACCEPTED,
    ApprovalNeeded,
    PreparedCall,
    interrupted_outcome,
    with_timing,
)
from conductor.tools.permissions import Verdict
from conductor.tools.rules import arguments_digest
from conductor.tools.validation import Valid, validate


class ToolCallRunner:
    """Runs tool rounds, one at a time. ``batch`` holds the approvals of the current one."""

    def __init__(self, context: TurnContext, turn: TurnState) -> None:
        self._context = context
        self._turn = turn
        self.batch = ApprovalBatch()
        self._running: dict[asyncio.Task[ToolOutcome], PreparedCall] = {}
        self._denied: set[str] = set()
        self._asked_ns = 0
        self._ended: set[str] = set()

    @property
    def waits_for_device(self) -> bool:
        return bool(self._running) and all(call.spec.source == "device" for call in self._running.values())

    def permit(self, spec: ToolSpec, arguments: Mapping[str, Any]) -> Verdict:
        """Decide about a call; a call that the person denied in this turn is denied again."""
        if self._denied and arguments_digest(spec.name, arguments) in self._denied:
            return Verdict("deny", ("The user said no to this very call already.",), None, warn=False)
        return self._context.permit(spec, arguments)

    async def run(self, prepared: ToolRound, batch: ApprovalBatch | None = None) -> None:
        """Run the permitted calls, then ask for approvals and run the allowed calls.

        ``batch`` holds approvals that are already pending.
        """
        running = self._running = {self._begin(call): call for call in prepared.ready}
        self.batch = batch or self.batch
        self._asked_ns = time.time_ns()
        bridge = asyncio.create_task(self._bridge()) if self._context.bridge_phrases else None
        try:
            await self._release(prepared, running)
            await self._run_until_done(prepared, running)
            if prepared.gated and batch is None:
                self._turn.check()
                self.batch = await self._context.approvals.ask(self._turn.id, prepared.gated)
                await self._run_until_done(prepared, running)
        finally:
            if bridge is not None:
                bridge.cancel()
            for task in running:
                task.cancel()
            if running:
                await asyncio.wait(running, timeout=self._context.limits.close_timeout)
            self._running = {}

    async def _bridge(self) -> None:
        """Speak a bridging phrase if the turn has been silent for long."""
        context, turn = self._context, self._turn
        await asyncio.sleep(context.limits.bridge_after)
        device = any(call.spec.source == "device" for call in self._running.values())
        if (
            turn.bridged
            or "speech" in turn.stats.first_s
            or turn.cause == "request"
            or context.outbox.transport is None
            or (device and not context.outbox.transport.segments)  # the app would speak after the call
            or context.approvals.open
        ):
            return
        turn.bridged = True
        speech = context.speech(turn, "", random.choice(context.bridge_phrases))
        if speech is None:
            return
        speech.position = -1  # it is not part of the history
        context.speeches.add(speech)
        states = [set_state(new_call_id(), "thinking")] if turn.cause != "news" else []
        with suppress(StoreError):  # the phrase is optional
            await context.committer.commit(
                [], [*context.speech_events(speech), *states], turn.id, snapshots={TURN: turn.dump}
            )

    def _begin(self, ready: PreparedCall) -> asyncio.Task[ToolOutcome]:
        self._context.begins(ready)
        ask = partial(self._ask, ready)
        context = replace(self._context.profile.context(ready.call.call_id), ask=ask)
        return asyncio.create_task(self._context.executor.run(ready, context))

    async def _ask(self, running: PreparedCall, question: PersonQuestion) -> Mapping[str, Any] | None:
        # Only as a card with fields to fill in: text of third parties is not spoken.
        if "approval" not in self._context.profile.capabilities:
            return None
        fields = question.schema.get("properties", {})
        spec = ToolSpec(
            f"{question.source}.{QUESTION}",
            question.message,
            question.schema,
            source=QUESTION,
            risk="high",
            effect="read",
        )
        arguments = {name: field.get("default") for name, field in fields.items()}
        call = ToolCall(new_call_id(), spec.name, "{}")
        ready = PreparedCall(call, spec, running.toolset, arguments)
        verdict = Verdict("ask", (f"{question.source} asks: {question.message}",), None, warn=True)
        with self._turn.paused(True):
            batch = await self._context.approvals.ask(self._turn.id, [ApprovalNeeded(ready, verdict)])
            decided = await batch.next()
        if decided.ready is None:
            return None
        checked = validate(spec, msgspec.json.encode(decided.ready.arguments).decode())
        return checked.arguments if isinstance(checked, Valid) else None

    async def _run_until_done(
        self, prepared: ToolRound, running: dict[asyncio.Task[ToolOutcome], PreparedCall]
    ) -> None:
        decision: asyncio.Task[Decided] | None = None
        try:
            while running or decision is not None or self.batch.open:
                if decision is None and self.batch.open:
                    decision = asyncio.create_task(self.batch.next())
                waits: set[asyncio.Task[Any]] = {*running} if decision is None else {*running, decision}
                # The turn's time limit does not include a person's time to answer.
                person = decision is not None or any(call.spec.interactive for call in running.values())
                with self._turn.interruptible(), self._turn.paused(person):
                    done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                if decision in done:
                    decided, decision = decision.result(), None
                    await self._take_decision(prepared, decided, running)
                    await self._release(prepared, running)
                for task in [task for task in running if task in done]:
                    await self._record(prepared, running.pop(task), task.result())
        finally:
            if decision is not None and not decision.cancel():
                self.batch.put(decision.result())  # it arrived as the turn stopped; its call may be sent

    async def _take_decision(
        self, prepared: ToolRound, decided: Decided, running: dict[asyncio.Task[ToolOutcome], PreparedCall]
    ) -> None:
        need = decided.need
        result = "allowed" if decided.ready is not None else "not allowed"
        attributes = {"gen_ai.tool.name": need.ready.spec.name, "conductor.approval.outcome": result}
        self._context.note_step("approval", need.ready.spec.name, self._asked_ns, "", attributes)
        self._turn.stats.trace.append(result)
        if decided.ready is not None:
            prepared.ready.append(decided.ready)
            running[self._begin(decided.ready)] = decided.ready
        elif decided.outcome is not None:
            if decided.outcome.metadata.reason == "denied":  # an expired one may be asked again
                self._denied.add(arguments_digest(need.ready.spec.name, need.ready.arguments))
            prepared.refused.add(need.ready.call.call_id)
            await self._record(prepared, need.ready, decided.outcome)

    async def _release(
        self, prepared: ToolRound, running: dict[asyncio.Task[ToolOutcome], PreparedCall]
    ) -> None:
        """Run the held calls that no earlier write delays any more."""
        for ready in prepared.released():
            refusal = self._refusal(ready)
            if refusal is None:
                await self._dispatch(ready)
                prepared.ready.append(ready)
                running[self._begin(ready)] = ready
            else:
                prepared.refused.add(ready.call.call_id)
                await self._record(prepared, ready, refusal)
            prepared.backlog.remove(ready)

    async def _dispatch(self, ready: PreparedCall) -> None:
        # From this commit on the call may have run.
        context, call_id = self._context, ready.call.call_id
        record = context.committer.state.calls[call_id]
        record = msgspec.structs.replace(record, consent="", opened_ms=time.time_ns() // 1_000_000)
        events: list[ServerEvent] = []
        if ready.spec.source == "device":
            context.pending.expect(call_id)
            events.append(context.profile.tool_call(ready))
        await context.committer.commit([ForgetCall(call_id), OpenCall(record)], events, self._turn.id)

    def _refusal(self, ready: PreparedCall) -> ToolOutcome | None:
        # The tool, the rules, or the person's answers may have changed while the call was held.
        verdict = self.permit(ready.spec, ready.arguments)
        if verdict.effect != "allow":
            reasons = " ".join(verdict.reasons)
            return failed("permission_denied", f"{reasons} Nothing was run.", reason="policy")
        return self._context.approvals.forbidden(ready)

    async def _record(self, prepared: ToolRound, ready: PreparedCall, outcome: ToolOutcome) -> None:
        call_id = ready.call.call_id
        record = self._context.record(call_id)
        if record is not None and record.result is None:
            with suppress(Duplicate):  # the device's own result was recorded during the commit
                await self._context.results.settle(record, outcome)
        elif record is not None and record.result is not None:
            prepared.results[call_id] = record.result
        if call_id in {call.call.call_id for call in prepared.ready}:
            self._end(ready, outcome)
        # The model must know the completed actions, even if the user interrupts the speech about them.
        has_run = outcome.success and outcome.metadata.reason != JOB_ACCEPTED
        if has_run and ready.spec.effect != "read":
            self._turn.actions.append(ready.spec.name)

    def _end(self, ready: PreparedCall, outcome: ToolOutcome) -> None:
        self._ended.add(ready.call.call_id)
        self._context.ends(ready, outcome)

    def give_up(self, prepared: ToolRound, cause: str) -> None:
        """Give the calls without a result one: not run, or unknown."""
        for ready in prepared.ready:
            call_id = ready.call.call_id
            self._context.pending.forget(call_id)
            if call_id in self._ended:
                continue
            record = self._context.record(call_id)
            result = record.result if record is not None else prepared.results.get(call_id)
            if result is not None:  # it was recorded just as the turn stopped
                outcome = msgspec.json.decode(result.content, type=ToolOutcome)
            else:
                # A device call certainly did not run only if no socket took it.
                may_have_run = ready.spec.source != "device" or not self._context.outbox.withdraw(call_id)
                outcome = interrupted_outcome(ready.spec.effect, sent=may_have_run, reason=cause)
                outcome = with_timing(outcome, 0.0, ready.notes)
                result = self._context.executor.to_result(call_id, outcome)
            prepared.results[call_id] = result
            self._end(ready, outcome)
        for ready in prepared.backlog:
            outcome = interrupted_outcome(ready.spec.effect, sent=False, reason=cause)
            self._context.pending.forget(ready.call.call_id)
            prepared.results[ready.call.call_id] = self._context.executor.to_result(
                ready.call.call_id, outcome
            )
        for need in prepared.gated:
            call_id = need.ready.call.call_id
            record = self._context.record(call_id)
            if record is not None and record.result is not None:
                prepared.results.setdefault(call_id, record.result)
            if call_id not in prepared.results:
                outcome = not_answered("superseded" if cause == "interrupted" else "interrupted")
                prepared.results[call_id] = self._context.executor.to_result(call_id, outcome)
