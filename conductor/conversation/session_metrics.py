"""The figures of a turn, and the metrics of sessions and turns, as Prometheus metrics."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from prometheus_client import CollectorRegistry, Counter, Histogram

from conductor.conversation.state import EndReason
from conductor.models.base import Usage

if TYPE_CHECKING:
    from opentelemetry.util.types import AttributeValue

Output: TypeAlias = Literal["token", "partial", "speech"]
SessionStart: TypeAlias = Literal["new", "resumed", "not_kept"]
BOUNDS_S = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)
COMMIT_BOUNDS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0)
"""Upper bounds of the histograms' buckets in seconds."""


@dataclass(frozen=True, slots=True)
class Step:
    """A part of a turn; times are nanoseconds since the epoch. ``error`` is a code, empty for a success."""

    kind: Literal["chat", "execute_tool", "approval"]
    name: str
    start_ns: int
    end_ns: int
    error: str = ""
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)


@dataclass(slots=True)
class TurnStats:
    """The figures of a turn. ``first_s``: seconds until its first outputs."""

    trace: list[str] = field(default_factory=list)
    transcript: str = ""
    reply: str = ""
    rounds: int = 0
    usage: Usage = field(default_factory=Usage)
    cost: float = 0.0
    models: list[str] = field(default_factory=list)
    first_s: dict[Output, float] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    tool_s: float = 0.0
    started: float = field(default_factory=time.monotonic)


class SessionMetrics:
    """Counts turns, and observes response times and delays. Only the event loop's thread may count."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        registry = registry or CollectorRegistry()

        def seconds(name: str, meaning: str, bounds: Sequence[float] = BOUNDS_S) -> Histogram:
            return Histogram(name, meaning, registry=registry, buckets=bounds)

        self._turns = Counter(
            "conductor_turns",
            "Turns by cause (transcript, news, request …) and end.",
            ("cause", "end"),
            registry=registry,
        )
        outputs: dict[Output, str] = {
            "token": "From the start of a turn to the model's first word or call.",
            "partial": "From the start of a turn to the first partial text sent.",
            "speech": "From the start of a turn to the first speech sent.",
        }
        self._first = {
            output: seconds(f"conductor_turn_first_{output}_seconds", meaning)
            for output, meaning in outputs.items()
        }
        self._starts = Counter(
            "conductor_session_starts",
            "Answers to session.start: new, resumed, or not_kept, for a client whose session has expired.",
            ("result",),
            registry=registry,
        )
        self.commits = seconds(
            "conductor_store_commit_seconds", "Time of one commit to the session store.", COMMIT_BOUNDS_S
        )
        self._loop_lag = seconds(
            "conductor_loop_lag_seconds",
            "Delay of the event loop's timers, measured four times a second.",
            COMMIT_BOUNDS_S,
        )

    def started(self, result: SessionStart) -> None:
        """Count an answer to ``session.start``."""
        self._starts.labels(result).inc()

    def lagged(self, seconds: float) -> None:
        """Observe how late the event loop ran a timer."""
        self._loop_lag.observe(max(0.0, seconds))

    def ended(self, cause: str, reason: EndReason, stats: TurnStats) -> None:
        """Count a turn that has ended."""
        self._turns.labels(cause, reason).inc()
        for output, seconds in stats.first_s.items():
            self._first[output].observe(seconds)
