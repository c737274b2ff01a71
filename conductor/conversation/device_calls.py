"""Results of device calls: in time, late, repeated, or never."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import structlog

from conductor.conversation.client_profile import ClientProfile
from conductor.conversation.commit import Committer, EventEncoder
from conductor.conversation.phrases import late_result
from conductor.conversation.snapshot import (
    LATE,
    DeviceSnapshot,
    LateCallsSnapshot,
    UnknownCallsSnapshot,
    decode,
    encode,
    epoch_ms,
    loop_time,
)
from conductor.conversation.tool_round import CallResults
from conductor.errors import Duplicate, Fenced, StoreError
from conductor.events.client import ToolAccepted, ToolCancelled, ToolResultEvent
from conductor.events.server import ServerEvent, ToolCancel, ToolLate
from conductor.messages import Note
from conductor.stores.base import CallRecord
from conductor.tools.base import ToolOutcome
from conductor.tools.device import PendingCalls
from conductor.tools.executor import cancelled_outcome, device_outcome, job_outcome

log = structlog.get_logger(__name__)

# Device calls whose late result is still used.
_MAX_LATE = 64
# Seconds in which a late result counts, and an identical call needs an approval.
_LATE_S = 600.0
# Seconds: a job that the device accepted may take a day.
_JOB_S = 86_400.0


@dataclass(frozen=True, slots=True)
class LateCall:
    """A call whose turn continued without its result.

    ``starts_turn``: its result starts a turn if the session is idle; the result of a ``job`` always does.
    """

    record: CallRecord
    starts_turn: bool
    expires: float
    job: bool = False


class LateCalls:
    """Remembers up to ``limit`` device calls for ``seconds`` each; times are the event loop's."""

    def __init__(self, limit: int, seconds: float) -> None:
        self._limit = limit
        self._seconds = seconds
        self._calls: OrderedDict[str, LateCall] = OrderedDict()

    def add(self, call: CallRecord, now: float, *, starts_turn: bool) -> None:
        """Remember a call that was closed without its result."""
        self._calls[call.call_id] = LateCall(call, starts_turn, now + self._seconds)
        if len(self._calls) > self._limit:
            self._calls.popitem(last=False)

    def extend(self, call_id: str, now: float, seconds: float) -> None:
        """Remember a call that became a job for ``seconds`` from now; its result starts a turn."""
        call = self._calls.get(call_id)
        if call is not None:
            self._calls[call_id] = replace(call, starts_turn=True, expires=now + seconds, job=True)

    def dump(self) -> tuple[LateCallsSnapshot, ...]:
        """Encode for the snapshot."""
        return tuple(
            LateCallsSnapshot(call.record, call.starts_turn, epoch_ms(call.expires), call.job)
            for call in self._calls.values()
        )

    def restore(self, stored: Sequence[LateCallsSnapshot]) -> None:
        """Restore from a snapshot."""
        for snapshot in stored:
            call = LateCall(snapshot.call, snapshot.starts_turn, loop_time(snapshot.expires_ms), snapshot.job)
            self._calls[snapshot.call.call_id] = call

    def holds(self, call_id: str, now: float) -> bool:
        """Tell whether a late result of this call would be used."""
        call = self._calls.get(call_id)
        return call is not None and call.expires > now

    def is_read(self, call_id: str) -> bool:
        """Tell whether the call's effect is ``read``."""
        call = self._calls.get(call_id)
        return call is not None and call.record.effect == "read"

    def take(self, call_id: str, now: float) -> LateCall | None:
        """Remove and return a call, unless it has expired."""
        call = self._calls.pop(call_id, None)
        return call if call is not None and call.expires > now else None


