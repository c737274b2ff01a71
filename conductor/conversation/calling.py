"""The calls of one turn: run together, asked about, recorded, and given up where the turn ends first."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from conductor.conversation.batch import Batch, Decided
from conductor.conversation.round import Round
from conductor.conversation.turn_host import TurnHost
from conductor.errors import Duplicate
from conductor.messages import ToolResult
from conductor.stores.base import FinishCall
from conductor.tools.approvals import not_answered
from conductor.tools.base import ToolOutcome, ToolSpec
from conductor.tools.executor import JOB_ACCEPTED, Ready, interrupted_outcome, stamped
from conductor.tools.permissions import Verdict
from conductor.tools.rules import arguments_digest

if TYPE_CHECKING:
    from conductor.conversation.turn import TurnFigures


class CallingTurn(Protocol):
    """The turn whose calls they are."""

    id: str
    figures: TurnFigures
    actions: list[str]

    def check(self) -> None:
        """Raise if the turn is to stop."""
        ...

    def interruptible(self) -> AbstractContextManager[None]:
        """Let the turn be stopped in this block."""
        ...

    def paused(self, pause: bool) -> AbstractContextManager[None]:
        """Stop the turn's clock in this block, if ``pause``."""
        ...


class Calling:
    """Runs rounds of calls, one at a time. ``batch`` holds the questions about the present one."""

    def __init__(self, host: TurnHost, turn: CallingTurn) -> None:
        self._host = host
        self._turn = turn
        self.batch = Batch()
        self._running: dict[asyncio.Task[ToolOutcome], Ready] = {}
        self._denied: set[str] = set()

    @property
    def waits_for_device(self) -> bool:
        """Whether calls run, and all of them on the device."""
        return bool(self._running) and all(one.spec.source == "device" for one in self._running.values())

    def permit(self, spec: ToolSpec, arguments: Mapping[str, Any]) -> Verdict:
        """Decide about a call; what the person has denied in this turn is not asked again."""
        if self._denied and arguments_digest(spec.name, arguments) in self._denied:
            return Verdict("deny", ("The user said no to this very call already.",), None, warn=False)
        return self._host.permit(spec, arguments)

    async def run(self, prepared: Round, asked: Batch | None = None) -> None:
        """Run the calls that may run; then ask about the others, and run those that are allowed.

        ``asked`` are questions that stand already.
        """
        running = self._running = {self._begin(one): one for one in prepared.ready}
        self.batch = asked or self.batch
        try:
            await self._see_to(prepared, running)
            if prepared.asked and asked is None:
                self._turn.check()
                self.batch = await self._host.ask(self._turn.id, prepared.asked)
                await self._see_to(prepared, running)
        finally:
            for task in running:
                task.cancel()
            if running:
                await asyncio.wait(running, timeout=self._host.limits.close_timeout)
            self._running = {}

    def _begin(self, ready: Ready) -> asyncio.Task[ToolOutcome]:
        self._host.begins(ready)
        context = self._host.context(ready.call.call_id)
        return asyncio.create_task(self._host.executor.run(ready, context))

    async def _see_to(self, prepared: Round, running: dict[asyncio.Task[ToolOutcome], Ready]) -> None:
        """Wait for calls and decisions. The clock stands still while a person acts in one of them."""
        decision: asyncio.Task[Decided] | None = None
        try:
            while running or decision is not None or self.batch.open:
                if decision is None and self.batch.open:
                    decision = asyncio.create_task(self.batch.next())
                waits: set[asyncio.Task[Any]] = {*running} if decision is None else {*running, decision}
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
                self.batch.put(decision.result())  # it came with the end, and may have sent its call

    async def _take_decision(
        self, prepared: Round, decided: Decided, running: dict[asyncio.Task[ToolOutcome], Ready]
    ) -> None:
        asked = decided.asked
        self._turn.figures.trace.append("allowed" if decided.ready is not None else "not allowed")
        if decided.ready is not None:
            prepared.ready.append(decided.ready)
            running[self._begin(decided.ready)] = decided.ready
        elif decided.outcome is not None:
            if decided.outcome.metadata.reason == "denied":  # what nobody answered may be asked again
                self._denied.add(arguments_digest(asked.ready.spec.name, asked.ready.arguments))
            prepared.refused.add(asked.ready.call.call_id)
            await self._record(prepared, asked.ready, decided.outcome)

    async def _record(self, prepared: Round, ready: Ready, outcome: ToolOutcome) -> None:
        """Take a call's outcome: the device's was recorded when it came, any other is now."""
        call_id = ready.call.call_id
        record = self._host.record(call_id)
        if record is not None and record.result is not None:
            prepared.results[call_id] = record.result
        else:
            prepared.results[call_id] = result = self._settled(ready, outcome)
            try:
                await self._host.commit([FinishCall(call_id, result)])
            except Duplicate:
                # The device's own answer was recorded while this one waited for the store.
                recorded = self._host.record(call_id)
                if recorded is not None and recorded.result is not None:
                    prepared.results[call_id] = recorded.result
        if call_id in {one.call.call_id for one in prepared.ready}:
            self._host.ends(ready, outcome)
        done = outcome.success and outcome.metadata.reason != JOB_ACCEPTED
        if done and ready.spec.effect != "read":
            self._turn.actions.append(ready.spec.name)

    def _settled(self, ready: Ready, outcome: ToolOutcome) -> ToolResult:
        call_id = ready.call.call_id
        return self._host.executor.settle(call_id, outcome, untrusted=ready.spec.untrusted)

    def give_up(self, prepared: Round, cause: str) -> None:
        """Give the calls that have no result an honest one: not run, or nobody knows."""
        for ready in prepared.ready:
            call_id = ready.call.call_id
            self._host.forget(call_id)
            record = self._host.record(call_id)
            if record is not None and record.result is not None and call_id not in prepared.results:
                # It came in the very step in which the turn was stopped.
                prepared.results[call_id] = record.result
                self._host.ends(ready, msgspec.json.decode(record.result.content, type=ToolOutcome))
            if call_id not in prepared.results:
                sent = ready.spec.source != "device" or not self._host.withdraw(call_id)
                outcome = interrupted_outcome(ready.spec.effect, sent=sent, reason=cause)
                outcome = stamped(outcome, 0.0, ready.notes)
                prepared.results[call_id] = self._host.executor.settle(call_id, outcome)
                self._host.ends(ready, outcome)
        for asked in prepared.asked:
            call_id = asked.ready.call.call_id
            record = self._host.record(call_id)
            if record is not None and record.result is not None:
                prepared.results.setdefault(call_id, record.result)
            if call_id not in prepared.results:
                outcome = not_answered("superseded" if cause == "interrupted" else "interrupted")
                prepared.results[call_id] = self._host.executor.settle(call_id, outcome)
