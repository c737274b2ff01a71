"""One WebSocket: open, write, read and close it, with every failure as one of the client's errors."""

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

from conductor.client.errors import CannotConnect, ClientError, ConnectionLost, StartRefused, WaitTimeout
from conductor.client.events import Received, SeenIds, decode_frame
from conductor.client.options import ClientOptions
from conductor.client.tasks import where
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
            raise CannotConnect("The token holds characters that no header can carry.")
        headers = {} if options.token is None else {"Authorization": f"Bearer {options.token}"}
        try:
            connection = await open_websocket(
                options.url,
                additional_headers=headers,
                proxy=options.proxy,  # None keeps the library from reading one from the environment
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
        """Send one text frame. Raises `ConnectionLost`; the frame may have left nevertheless."""
        if self._down:
            raise ConnectionLost("The connection is down.")
        try:
            async with asyncio.timeout(self._send_s):
                await self._connection.send(frame, text=True)
        except TimeoutError:
            # A cancelled send may have written half a frame: the socket is unusable.
            self.abort()
            raise ConnectionLost(f"The server took nothing for {self._send_s:g} s.") from None
        except ConnectionClosed as closed:
            self._down = True
            raise _lost(closed) from None

    async def receive(self) -> bytes:
        """Wait for the next frame; the library answers pings. Raises `ConnectionLost`."""
        try:
            return await self._connection.recv(decode=False)
        except ConnectionClosed as closed:
            self._down = True
            raise _lost(closed) from None

    def abort(self) -> None:
        """Cut the connection without a close frame."""
        self._down = True
        self._connection.transport.abort()

    async def close(self) -> None:
        """Close with a close frame, within ``close_s`` seconds."""
        self._down = True
        await self._connection.close()


def _lost(closed: ConnectionClosed) -> ConnectionLost:
    if closed.rcvd is None:
        return ConnectionLost("The connection broke.")
    why = f": {closed.rcvd.reason}" if closed.rcvd.reason else ""
    return ConnectionLost(
        f"The server closed the connection ({closed.rcvd.code}{why}).", close_code=closed.rcvd.code
    )


def _cannot_connect(options: ClientOptions, error: Exception) -> CannotConnect:
    status = None
    if isinstance(error, InvalidStatus):
        status = error.response.status_code
        why = f"the server answered HTTP {status}"
        if status in (401, 403):
            why += ", so the token is missing or not accepted"
    elif isinstance(error, TimeoutError):
        why = f"no answer within {options.limits.connect_s:g} s"
    elif isinstance(error, OSError):
        why = _why(error)
    elif isinstance(error, InvalidURI | ValueError):
        why = "it is not a WebSocket URL such as ws://127.0.0.1:8080/ws"
    else:
        why = "what answers there does not speak WebSocket"
    return CannotConnect(f"Cannot connect to {show_url(options.url)}: {why}.", status=status)


def _why(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "the host's name is not known"
    if isinstance(error, ssl.SSLError):
        return f"no secure connection ({error.reason or 'TLS failed'})"
    if error.errno is not None:
        return os.strerror(error.errno).lower()
    # asyncio joins the failures of several addresses into one message without a number.
    return "connection refused" if "Connect call failed" in str(error) else "the network failed"


def show_url(url: str) -> str:
    """Write a URL without user, password, query and fragment, which may be secret."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "that address"
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}" if host else url.partition("?")[0]


# Frames kept in `Connection.received`: as many as the shipped client remembers ids.
KEPT_RECEIVED = 2_000


class Connection:
    """One socket at a time, each opened with ``session.start``; new events go into ``inbox``.

    ``notice`` is called with each event when it is read, before it is queued; ``on_started`` with the answer
    to ``session.start``, before any event that follows it.

    Only `open` opens a socket: retrying is the `Reconnector`'s. ``connection`` counts sockets, ``number``
    events without duplicates; ``started`` is the last ``session.started``, ``lost`` says why there is no
    socket.
    """

    def __init__(
        self,
        options: ClientOptions,
        new_id: IdGenerator,
        notice: Callable[[Received], None],
        on_started: Callable[[SessionStarted], None],
    ) -> None:
        self.inbox: asyncio.Queue[Received] = asyncio.Queue(options.limits.backlog)
        self.received: deque[Received] = deque(maxlen=KEPT_RECEIVED)
        self.connection = 0
        self.number = 0
        self.lost: ConnectionLost | None = None
        self.started: SessionStarted | None = None
        self._options = options
        self._new_id = new_id
        self._notice = notice
        self._on_started = on_started
        self._seen = SeenIds(options.limits.seen)
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
        """Whether the server sends ``event.ack`` for what it has recorded (capability ``resume``)."""
        return self.started is not None and "resume" in (self.started.capabilities or ())

    async def open(self, start: Callable[[], SessionStart], *, replace_socket: bool = True) -> SessionStarted:
        """Open a new socket, closing the present one, and start the session on it.

        ``start`` makes the ``session.start`` once the socket is open. With ``replace_socket`` False a working
        socket stays. Raises `CannotConnect`, `StartRefused`, `ConnectionLost` and `WaitTimeout`.
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
            except BaseException:  # cancellation too: leave no half-open socket
                link.abort()
                await self._retire(ConnectionLost("The session did not start."))
                raise
            if self._link is link:  # else it was lost at once, and `lost` has the reason
                self.lost = None
                self._down.clear()
            return started

    async def close(self, why: ConnectionLost) -> None:
        """Close the socket; no other can be opened."""
        self._closed = True
        await self._retire(why)

    def drop(self) -> None:
        """Cut the socket without a close frame; read nothing more from it."""
        if self._link is not None:
            if self._reader is not None:
                self._reader.cancel()
            self._link.abort()
            self._note_lost(self._link, ConnectionLost("The connection was dropped by this client."))

    async def wait_lost(self, timeout: float | None) -> ConnectionLost:
        """Wait until there is no socket, and give the reason. Raises `WaitTimeout`."""
        try:
            async with asyncio.timeout(timeout):
                await self._down.wait()
        except TimeoutError:
            raise WaitTimeout(f"The connection stood for {timeout:g} s.") from None
        return self.lost or ConnectionLost("The client has not been started.")

    async def send(self, frame: bytes) -> None:
        """Send a frame. Raises `ConnectionLost`."""
        link = self._link
        if link is None or not self.connected:
            raise ConnectionLost(str(self.lost or "There is no connection."))
        try:
            await link.send(frame)
        except ConnectionLost as lost:
            self._note_lost(link, lost)
            raise

    async def _handshake(self, link: Socket, start: Callable[[], SessionStart]) -> SessionStarted:
        self.connection += 1
        event_id = self._new_id()
        answer: asyncio.Future[SessionStarted | ClientError] = asyncio.get_running_loop().create_future()
        self._starting = event_id, answer
        # Before the start is sent: the answer may be there first.
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

    def _note_lost(self, link: Socket, lost: ConnectionLost) -> None:
        # A socket that was replaced may end after its successor is open.
        if self._link is not link:
            return
        self._link = None
        self.lost = lost
        self._down.set()
        self._answer_start(lost)

    async def _retire(self, why: ConnectionLost) -> None:
        link, reader = self._link, self._reader
        if reader is not None:
            reader.cancel()
            await asyncio.wait({reader}, timeout=self._options.limits.close_s)
            self._reader = None
        if link is not None:
            self._note_lost(link, why)
            await link.close()

    def _answer_start(self, answer: SessionStarted | ClientError) -> None:
        if self._starting is not None and not self._starting[1].done():
            self._starting[1].set_result(answer)

    async def _read(self, link: Socket, connection: int) -> None:
        # This must not wait for a handler: pings have to be answered.
        limits = self._options.limits
        try:
            while True:
                frame = await link.receive()
                received = self._take(frame, connection)
                if received is not None:
                    self._notice(received)
                    await self._deliver(received)
        except ConnectionLost as lost:
            self._note_lost(link, lost)
        except TimeoutError:
            link.abort()
            self._note_lost(link, ConnectionLost(f"The handlers took nothing for {limits.backlog_s:g} s."))
        except Exception as error:
            log.error("reader failed: %s", where(error))
            link.abort()
            self._note_lost(link, ConnectionLost("The client failed to read."))

    async def _deliver(self, received: Received) -> None:
        try:
            # While the queue is full nothing is read, so a handler that hangs would hold the connection.
            async with asyncio.timeout(self._options.limits.backlog_s):
                await self.inbox.put(received)
        except BaseException:
            self._seen.forget(received.id)  # it was not handled: a replay may bring it again
            raise

    def _take(self, frame: bytes, connection: int) -> Received | None:
        decoded = decode_frame(frame)
        if decoded is None:
            log.debug("a frame of %d bytes is no event", len(frame))
            return None
        event_id, event = decoded
        new = self._seen.add(event_id)
        self.number += new
        received = Received(event_id, event, connection, self.number, not new)
        self.received.append(received)
        if isinstance(event, SessionStarted) and self._starting and not self._starting[1].done():
            self.started = event
            self._on_started(event)
            self._answer_start(event)
        elif isinstance(event, ErrorEvent) and self._starting is not None:
            # An error without an id is about a frame that the server could not read: the start is the only
            # one sent.
            if event.event_id in (None, self._starting[0]) and not self._starting[1].done():
                self._answer_start(StartRefused(event))
                return None  # `open` raises it: listeners do not get it
        # A replayed event counts as received, but is handled once (protocol, "How the shipped client
        # behaves").
        return received if new else None
