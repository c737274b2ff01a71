"""Figures of the server's turns, as Prometheus metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

from conductor.conversation.turn_state import EndReason, TurnStats

BOUNDS_S = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)
"""Upper bounds of the histograms' buckets in seconds."""


class TurnFigures:
    """Counts turns by their cause and end, and the times until a person notices something."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        registry = registry or CollectorRegistry()
        self._turns = Counter(
            "conductor_turns",
            "Turns by cause (transcript, news, request …) and end.",
            ("cause", "end"),
            registry=registry,
        )
        self._first_token = Histogram(
            "conductor_turn_first_token_seconds",
            "From a turn's begin to the model's first word or call.",
            registry=registry,
            buckets=BOUNDS_S,
        )
        self._first_speech = Histogram(
            "conductor_turn_first_speech_seconds",
            "From a turn's begin to the first speech sent.",
            registry=registry,
            buckets=BOUNDS_S,
        )

    def ended(self, cause: str, reason: EndReason, stats: TurnStats) -> None:
        """Count a turn that has ended."""
        self._turns.labels(cause, reason).inc()
        if stats.first_token_s is not None:
            self._first_token.observe(stats.first_token_s)
        if stats.first_speech_s is not None:
            self._first_speech.observe(stats.first_speech_s)
