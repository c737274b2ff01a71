"""The state of a session over all its sockets: events read, events to confirm, and the present socket.

**Confirmation.** A frame that a socket took proves nothing. With the capability ``resume`` the server names
recorded events in ``event.ack``. Without it the answer to a transcript confirms it and all events before it,
because the server processes the events of one connection in order.

**Repetition.** Until then an event is sent again on each new connection, under its original id: the server
processes a transcript's id once, and accepts the first result of a call.

**Resume.** ``session.start`` reports results, so ``session.started`` confirms them. A new process reports
nothing: it does not remember its calls, and would run them twice.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import msgspec

from conductor.client.connection import (
    ClientLimits,
    ConnectionLost,
    Event,
    Socket,
    StartRefused,
    WaitTimeout,
    decode_frame,
    describe_error,
)
from conductor.events.client import (
    MAX_RESUMED,
    ClientEvent,
    Resume,
    ResumeDone,
    SessionStart,
    ToolAccepted,
    ToolCancelled,
    ToolResultEvent,
    TranscriptFinal,
)
from conductor.events.envelope import IdGenerator, encode_event
from conductor.events.server import ErrorEvent, SessionStarted

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_IDS = 2_000
"""Remembered ids of events and of calls."""
MAX_WAITING = 2_000
"""Events that wait for their handlers. One more closes the connection, and the server sends it again."""
MAX_FRAME_BYTES = 2**20
"""Bytes of a frame; the server closes the connection after a larger one."""
# Bytes of ``resume``, and of ``session.start`` without its envelope. Its soft limit is 64 KiB.
_MAX_RESUME_BYTES = 32_768
_MAX_START_BYTES = 64_512

encode = msgspec.json.Encoder().encode


def clean(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode."""
    return text.encode(errors="replace").decode()


def takes_two_arguments(handler: Callable[..., Any]) -> bool:
    """Whether a handler's signature has a second parameter without a default."""
    try:
        parameters = inspect.signature(handler).parameters.values()
    except (TypeError, ValueError):
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in kinds and p.default is p.empty for p in parameters) > 1


class Received(NamedTuple):
    """An event as read. ``connection`` counts the sockets, ``number`` the events, both from 1."""

    id: str
    event: Event
    connection: int
    number: int


@dataclass(slots=True, eq=False)
class Entry:
    """An unconfirmed event: when it was made, on which socket it was sent last, and how often."""

    event_id: str
    event: ClientEvent
    frame: bytes
    at: float
    is_ui: bool
    connection: int = -1
    sends: int = 0

    @property
    def result(self) -> ToolResultEvent | None:
        """The result of a tool."""
        return self.event if isinstance(self.event, ToolResultEvent) and not self.is_ui else None