class Unknowns:
    """Remembers up to ``limit`` calls with unknown outcomes, for ``seconds`` each; times are the loop's."""

    def __init__(self, limit: int, seconds: float) -> None:
        self._limit = limit
        self._seconds = seconds
        self._calls: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def add(self, call_id: str, digest: str, now: float) -> None:
        """Remember a call with an unknown outcome."""
        self._calls[call_id] = (digest, now + self._seconds)
        if len(self._calls) > self._limit:
            self._calls.popitem(last=False)

    def dump(self) -> tuple[UnknownCallsSnapshot, ...]:
        """Encode for the snapshot."""
        return tuple(
            UnknownCallsSnapshot(call_id, digest, epoch_ms(expires))
            for call_id, (digest, expires) in self._calls.items()
        )

    def restore(self, stored: Sequence[UnknownCallsSnapshot]) -> None:
        """Restore from a snapshot."""
        for snapshot in stored:
            self._calls[snapshot.call_id] = (snapshot.digest, loop_time(snapshot.expires_ms))

    def settle(self, call_id: str) -> None:
        """Forget a call: its outcome is known."""
        self._calls.pop(call_id, None)

    def holds(self, digest: str, now: float) -> bool:
        """Tell whether an identical call may have happened."""
        return any(
            digest_of_call == digest and expires > now for digest_of_call, expires in self._calls.values()
        )


CancelReason: TypeAlias = Literal["barge_in", "timeout", "session_end"]


