"""The device's answers: in time, late, repeated, or never."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Literal, TypeAlias

import structlog

from conductor.conversation.delivery import Delivery
from conductor.conversation.late import LateCalls
from conductor.conversation.ledger import Ledger
from conductor.conversation.memos import LATE, DeviceMemo, decode, encode
from conductor.conversation.profile import Profile
from conductor.conversation.sentences import late_result
from conductor.conversation.unknown import Unknowns
from conductor.errors import Duplicate, Fenced, StoreError
from conductor.events.client import ToolAccepted, ToolCancelled, ToolResultEvent
from conductor.events.server import ServerEvent, ToolCancel, ToolLate
from conductor.messages import Note
from conductor.settings import Limits
from conductor.stores.base import CallRecord, FinishCall
from conductor.tools.base import ToolOutcome
from conductor.tools.executor import cancelled_outcome, device_outcome, job_outcome, stamped
from conductor.tools.pending import Pending

log = structlog.get_logger(__name__)

CancelReason: TypeAlias = Literal["barge_in", "timeout", "session_end"]


class DeviceCalls:
    """Sees to it that each call of the device gets one recorded result, whoever gives it.

    ``news`` collects what the model should read before the next turn; ``wants_turn`` says that it deserves
    one of its own. ``is_busy`` tells whether a turn is running.
    """

    def __init__(
        self,
        limits: Limits,
        profile: Profile,
        pending: Pending,
        ledger: Ledger,
        delivery: Delivery,
        is_busy: Callable[[], bool],
    ) -> None:
        self._limits = limits
        self._profile = profile
        self._pending = pending
        self._ledger = ledger
        self._delivery = delivery
        self._outbox = delivery.outbox
        self._is_busy = is_busy
        self._late = LateCalls(limits.max_late_calls, limits.late_result_expiry)
        self.unknowns = Unknowns(limits.max_late_calls, limits.late_result_expiry)
        self.news: list[Note] = []
        self.wants_turn = False
        ledger.keep(LATE, self.kept)

    async def take(self, event: ToolResultEvent) -> bool:
        """Record a ``tool.result``, then wake whoever waits for it. Raises `StoreError`.

        Returns whether it answers a call that is outstanding.
        """
        record = self._open(event.call_id)
        if record is None:
            expected = self._outbox.acknowledge(event.call_id) is not None
            if self._take_late(event.call_id, lambda late: _outcome(event, late)):
                await self._ledger.flush()
            return expected
        await self._finish(record, _outcome(event, record))
        return True

    def wants(self, call_id: str) -> bool:
        """Tell whether a call's result would still be used."""
        return self._open(call_id) is not None or self._late.holds(call_id, _now())

    async def take_cancelled(self, event: ToolCancelled) -> None:
        """Record what became of a call that was to be cancelled. Raises `StoreError`."""
        record = self._open(event.call_id)
        if record is not None:
            await self._finish(record, cancelled_outcome(event.effect, event.result, _seconds_since(record)))
            return
        self._outbox.acknowledge(event.call_id)
        if event.effect == "none" and self._late.is_read(event.call_id):
            self._late.take(event.call_id, _now())  # nothing came of it, as the model was told
            return
        self._take_late(
            event.call_id,
            lambda late: cancelled_outcome(event.effect, event.result, _seconds_since(late)),
        )
        await self._ledger.flush()

    async def take_accepted(self, event: ToolAccepted) -> None:
        """Let the turn go on without the result of a call that became a job. Raises `StoreError`."""
        record = self._open(event.call_id)
        try:
            if record is None:
                self._outbox.acknowledge(event.call_id)
            else:
                self._late.add(record, _now(), wanted=True)  # its result may overtake the commit
                self._late.keep(event.call_id, _now(), self._limits.job_expiry)
                self._ledger.changed(LATE)
                await self._finish(record, job_outcome(event.job_id, _seconds_since(record)), goes_on=True)
        finally:
            self._late.keep(event.call_id, _now(), self._limits.job_expiry)
            self._ledger.changed(LATE)
        await self._ledger.flush()

    def alive(self, call_id: str) -> None:
        """Note that the device is at work on a call: its time begins anew."""
        self._outbox.extend(call_id)

    async def time_out(self, call_id: str) -> None:
        """Answer for a device that did not: the outcome is unknown, and a late answer still counts."""
        record = self._open(call_id)
        if record is None:
            return
        executor = self._profile.executor
        outcome = stamped(executor.timed_out(record.effect, _seconds_since(record)), 0.0, record.notes)
        events = self._cancelling(record, "timeout")
        self._late.add(record, _now(), wanted=True)
        self._ledger.changed(LATE)
        try:
            await self._ledger.commit([FinishCall(call_id, executor.settle(call_id, outcome))], events)
        except Duplicate:
            # The device's answer came, or the turn ended, while this waited.
            known = self._ledger.state.calls.get(call_id)
            if known is not None and known.result is not None:
                self._late.take(call_id, _now())
                self._ledger.changed(LATE)
            return
        except StoreError as error:
            log.error("time-out not recorded", call=call_id, error=type(error).__name__)
        self._pending.answer(call_id, outcome)

    def give_up(self, call_id: str, reason: CancelReason) -> list[ServerEvent]:
        """Expect no answer in time any more, the call's turn being over. A late one still counts.

        Gives what the device is to be told.
        """
        record = self._open(call_id)
        if record is None or record.source != "device" or not self._outbox.is_outstanding(call_id):
            return []
        sent = self._outbox.was_written(call_id)
        self._late.add(record, _now(), wanted=record.effect != "read")
        self._ledger.changed(LATE)
        self._outbox.abandon(call_id)
        spec = self._profile.executor.spec(record.name)
        stops = reason == "timeout" or (spec is not None and spec.on_interrupt == "cancel")
        return self._cancelling(record, reason) if sent and stops else []

    # -- what is kept of it

    def kept(self, told: int = 0) -> str:
        """Write down what may still come, and what has come, without the first ``told`` of the news."""
        news = tuple(self.news[told:])
        memo = DeviceMemo(self._late.kept(), self.unknowns.kept(), news, self.wants_turn and bool(news))
        return encode(memo) if memo != DeviceMemo() else ""

    def restore(self, kept: str | None) -> None:
        """Know what another process knew."""
        memo = decode(kept, DeviceMemo)
        if memo is not None:
            self._late.restore(memo.late)
            self.unknowns.restore(memo.unknown)
            self.news += memo.news
            self.wants_turn = memo.wants_turn

    def unknown(self, call_id: str, digest: str) -> None:
        """Note a call that may have happened: an identical one does not run silently."""
        self.unknowns.add(call_id, digest, _now())
        self._ledger.changed(LATE)

    # -- inside

    def _open(self, call_id: str) -> CallRecord | None:
        """Find a call that has no result yet."""
        record = self._ledger.state.calls.get(call_id)
        return None if record is None or record.result is not None else record

    async def _finish(self, record: CallRecord, outcome: ToolOutcome, *, goes_on: bool = False) -> None:
        """Record a call's result. Raises `StoreError`.

        A call that ``goes_on`` has another result to come: where its turn is over, only that one is told.
        """
        call_id = record.call_id
        executor = self._profile.executor
        outcome = stamped(outcome, 0.0, record.notes)
        result = executor.settle(call_id, outcome, untrusted=record.untrusted)
        self._outbox.extend(call_id)  # it has come: its time must not be over before it is recorded
        try:
            await self._ledger.commit([FinishCall(call_id, result)])
        except Duplicate:
            self._outbox.acknowledge(call_id)
            if not goes_on:
                self._take_late(call_id, lambda _: outcome)  # the call was closed meanwhile
                await self._ledger.flush()
            return
        except Fenced:
            raise
        except StoreError:
            # Whoever waits records it, as soon as that is possible.
            self._pending.answer(call_id, outcome)
            raise
        self._outbox.acknowledge(call_id)
        if not self._pending.answer(call_id, outcome) and not goes_on:
            self._take_late(call_id, lambda _: outcome)  # the turn gave it up while it was recorded

    def _take_late(self, call_id: str, outcome: Callable[[CallRecord], ToolOutcome]) -> bool:
        late = self._late.take(call_id, _now())
        if late is None:
            return False
        self._ledger.changed(LATE)
        self.unknowns.settle(call_id)
        executor, record = self._profile.executor, late.record
        result = executor.settle(call_id, outcome(record), untrusted=record.untrusted)
        self.news.append(Note(late_result(record.name, result.content), record.untrusted))
        own_turn = late.job or (late.wanted and not self._is_busy())
        self.wants_turn = self.wants_turn or own_turn
        if "late" in self._profile.capabilities:
            event = ToolLate(call_id, "turn" if own_turn else "context")
            self._outbox.send(self._delivery.frame(event))
        return True

    def _cancelling(self, record: CallRecord, reason: CancelReason) -> list[ServerEvent]:
        return [ToolCancel(record.call_id, reason)] if "cancel" in self._profile.capabilities else []


def _outcome(event: ToolResultEvent, record: CallRecord) -> ToolOutcome:
    return device_outcome(event.result, event.error, _seconds_since(record))


def _now() -> float:
    return asyncio.get_running_loop().time()


def _seconds_since(record: CallRecord) -> float:
    return max(0.0, time.time() - record.opened_ms / 1000)
