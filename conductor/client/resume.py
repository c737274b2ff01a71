"""Resuming a session: what the client reports as done, and what the server's answer settles.

**Which results go where?** The `Outbox` keeps a result until ``event.ack`` names its event. A client that
reconnects puts these results into ``session.start``, and the server records them before it answers. So
``session.started`` confirms exactly what was in ``session.start``. Results that came later, that did not fit,
or that the server asks for again are sent as events, under their original ids. It does not matter whether an
earlier ``session.start`` arrived: the first result of a ``callId`` counts.

**When is nothing reported?** Until the server has answered this process once. A client that sends ``resume``
claims to know every call it was ever sent, and gets the unanswered ones again. A relaunched app knows none of
them, and would run them twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from conductor.client.calls import Calls
from conductor.client.events import ReplayCursor
from conductor.client.outbox import MAX_RESUME_BYTES, Outbox
from conductor.client.turns import Turns
from conductor.events.client import MAX_RESUMED, Resume, ResumeDone, SessionStart
from conductor.events.server import SessionStarted

# Bytes of a ``session.start`` payload: the soft limit of an event less room for the envelope.
MAX_START_BYTES = 65_536 - 1_024

T = TypeVar("T")

_encode = msgspec.json.Encoder().encode


class ResumeState:
    """What a client knows of its session, over all its connections."""

    def __init__(self, outbox: Outbox, calls: Calls, turns: Turns, handled: ReplayCursor) -> None:
        self._outbox = outbox
        self._calls = calls
        self._turns = turns
        self._handled = handled
        self._known = False
        self._told: frozenset[str] = frozenset()

    def start(self, start: SessionStart) -> SessionStart:
        """Add ``resume`` to a ``session.start`` that names the capability and is not the first."""
        if not self._known or "resume" not in (start.capabilities or ()):
            return start
        room = min(MAX_RESUME_BYTES, MAX_START_BYTES - len(_encode(start)))
        resume = fit_resume(self._handled.last, self._outbox.done(), self._calls.pending, room)
        self._told = frozenset(done.call_id for done in resume.done if _has_content(done))
        return msgspec.structs.replace(start, resume=resume)

    def started(self, event: SessionStarted) -> None:
        """Apply the answer, before any event that follows it."""
        self._known = True
        # The server lost the session: it will not process the transcripts that it had recorded.
        if not event.resumed:
            self._turns.forgotten()
        if "resume" not in (event.capabilities or ()):
            return
        drop = frozenset(event.drop or ())
        self._calls.drop(drop)
        # Content that was in ``session.start`` is recorded by now, unless the server asks for it again.
        self._outbox.forget(drop | (self._told - frozenset(event.resend or ())))


def fit_resume(last: str | None, done: Sequence[ResumeDone], pending: Sequence[str], room: int) -> Resume:
    """Make a `Resume` of at most ``room`` bytes of JSON, oldest results first.

    Parts that do not fit can be left out: the server asks for a missing result, and a call that is not named
    is sent again and recognised.
    """
    left = room - len(_encode(Resume(last))) - len(',"done":[],"pending":[]')
    # Ids of all results come first: content that does not fit can be asked for.
    named, left = _first([ResumeDone(each.call_id) for each in done[:MAX_RESUMED]], left)
    waiting, left = _first(pending[:MAX_RESUMED], left)
    for place, (full, short) in enumerate(zip(done, list(named), strict=False)):
        more = len(_encode(full)) - len(_encode(short))
        if more <= left:
            named[place] = full
            left -= more
    return Resume(last, named, waiting)


def _first(values: Sequence[T], room: int) -> tuple[list[T], int]:
    taken: list[T] = []
    for value in values:
        size = len(_encode(value)) + len(",")
        if size > room:
            break
        room -= size
        taken.append(value)
    return taken, room


def _has_content(done: ResumeDone) -> bool:
    return done.result is not None or done.error is not None
