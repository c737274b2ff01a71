"""What must reach the server: transcripts and tool results, kept until it is known that they have.

**When is an event known to have arrived?** Not when the socket took it: a phone's kernel takes megabytes for
a server that is gone. Nor when a later event came from the server: that may have been on its way already,
and says nothing of the other direction. It is known once the server *answers* something that was sent after
it. A transcript is answered: it comes back by ``convo.appendMessage``, or an error names its id. The server
takes the events of one connection in their order, and on every connection this client sends what is kept in
its order. So the answer to a transcript shows that the transcript, and all that stands before it here, has
been taken, whichever connection did it.

**Until then each is sent again on every new connection**, under its original envelope id. That is safe
where the server keeps the protocol: a transcript's id that it knows is processed once, and the first result
of a ``callId`` counts, whenever a second one comes. A server that has lost its memory takes a transcript for
a new one; it cannot run a device's tool twice so, since the transcript would have come back before the call.

**A server with the capability ``resume`` says it itself**: ``event.ack`` names what is recorded. Transcripts
and the results of tools are kept until then, whatever else came back; the rest, which it need not name, as
above.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from conductor.client.errors import ConnectionLost
from conductor.client.options import ClientLimits
from conductor.client.turn import Turn
from conductor.events.client import ResumeDone

log = logging.getLogger(__name__)


class Way(Protocol):
    """The way to the server; ``connection`` counts the sockets, so each can be told from those before."""

    @property
    def connected(self) -> bool:
        """Whether something can be sent."""

    @property
    def connection(self) -> int:
        """The number of the present, or the last, socket."""

    @property
    def acknowledges(self) -> bool:
        """Whether the server says by ``event.ack`` what it has recorded."""

    async def send(self, frame: bytes) -> None:
        """Send a frame. Raises `ConnectionLost`."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a frame answers: the event's id and the call's.

    ``done`` says it in ``session.start``; None where it is no tool's result.
    """

    event_id: str
    call_id: str
    done: ResumeDone | None = None


@dataclass(slots=True, eq=False)
class _Entry:
    """A frame: a transcript's with its turn, or an answer.

    ``at`` is the loop's time, ``sent_on`` the last socket's number.
    """

    frame: bytes
    turn: Turn | None
    answer: Answer | None
    at: float
    sent_on: int = -1

    @property
    def event_id(self) -> str | None:
        """The envelope id of the event, as far as anybody asks for it."""
        if self.turn is not None:
            return self.turn.event_id
        return None if self.answer is None else self.answer.event_id

    @property
    def done(self) -> ResumeDone | None:
        """What the entry is in ``session.start``."""
        return None if self.answer is None else self.answer.done

    @property
    def firm(self) -> bool:
        """Whether a server that acknowledges says so of this event: a transcript, or a tool's result."""
        return self.turn is not None or self.done is not None


class Outbox:
    """Frames in their order, oldest first: those not sent yet, and those not known to have arrived.

    Bounded by ``limits.unconfirmed`` frames and ``limits.unconfirmed_bytes``; the oldest are forgotten, and
    transcripts and the results of tools after all others.
    """

    def __init__(self, way: Way, limits: ClientLimits) -> None:
        self._way = way
        self._limits = limits
        self._entries: deque[_Entry] = deque()
        self._bytes = 0
        self._sending = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def transcripts(self) -> int:
        """How many transcripts are kept."""
        return sum(entry.turn is not None for entry in self._entries)

    async def put(self, frame: bytes, turn: Turn | None = None, answer: Answer | None = None) -> bool:
        """Add a frame, a transcript's with its turn; False if there is no socket that took it."""
        entry = _Entry(frame, turn, answer, asyncio.get_running_loop().time())
        self._entries.append(entry)
        self._bytes += len(frame)
        if turn is not None:
            turn.held = True
        while len(self._entries) > max(1, self._limits.unconfirmed) or (
            self._bytes > self._limits.unconfirmed_bytes and len(self._entries) > 1
        ):
            others = (each for each in self._entries if not each.firm and each is not entry)
            oldest = next(others, self._entries[0])
            if oldest.sent_on < 0:
                log.warning("an event that was never sent is dropped: %d wait", len(self._entries))
            self._remove(oldest)
        return await self.flush()

    async def flush(self) -> bool:
        """Send what this socket has not had, in order; False if something is left.

        Each frame is bounded by the socket's own time limit.
        """
        async with self._sending:
            while entry := self._next():
                if not self._way.connected:
                    return False
                # Before the wait: a frame that was handed over and whose wait was cancelled is on its way.
                entry.sent_on = self._way.connection
                try:
                    await self._way.send(entry.frame)
                except ConnectionLost:
                    return False
            return True

    async def again(self, call_id: str) -> None:
        """Send what answers a call once more, on the socket that has had it, too."""
        for entry in self._answering({call_id}):
            entry.sent_on = -1
        await self.flush()

    def done(self) -> list[ResumeDone]:
        """List the results of tools, as ``session.start`` says them."""
        return [entry.done for entry in self._entries if entry.done is not None]

    def forget(self, call_ids: Collection[str]) -> None:
        """Send nothing more about these calls."""
        for entry in self._answering(call_ids):
            self._remove(entry)

    def acknowledge(self, event_ids: Collection[str]) -> None:
        """Forget what the server says it has recorded."""
        for entry in [entry for entry in self._entries if entry.event_id in event_ids]:
            if entry.turn is not None:
                entry.turn.recorded = True
            self._remove(entry)

    def confirm(self, event_id: str) -> None:
        """Forget a transcript that the server has answered, and all before it (see the module's text).

        What will be acknowledged stays, but for a transcript that was refused: that is not recorded.
        """
        entries = list(self._entries)
        place = next((n for n, e in enumerate(entries) if e.turn and e.turn.event_id == event_id), None)
        if place is None:
            return
        for entry in entries[: place + 1]:
            refused = entry is entries[place] and entry.turn is not None and entry.turn.stage == "refused"
            if refused or not (entry.firm and self._way.acknowledges):
                self._remove(entry)

    def discard(self, turn: Turn) -> None:
        """Send a turn's transcript no more."""
        for entry in [entry for entry in self._entries if entry.turn is turn]:
            self._remove(entry)

    def expire(self) -> None:
        """Forget the transcripts that are too old to be sent again, or not waiting to be taken up.

        One that came back, and that the server has yet to acknowledge, is waiting still.
        """
        oldest = asyncio.get_running_loop().time() - self._limits.resend_s
        stages = ("waiting", "running") if self._way.acknowledges else ("waiting",)
        for entry in list(self._entries):
            turn = entry.turn
            if turn is not None and (entry.at <= oldest or turn.done or turn.stage not in stages):
                self._remove(entry)

    def _answering(self, call_ids: Collection[str]) -> list[_Entry]:
        return [entry for entry in self._entries if entry.answer and entry.answer.call_id in call_ids]

    def _next(self) -> _Entry | None:
        return next((entry for entry in self._entries if entry.sent_on != self._way.connection), None)

    def _remove(self, entry: _Entry) -> None:
        self._entries.remove(entry)
        self._bytes -= len(entry.frame)
        if entry.turn is not None:
            entry.turn.held = False