class ClientSession:
    """The state, and the sockets one after the other.

    ``notice`` is called with each new event as soon as it is read, ``welcome`` with each answer to
    ``session.start``, before the events that follow it. ``inbox`` holds the events that wait for their
    handlers, ``last_event_id`` is the last handled event.
    """

    def __init__(
        self,
        session_id: str,
        limits: ClientLimits,
        notice: Callable[[Received], None],
        welcome: Callable[[SessionStarted], None],
    ) -> None:
        self.session_id = session_id
        self.limits = limits
        self.new_id = IdGenerator("cevt")
        self.started: SessionStarted | None = None
        self.inbox: asyncio.Queue[Received] = asyncio.Queue(MAX_WAITING)
        self.last_event_id: str | None = None
        self.connection = 0
        self.number = 0
        self.loss = ConnectionLost("The client has not been started.")
        self.ids: dict[str, None] = {}  # ids of events, oldest first
        self.entries: list[Entry] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._notice = notice
        self._welcome = welcome
        self._reported: frozenset[str] = frozenset()
        self._sending = asyncio.Lock()
        self._opening = asyncio.Lock()
        self._socket: Socket | None = None
        self._reader: asyncio.Task[None] | None = None
        self._down = asyncio.Event()  # set while no session is started on a socket
        self._down.set()
        self._start: tuple[str, asyncio.Future[SessionStarted]] | None = None
        self._closed = False

    @property
    def connected(self) -> bool:
        return not self._down.is_set()

    @property
    def capabilities(self) -> frozenset[str]:
        """The capabilities that the server accepted on the last connection."""
        return frozenset((self.started and self.started.capabilities) or ())

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task that `close` cancels."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # Sockets

    async def open(
        self, connect: Callable[[], Awaitable[Socket]], start: Callable[[], SessionStart], *, replace: bool
    ) -> SessionStarted:
        """Open a socket and start the session on it; ``replace`` closes a present one, else it stays.

        Raises `CannotConnect`, `StartRefused`, `ConnectionLost` and `WaitTimeout`.
        """
        async with self._opening:
            if self.connected and self.started is not None and not replace:
                return self.started
            await self._retire(ConnectionLost("The client is reconnecting."))
            link = self._socket = await connect()
            try:
                if self._closed:
                    raise ConnectionLost("The client was closed.")
                started = await self._start_on(link, start)
            except BaseException:  # also cancellation: leave no half-open socket
                link.abort()
                await self._retire(ConnectionLost("The session did not start."))
                raise
            if self._socket is link:  # else it was lost immediately
                self._down.clear()
            return started

    async def close(self, reason: ConnectionLost) -> None:
        """Stop all tasks, and close the socket. No other socket can be opened."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self.limits.close_s)
        await self._retire(reason)

    def drop(self) -> None:
        """Cut the socket without a close frame, and stop reading from it."""
        if self._socket is not None:
            if self._reader is not None:
                self._reader.cancel()
            self._socket.abort()
            self._lose(self._socket, ConnectionLost("The connection was dropped by this client."))

    async def wait_lost(self, timeout: float | None) -> ConnectionLost:
        """Wait until there is no socket; return the reason. Raises `WaitTimeout`."""
        try:
            async with asyncio.timeout(timeout):
                await self._down.wait()
        except TimeoutError:
            raise WaitTimeout(f"The connection was not lost within {timeout:g} s.") from None
        return self.loss

    def missing(self) -> ConnectionLost:
        """Make the error for a missing connection."""
        return ConnectionLost(str(self.loss))

    async def _start_on(self, link: Socket, start: Callable[[], SessionStart]) -> SessionStarted:
        self.connection += 1
        event_id = self.new_id()
        answer: asyncio.Future[SessionStarted] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(lambda future: future.cancelled() or future.exception())  # mark it as read
        self._start = event_id, answer
        # Before the start is sent: the answer may arrive during the send.
        self._reader = asyncio.create_task(self._read(link))
        try:
            await link.send(self.frame(event_id, start()))
            async with asyncio.timeout(self.limits.start_s):
                return await answer
        except TimeoutError:
            seconds = self.limits.start_s
            raise WaitTimeout(f"The server did not start the session within {seconds:g} s.") from None
        finally:
            self._start = None

    async def _retire(self, reason: ConnectionLost) -> None:
        link, reader = self._socket, self._reader
        if reader is not None:
            reader.cancel()
            await asyncio.wait({reader}, timeout=self.limits.close_s)
        if link is not None:
            self._lose(link, reason)
            await link.close()

    def _lose(self, link: Socket, loss: ConnectionLost) -> None:
        # A replaced socket may end after its successor is open.
        if self._socket is not link:
            return
        self._socket = None
        self.loss = loss
        self._down.set()
        if self._start is not None and not self._start[1].done():
            self._start[1].set_exception(loss)

    async def _read(self, link: Socket) -> None:
        # This must not wait for a handler: pings need answers.
        try:
            while True:
                if (decoded := decode_frame(await link.receive())) is not None:
                    self._take(*decoded)
        except ConnectionLost as loss:
            link.abort()
            self._lose(link, loss)
        except Exception as error:
            log.error("connection reader failed: %s", describe_error(error))
            link.abort()
            self._lose(link, ConnectionLost("The client failed to read."))

    def _take(self, event_id: str, event: Event) -> None:
        start_id, answer = self._start or ("", None)
        if answer is not None and not answer.done():
            if isinstance(event, SessionStarted):
                self._confirm_reported(event)
                self._welcome(event)
                answer.set_result(event)
            # An error without an id concerns an unreadable frame, and only the start was sent.
            elif isinstance(event, ErrorEvent) and event.event_id in (None, start_id):
                answer.set_exception(StartRefused(event))
                return
        if event_id in self.ids:  # a replay
            return
        if self.inbox.full():
            raise ConnectionLost(f"{MAX_WAITING} events are waiting for a handler.")
        self.ids[event_id] = None
        if len(self.ids) > MAX_IDS:
            del self.ids[next(iter(self.ids))]
        self.number += 1
        received = Received(event_id, event, self.connection, self.number)
        self._notice(received)
        self.inbox.put_nowait(received)

    # Sending

    def frame(self, event_id: str, event: ClientEvent) -> bytes:
        """Encode an event. Raises `ValueError` for one that is too large for a frame."""
        frame = encode_event(event_id, self.session_id, event)
        if len(frame) > MAX_FRAME_BYTES:
            raise ValueError(f"an event has {len(frame)} bytes; the limit is {MAX_FRAME_BYTES}")
        return frame

    async def send(self, event: ClientEvent, event_id: str | None = None) -> str:
        """Send an event once, and return its id. Raises `ConnectionLost`, and `ValueError` as `frame`."""
        event_id = event_id or self.new_id()
        await self._write(self.frame(event_id, event))
        return event_id

    async def keep(self, event: ClientEvent, *, is_ui: bool = False) -> Entry:
        """Send an event until it is confirmed; ``is_ui``: it answers a UI call. Raises as `frame`."""
        entry = self.add(event, self.new_id(), is_ui=is_ui)
        await self.flush()
        return entry

    def add(self, event: ClientEvent, event_id: str, *, is_ui: bool = False) -> Entry:
        """Add an event for `flush`. A full list drops the oldest, transcripts and results last."""
        now = asyncio.get_running_loop().time()
        entry = Entry(event_id, event, self.frame(event_id, event), now, is_ui)
        self.entries.append(entry)
        if len(self.entries) > max(1, self.limits.unconfirmed):
            # A person's words, or a tool's run, cannot be repeated.
            candidates = (
                e for e in self.entries[:-1] if not (e.result or isinstance(e.event, TranscriptFinal))
            )
            self.entries.remove(next(candidates, self.entries[0]))
        return entry

    async def flush(self) -> bool:
        """Send the events that are due on this connection, in order; False if some remain."""
        # One flush at a time, to keep the order: a reconnect flushes concurrently with `keep`.
        async with self._sending:
            while entry := next((e for e in self.entries if e.connection != self.connection), None):
                if not self.connected:
                    return False
                # Set before the await: a cancelled send may have sent the frame.
                entry.connection = self.connection
                entry.sends += 1
                try:
                    await self._write(entry.frame)
                except ConnectionLost:
                    return False
            return True

    async def _write(self, frame: bytes) -> None:
        link = self._socket
        if link is None or not self.connected:
            raise self.missing()
        try:
            await link.send(frame)
        except ConnectionLost as loss:
            self._lose(link, loss)
            raise

    # Unconfirmed events

    def has(self, event_id: str) -> bool:
        """Whether an event is unconfirmed."""
        return any(entry.event_id == event_id for entry in self.entries)

    @property
    def transcripts(self) -> int:
        return sum(isinstance(entry.event, TranscriptFinal) for entry in self.entries)

    def discard(self, event_id: str) -> None:
        """Drop an event."""
        self.entries = [entry for entry in self.entries if entry.event_id != event_id]

    def acknowledge(self, event_ids: Collection[str]) -> None:
        """Drop acknowledged events."""
        last = max((n for n, e in enumerate(self.entries) if e.event_id in event_ids), default=-1)
        # The server does not acknowledge these, but it has read them before a later event.
        silent = [e for e in self.entries[: last + 1] if isinstance(e.event, ToolCancelled | ToolAccepted)]
        self.entries = [
            entry
            for entry in self.entries
            if entry.event_id not in event_ids
            and not (entry in silent and entry.connection == self.entries[last].connection)
        ]

    def confirm(self, event_id: str, *, is_refused: bool) -> None:
        """Drop an answered transcript, and without ``event.ack`` all events before it."""
        index = next((n for n, e in enumerate(self.entries) if e.event_id == event_id), None)
        if index is not None and "resume" not in self.capabilities:
            del self.entries[: index + 1]
        elif is_refused:
            self.discard(event_id)

    def expire(self, is_open: Callable[[str], bool]) -> None:
        """Drop transcripts that are too old, and that belong to no open turn."""
        oldest = asyncio.get_running_loop().time() - self.limits.resend_s
        self.entries = [
            entry
            for entry in self.entries
            if not isinstance(entry.event, TranscriptFinal) or (entry.at > oldest and is_open(entry.event_id))
        ]

    async def resend(self, call_id: str) -> None:
        """Send the answer to a call again, even on the same connection."""
        for entry in self.entries:
            if getattr(entry.event, "call_id", None) == call_id:
                entry.connection = -1
        await self.flush()

    # Resuming

    def resume(self, start: SessionStart, pending: Sequence[str]) -> SessionStart:
        """Add the state to a ``session.start`` that names ``resume``, after the first answer of a server.

        The server requests content that does not fit, and repeats calls that are not listed.
        """
        if self.started is None or "resume" not in start.capabilities:
            return start
        room = min(_MAX_RESUME_BYTES, _MAX_START_BYTES - len(encode(start)))
        resume = fit_resume(self.last_event_id, [e.result for e in self.entries if e.result], pending, room)
        self._reported = frozenset(
            entry.call_id for entry in resume.done if entry.result is not None or entry.error is not None
        )
        return msgspec.structs.replace(start, resume=resume)

    def _confirm_reported(self, started: SessionStarted) -> None:
        self.started = started
        if "resume" in self.capabilities:
            # Content of ``session.start`` is recorded by now, unless the server requests it again.
            drop = {*(started.drop or ()), *(self._reported - {*(started.resend or ())})}
            self.entries = [e for e in self.entries if getattr(e.event, "call_id", None) not in drop]


def fit_resume(
    last: str | None, results: Sequence[ToolResultEvent], pending: Sequence[str], room: int
) -> Resume:
    """Make a `Resume` of at most ``room`` bytes of JSON; a result that does not fit has no content."""
    room -= len(encode(Resume(last))) + len(',"done":[],"pending":[]')
    waiting: list[str] = []
    for call_id in pending[:MAX_RESUMED]:
        room -= len(encode(call_id)) + 1
        if room < 0:
            break
        waiting.append(call_id)
    entries: list[ResumeDone] = []
    for result in results[:MAX_RESUMED]:
        content = None if result.error is not None else result.result
        for entry in (ResumeDone(result.call_id, content, result.error), ResumeDone(result.call_id)):
            size = len(encode(entry)) + 1
            if size <= room:
                room -= size
                entries.append(entry)
                break
    return Resume(last, entries, waiting)
