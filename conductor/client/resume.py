"""Resuming a session: the client's report in ``session.start``, and the server's answer to it.

**Results.** The `Outbox` keeps a result until ``event.ack`` names its event. A client that reconnects puts
these results into ``session.start``, and the server records them before it answers, so ``session.started``
confirms them. Other results are sent as events, under their original ids: later ones, those that did not fit,
and those that the server requests again. The first result of a ``callId`` counts.

**First connection.** Nothing is reported until the server has answered this process once. A client with
``resume`` receives only the calls that it has not answered. A relaunched app does not remember its calls, and
would run them twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from conductor.client.calls import Calls
from conductor.client.events import ReplayCursor
from conductor.client.outbox import MAX_RESUME_BYTES, Outbox
from conductor.client.turns import Turns
from conductor.events.client import MAX_RESUMED, Resume, ResumeDone, SessionStart
from conductor.events.server import SessionStarted

# Bytes of a ``session.start`` payload: the soft limit of an event without the envelope.
MAX_START_BYTES = 65_536 - 1_024

T = TypeVar("T")

_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class ResumeState:
    """The resumable state of a client's session, over all its connections."""

    outbox: Outbox
    calls: Calls
    turns: Turns
    cursor: ReplayCursor
    _has_started: bool = False
    _reported: frozenset[str] = frozenset()

    def with_resume(self, start: SessionStart) -> SessionStart:
        """Add ``resume`` to a ``session.start`` that names the capability and is not the first."""
        if not self._has_started or "resume" not in (start.capabilities or ()):
            return start
        size = min(MAX_RESUME_BYTES, MAX_START_BYTES - len(_encode(start)))
        resume = fit_resume(self.cursor.last, self.outbox.results(), self.calls.pending, size)
        self._reported = frozenset(
            entry.call_id for entry in resume.done if entry.result is not None or entry.error is not None
        )
        return msgspec.structs.replace(start, resume=resume)

    def started(self, event: SessionStarted) -> None:
        """Apply the answer, before the events that follow it."""
        self._has_started = True
        # The server lost the session, and with it the recorded transcripts.
        if not event.resumed:
            self.turns.forget_recorded()
        if "resume" not in (event.capabilities or ()):
            return
        drop = frozenset(event.drop or ())
        self.calls.drop(drop)
        # Content of ``session.start`` is recorded by now, unless the server requests it again.
        self.outbox.forget(drop | (self._reported - frozenset(event.resend or ())))


def fit_resume(last: str | None, results: Sequence[ResumeDone], pending: Sequence[str], size: int) -> Resume:
    """Make a `Resume` of at most ``size`` bytes of JSON, oldest results first.

    The server requests missing results, and repeats calls that are not listed.
    """
    size -= len(_encode(Resume(last))) + len(',"done":[],"pending":[]')
    # Ids of all results come first: the server can request missing content.
    entries, size = _fit([ResumeDone(result.call_id) for result in results[:MAX_RESUMED]], size)
    waiting, size = _fit(pending[:MAX_RESUMED], size)
    for index, (result, short) in enumerate(zip(results, list(entries), strict=False)):
        growth = len(_encode(result)) - len(_encode(short))
        if growth <= size:
            entries[index] = result
            size -= growth
    return Resume(last, entries, waiting)


def _fit(values: Sequence[T], size: int) -> tuple[list[T], int]:
    # The first values that fit, and the bytes that remain.
    for index, value in enumerate(values):
        length = len(_encode(value)) + len(",")
        if length > size:
            return list(values[:index]), size
        size -= length
    return list(values), size
