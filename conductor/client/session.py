"""The session over all its sockets: the present socket, and the events that the server has not confirmed.

A frame that a socket took proves nothing. Until ``event.ack`` names it an event is sent again on each new
connection, under its original id: the server processes a transcript once, and accepts the first result of a
call.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

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
MAX_IMAGE_FRAME_BYTES = 2**22
"""Bytes of a frame; the server closes the connection after a larger one."""
CLOSED = "The client was closed."


@dataclass(slots=True, eq=False)
class Unconfirmed:
    """An unconfirmed event: when it was made, and on which socket it was sent last."""

    event_id: str
    event: client.ClientEvent
    at: float
    connection: int = 0


class Connections:
    """The sockets one after the other, and the unconfirmed events.

    ``started`` is the server's last answer to ``session.start``, ``inbox`` holds ids and events for their
    handlers, and ``received_ids`` are the last 2,000 ids, oldest first.
    """

    started: server.SessionStarted | None = None

    def __init__(self, session_id: str, limits: wire.ClientLimits, url: str, token: str | None) -> None:
        self.session_id, self.limits, self.url, self.token = session_id, limits, url, token
        self.new_id = IdGenerator("cevt")
        self.inbox: asyncio.Queue[tuple[str, wire.ReceivedEvent]] = asyncio.Queue(MAX_WAITING)
        self.received_ids: dict[str, None] = {}
        self.entries: list[Unconfirmed] = []
        self._connection = 0  # counts the sockets
        self._loss = ConnectionLost("The client has not been started.")
        self._tasks: set[asyncio.Task[Any]] = set()
        self._sending, self._opening = asyncio.Lock(), asyncio.Lock()
        self._link: ClientConnection | None = None  # the socket on which the session is started
        self._closing: asyncio.Task[None] | None = None
        self._down = asyncio.Event()
        self._down.set()

    def make_start(self) -> client.SessionStart:
        raise NotImplementedError

    def on_read(self, event: wire.ReceivedEvent) -> None:
        """Handle the urgent part of a new event, as soon as it is read."""

    @property
    def connected(self) -> bool:
        return self._link is not None

    @property
    def capabilities(self) -> frozenset[str]:
        """The capabilities that the server accepted on the last connection."""
        return frozenset((self.started and self.started.capabilities) or ())

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task that ends with the session."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._closing is not None:
            task.cancel()
        return task

    # Sockets

    async def open(self) -> server.SessionStarted:
        """Open a socket and start the session on it, unless there is one.

        Raises `CannotConnect`, `StartRefused`, `ConnectionLost` and `WaitTimeout`.
        """
        async with self._opening:
            if self._link is not None and self.started is not None:
                return self.started
            if self._closing is not None:
                raise ConnectionLost(CLOSED)
            link = await wire.open_socket(self.url, self.token, self.limits)
            answer: asyncio.Future[server.SessionStarted] = asyncio.get_running_loop().create_future()
            start_id = self.new_id()
            self._connection += 1
            try:
                if self._closing is not None:
                    raise ConnectionLost(CLOSED)
                # Before the start is sent: the answer may arrive during the send.
                self.spawn(self._read(link, start_id, answer))
                async with asyncio.timeout(self.limits.start_s):
                    with contextlib.suppress(ConnectionLost):  # the reader reports it
                        await self._write(link, start_id, self.make_start())
                    return await answer
            except TimeoutError:
                seconds = f"{self.limits.start_s:g} s"
                raise wire.WaitTimeout(f"The server did not start the session within {seconds}.") from None
            finally:
                answer.cancel()
                # Also after a cancellation or a close: leave no half-open socket.
                if self._link is not link or self._closing is not None:
                    link.transport.abort()

    async def close(self) -> None:
        """Close the socket and stop the handlers. Running turns end with `ConnectionLost`."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(self._link))
            self._lose(ConnectionLost(CLOSED))
        # Shielded: a handler that closes its client is cancelled.
        await asyncio.shield(self._closing)

    async def _close(self, link: ClientConnection | None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.limits.close_s):
                while self._tasks:  # an ending task may start another
                    for task in self._tasks:
                        task.cancel()
                    await asyncio.wait(self._tasks)
        if link is not None:
            await link.close()

    def drop(self, reason: str = "The connection was dropped by this client.") -> None:
        """Cut the socket without a close frame, as a lost mobile network does."""
        if self._link is not None:
            self._link.transport.abort()
            self._lose(ConnectionLost(reason))

    async def wait_lost(self) -> ConnectionLost:
        """Wait until there is no connection; return the reason."""
        await self._down.wait()
        return self._loss

    def require(self) -> ClientConnection:
        """Return the socket of the started session. Raises `ConnectionLost`."""
        if self._link is None:
            raise ConnectionLost(str(self._loss))
        return self._link

    def _lose(self, loss: ConnectionLost) -> None:
        self._link, self._loss = None, loss
        self._down.set()

    async def _read(
        self, link: ClientConnection, start_id: str, answer: asyncio.Future[server.SessionStarted]
    ) -> None:
        # This must not wait for a handler: pings need answers.
        loss = ConnectionLost(CLOSED)
        try:
            while self._link is link or not answer.done():
                if (decoded := wire.decode_frame(await link.recv(decode=False))) is None:
                    continue
                event_id, event = decoded
                if isinstance(event, server.SessionStarted) and not answer.done():
                    self.started, self._link = event, link
                    self._down.clear()
                    answer.set_result(event)
                elif isinstance(event, server.ErrorEvent) and not answer.done():
                    # An error without an id concerns an unreadable frame, and only the start was sent.
                    if event.event_id in (None, start_id):
                        return answer.set_exception(wire.StartRefused(event))
                if self.inbox.full():
                    return self.drop(f"{MAX_WAITING} events are waiting for a handler.")
                if event_id not in self.received_ids:
                    remember(self.received_ids, event_id, None)
                    self.on_read(event)
                    self.inbox.put_nowait((event_id, event))
        except ConnectionClosed as closed:
            loss = ConnectionLost.by(closed)
        except Exception as error:
            log.error("connection reader failed: %s", wire.describe_error(error))
            self.drop("The client failed to read.")
        finally:
            if not answer.done():
                answer.set_exception(loss)
            elif self._link is link:
                self._lose(loss)

    # Sending

    def frame(self, event_id: str, event: client.ClientEvent) -> bytes:
        """Encode an event. Raises `ValueError` for one that is too large for a frame."""
        frame = encode_event(event_id, self.session_id, event)
        limit = MAX_IMAGE_FRAME_BYTES if getattr(event, "images", None) else MAX_FRAME_BYTES
        if len(frame) > limit:
            raise ValueError(f"an event has {len(frame)} bytes; the limit is {limit}")
        return frame

    async def send(self, event: client.ClientEvent) -> None:
        """Send an event once. Raises `ConnectionLost`, and `ValueError` for one that exceeds a frame."""
        await self._write(self.require(), self.new_id(), event)

    def add(self, event: client.ClientEvent) -> Unconfirmed:
        """Add an event for `flush`. A full list drops the oldest. Raises as `frame`."""
        entry = Unconfirmed(self.new_id(), event, asyncio.get_running_loop().time())
        self.frame(entry.event_id, event)
        self.entries = [*self.entries, entry][-self.limits.unconfirmed :]
        return entry

    async def flush(self) -> None:
        """Send the events that are due on this connection, in order."""
        # One flush at a time, to keep the order: a reconnect flushes concurrently with results.
        async with self._sending:
            with contextlib.suppress(ConnectionLost):
                while entry := next((e for e in self.entries if e.connection != self._connection), None):
                    link = self.require()
                    # Set before the await: a cancelled send may have sent the frame.
                    entry.connection = self._connection
                    await self._write(link, entry.event_id, entry.event)

    async def retry(self, event_id: str) -> None:
        """Send an event that the server could not record again, later and under a new id."""
        await asyncio.sleep(self.limits.retry_s)
        for entry in self.entries:
            if entry.event_id == event_id:
                entry.event_id, entry.connection = self.new_id(), 0
        await self.flush()

    async def _write(self, link: ClientConnection, event_id: str, event: client.ClientEvent) -> None:
        # A server that reads nothing misses a ping, which ends the socket.
        try:
            await link.send(self.frame(event_id, event), text=True)
        except ConnectionClosed as closed:
            raise ConnectionLost.by(closed) from None

    # Unconfirmed events

    def discard(self, *event_ids: str) -> None:
        """Send these events no more: they were acknowledged, refused, or are out of date."""
        self.entries = [entry for entry in self.entries if entry.event_id not in event_ids]


def remember(ids: dict[str, T], key: str, value: T) -> None:
    """Add an id as the newest. A full dict drops the oldest."""
    ids.pop(key, None)
    ids[key] = value
    if len(ids) > MAX_IDS:
        del ids[next(iter(ids))]
