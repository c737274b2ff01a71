"""Transcripts and tool results, kept until it is known that the server has them.

**When has an event arrived?** Not when the socket took it: a phone's kernel buffers megabytes for a server
that is gone. Nor when a later event came from the server: it may have been sent before. An event has arrived
when the server *answers* something that was sent after it. A transcript is answered: it comes back in
``convo.appendMessage``, or an error names its id. The server processes the events of one connection in order,
and the client sends what it keeps in the same order on every connection. So the answer to a transcript
confirms it and all entries before it, whichever connection delivered them.

**Until then every entry is sent again on each new connection**, under its original envelope id. That is safe
with a server that keeps the protocol: it processes a transcript's id once, and takes the first result of a
``callId``. A server that lost its state takes a transcript for a new one; it cannot run a device's tool twice
by that, since the transcript would have come back before the call.

**With the capability ``resume``** the server sends ``event.ack`` for what it has recorded. Transcripts and
tool results are kept until then; other events are confirmed as above.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from conductor.client.errors import ConnectionLost
from conductor.client.options import ClientLimits
from conductor.client.turns import Turn
from conductor.events.client import ClientEvent, ResumeDone, ToolAccepted, ToolCancelled, ToolResultEvent
from conductor.events.envelope import IdGenerator, encode_event
from conductor.events.server import SessionStarted, ToolCallEvent

log = logging.getLogger(__name__)


class FrameSender(Protocol):
    """Sends frames to the server; ``connection`` is the number of the socket, counted from 1."""

    @property
    def connected(self) -> bool: ...

    @property
    def connection(self) -> int: ...

    @property
    def acknowledges(self) -> bool: ...

    async def send(self, frame: bytes) -> None:
        """Send a frame. Raises `ConnectionLost`."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The ids of the event that holds an answer and of its call.

    ``done`` is its form in ``session.start``; None if it is no tool result.
    """

    event_id: str
    call_id: str
    done: ResumeDone | None = None


@dataclass(slots=True, eq=False)
class _Entry:
    # A transcript (with its turn), or a result. ``at`` is the loop's time in seconds, ``sent_on`` the number
    # of the last connection.
    frame: bytes
    turn: Turn | None
    answer: Answer | None
    at: float
    sent_on: int = -1

    @property
    def event_id(self) -> str | None:
        if self.turn is not None:
            return self.turn.event_id
        return None if self.answer is None else self.answer.event_id

    @property
    def done(self) -> ResumeDone | None:
        return None if self.answer is None else self.answer.done

    @property
    def firm(self) -> bool:
        # Whether ``event.ack`` is expected: only for a transcript or a tool result.
        return self.turn is not None or self.done is not None


class Outbox:
    """Frames in order, oldest first: not sent yet, or not confirmed.

    Bounded by ``limits.unconfirmed`` frames and ``limits.unconfirmed_bytes``. When it is full the oldest are
    dropped, transcripts and tool results last.
    """

    def __init__(self, sender: FrameSender, limits: ClientLimits) -> None:
        self._sender = sender
        self._limits = limits
        self._entries: deque[_Entry] = deque()
        self._bytes = 0
        self._sending = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def transcripts(self) -> int:
        return sum(entry.turn is not None for entry in self._entries)

    async def put(self, frame: bytes, turn: Turn | None = None, answer: Answer | None = None) -> bool:
        """Add a frame (a transcript's with its turn) and send it; False if no socket took it."""
        entry = _Entry(frame, turn, answer, asyncio.get_running_loop().time())
        self._entries.append(entry)
        self._bytes += len(frame)
        if turn is not None:
            turn.held = True
        while len(self._entries) > max(1, self._limits.unconfirmed) or (
            self._bytes > self._limits.unconfirmed_bytes and len(self._entries) > 1
        ):
            others = (each for each in self._entries if not each.firm and each is not entry)
            # Transcripts and results last: a person's words, or a tool that has run, cannot be made again.
            oldest = next(others, self._entries[0])
            if oldest.sent_on < 0:
                log.warning("an event that was never sent is dropped: %d wait", len(self._entries))
            self._remove(oldest)
        return await self.flush()

    async def flush(self) -> bool:
        """Send in order what this connection has not had; False if something is left.

        Each frame is bounded by the socket's time limit.
        """
        # One at a time: entries must leave in order, and a reconnect flushes beside `put`.
        async with self._sending:
            while entry := self._next():
                if not self._sender.connected:
                    return False
                # Set before the await: a frame whose send is cancelled may have left.
                entry.sent_on = self._sender.connection
                try:
                    await self._sender.send(entry.frame)
                except ConnectionLost:
                    return False
            return True

    async def resend(self, call_id: str) -> None:
        """Send the answer to a call again, even if this connection has had it."""
        for entry in self._answering({call_id}):
            entry.sent_on = -1
        await self.flush()

    def done(self) -> list[ResumeDone]:
        """List the tool results in the form of ``session.start``."""
        return [entry.done for entry in self._entries if entry.done is not None]

    def forget(self, call_ids: Collection[str]) -> None:
        """Drop the results of these calls."""
        for entry in self._answering(call_ids):
            self._remove(entry)

    def acknowledge(self, event_ids: Collection[str]) -> None:
        """Drop the events that the server has recorded."""
        # Acknowledged events need not be the oldest: results overtake a transcript that is queued.
        for entry in [entry for entry in self._entries if entry.event_id in event_ids]:
            if entry.turn is not None:
                entry.turn.recorded = True
            self._remove(entry)

    def confirm(self, event_id: str) -> None:
        """Drop a transcript that the server has answered, and all entries before it (see the module).

        Entries that ``event.ack`` will name stay; a refused transcript does not: it is never recorded.
        """
        entries = list(self._entries)
        place = next((n for n, e in enumerate(entries) if e.turn and e.turn.event_id == event_id), None)
        if place is None:
            return
        for entry in entries[: place + 1]:
            refused = entry is entries[place] and entry.turn is not None and entry.turn.stage == "refused"
            if refused or not (entry.firm and self._sender.acknowledges):
                self._remove(entry)

    def discard(self, turn: Turn) -> None:
        """Drop a turn's transcript."""
        for entry in [entry for entry in self._entries if entry.turn is turn]:
            self._remove(entry)

    def expire(self) -> None:
        """Drop transcripts that are too old to be sent again.

        A transcript that came back and is only waiting for ``event.ack`` stays.
        """
        oldest = asyncio.get_running_loop().time() - self._limits.resend_s
        stages = ("waiting", "running") if self._sender.acknowledges else ("waiting",)
        for entry in list(self._entries):
            turn = entry.turn
            if turn is not None and (entry.at <= oldest or turn.done or turn.stage not in stages):
                self._remove(entry)

    def _answering(self, call_ids: Collection[str]) -> list[_Entry]:
        return [entry for entry in self._entries if entry.answer and entry.answer.call_id in call_ids]

    def _next(self) -> _Entry | None:
        return next((entry for entry in self._entries if entry.sent_on != self._sender.connection), None)

    def _remove(self, entry: _Entry) -> None:
        self._entries.remove(entry)
        self._bytes -= len(entry.frame)
        if entry.turn is not None:
            entry.turn.held = False


# Characters kept of a result that is too large for a frame: the server's hard limit is 1 MiB, and a character
# takes up to six bytes as JSON.
MAX_RESULT_CHARACTERS = 131_072
MAX_RESULT_FRAME = 2**20 - 4_096
# The same for ``tool.cancelled``: only a ``tool.result`` may exceed the soft limit of 64 KiB.
MAX_CANCELLED_CHARACTERS = 8_192
# Bytes of ``resume`` in ``session.start``, which has to fit into the soft limit of 64 KiB.
MAX_RESUME_BYTES = 32_768

_encode = msgspec.json.Encoder().encode


def as_text(value: Any) -> str:
    """Write a handler's result: a string as it is, anything else as JSON. Raises `TypeError`."""
    return value if isinstance(value, str) else _encode(value).decode()


def failure(call: ToolCallEvent, message: str) -> ToolResultEvent:
    """Make the result of a failed call."""
    return ToolResultEvent(call.call_id, error=message)


def fit(result: ToolResultEvent) -> ToolResultEvent:
    """Truncate a result that does not fit into a frame, and say how much is missing."""
    result = ToolResultEvent(result.call_id, clean(result.result), clean(result.error))
    if len(_encode(result)) <= MAX_RESULT_FRAME:
        return result
    most = MAX_RESULT_CHARACTERS
    return ToolResultEvent(result.call_id, _shorten(result.result, most), _shorten(result.error, most))


def fit_cancelled(cancelled: ToolCancelled) -> ToolCancelled:
    """Truncate the result of a cancelled call, and say how much is missing."""
    result = _shorten(clean(cancelled.result), MAX_CANCELLED_CHARACTERS)
    return ToolCancelled(cancelled.call_id, cancelled.effect, result)


def done_by(result: ToolResultEvent, size: int) -> ResumeDone:
    """Give a call's result as part of ``session.start``, with its content if ``size`` bytes allow it."""
    # The call's id alone says that it has run; the server asks for what it still wants (``resend``).
    if size > MAX_RESUME_BYTES:
        return ResumeDone(result.call_id)
    return ResumeDone(result.call_id, None if result.error is not None else result.result, result.error)


def _shorten(text: str | None, most: int) -> str | None:
    if text is None or len(text) <= most:
        return text
    return f"{text[:most]}… [{len(text) - most} characters left out by the device]"


def clean(text: str | None) -> str | None:
    """Replace lone surrogates, which UTF-8 cannot encode."""
    return None if text is None else text.encode(errors="replace").decode()


# Bytes of a frame: above 1 MiB the server closes the connection (protocol, "Transport").
MAX_FRAME_BYTES = 2**20


class SessionFrameSender(FrameSender, Protocol):
    """A `FrameSender` that knows how the session was started."""

    @property
    def started(self) -> SessionStarted | None: ...


class Sender:
    """Sends the events of one session, over all its connections; ``new_id`` makes their ids."""

    def __init__(
        self, session_id: str, new_id: IdGenerator, connection: SessionFrameSender, outbox: Outbox
    ) -> None:
        self._session_id = session_id
        self.new_id = new_id
        self._connection = connection
        self._outbox = outbox

    @property
    def connection(self) -> int | None:
        """The number of the socket that can send now; None if there is none."""
        return self._connection.connection if self._connection.connected else None

    @property
    def capabilities(self) -> frozenset[str]:
        """The capabilities that the server accepted on the last connection."""
        started = self._connection.started
        return frozenset((started and started.capabilities) or ())

    def accepts(self, capability: str) -> bool:
        """Tell whether the server accepted a capability on the last connection."""
        return capability in self.capabilities

    def frame(self, event_id: str, event: ClientEvent) -> bytes:
        """Encode an event. Raises `ValueError` for one that is too large for a frame."""
        frame = encode_event(event_id, self._session_id, event)
        if len(frame) > MAX_FRAME_BYTES:
            raise ValueError(f"an event of {len(frame)} bytes is too large: {MAX_FRAME_BYTES} at most")
        return frame

    async def once(self, event: ClientEvent, event_id: str | None = None) -> str:
        """Send an event on the present socket, and return its id.

        Raises `ConnectionLost`, and `ValueError` for an event that is too large for a frame.
        """
        event_id = event_id or self.new_id()
        await self._connection.send(self.frame(event_id, event))
        return event_id

    async def keep(
        self, event: ToolResultEvent | ToolCancelled | ToolAccepted, *, shown: bool = False
    ) -> None:
        """Send an answer under one id until it is confirmed. Raises `ValueError` as `once` does.

        ``shown``: it answers a UI call.
        """
        event_id = self.new_id()
        frame = self.frame(event_id, event)
        done = done_by(event, len(frame)) if isinstance(event, ToolResultEvent) and not shown else None
        await self._outbox.put(frame, answer=Answer(event_id, event.call_id, done))

    async def resend(self, call_id: str) -> None:
        """Send the answer to a call again, if it is still kept."""
        await self._outbox.resend(call_id)
