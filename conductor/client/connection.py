"""WebSocket connections: open, send, receive and close, with failures as the client's errors."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import ssl
from collections import deque
from collections.abc import Callable
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as open_websocket
from websockets.exceptions import ConnectionClosed, InvalidStatus, InvalidURI, WebSocketException

from conductor.client.errors import (
    CannotConnect,
    ClientError,
    ConnectionLost,
    StartRefused,
    WaitTimeout,
    describe_error,
)
from conductor.client.events import Received, decode_frame
from conductor.client.options import ClientOptions
from conductor.events.client import SessionStart
from conductor.events.envelope import IdGenerator, encode_event
from conductor.events.server import ErrorEvent, SessionStarted

log = logging.getLogger(__name__)

_TOKEN = re.compile(r"[\x21-\x7e]+")


class Socket:
    """One socket; a reconnect makes another."""

    def __init__(self, connection: ClientConnection, send_s: float) -> None:
        self._connection = connection
        self._send_s = send_s
        self._down = False

    @classmethod
    async def open(cls, options: ClientOptions) -> Socket:
        """Open a socket. Raises `CannotConnect`."""
        limits = options.limits
        if options.token is not None and not _TOKEN.fullmatch(options.token):
            raise CannotConnect("The token contains characters that are not allowed in a header.")
        headers = {} if options.token is None else {"Authorization": f"Bearer {options.token}"}
        try:
            connection = await open_websocket(
                options.url,
                additional_headers=headers,
                proxy=options.proxy,  # None: do not read one from the environment
                open_timeout=limits.connect_s,
                ping_interval=limits.ping_s,
                ping_timeout=limits.ping_s,
                close_timeout=limits.close_s,
                max_size=limits.max_frame_bytes,
            )
        except (OSError, ValueError, WebSocketException) as error:
            raise _cannot_connect(options, error) from error
        return cls(connection, limits.send_s)

    async def send(self, frame: bytes) -> None:
        """Send one text frame. Raises `ConnectionLost`; the frame may still have been sent."""
        if self._down:
            raise ConnectionLost("The connection is down.")
        try:
            async with asyncio.timeout(self._send_s):
                await self._connection.send(frame, text=True)
        except TimeoutError:
            # A cancelled send may have written half a frame: the socket is unusable.
            self.abort()
            raise ConnectionLost(f"The server read nothing for {self._send_s:g} s.") from None
        except ConnectionClosed as closed:
            self._down = True
            raise _connection_lost(closed) from None

    async def receive(self) -> bytes:
        """Wait for the next frame. Pings are answered. Raises `ConnectionLost`."""
        try:
            return await self._connection.recv(decode=False)
        except ConnectionClosed as closed:
            self._down = True
            raise _connection_lost(closed) from None

    def abort(self) -> None:
        """Cut the connection without a close frame."""
        self._down = True
        self._connection.transport.abort()

    async def close(self) -> None:
        """Close with a close frame, within ``close_s`` seconds."""
        self._down = True
        await self._connection.close()


def _connection_lost(closed: ConnectionClosed) -> ConnectionLost:
    if closed.rcvd is None:
        return ConnectionLost("The connection broke.")
    reason = f": {closed.rcvd.reason}" if closed.rcvd.reason else ""
    return ConnectionLost(
        f"The server closed the connection ({closed.rcvd.code}{reason}).", close_code=closed.rcvd.code
    )


def _cannot_connect(options: ClientOptions, error: Exception) -> CannotConnect:
    status = None
    if isinstance(error, InvalidStatus):
        status = error.response.status_code
        reason = f"the server answered HTTP {status}"
        if status in (401, 403):
            reason += ": the token is missing or not accepted"
    elif isinstance(error, TimeoutError):
        reason = f"no answer within {options.limits.connect_s:g} s"
    elif isinstance(error, OSError):
        reason = _os_reason(error)
    elif isinstance(error, InvalidURI | ValueError):
        reason = "not a WebSocket URL such as ws://127.0.0.1:8080/ws"
    else:
        reason = "the service there does not speak WebSocket"
    return CannotConnect(f"Cannot connect to {show_url(options.url)}: {reason}.", status=status)


def _os_reason(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "unknown host name"
    if isinstance(error, ssl.SSLError):
        return f"no secure connection ({error.reason or 'TLS failed'})"
    if error.errno is not None:
        return os.strerror(error.errno).lower()
    # asyncio joins the failures of several addresses into one message without a number.
    return "connection refused" if "Connect call failed" in str(error) else "the network failed"


def show_url(url: str) -> str:
    """Format a URL without user, password, query and fragment, which may be secret."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "that address"
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}" if host else url.partition("?")[0]


