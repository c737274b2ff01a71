"""Calls whose result nobody waits for any more, and may still come."""

from __future__ import annotations

from collections import OrderedDict

from conductor.stores.base import CallRecord


class LateCalls:
    """Remembers up to ``limit`` device calls for ``seconds`` each; times are the event loop's."""

    def __init__(self, limit: int, seconds: float) -> None:
        self._limit = limit
        self._seconds = seconds
        self._calls: OrderedDict[str, tuple[CallRecord, float]] = OrderedDict()

    def add(self, call: CallRecord, now: float) -> None:
        """Remember a call that was closed without its result."""
        self._calls[call.call_id] = (call, now + self._seconds)
        if len(self._calls) > self._limit:
            self._calls.popitem(last=False)

    def take(self, call_id: str, now: float) -> CallRecord | None:
        """Give the call that this late result belongs to, once, if it is not too late."""
        call, expires = self._calls.pop(call_id, (None, 0.0))
        return call if expires > now else None
