"""The state of a running turn: its figures, its clock, and whether it must stop."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from conductor.models.base import Finished, Usage

if TYPE_CHECKING:
    from opentelemetry.util.types import AttributeValue

Output: TypeAlias = Literal["token", "partial", "speech"]
EndReason: TypeAlias = Literal["answered", "interrupted", "session_end", "timed_out", "failed"]


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

    def mark_first(self, output: Output) -> None:
        """Note the time of an output, if it is the first of its kind."""
        self.first_s.setdefault(output, time.monotonic() - self.started)

    def add(self, finished: Finished) -> None:
        """Add the tokens of one model request."""
        self.usage += finished.usage
        self.cost += finished.cost
        if finished.profile is not None and finished.profile not in self.models:
            self.models.append(finished.profile)
