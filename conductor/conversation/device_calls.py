"""The device's answers: in time, late, repeated, or never."""

from __future__ import annotations

import asyncio
import time

import structlog

from conductor.conversation.late import LateCalls
from conductor.conversation.ledger import Ledger
from conductor.conversation.outbox import Outbox
from conductor.conversation.profile import Profile
from conductor.conversation.sentences import late_result
from conductor.errors import Duplicate, Fenced, StoreError
from conductor.events.client import ToolResultEvent
from conductor.settings import Limits
from conductor.stores.base import CallRecord, FinishCall
from conductor.tools.executor import device_outcome
from conductor.tools.pending import Pending

log = structlog.get_logger(__name__)


class DeviceCalls:
    """Sees to it that each call of the device gets one recorded result, whoever gives it.

    ``news`` collects what the model should read before the next turn.
    """

    def __init__(
        self, limits: Limits, profile: Profile, pending: Pending, ledger: Ledger, outbox: Outbox
    ) -> None:
        self._profile = profile
        self._pending = pending
        self._ledger = ledger
        self._outbox = outbox
        self._late = LateCalls(limits.max_late_calls, limits.late_result_expiry)
        self.news: list[str] = []

    async def take(self, event: ToolResultEvent) -> bool:
        """Record a ``tool.result``, then wake whoever waits for it. Raises `StoreError`.

        Returns whether it answers a call that is outstanding.
        """
        record = self._ledger.state.calls.get(event.call_id)
        if record is None or record.result is not None:
            expected = self._outbox.acknowledge(event.call_id) is not None
            self._take_late(event)
            return expected
        outcome = device_outcome(event.result, event.error, _seconds_since(record))
        result = self._profile.executor.settle(event.call_id, outcome)
        try:
            await self._ledger.commit([FinishCall(event.call_id, result)])
        except (Duplicate, Fenced):
            self._take_late(event)  # the call was closed meanwhile
            return True
        except StoreError:
            self._pending.answer(
                event.call_id, outcome
            )  # whoever waits records it, as soon as that is possible
            raise
        self._outbox.acknowledge(event.call_id)
        if not self._pending.answer(event.call_id, outcome):
            self._take_late(event)  # the turn gave it up while it was recorded
        return True

    async def time_out(self, call_id: str) -> None:
        """Answer for a device that did not: the outcome is unknown, and a late answer still counts."""
        record = self._ledger.state.calls.get(call_id)
        if record is None or record.result is not None:
            return
        executor = self._profile.executor
        outcome = executor.timed_out(record.effect, _seconds_since(record))
        try:
            await self._ledger.commit([FinishCall(call_id, executor.settle(call_id, outcome))])
        except Duplicate:
            return  # the device's answer came, or the turn ended, while this waited
        except StoreError as error:
            log.error("time-out not recorded", call=call_id, error=type(error).__name__)
        self._late.add(record, _now())
        self._pending.answer(call_id, outcome)

    def give_up(self, call_id: str) -> None:
        """Expect no answer in time any more: the call's turn is over. A late one still counts."""
        record = self._ledger.state.calls.get(call_id)
        if record is not None and record.source == "device" and record.result is None:
            self._late.add(record, _now())
            self._outbox.abandon(call_id)

    def _take_late(self, event: ToolResultEvent) -> None:
        call = self._late.take(event.call_id, _now())
        if call is not None:
            outcome = device_outcome(event.result, event.error, _seconds_since(call))
            result = self._profile.executor.settle(event.call_id, outcome)
            self.news.append(late_result(call.name, result.content))


def _now() -> float:
    return asyncio.get_running_loop().time()


def _seconds_since(record: CallRecord) -> float:
    return max(0.0, time.time() - record.opened_ms / 1000)
