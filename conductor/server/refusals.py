"""The log of refused requests, at a bounded rate."""

from __future__ import annotations

import asyncio
from collections import Counter

import structlog

log = structlog.get_logger(__name__)

# Wrong tokens of an operator or a backend per minute and address before the answer is 429.
WRONG_TOKENS_PER_MINUTE = 10
# Pairs of reason and source that are counted separately; further pairs share the source "many".
MAX_KINDS = 100


class Refusals:
    """Logs refusals at a bounded rate: the first of a reason and a source, then a count every ``period``.

    ``period`` is in seconds.
    """

    def __init__(self, period: float = 60.0) -> None:
        self._period = period
        self._counts: Counter[tuple[str, str]] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    def count(self, reason: str, source: str, **facts: object) -> int:
        """Count a refusal; returns how many there were in this period from the same source."""
        key = (reason, source)
        if key not in self._counts:
            if len(self._counts) >= MAX_KINDS:
                key = (reason, "many")
            if key not in self._counts:
                log.warning("request refused", reason=reason, source=key[1], **facts)
        self._counts[key] += 1
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._period, self._report)
        return self._counts[key]

    def close(self) -> None:
        """Log the counts, and stop."""
        if self._timer is not None:
            self._timer.cancel()
            self._report()
            self._counts.clear()

    def _report(self) -> None:
        self._timer = None
        for (reason, source), count in self._counts.items():
            if count > 1:
                log.warning("requests refused", reason=reason, source=source, count=count)
        self._counts = Counter({key: 0 for key, count in self._counts.items() if count > 1})
