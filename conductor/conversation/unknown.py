"""Calls that may have happened: an identical one does not run silently while nobody knows."""

from __future__ import annotations

from collections import OrderedDict


class Unknowns:
    """Remembers, for ``seconds`` each, up to ``limit`` calls by the digest of tool and arguments.

    Times are the event loop's (tools, "Unknown outcomes").
    """

    def __init__(self, limit: int, seconds: float) -> None:
        self._limit = limit
        self._seconds = seconds
        self._calls: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def add(self, call_id: str, digest: str, now: float) -> None:
        """Note a call whose outcome nobody knows."""
        self._calls[call_id] = (digest, now + self._seconds)
        if len(self._calls) > self._limit:
            self._calls.popitem(last=False)

    def settle(self, call_id: str) -> None:
        """Note that its outcome is known after all."""
        self._calls.pop(call_id, None)

    def holds(self, digest: str, now: float) -> bool:
        """Tell whether an identical call may have happened."""
        return any(known == digest and expires > now for known, expires in self._calls.values())
