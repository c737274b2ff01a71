"""The server's tool metrics: calls, errors, approvals, and their times, as Prometheus metrics.

Count in the thread of the event loop only; any thread may read.
"""

from __future__ import annotations

import collections
import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Literal, TypeAlias, get_args

from prometheus_client import CollectorRegistry, Counter, Histogram

from conductor.tools.base import ErrorType

Decision: TypeAlias = Literal["allowed", "denied", "edited", "expired", "superseded", "refused"]
"""What came of an approval request. ``edited``: allowed with other arguments. ``superseded``: another request
replaced it. ``refused``: a decision that was stale or repeated."""

# Tools with metrics of their own: clients choose names, so they are bounded.
MAX_TOOLS = 500
# How many of these may be clients' tools: their names must not displace the server's.
MAX_DEVICE_TOOLS = 400
MAX_NAME_CHARS = 128
OTHERS = "(others)"

BOUNDS_S = tuple(float(f"{digits}e{power}") for power in range(-3, 3) for digits in (1, 1.5, 2.5, 4, 6.5))
"""Upper bounds of the histograms' buckets in seconds, 1 ms to 650 s."""

_BY_A_PERSON = frozenset({"allowed", "denied", "edited"})
# The value with the smallest relative error for all times of a bucket.
_MIDDLES_S = (BOUNDS_S[0], *(2 * low * high / (low + high) for low, high in pairwise(BOUNDS_S)), math.inf)

_Labels: TypeAlias = tuple[str, str]
_OTHERS: _Labels = (OTHERS, "")


