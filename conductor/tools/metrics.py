"""The server's tool metrics: calls, errors, approvals, and their times, as Prometheus metrics.

Count in the thread of the event loop only; any thread may read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from prometheus_client import CollectorRegistry, Counter, Histogram

from conductor.tools.outcomes import ErrorType

CountedOutcome: TypeAlias = Literal["allowed", "denied", "edited", "expired", "superseded", "refused"]
"""The outcome of an approval request. ``edited``: allowed with changed arguments. ``superseded``: replaced by
a new request. ``refused``: a decision that was stale or repeated."""

# Tools with separate metrics: clients choose names, so they are bounded.
MAX_TOOLS = 500
# How many of these may be clients' tools: their names must not displace the server's.
MAX_DEVICE_TOOLS = 400
MAX_NAME_CHARS = 128
OTHERS = "(others)"

BOUNDS_S = tuple(float(f"{digits}e{power}") for power in range(-3, 3) for digits in (1, 1.5, 2.5, 4, 6.5))
"""Upper bounds of the histograms' buckets in seconds, 1 ms to 650 s."""

_BY_A_PERSON = frozenset({"allowed", "denied", "edited"})

_Labels: TypeAlias = tuple[str, str]
_OTHERS: _Labels = (OTHERS, "")


class ToolMetrics:
    """The metrics of all tools since the process started, in their own ``registry``.

    Tools are identified by name and source; names are cut at `MAX_NAME_CHARS`, and tools beyond `MAX_TOOLS`
    are added up as `OTHERS`.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        tool = ("tool", "source")
        self._calls = self._counter(
            "tool_calls", "Tool calls that ended; error_type is none for a success.", (*tool, "error_type")
        )
        self._requested = self._counter("tool_approvals_asked", "Tool calls that waited for consent.", tool)
        self._decided = self._counter(
            "tool_approvals_decided", "Approval requests by outcome.", (*tool, "outcome")
        )
        self._approvals = self._counter(
            "approvals",
            "Approval requests by outcome and the way of a person's decision: card, voice or none.",
            ("outcome", "way"),
        )
        self._running = self._histogram("tool_run_seconds", "Execution time of tool calls.", tool)
        self._deciding = self._histogram(
            "tool_decide_seconds", "Time that people took to decide about tool calls.", tool
        )
        self._tools: set[_Labels] = set()
        self._device_tools = 0

    def _counter(self, name: str, text: str, labels: Sequence[str]) -> Counter:
        return Counter(f"conductor_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, labels: Sequence[str]) -> Histogram:
        return Histogram(f"conductor_{name}", text, labels, registry=self.registry, buckets=BOUNDS_S)

    def count_call(self, tool: str, source: str, error_type: ErrorType, seconds: float | None) -> None:
        """Count a call that has ended; ``seconds`` is its execution time, None if it was not run."""
        labels = self._labels(tool, source)
        self._calls.labels(*labels, error_type).inc()
        if seconds is not None:
            self._running.labels(*labels).observe(seconds)

    def count_request(self, tool: str, source: str) -> None:
        """Count a call that waits for consent."""
        self._requested.labels(*self._labels(tool, source)).inc()

    def count_decision(
        self, tool: str, source: str, outcome: CountedOutcome, seconds: float, *, by_voice: bool = False
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
