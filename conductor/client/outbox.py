"""Transcripts and tool results, kept until the server has confirmed them.

**Confirmation.** A successful write is no confirmation: a kernel buffers megabytes for a server that is gone.
A later event of the server is none either: it may have been sent before. The *answer* to a transcript is one:
it returns in ``convo.appendMessage``, or an error names its id. The server processes the events of one
connection in order, and the client keeps their order on every connection. So the answer to a transcript
confirms it and all entries before it.

**Repetition.** Until then each entry is sent again on each new connection, under its original envelope id.
The server processes a transcript's id once, and accepts the first result of a ``callId``.

**With the capability ``resume``** the server sends ``event.ack`` for recorded events. Transcripts and tool
results are kept until then; other events are confirmed as above.
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
    def started(self) -> SessionStarted | None: ...

    @property
    def acknowledges(self) -> bool: ...

    async def send(self, frame: bytes) -> None:
        """Send a frame. Raises `ConnectionLost`."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The ids of an answer's event and of its call.

    ``entry`` is its form in ``session.start``; None if it is not a tool result.
    """

    event_id: str
    call_id: str
    entry: ResumeDone | None = None


@dataclass(slots=True, eq=False)
class _Entry:
    # A transcript (with its turn), or an answer. ``at`` is the loop's time in seconds, ``sent_on`` the number
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
    def resume_entry(self) -> ResumeDone | None:
        return None if self.answer is None else self.answer.entry

    @property
    def has_ack(self) -> bool:
        # Whether the server acknowledges it: a transcript or a tool result.
        return self.turn is not None or self.resume_entry is not None


class Outbox:
    """Unconfirmed frames, oldest first.

    Bounded by ``limits.unconfirmed`` frames and ``limits.unconfirmed_bytes``. A full outbox drops the oldest
    frames, transcripts and tool results last.
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
        """Add a frame (a transcript's with its turn) and send it; False if it was not sent."""
        entry = _Entry(frame, turn, answer, asyncio.get_running_loop().time())
        self._entries.append(entry)
        self._bytes += len(frame)
        if turn is not None:
            turn.is_kept = True
        while len(self._entries) > max(1, self._limits.unconfirmed) or (
            self._bytes > self._limits.unconfirmed_bytes and len(self._entries) > 1
        ):
            # Transcripts and results last: a person's words, or a tool's run, cannot be repeated.
            less_important = (
                candidate for candidate in self._entries if not (candidate.has_ack or candidate is entry)
            )
            oldest = next(less_important, self._entries[0])
            if oldest.sent_on < 0:
                log.warning("outbox full: dropped an unsent event; %d are waiting", len(self._entries))
            self._remove(oldest)
        return await self.flush()

    async def flush(self) -> bool:
        """Send the frames that are due on this connection, in order; False if some remain."""
        # One flush at a time, to keep the order: a reconnect flushes concurrently with `put`.
        async with self._sending:
            while entry := self._next():
                if not self._sender.connected:
                    return False
                # Set before the await: a cancelled send may have sent the frame.
                entry.sent_on = self._sender.connection
                try:
                    await self._sender.send(entry.frame)
                except ConnectionLost:
                    return False
            return True

    async def resend(self, call_id: str) -> None:
        """Send the answer to a call again, even on the same connection."""
        for entry in self._answering({call_id}):
            entry.sent_on = -1
        await self.flush()

    def results(self) -> list[ResumeDone]:
        """List the tool results in the form of ``session.start``."""
        return [entry.resume_entry for entry in self._entries if entry.resume_entry is not None]

    def forget(self, call_ids: Collection[str]) -> None:
        """Drop the answers to these calls."""
        for entry in self._answering(call_ids):
            self._remove(entry)

    def acknowledge(self, event_ids: Collection[str]) -> None:
        """Drop acknowledged events."""
        # Not always the oldest: results overtake a queued transcript.
        for entry in [entry for entry in self._entries if entry.event_id in event_ids]:
            if entry.turn is not None:
                entry.turn.is_recorded = True
            self._remove(entry)

    def confirm(self, event_id: str) -> None:
        """Drop an answered transcript and all entries before it.

        Entries that await ``event.ack`` remain, except a refused transcript.
        """
        entries = list(self._entries)
        index = next((n for n, e in enumerate(entries) if e.turn and e.turn.event_id == event_id), None)
        if index is None:
            return
        for entry in entries[: index + 1]:
            refused = entry is entries[index] and entry.turn is not None and entry.turn.stage == "refused"
            if refused or not (entry.has_ack and self._sender.acknowledges):
                self._remove(entry)

    def discard(self, turn: Turn) -> None:
        """Drop a turn's transcript."""
        for entry in [entry for entry in self._entries if entry.turn is turn]:
            self._remove(entry)

    def expire(self) -> None:
        """Drop transcripts that are too old to be sent again.

        A processed transcript that only awaits ``event.ack`` remains.
        """
        oldest = asyncio.get_running_loop().time() - self._limits.resend_s
        stages = ("waiting", "running") if self._sender.acknowledges else ("waiting",)
        for entry in list(self._entries):
            turn = entry.turn
            if turn is not None and (entry.at <= oldest or turn.is_done or turn.stage not in stages):
                self._remove(entry)

    def _answering(self, call_ids: Collection[str]) -> list[_Entry]:
        return [entry for entry in self._entries if entry.answer and entry.answer.call_id in call_ids]

    def _next(self) -> _Entry | None:
        return next((entry for entry in self._entries if entry.sent_on != self._sender.connection), None)

    def _remove(self, entry: _Entry) -> None:
        self._entries.remove(entry)
        self._bytes -= len(entry.frame)
        if entry.turn is not None:
            entry.turn.is_kept = False