# Frames kept in `Connection.received`.
MAX_RECEIVED = 2_000


class Connection:
    """One socket at a time, each opened with ``session.start``; new events go into ``inbox``.

    ``notice`` is called with each event when it is read, before it is queued; ``on_started`` with the answer
    to ``session.start``, before the events that follow it.

    `open` does not retry; `Reconnector` does. ``connection`` counts sockets, ``number`` events without
    duplicates. ``started`` is the last ``session.started``, ``loss`` the reason for a missing connection.
    """

    def __init__(
        self,
        options: ClientOptions,
        new_id: IdGenerator,
        notice: Callable[[Received], None],
        on_started: Callable[[SessionStarted], None],
    ) -> None:
        self.inbox: asyncio.Queue[Received] = asyncio.Queue(options.limits.backlog)
        self.received: deque[Received] = deque(maxlen=MAX_RECEIVED)
        self.connection = 0
        self.number = 0
        self.loss: ConnectionLost | None = None
        self.started: SessionStarted | None = None
        self._options = options
        self._new_id = new_id
        self._notice = notice
        self._on_started = on_started
        self._ids: dict[str, None] = {}  # of recent events, oldest first
        self._link: Socket | None = None
        self._reader: asyncio.Task[None] | None = None
        self._down = asyncio.Event()  # set while there is no socket
        self._down.set()
        self._opening = asyncio.Lock()
        self._starting: tuple[str, asyncio.Future[SessionStarted | ClientError]] | None = None
        self._closed = False

    @property
    def connected(self) -> bool:
        return not self._down.is_set()

    @property
    def acknowledges(self) -> bool:
        """Whether the server confirms recorded events with ``event.ack`` (capability ``resume``)."""
        return self.started is not None and "resume" in (self.started.capabilities or ())

    async def open(self, start: Callable[[], SessionStart], *, replace_socket: bool = True) -> SessionStarted:
        """Open a new socket, closing the present one, and start the session on it.

        ``start`` makes the ``session.start`` once the socket is open. ``replace_socket`` False keeps an
        open socket. Raises `CannotConnect`, `StartRefused`, `ConnectionLost` and `WaitTimeout`.
        """
        async with self._opening:
            if self.connected and self.started is not None and not replace_socket:
                return self.started
            await self._retire(ConnectionLost("The client is reconnecting."))
            link = await Socket.open(self._options)
            self._link = link
            try:
                if self._closed:
                    raise ConnectionLost("The client was closed.")
                started = await self._handshake(link, start)
            except BaseException:  # also cancellation: leave no half-open socket
                link.abort()
                await self._retire(ConnectionLost("The session did not start."))
                raise
            if self._link is link:  # else it was lost immediately, and `loss` has the reason
                self.loss = None
                self._down.clear()
            return started

    async def close(self, reason: ConnectionLost) -> None:
        """Close the socket. No other can be opened."""
        self._closed = True
        await self._retire(reason)

    def drop(self) -> None:
        """Cut the socket without a close frame, and stop reading from it."""
        if self._link is not None:
            if self._reader is not None:
                self._reader.cancel()
            self._link.abort()
            self._record_loss(self._link, ConnectionLost("The connection was dropped by this client."))

    async def wait_lost(self, timeout: float | None) -> ConnectionLost:
        """Wait until there is no socket; return the reason. Raises `WaitTimeout`."""
        try:
            async with asyncio.timeout(timeout):
                await self._down.wait()
        except TimeoutError:
            raise WaitTimeout(f"The connection was not lost within {timeout:g} s.") from None
        return self.loss or ConnectionLost("The client has not been started.")

    def missing(self) -> ConnectionLost:
        """Make the error for a missing connection."""
        return ConnectionLost(str(self.loss or "There is no connection."))

    async def send(self, frame: bytes) -> None:
        """Send a frame. Raises `ConnectionLost`."""
        link = self._link
        if link is None or not self.connected:
            raise self.missing()
        try:
            await link.send(frame)
        except ConnectionLost as loss:
            self._record_loss(link, loss)
            raise

    async def _handshake(self, link: Socket, start: Callable[[], SessionStart]) -> SessionStarted:
        self.connection += 1
        event_id = self._new_id()
        answer: asyncio.Future[SessionStarted | ClientError] = asyncio.get_running_loop().create_future()
        self._starting = event_id, answer
        # Before the start is sent: the answer may arrive during the send.
        self._reader = asyncio.create_task(self._read(link, self.connection))
        seconds = self._options.limits.start_s
        try:
            await link.send(encode_event(event_id, self._options.session_id, start()))
            async with asyncio.timeout(seconds):
                result = await answer
        except TimeoutError:
            raise WaitTimeout(f"The server did not start the session within {seconds:g} s.") from None
        finally:
            self._starting = None
        if isinstance(result, ClientError):
            raise result
        return result

    def _record_loss(self, link: Socket, loss: ConnectionLost) -> None:
        # A replaced socket may end after its successor is open.
        if self._link is not link:
            return
        self._link = None
        self.loss = loss
        self._down.set()
        self._answer_start(loss)

    async def _retire(self, reason: ConnectionLost) -> None:
        link, reader = self._link, self._reader
        if reader is not None:
            reader.cancel()
            await asyncio.wait({reader}, timeout=self._options.limits.close_s)
            self._reader = None
        if link is not None:
            self._record_loss(link, reason)
            await link.close()

    def _answer_start(self, answer: SessionStarted | ClientError) -> None:
        if self._starting is not None and not self._starting[1].done():
            self._starting[1].set_result(answer)

    async def _read(self, link: Socket, connection: int) -> None:
        # This must not wait for a handler: pings need answers.
        limits = self._options.limits
        try:
            while True:
                frame = await link.receive()
                received = self._take(frame, connection)
                if received is not None:
                    self._notice(received)
                    await self._deliver(received)
        except ConnectionLost as loss:
            self._record_loss(link, loss)
        except TimeoutError:
            link.abort()
            self._record_loss(
                link, ConnectionLost(f"The handlers accepted no event for {limits.backlog_s:g} s.")
            )
        except Exception as error:
            log.error("connection reader failed: %s", describe_error(error))
            link.abort()
            self._record_loss(link, ConnectionLost("The client failed to read."))

    async def _deliver(self, received: Received) -> None:
        try:
            # A full queue stops reading, so a handler that hangs would block the connection.
            async with asyncio.timeout(self._options.limits.backlog_s):
                await self.inbox.put(received)
        except BaseException:
            self._ids.pop(received.id, None)  # it was not handled: a replay may deliver it again
            raise

    def _take(self, frame: bytes, connection: int) -> Received | None:
        decoded = decode_frame(frame)
        if decoded is None:
            log.debug("frame ignored: %d bytes that are not an event", len(frame))
            return None
        event_id, event = decoded
        new = event_id not in self._ids
        if new:
            self._ids[event_id] = None
            if len(self._ids) > self._options.limits.recent_ids:
                del self._ids[next(iter(self._ids))]
            self.number += 1
        received = Received(event_id, event, connection, self.number, not new)
        self.received.append(received)
        if isinstance(event, SessionStarted) and self._starting and not self._starting[1].done():
            self.started = event
            self._on_started(event)
            self._answer_start(event)
        elif isinstance(event, ErrorEvent) and self._starting is not None:
            # An error without an id concerns an unreadable frame, and only the start was sent.
            if event.event_id in (None, self._starting[0]) and not self._starting[1].done():
                self._answer_start(StartRefused(event))
                return None  # `open` raises it; listeners do not receive it
        # A replayed event is listed in `received`, but not handled again.
        return received if new else None