class DeviceCalls:
    """Records exactly one result for each device call: the device's, a time-out's, or a cancellation's.

    ``notes`` are for the model before the next turn; with ``wants_turn`` they start one. ``is_busy`` tells
    whether a turn is running.
    """

    def __init__(
        self,
        profile: ClientProfile,
        pending: PendingCalls,
        results: CallResults,
        committer: Committer,
        encoder: EventEncoder,
        is_busy: Callable[[], bool],
    ) -> None:
        self._profile = profile
        self._pending = pending
        self._results = results
        self._committer = committer
        self._encoder = encoder
        self._outbox = encoder.outbox
        self._is_busy = is_busy
        self._late = LateCalls(_MAX_LATE, _LATE_S)
        self.unknowns = Unknowns(_MAX_LATE, _LATE_S)
        self.notes: list[Note] = []
        self.wants_turn = False
        committer.register(LATE, self.dump)

    async def take(self, event: ToolResultEvent) -> bool:
        """Record a ``tool.result``, then wake the call that waits for it. Raises `StoreError`.

        Returns whether it answers a call that is outstanding.
        """
        record = self._results.open(event.call_id)
        if record is None:
            expected = self._outbox.acknowledge(event.call_id) is not None
            if self._take_late(event.call_id, lambda late: _outcome(event, late)):
                await self._committer.flush()
            return expected
        await self._finish(record, _outcome(event, record))
        return True

    def wants(self, call_id: str) -> bool:
        """Tell whether a call's result would still be used."""
        return self._results.open(call_id) is not None or self._late.holds(call_id, _now())

    async def take_cancelled(self, event: ToolCancelled) -> None:
        """Record the outcome of a cancelled call. Raises `StoreError`."""
        record = self._results.open(event.call_id)
        if record is not None:
            await self._finish(record, cancelled_outcome(event.effect, event.result, _seconds_since(record)))
            return
        self._outbox.acknowledge(event.call_id)
        if event.effect == "none" and self._late.is_read(event.call_id):
            self._late.take(event.call_id, _now())  # the model knows that it was cancelled
            return
        self._take_late(
            event.call_id,
            lambda late: cancelled_outcome(event.effect, event.result, _seconds_since(late)),
        )
        await self._committer.flush()

    async def take_accepted(self, event: ToolAccepted) -> None:
        """Continue the turn without the result of a call that became a job. Raises `StoreError`."""
        record = self._results.open(event.call_id)
        try:
            if record is None:
                self._outbox.acknowledge(event.call_id)
            else:
                self._late.add(record, _now(), starts_turn=True)  # its result may overtake the commit
                self._late.extend(event.call_id, _now(), _JOB_S)
                self._committer.mark_dirty(LATE)
                await self._finish(record, job_outcome(event.job_id, _seconds_since(record)), goes_on=True)
        finally:
            self._late.extend(event.call_id, _now(), _JOB_S)
            self._committer.mark_dirty(LATE)
        await self._committer.flush()

    async def time_out(self, call_id: str) -> None:
        """Record an unknown outcome for a call that timed out; a late result still counts."""
        record = self._results.open(call_id)
        if record is None:
            return
        outcome = self._profile.executor.timed_out(record.effect, _seconds_since(record))
        events = self._cancelling(record, "timeout")
        self._late.add(record, _now(), starts_turn=True)
        self._committer.mark_dirty(LATE)
        try:
            await self._results.settle(record, outcome, events)
        except Duplicate:
            # The device's result arrived, or the turn ended, while this waited for the commit.
            current = self._committer.state.calls.get(call_id)
            if current is not None and current.result is not None:
                self._late.take(call_id, _now())
                self._committer.mark_dirty(LATE)
            return
        except StoreError as error:
            log.error("timeout not recorded", call=call_id, error=type(error).__name__)
        self._pending.answer(call_id, outcome)

    def give_up(self, call_id: str, reason: CancelReason) -> list[ServerEvent]:
        """Stop waiting for a call because its turn has ended; a late result still counts.

        Returns the events for the device.
        """
        record = self._results.open(call_id)
        if record is None or record.source != "device" or not self._outbox.is_outstanding(call_id):
            return []
        was_written = self._outbox.was_written(call_id)
        self._late.add(record, _now(), starts_turn=record.effect != "read")
        self._committer.mark_dirty(LATE)
        self._outbox.abandon(call_id)
        spec = self._profile.executor.spec(record.name)
        stops = reason == "timeout" or (spec is not None and spec.on_interrupt == "cancel")
        return self._cancelling(record, reason) if was_written and stops else []

    def dump(self, delivered: int = 0) -> str:
        """Encode the snapshot, without the first ``delivered`` notes."""
        notes = tuple(self.notes[delivered:])
        snapshot = DeviceSnapshot(
            self._late.dump(), self.unknowns.dump(), notes, self.wants_turn and bool(notes)
        )
        return encode(snapshot) if snapshot != DeviceSnapshot() else ""

    def restore(self, stored: str | None) -> None:
        """Restore from a snapshot."""
        snapshot = decode(stored, DeviceSnapshot)
        if snapshot is not None:
            self._late.restore(snapshot.late)
            self.unknowns.restore(snapshot.unknown)
            self.notes += snapshot.notes
            self.wants_turn = snapshot.wants_turn

    def unknown(self, call_id: str, digest: str) -> None:
        """Remember a call that may have run: an identical one needs an approval."""
        self.unknowns.add(call_id, digest, _now())
        self._committer.mark_dirty(LATE)

    async def _finish(self, record: CallRecord, outcome: ToolOutcome, *, goes_on: bool = False) -> None:
        # ``goes_on``: the call became a job, and its final result is still to come.
        call_id = record.call_id
        self._outbox.extend(call_id)  # it must not time out while its result is recorded
        try:
            await self._results.settle(record, outcome)
        except Duplicate:
            self._outbox.acknowledge(call_id)
            if not goes_on:
                self._take_late(call_id, lambda _: outcome)  # the call was closed first
                await self._committer.flush()
            return
        except Fenced:
            raise
        except StoreError:
            # The tool round records the outcome once the store is back.
            self._pending.answer(call_id, outcome)
            raise
        self._outbox.acknowledge(call_id)
        if not self._pending.answer(call_id, outcome) and not goes_on:
            self._take_late(call_id, lambda _: outcome)  # the turn gave the call up during the commit

    def _take_late(self, call_id: str, outcome: Callable[[CallRecord], ToolOutcome]) -> bool:
        late = self._late.take(call_id, _now())
        if late is None:
            return False
        self._committer.mark_dirty(LATE)
        self.unknowns.settle(call_id)
        executor, record = self._profile.executor, late.record
        result = executor.to_result(call_id, outcome(record), untrusted=record.untrusted)
        self.notes.append(Note(late_result(record.name, result.content), record.untrusted))
        own_turn = late.job or (late.starts_turn and not self._is_busy())
        self.wants_turn = self.wants_turn or own_turn
        if "late" in self._profile.capabilities:
            event = ToolLate(call_id, "turn" if own_turn else "context")
            self._outbox.send(self._encoder.frame(event))
        return True

    def _cancelling(self, record: CallRecord, reason: CancelReason) -> list[ServerEvent]:
        return [ToolCancel(record.call_id, reason)] if "cancel" in self._profile.capabilities else []


def _outcome(event: ToolResultEvent, record: CallRecord) -> ToolOutcome:
    return device_outcome(event.result, event.error, _seconds_since(record))


def _now() -> float:
    return asyncio.get_running_loop().time()


def _seconds_since(record: CallRecord) -> float:
    return max(0.0, time.time() - record.opened_ms / 1000)
