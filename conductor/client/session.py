"""The session over all its sockets: the present socket, and the events that the server has not confirmed.

A frame that a socket took proves nothing. Until ``event.ack`` names it an event is sent again on each new
connection, under its original id: the server processes a transcript once, and accepts the first result of a
call. With the capability ``resume`` a new ``session.start`` lists the calls that have run.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from conductor.client import connection as wire
from conductor.client.connection import ConnectionLost
from conductor.events import client, server
from conductor.events.envelope import IdGenerator, encode_event

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_IDS = 2_000
"""Remembered ids of events and of calls."""
MAX_WAITING = 2_000
"""Events that wait for their handlers. One more closes the connection, and the server sends it again."""
MAX_FRAME_BYTES = 2**20
"""Bytes of a frame; the server closes the connection after a larger one."""
_MAX_START_BYTES = 64_512  # without the envelope; the soft limit is 64 KiB
_MAX_RESUMED = 100  # calls in each list of ``resume``

encode = msgspec.json.Encoder().encode


def clean(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode."""
    return text.encode(errors="replace").decode()


def takes_two_arguments(handler: Callable[..., Any]) -> bool:
    """Whether a handler's signature has a second parameter without a default."""
    try:
        inspect.signature(handler).bind(None)
    except (TypeError, ValueError) as error:  # `ValueError`: it has no signature
        return isinstance(error, TypeError)
    return False


class Received(NamedTuple):
    """An event as read. ``connection`` counts the sockets, ``number`` the events, both from 1."""

    id: str
    event: wire.Event
    connection: int
    number: int


@dataclass(slots=True, eq=False)
class Entry:
    """An unconfirmed event: when it was made, on which socket it was sent last, and how often."""

    event_id: str
    event: client.ClientEvent
    frame: bytes
    at: float
    connection: int = -1
    sends: int = 0