# Characters kept of a result that exceeds a frame. The server's hard limit is 1 MiB; a character takes up to
# six bytes of JSON.
MAX_RESULT_CHARACTERS = 131_072
MAX_RESULT_FRAME = 2**20 - 4_096
# The same for ``tool.cancelled``, which has the soft limit of 64 KiB.
MAX_CANCELLED_CHARACTERS = 8_192
# Bytes of ``resume`` in ``session.start``, which has the soft limit of 64 KiB.
MAX_RESUME_BYTES = 32_768

_encode = msgspec.json.Encoder().encode


def as_text(value: Any) -> str:
    """Convert a handler's result: a string unchanged, other values as JSON. Raises `TypeError`."""
    return value if isinstance(value, str) else _encode(value).decode()


def failure(call: ToolCallEvent, message: str) -> ToolResultEvent:
    """Make the result of a failed call."""
    return ToolResultEvent(call.call_id, error=message)


def fit(result: ToolResultEvent) -> ToolResultEvent:
    """Truncate a result that exceeds a frame, and append the number of omitted characters."""
    result = ToolResultEvent(result.call_id, clean(result.result), clean(result.error))
    if len(_encode(result)) <= MAX_RESULT_FRAME:
        return result
    limit = MAX_RESULT_CHARACTERS
    return ToolResultEvent(result.call_id, _shorten(result.result, limit), _shorten(result.error, limit))


def fit_cancelled(cancelled: ToolCancelled) -> ToolCancelled:
    """Truncate the result of a cancelled call as `fit` does."""
    result = _shorten(clean(cancelled.result), MAX_CANCELLED_CHARACTERS)
    return ToolCancelled(cancelled.call_id, cancelled.effect, result)


def resume_entry(result: ToolResultEvent, size: int) -> ResumeDone:
    """Make a result's entry in ``session.start``, without content if its ``size`` in bytes is too large."""
    # The id alone reports that the call has run. The server requests missing content (``resend``).
    if size > MAX_RESUME_BYTES:
        return ResumeDone(result.call_id)
    return ResumeDone(result.call_id, None if result.error is not None else result.result, result.error)


def _shorten(text: str | None, limit: int) -> str | None:
    if text is None or len(text) <= limit:
        return text
    return f"{text[:limit]}… [{len(text) - limit} characters left out by the device]"


def clean(text: str | None) -> str | None:
    """Replace lone surrogates, which UTF-8 cannot encode."""
    return None if text is None else text.encode(errors="replace").decode()


# Bytes of a frame; the server closes the connection after a larger one.
MAX_FRAME_BYTES = 2**20


class Sender:
    """Sends the events of one session, over all its connections; ``new_id`` makes their ids."""

    def __init__(self, session_id: str, new_id: IdGenerator, connection: FrameSender, outbox: Outbox) -> None:
        self._session_id = session_id
        self.new_id = new_id
        self._connection = connection
        self._outbox = outbox

    @property
    def connection(self) -> int | None:
        """The number of the open socket; None without one."""
        return self._connection.connection if self._connection.connected else None

    @property
    def capabilities(self) -> frozenset[str]:
        """The capabilities that the server accepted on the last connection."""
        started = self._connection.started
        return frozenset((started and started.capabilities) or ())

    def accepts(self, capability: str) -> bool:
        """Whether the server accepted a capability on the last connection."""
        return capability in self.capabilities

    def frame(self, event_id: str, event: ClientEvent) -> bytes:
        """Encode an event. Raises `ValueError` for one that is too large for a frame."""
        frame = encode_event(event_id, self._session_id, event)
        if len(frame) > MAX_FRAME_BYTES:
            raise ValueError(f"an event has {len(frame)} bytes; the limit is {MAX_FRAME_BYTES}")
        return frame

    async def once(self, event: ClientEvent, event_id: str | None = None) -> str:
        """Send an event on the open socket, and return its id.

        Raises `ConnectionLost`, and `ValueError` for an event that is too large for a frame.
        """
        event_id = event_id or self.new_id()
        await self._connection.send(self.frame(event_id, event))
        return event_id

    async def keep(self, event: ToolResultEvent | ToolCancelled | ToolAccepted, *, ui: bool = False) -> None:
        """Send an answer until it is confirmed; ``ui``: to a UI call. Raises `ValueError` as `once` does."""
        event_id = self.new_id()
        frame = self.frame(event_id, event)
        entry = resume_entry(event, len(frame)) if isinstance(event, ToolResultEvent) and not ui else None
        await self._outbox.put(frame, answer=Answer(event_id, event.call_id, entry))

    async def resend(self, call_id: str) -> None:
        """Send the answer to a call again, if it is unconfirmed."""
        await self._outbox.resend(call_id)