class ToolMetrics:
    """The metrics of all tools since the process started, in a ``registry`` of their own.

    ``now`` is the wall clock, read once. Tools are identified by name and source; names are cut at
    `MAX_NAME_CHARS`, and tools beyond `MAX_TOOLS` are added up as `OTHERS`.
    """

    def __init__(self, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.since = now().isoformat(timespec="seconds")
        self.registry = CollectorRegistry()
        self._calls = Counter(
            "conductor_tool_calls",
            "Tool calls that ended; error_type is none for a success.",
            ("tool", "source", "error_type"),
            registry=self.registry,
        )
        self._asked = Counter(
            "conductor_tool_approvals_asked",
            "Tool calls that waited for consent.",
            ("tool", "source"),
            registry=self.registry,
        )
        self._decided = Counter(
            "conductor_tool_approvals_decided",
            "Approval requests by outcome.",
            ("tool", "source", "outcome"),
            registry=self.registry,
        )
        self._approvals = Counter(
            "conductor_approvals",
            "Approval requests by outcome and the way of a person's decision: card, voice or none.",
            ("outcome", "way"),
            registry=self.registry,
        )
        self._running = Histogram(
            "conductor_tool_run_seconds",
            "Execution time of tool calls.",
            ("tool", "source"),
            registry=self.registry,
            buckets=BOUNDS_S,
        )
        self._deciding = Histogram(
            "conductor_tool_decide_seconds",
            "Time that people took to decide about tool calls.",
            ("tool", "source"),
            registry=self.registry,
            buckets=BOUNDS_S,
        )
        self._tools: set[_Labels] = set()
        self._device_tools = 0
        self._longest_s: dict[_Labels, float] = {}  # a histogram keeps no maximum

    def called(self, tool: str, source: str, error_type: ErrorType, seconds: float | None) -> None:
        """Count a call that has ended; ``seconds`` is its execution time, None if it was not run."""
        labels = self._labels(tool, source)
        self._calls.labels(*labels, error_type).inc()
        if seconds is not None:
            self._running.labels(*labels).observe(seconds)
            self._longest_s[labels] = max(seconds, self._longest_s.get(labels, 0.0))

    def asked(self, tool: str, source: str) -> None:
        """Count a call that waits for consent."""
        self._asked.labels(*self._labels(tool, source)).inc()

    def decided(
        self, tool: str, source: str, outcome: Decision, seconds: float, *, by_voice: bool = False
    ) -> None:
        """Count the result of an approval request after ``seconds``.

        Only a person's decision counts for the time to decide.
        """
        labels = self._labels(tool, source)
        self._decided.labels(*labels, outcome).inc()
        way = "none" if outcome not in _BY_A_PERSON else "voice" if by_voice else "card"
        self._approvals.labels(outcome, way).inc()
        if outcome in _BY_A_PERSON:
            self._deciding.labels(*labels).observe(seconds)

    def snapshot(self) -> dict[str, Any]:
        """Give all metrics as JSON values.

        ``{"since", "totals": counts, "tools": [{"tool", "source", *counts, "run_ms": {"p50", "p99", "max"},
        "decide_ms": {"p50", "p99"}}]}``, where counts are ``{"calls", "successes", "errors": {type: n},
        "approvals": {"asked", "allowed", …}}``. Times are milliseconds, or null without any. Tools are sorted
        by name and source; `OTHERS`, without a source, comes last and only if there are some.

        ``max`` is exact. Quantiles come from buckets: they are within 25 % of the true time between 1 ms and
        650 s. A shorter time counts as 1 ms, a longer one as the maximum, and a longer decision as 650 s.
        """
        calls, asked, decided = _read(self._calls), _read(self._asked), _read(self._decided)
        running, deciding = _read(self._running), _read(self._deciding)
        tools = []
        for labels in sorted({*calls, *asked, *decided}, key=lambda labels: (labels == _OTHERS, labels)):
            longest = self._longest_s.get(labels)
            p50, p99 = _quantiles(running[labels], longest)
            decide_p50, decide_p99 = _quantiles(deciding[labels], BOUNDS_S[-1])
            tools.append(
                {
                    "tool": labels[0],
                    "source": labels[1],
                    **_counts(calls[labels], asked[labels], decided[labels]),
                    "run_ms": {"p50": _ms(p50), "p99": _ms(p99), "max": _ms(longest)},
                    "decide_ms": {"p50": _ms(decide_p50), "p99": _ms(decide_p99)},
                }
            )
        totals = (sum(rows.values(), collections.Counter()) for rows in (calls, asked, decided))
        return {"since": self.since, "totals": _counts(*totals), "tools": tools}

    def _labels(self, tool: str, source: str) -> _Labels:
        if not tool.isprintable():  # control characters and lone surrogates, which no scraper would take
            tool = "".join(char if char.isprintable() else "?" for char in tool)
        labels = tool[:MAX_NAME_CHARS], source
        if labels not in self._tools:
            of_a_device = source == "device"
            # Labels are never dropped by Prometheus' client: names that clients choose would fill memory.
            if len(self._tools) >= MAX_TOOLS or (of_a_device and self._device_tools >= MAX_DEVICE_TOOLS):
                return _OTHERS
            self._device_tools += of_a_device
            self._tools.add(labels)
        return labels


def _read(metric: Counter | Histogram) -> collections.defaultdict[_Labels, collections.Counter[str]]:
    # By the third label; buckets are cumulative and in order.
    rows: collections.defaultdict[_Labels, collections.Counter[str]]
    rows = collections.defaultdict(collections.Counter)
    for family in metric.collect():
        for sample in family.samples:
            if sample.name.endswith(("_total", "_bucket")):
                tool, source, *rest = sample.labels.values()
                rows[tool, source]["".join(rest)] = int(sample.value)
    return rows


def _counts(calls: Mapping[str, int], asked: Mapping[str, int], decided: Mapping[str, int]) -> dict[str, Any]:
    return {
        "calls": sum(calls.values()),
        "successes": calls.get("none", 0),
        "errors": {error_type: calls[error_type] for error_type in sorted(calls) if error_type != "none"},
        "approvals": {"asked": sum(asked.values()), **dict.fromkeys(get_args(Decision), 0), **decided},
    }


def _quantiles(buckets: Mapping[str, int], longest_s: float | None) -> tuple[float | None, float | None]:
    # Give p50 and p99 (nearest rank) in seconds, at most ``longest_s``; None without any time.
    cumulative = list(buckets.values())
    if not any(cumulative) or longest_s is None:
        return None, None
    p50, p99 = (
        min(_MIDDLES_S[bisect_left(cumulative, math.ceil(share * cumulative[-1]))], longest_s)
        for share in (0.5, 0.99)
    )
    return p50, p99


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