class Session:
    """The sockets one after the other, and the unconfirmed events.

    ``started`` is the server's last answer to ``session.start``, ``inbox`` holds the events for their
    handlers, and ``last_event_id`` is the last handled event.
    """

    started: server.SessionStarted | None = None

    def __init__(
        self, session_id: str, limits: wire.ClientLimits, url: str, token: str | None, proxy: str | None
    ) -> None:
        self.session_id, self.limits = session_id, limits
        self.url, self.token, self.proxy = url, token, proxy
        self.new_id = IdGenerator("cevt")
        self.inbox: asyncio.Queue[Received] = asyncio.Queue(MAX_WAITING)
        self.last_event_id: str | None = None
        self.connection = self.number = 0
        self.loss = ConnectionLost("The client has not been started.")
        self.ids: dict[str, None] = {}  # ids of events, oldest first
        self.entries: list[Entry] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._sending, self._opening = asyncio.Lock(), asyncio.Lock()
        self._link: ClientConnection | None = None
        self._reader: asyncio.Task[None] | None = None
        self._down = asyncio.Event()  # set while no session is started on a socket
        self._down.set()
        self._start: tuple[str, asyncio.Future[server.SessionStarted]] | None = None
        self.is_closed = False

    def make_start(self) -> client.SessionStart:
        """Make the event that starts the session on a new socket."""
        raise NotImplementedError

    def on_started(self, started: server.SessionStarted) -> None:
        """Handle an answer to ``session.start``, before the events that follow it."""

    def on_read(self, received: Received) -> None:
        """Handle the urgent part of a new event, as soon as it is read."""

    @property
    def connected(self) -> bool:
        return not self._down.is_set()

    @property
    def capabilities(self) -> frozenset[str]:
        """The capabilities that the server accepted on the last connection."""
        return frozenset((self.started and self.started.capabilities) or ())

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task that ends with the session."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self.is_closed:
            task.cancel()
        return task

    # Sockets

    async def open(self, *, replaces: bool) -> server.SessionStarted:
        """Open a socket and start the session on it; ``replaces``: a present one is closed, else it stays.

        Raises `CannotConnect`, `StartRefused`, `ConnectionLost` and `WaitTimeout`.
        """
        async with self._opening:
            if self.connected and self.started is not None and not replaces:
                return self.started
            await self._hang_up(ConnectionLost("The client is reconnecting."))
            link = self._link = await wire.open_socket(self.url, self.token, self.proxy, self.limits)
            answer: asyncio.Future[server.SessionStarted] = asyncio.get_running_loop().create_future()
            answer.add_done_callback(lambda future: future.cancelled() or future.exception())  # now read
            self._start = self.new_id(), answer
            self.connection += 1
            try:
                if self.is_closed:
                    raise self.missing()
                # Before the start is sent: the answer may arrive during the send.
                self._reader = self.spawn(self._read(link))
                async with asyncio.timeout(self.limits.start_s):
                    await self._write(link, self.frame(self._start[0], self.make_start()))
                    return await answer
            except BaseException as error:  # also cancellation: leave no half-open socket
                self._cut(link, ConnectionLost("The session did not start."))
                if isinstance(error, TimeoutError):
                    seconds = self.limits.start_s
                    raise wire.WaitTimeout(
                        f"The server did not start the session within {seconds:g} s."
                    ) from None
                raise
            finally:
                self._start = None

    async def stop(self, reason: ConnectionLost) -> None:
        """End all tasks, and close the socket. No other socket can be opened."""
        self.is_closed, self.loss = True, reason
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.limits.close_s):
                while self._tasks:  # an ending task may start another
                    for task in self._tasks:
                        task.cancel()
                    await asyncio.wait(self._tasks)
        await self._hang_up(reason)

    def drop(self) -> None:
        """Cut the socket without a close frame, as a lost mobile network does."""
        if self._link is not None:
            self._cut(self._link, ConnectionLost("The connection was dropped by this client."))

    async def wait_lost(self) -> ConnectionLost:
        """Wait until there is no connection; return the reason."""
        await self._down.wait()
        return self.loss

    def missing(self) -> ConnectionLost:
        """Make the error for a missing connection."""
        return ConnectionLost(str(self.loss))

    async def _hang_up(self, reason: ConnectionLost) -> None:
        if (link := self._link) is not None:
            self._lose(link, reason)
            await link.close()

    def _cut(self, link: ClientConnection, loss: ConnectionLost) -> None:
        link.transport.abort()
        self._lose(link, loss)

    def _lose(self, link: ClientConnection, loss: ConnectionLost) -> None:
        # A replaced socket may end after its successor is open.
        if self._link is link:
            self._link, self.loss = None, loss
            self._down.set()
            if self._reader is not None:
                self._reader.cancel()
            if self._start is not None and not self._start[1].done():
                self._start[1].set_exception(loss)

    async def _read(self, link: ClientConnection) -> None:
        # This must not wait for a handler: pings need answers.
        try:
            while True:
                if (decoded := wire.decode_frame(await link.recv(decode=False))) is not None:
                    self._take(*decoded)
        except ConnectionClosed as closed:
            loss = ConnectionLost.by(closed)
        except ConnectionLost as full:
            loss = full
        except Exception as error:
            log.error("connection reader failed: %s", wire.describe_error(error))
            loss = ConnectionLost("The client failed to read.")
        self._cut(link, loss)

    def _take(self, event_id: str, event: wire.Event) -> None:
        start_id, answer = self._start or ("", None)
        if answer is not None and not answer.done():
            if isinstance(event, server.SessionStarted):
                self._begin(event)
                answer.set_result(event)
            # An error without an id concerns an unreadable frame, and only the start was sent.
            elif isinstance(event, server.ErrorEvent) and event.event_id in (None, start_id):
                answer.set_exception(wire.StartRefused(event))
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
        self.on_read(received)
        self.inbox.put_nowait(received)

    def _begin(self, started: server.SessionStarted) -> None:
        self.started = started
        self._down.clear()
        if "resume" in self.capabilities:
            drop = started.drop or ()
            self.entries = [e for e in self.entries if getattr(e.event, "call_id", None) not in drop]
        self.on_started(started)

    # Sending

    def frame(self, event_id: str, event: client.ClientEvent) -> bytes:
        """Encode an event. Raises `ValueError` for one that is too large for a frame."""
        frame = encode_event(event_id, self.session_id, event)
        if len(frame) > MAX_FRAME_BYTES:
            raise ValueError(f"an event has {len(frame)} bytes; the limit is {MAX_FRAME_BYTES}")
        return frame

    async def send(self, event: client.ClientEvent) -> None:
        """Send an event once. Raises `ConnectionLost`, and `ValueError` for one that exceeds a frame."""
        frame = self.frame(self.new_id(), event)
        if self._link is None or not self.connected:
            raise self.missing()
        await self._write(self._link, frame)

    async def keep(self, event: client.ClientEvent) -> Entry:
        """Send an event until it is confirmed. Raises as `frame`."""
        entry = self.add(event, self.new_id())
        await self.flush()
        return entry

    def add(self, event: client.ClientEvent, event_id: str) -> Entry:
        """Add an event for `flush`. A full list drops the oldest."""
        now = asyncio.get_running_loop().time()
        entry = Entry(event_id, event, self.frame(event_id, event), now)
        self.entries = [*self.entries, entry][-self.limits.unconfirmed :]
        return entry

    async def flush(self) -> bool:
        """Send the events that are due on this connection, in order; False if some remain."""
        # One flush at a time, to keep the order: a reconnect flushes concurrently with `keep`.
        async with self._sending:
            while entry := next((e for e in self.entries if e.connection != self.connection), None):
                if self._link is None or not self.connected:
                    return False
                # Set before the await: a cancelled send may have sent the frame.
                entry.connection = self.connection
                entry.sends += 1
                try:
                    await self._write(self._link, entry.frame)
                except ConnectionLost:
                    return False
            return True

    async def resend(self, call_id: str) -> None:
        """Send the result of a call again, even on the same connection."""
        for entry in self.entries:
            if getattr(entry.event, "call_id", None) == call_id:
                entry.connection = -1
        await self.flush()

    async def retry(self, event_id: str) -> None:
        """Send an event that the server could not record again, later and under a new id."""
        await asyncio.sleep(self.limits.retry_s)
        for entry in self.entries:
            if entry.event_id == event_id:
                entry.event_id = self.new_id()
                entry.frame = self.frame(entry.event_id, entry.event)
                entry.connection, entry.sends = -1, 0
        await self.flush()

    async def _write(self, link: ClientConnection, frame: bytes) -> None:
        # A server that reads nothing misses a ping, which ends the socket.
        try:
            await link.send(frame, text=True)
        except ConnectionClosed as closed:
            loss = ConnectionLost.by(closed)
            self._lose(link, loss)
            raise loss from None

    # Unconfirmed events

    def has(self, event_id: str) -> bool:
        """Whether an event is unconfirmed."""
        return any(entry.event_id == event_id for entry in self.entries)

    def discard(self, event_id: str) -> None:
        """Drop an event."""
        self.entries = [entry for entry in self.entries if entry.event_id != event_id]

    def acknowledge(self, event_ids: Collection[str]) -> None:
        """Drop acknowledged events."""
        last = max((n for n, e in enumerate(self.entries) if e.event_id in event_ids), default=0)
        # The server does not acknowledge a cancellation, but it has read it before a later event.
        earlier = [e for e in self.entries[:last] if e.connection == self.entries[last].connection]
        read = [e for e in earlier if isinstance(e.event, client.ToolCancelled)]
        self.entries = [e for e in self.entries if e.event_id not in event_ids and e not in read]

    def expire(self, is_open: Callable[[str], bool]) -> None:
        """Drop transcripts that are too old, and that belong to no open turn."""
        oldest = asyncio.get_running_loop().time() - self.limits.resend_s
        words = [e for e in self.entries if isinstance(e.event, client.TranscriptFinal)]
        expired = [e for e in words if e.at <= oldest or not is_open(e.event_id)]
        self.entries = [e for e in self.entries if e not in expired]

    def resume(self, start: client.SessionStart, pending: Sequence[str]) -> client.SessionStart:
        """Add the state to a ``session.start`` that names ``resume``, after the first answer of a server.

        The results follow as events. A new process reports nothing: it does not remember its calls, and would
        run them twice.
        """
        if self.started is None or "resume" not in start.capabilities:
            return start
        results = [e.event.call_id for e in self.entries if isinstance(e.event, client.ToolResultEvent)]
        reports = [client.ResumeDone(call_id) for call_id in results[-_MAX_RESUMED:]]
        state = client.Resume(self.last_event_id, reports, list(pending[:_MAX_RESUMED]))
        start = replace(start, resume=state)
        if len(encode(start)) > _MAX_START_BYTES:  # the server repeats calls that are not listed
            start = replace(start, resume=client.Resume(self.last_event_id))
        return start
