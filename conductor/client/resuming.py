"""Coming back to a session: what the client says it has done, and what the server's answer settles.

**Which results go where?** A result is kept by the `Outbox` until ``event.ack`` names its event. A client
that comes back puts what is kept into ``session.start``, where the server takes it before it answers. So
``session.started`` settles what was told there, and nothing but that: what ended meanwhile, what did not fit,
and what the server asks for again goes out as an event, under the id that it had. Whether an earlier
``session.start`` has arrived does not matter: the first result of a ``callId`` counts.

**When is nothing told?** As long as this process has not been answered once. To a server an app that says
what it knows is one that knows every call it was ever sent, and is sent the unanswered ones again; one that
was relaunched knows none, and would run them twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from conductor.client.calls import Calls
from conductor.client.handled import Handled
from conductor.client.outbox import Outbox
from conductor.client.results import MAX_RESUME_BYTES
from conductor.client.turns import Turns
from conductor.events.client import MAX_RESUMED, Resume, ResumeDone, SessionStart
from conductor.events.server import SessionStarted

MAX_START_BYTES = 65_536 - 1_024
"""What a payload may take of the soft limit of an event; the rest is for the envelope."""

T = TypeVar("T")

_encode = msgspec.json.Encoder().encode


class Resumption:
    """What a client knows of its session, over all its sockets."""

    def __init__(self, outbox: Outbox, calls: Calls, turns: Turns, handled: Handled) -> None:
        self._outbox = outbox
        self._calls = calls
        self._turns = turns
        self._handled = handled
        self._known = False
        self._told: frozenset[str] = frozenset()

    def start(self, start: SessionStart) -> SessionStart:
        """Say in a ``session.start`` what is known, where it names ``resume`` and is not the first."""
        self._told = frozenset()
        if not self._known or "resume" not in (start.capabilities or ()):
            return start
        room = min(MAX_RESUME_BYTES, MAX_START_BYTES - len(_encode(start)))
        resume = fit_resume(self._handled.last, self._outbox.done(), self._calls.pending, room)
        self._told = frozenset(done.call_id for done in resume.done if _has_content(done))
        return msgspec.structs.replace(start, resume=resume)

    def started(self, event: SessionStarted) -> None:
        """Take the answer, before anything that follows it is handled or sent."""
        self._known = True
        if not event.resumed:
            self._turns.forgotten()
        if "resume" not in (event.capabilities or ()):
            return
        drop = frozenset(event.drop or ())
        self._calls.drop(drop)
        self._outbox.forget(drop | (self._told - frozenset(event.resend or ())))


def fit_resume(last: str | None, done: Sequence[ResumeDone], pending: Sequence[str], room: int) -> Resume:
    """Say what is known in at most ``room`` bytes of JSON, oldest results first.

    What does not fit may be left out: a result's content is asked for again, a call that is not named comes
    again, and is known.
    """
    left = room - len(_encode(Resume(last))) - len(',"done":[],"pending":[]')
    named, left = _first([ResumeDone(each.call_id) for each in done[:MAX_RESUMED]], left)
    waiting, left = _first(pending[:MAX_RESUMED], left)
    for place, (full, short) in enumerate(zip(done, list(named), strict=False)):
        more = len(_encode(full)) - len(_encode(short))
        if more <= left:
            named[place] = full
            left -= more
    return Resume(last, named, waiting)


def _first(values: Sequence[T], room: int) -> tuple[list[T], int]:
    """Take values as long as there is room; gives them, and the room that is left."""
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
