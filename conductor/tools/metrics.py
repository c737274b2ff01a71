"""The process's tool metrics: calls, errors, approvals, and their times.

Counting neither waits nor writes, and its cost depends neither on the number of calls nor on names that
clients make up. Use it in the thread of the event loop only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

from conductor.tools.base import ErrorType

Decision: TypeAlias = Literal["allowed", "denied", "edited", "expired", "superseded", "refused"]
"""What came of an approval request. ``edited``: allowed with other arguments. ``superseded``: another request
replaced it. ``refused``: a decision that was stale or repeated."""

# Tools with figures of their own: clients choose names, so they are bounded.
MAX_TOOLS = 500
# How many of these may be clients' tools: their names must not displace the server's.
MAX_DEVICE_TOOLS = 400
MAX_NAME_CHARS = 128
OTHERS = "(others)"
MAX_BUCKETS = 100

_DECISIONS: tuple[Decision, ...] = ("allowed", "denied", "edited", "expired", "superseded", "refused")
_BY_A_PERSON = frozenset({"allowed", "denied", "edited"})
# Largest error of a quantile, as a share of its value; with rounding it stays below 5 %.
_ERROR = 0.049
_GROWTH = (1 + _ERROR) / (1 - _ERROR)
_PER_LOG = 1 / math.log(_GROWTH)
_SHORTEST_S = 1e-6
_LONGEST_S = 1e6


class Histogram:
    """Times in logarithmic buckets (as in DDSketch, Masson et al. 2019), at most `MAX_BUCKETS` of them.

    A bucket's borders are a factor of 1.103 apart, so its middle is within 5% of all its times. A hundred of
    them in a row span a factor of 18,000; if times lie further apart, the lowest buckets are merged.
    """

    __slots__ = ("_buckets", "_floor", "_longest", "count")

    def __init__(self) -> None:
        self.count = 0
        self._buckets: dict[int, int] = {}
        self._floor = 0
        self._longest = 0.0

    def add(self, seconds: float) -> None:
        """Count a time in seconds; below a microsecond it counts as one."""
        if not seconds > _SHORTEST_S:  # nor is what is no number
            seconds = _SHORTEST_S
        elif seconds > _LONGEST_S:
            seconds = _LONGEST_S
        if seconds > self._longest:
            self._longest = seconds
        self.count += 1
        index = int(math.log(seconds / _SHORTEST_S) * _PER_LOG)
        if index < self._floor:
            index = self._floor
        buckets = self._buckets
        if index in buckets:
            buckets[index] += 1
        else:
            buckets[index] = 1
            if len(buckets) > MAX_BUCKETS:
                self._fold()

    def quantiles(self, *shares: float) -> list[float | None]:
        """Give for each share the time in seconds that it did not exceed (nearest rank); None without any.

        ``shares`` go up.
        """
        found: list[float | None] = []
        ranks = [max(1, math.ceil(share * self.count)) for share in shares]
        counted = 0
        for index in sorted(self._buckets):
            counted += self._buckets[index]
            while len(found) < len(ranks) and ranks[len(found)] <= counted:
                found.append(min(_SHORTEST_S * _GROWTH**index * (1 + _ERROR), self._longest))
        return found or [None] * len(ranks)

    @property
    def longest(self) -> float | None:
        """The longest time in seconds, exact; None without any."""
        return self._longest if self.count else None

    def _fold(self) -> None:
        lowest, self._floor = sorted(self._buckets)[:2]
        self._buckets[self._floor] += self._buckets.pop(lowest)


class _Row:
    __slots__ = ("asked", "calls", "decided", "deciding", "errors", "running")

    def __init__(self) -> None:
        self.calls = 0
        self.errors: dict[str, int] = {}
        self.running = Histogram()
        self.asked = 0
        self.decided = dict.fromkeys(_DECISIONS, 0)
        self.deciding = Histogram()

    def counts(self) -> dict[str, Any]:
        return {
            "calls": self.calls,
            "successes": self.calls - sum(self.errors.values()),
            "errors": dict(sorted(self.errors.items())),
            "approvals": {"asked": self.asked, **self.decided},
        }

    def snapshot(self, tool: str, source: str) -> dict[str, Any]:
        p50, p99 = self.running.quantiles(0.5, 0.99)
        decide_p50, decide_p99 = self.deciding.quantiles(0.5, 0.99)
        return {
            "tool": tool,
            "source": source,
            **self.counts(),
            "run_ms": {"p50": _ms(p50), "p99": _ms(p99), "max": _ms(self.running.longest)},
            "decide_ms": {"p50": _ms(decide_p50), "p99": _ms(decide_p99)},
        }


class ToolMetrics:
    """The figures of all tools since the process started (tools, "Figures kept").

    ``now`` is the wall clock, read once. Tools are identified by name and source; names are cut at
    `MAX_NAME_CHARS`, and tools beyond `MAX_TOOLS` are added up as `OTHERS`.
    """

    def __init__(self, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.since = now().isoformat(timespec="seconds")
        self._rows: dict[tuple[str, str], _Row] = {}
        self._device_rows = 0
        self._others = _Row()

    def called(self, tool: str, source: str, error_type: ErrorType, seconds: float | None) -> None:
        """Count a call that has ended; ``seconds`` is its execution time, None if it was not run."""
        row = self._row(tool, source)
        row.calls += 1
        if error_type != "none":
            row.errors[error_type] = row.errors.get(error_type, 0) + 1
        if seconds is not None:
            row.running.add(seconds)

    def asked(self, tool: str, source: str) -> None:
        """Count a call that waits for consent."""
        self._row(tool, source).asked += 1

    def decided(self, tool: str, source: str, outcome: Decision, seconds: float) -> None:
        """Count the result of an approval request after ``seconds``.

        Only a person's decision counts for the time to decide.
        """
        row = self._row(tool, source)
        row.decided[outcome] += 1
        if outcome in _BY_A_PERSON:
            row.deciding.add(seconds)

    def snapshot(self) -> dict[str, Any]:
        """Give all figures as JSON values.

        ``{"since", "totals": counts, "tools": [{"tool", "source", *counts, "run_ms": {"p50", "p99", "max"},
        "decide_ms": {"p50", "p99"}}]}``, where counts are ``{"calls", "successes", "errors": {type: n},
        "approvals": {"asked", "allowed", …}}``. Times are milliseconds, or null without any. Tools are sorted
        by name and source; `OTHERS`, without a source, comes last and only if there are some.
        """
        tools = [self._rows[key].snapshot(*key) for key in sorted(self._rows)]
        if self._others.calls or self._others.asked or any(self._others.decided.values()):
            tools.append(self._others.snapshot(OTHERS, ""))
        return {"since": self.since, "totals": self._totals().counts(), "tools": tools}

    def _totals(self) -> _Row:
        total = _Row()
        for row in (*self._rows.values(), self._others):
            total.calls += row.calls
            total.asked += row.asked
            _add(total.errors, row.errors)
            _add(total.decided, row.decided)
        return total

    def _row(self, tool: str, source: str) -> _Row:
        if len(tool) > MAX_NAME_CHARS:
            tool = tool[:MAX_NAME_CHARS]
        row = self._rows.get((tool, source))
        return row if row is not None else self._new_row(tool, source)

    def _new_row(self, tool: str, source: str) -> _Row:
        of_a_device = source == "device"
        if len(self._rows) >= MAX_TOOLS or (of_a_device and self._device_rows >= MAX_DEVICE_TOOLS):
            return self._others
        self._device_rows += of_a_device
        row = self._rows[tool, source] = _Row()
        return row


def _add(total: dict[Any, int], counts: Mapping[Any, int]) -> None:
    for name, count in counts.items():
        total[name] = total.get(name, 0) + count


def _ms(seconds: float | None) -> float | None:
    # Four digits: the buckets know a quantile no better than that.
    return None if seconds is None else float(f"{seconds * 1000:.4g}")
