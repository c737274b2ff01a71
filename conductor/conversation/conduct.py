"""The settings of a conversation that its decisions read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from conductor.conversation.phrases import SpokenFailure


@dataclass(frozen=True, kw_only=True)
class Conduct:
    """How a conversation goes. Times are milliseconds.

    ``cancels``: a transcript interrupts the running turn. ``failures`` are the apologies by error code.
    ``turn_ms`` limits a turn, and ``question_ms`` is how long a question stands. Within ``window_ms`` after a
    speech an interruption or a yes still concerns it. The person has the floor for ``floor_ms`` after a
    partial transcript, and a paused speech goes on after ``pause_ms`` without a transcript. Half a sentence
    waits ``hold_ms`` for the other half, and while that is spoken at most ``max_hold_ms`` longer.
    ``window_tokens`` is the model's context window, None if it is unknown.
    """

    cancels: bool = True
    failures: Mapping[SpokenFailure, str] = field(default_factory=dict)
    history_tokens: int = 60_000
    window_tokens: int | None = None
    turn_ms: int = 120_000
    question_ms: int = 600_000
    window_ms: int = 150
    floor_ms: int = 5_000
    pause_ms: int = 2_000
    hold_ms: int = 0
    max_hold_ms: int = 30_000
    late_ms: int = 600_000
    notice_ms: int = 600_000
    job_ms: int = 86_400_000
    max_turns: int = 20
    max_tool_rounds: int = 8
    max_calls_per_turn: int = 40
    max_queue: int = 3
    max_unclear: int = 2
    max_presentations: int = 5
    max_attempts: int = 2
    max_refused_rounds: int = 2
