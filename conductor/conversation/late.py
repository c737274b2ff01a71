"""Calls whose result nobody waits for any more, and may still come."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from conductor.conversation.memos import LateMemo, epoch_ms, loop_time
from conductor.stores.base import CallRecord


@dataclass(frozen=True, slots=True)
class LateCall:
    """A call whose turn goes on without it.

    ``wanted``: its result deserves a turn of its own where nobody is talking; that of a ``job`` in any case.
    """

    record: CallRecord
    wanted: bool
    expires: float
    job: bool = False


class LateCalls:
    """Remembers up to ``limit`` device calls for ``seconds`` each; times are the event loop's."""

    def __init__(self, limit: int, seconds: float) -> None:
        self._limit = limit
        self._seconds = seconds
        self._calls: OrderedDict[str, LateCall] = OrderedDict()

    def add(self, call: CallRecord, now: float, *, wanted: bool) -> None:
        """Remember a call that was closed without its result."""
        self._calls[call.call_id] = LateCall(call, wanted, now + self._seconds)
        if len(self._calls) > self._limit:
            self._calls.popitem(last=False)

    def keep(self, call_id: str, now: float, seconds: float) -> None:
        """Remember a call that became a job for ``seconds`` from now on; its result deserves a turn."""
        call = self._calls.get(call_id)
        if call is not None:
            self._calls[call_id] = replace(call, wanted=True, expires=now + seconds, job=True)

    def kept(self) -> tuple[LateMemo, ...]:
        """Write them all down."""
        return tuple(
            LateMemo(one.record, one.wanted, epoch_ms(one.expires), one.job) for one in self._calls.values()
        )

    def restore(self, kept: Sequence[LateMemo]) -> None:
        """Remember what another process did."""
        for one in kept:
            call = LateCall(one.call, one.wanted, loop_time(one.expires_ms), one.job)
            self._calls[one.call.call_id] = call

    def holds(self, call_id: str, now: float) -> bool:
        """Tell whether a call's late result would be used."""
        call = self._calls.get(call_id)
        return call is not None and call.expires > now

    def is_read(self, call_id: str) -> bool:
        """Tell whether it is a call that changes nothing."""
        call = self._calls.get(call_id)
        return call is not None and call.record.effect == "read"

    def take(self, call_id: str, now: float) -> LateCall | None:
        """Give the call that this late result belongs to, once, if it is not too late."""
        call = self._calls.pop(call_id, None)
        return call if call is not None and call.expires > now else None
