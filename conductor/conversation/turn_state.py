"""The state of a running turn: its figures, its clock, and whether it must stop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias

from conductor.conversation.snapshot import TurnSnapshot, encode
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


class StoppedError(Exception):
    """Raised where a turn may stop, to end it."""


class TurnClock:
    """Calls ``on_expired`` once, when ``seconds`` of unpaused time have passed since `start`."""

    def __init__(self, seconds: float, on_expired: Callable[[], None]) -> None:
        self._remaining = seconds
        self._on_expired = on_expired
        self._timer: asyncio.TimerHandle | None = None
        self._since = 0.0
        self._pauses = 0
        self._expired = False

    @property
    def remaining(self) -> float:
        """The remaining seconds of unpaused time."""
        if self._timer is None:
            return self._remaining
        return max(0.0, self._remaining - (asyncio.get_running_loop().time() - self._since))

    def start(self) -> None:
        """Start or resume the clock."""
        loop = asyncio.get_running_loop()
        self._since = loop.time()
        if not self._expired:
            self._timer = loop.call_later(self._remaining, self._expire)

    def stop(self) -> None:
        """Stop the clock; `start` resumes it."""
        self._remaining = self.remaining
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the clock while the block runs; pauses nest."""
        self._pauses += 1
        if self._pauses == 1:
            self.stop()
        try:
            yield
        finally:
            self._pauses -= 1
            if self._pauses == 0:
                self.start()

    def _expire(self) -> None:
        self._expired = True
        self.stop()
        self._on_expired()


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


class TurnState:
    """The state of one turn that its tool calls, the queue and the session see.

    ``attempts`` counts requests to the model since its last reply. ``speech_id`` and ``spoken_text`` belong
    to a reply that is spoken while it streams; ``heard_text`` is the part that the person has heard.
    ``bridged``: a bridging phrase was spoken. ``over``: its end is recorded, so no other process resumes it.
    """

    def __init__(self, turn_id: str, cause: str, seconds: float) -> None:
        self.id = turn_id
        self.cause = cause
        self.stats = TurnStats([cause])
        self.actions: list[str] = []
        self.attempts = 1
        self.calls_made = 0
        self.refused_rounds = 0
        self.over = False
        self.speech_id = ""
        self.spoken_text = ""
        self.bridged = False
        self.heard_text: str | None = None
        self.stopped_for: EndReason | None = None
        self.clock = TurnClock(seconds, partial(self.stop, "timed_out"))
        self._task: asyncio.Task[object] | None = None
        self._waiting = False

    def dump(self, *, logged: bool = False) -> str:
        """Encode the snapshot from which another process resumes the turn; empty once it is over.

        ``logged``: the same commit logs the spoken text.
        """
        if self.over:
            return ""
        stop = self.stopped_for
        snapshot = TurnSnapshot(
            self.id,
            self.cause,
            self.attempts,
            self.stats.rounds,
            self.calls_made,
            self.refused_rounds,
            tuple(self.actions),
            stop if stop in ("interrupted", "session_end", "timed_out") else None,
            "" if logged else self.spoken_text,
            self.bridged,
        )
        return encode(snapshot)

    def note_logged(self) -> None:
        """Note that the spoken text is logged."""
        self.spoken_text = ""

    def restore(self, snapshot: TurnSnapshot, *, in_round: bool) -> None:
        """Restore the state of another process's turn; ``in_round``: it was running tool calls."""
        # An unfinished round was recorded after the model's reply: its request did not fail.
        self.attempts = snapshot.attempts if in_round else snapshot.attempts + 1
        self.stats.rounds = snapshot.rounds
        self.stats.trace.append("recovered")
        self.actions = list(snapshot.actions)
        self.calls_made, self.refused_rounds = snapshot.calls, snapshot.refused_rounds
        self.stopped_for = snapshot.stop
        self.spoken_text, self.bridged = snapshot.spoken_text, snapshot.bridged

    def begin(self) -> None:
        """Start the clock; `stop` cancels this task."""
        self._task = asyncio.current_task()
        self.clock.start()

    def stop(self, reason: EndReason, heard_text: str | None = None) -> None:
        """End the turn: at once if it is waiting, else after the running commit."""
        if self.stopped_for is None:
            self.heard_text = heard_text
            self.stopped_for = reason
            if self._waiting and self._task is not None:
                self._task.cancel()

    def release(self) -> None:
        """Release the turn to another process; an orderly release does not count as an attempt."""
        self.attempts -= 1

    def end(self) -> None:
        """Note that the turn's end is recorded."""
        self.over = True

    def check(self) -> None:
        """Raise `StoppedError` if the turn was asked to stop."""
        if self.stopped_for is not None:
            raise StoppedError

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let `stop` cancel this block, which then raises `StoppedError`."""
        self.check()
        self._waiting = True
        try:
            yield
        except BaseException:
            # Not only CancelledError: a cancelled library may raise an error of its own.
            if self.stopped_for is None or self._task is None:
                raise
            self._task.uncancel()
            raise StoppedError from None
        finally:
            self._waiting = False

    @contextmanager
    def committing(self) -> Iterator[None]:
        """Within `interruptible`, let the block end, then raise `StoppedError` if the turn must stop."""
        self._waiting = False
        try:
            yield
        finally:
            self._waiting = True
        self.check()

    @contextmanager
    def paused(self, pause: bool) -> Iterator[None]:
        """Stop the clock while the block runs, if ``pause``."""
        if not pause:
            yield
            return
        with self.clock.paused():
            yield
