"""Connections of a voice app (`tests.app`): a WebSocket, and a pipe to a session of the same process."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol, Self, cast

from websockets.client import ClientProtocol
from websockets.frames import Frame as SocketFrame
from websockets.frames import Opcode
from websockets.protocol import State
from websockets.uri import parse_uri

from conductor.events.codec import Inbound, decode_event
from conductor.session.inbound import handle

if TYPE_CHECKING:  # the load's processes start faster without a session's modules
    from conductor.session.session import Session
    from conductor.session.transport import Frame

CLOSE_S = 60.0
HANDSHAKE_S = 60.0

Receive = Callable[[bytes], None]
"""Takes a frame of the server."""


class Link(Protocol):
    """A connection as the app sees it. Frames of the server go to the function that it was made with."""

    closed: asyncio.Event
    close_code: int | None

    def write(self, data: bytes) -> None:
        """Send a frame; once closed, the frame is lost."""
        ...

    def cut(self) -> None:
        """Lose the connection, and the frames on their way."""
        ...

    async def drained(self) -> None:
        """Wait until the server takes frames."""
        ...

    async def hang_up(self) -> None:
        """Close the connection in good order."""
        ...


class WebSocket(asyncio.Protocol):
    """A WebSocket without compression. `websockets` reads and writes the frames; nothing is queued here."""

    transport: asyncio.Transport
    protocol: ClientProtocol

    def __init__(self, receive: Receive) -> None:
        self.receive = receive
        self.closed = asyncio.Event()
        self.close_code: int | None = None
        self.close_s = CLOSE_S
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pong = asyncio.Event()
        self._fragments = bytearray()
        self._writable = asyncio.Event()
        self._writable.set()

    async def open(
        self, url: str, headers: Mapping[str, str] | None = None, sock: socket.socket | None = None
    ) -> Self:
        """Connect. Raises OSError, or `InvalidStatus` where the server refuses the upgrade."""
        uri = parse_uri(url)
        self.protocol = ClientProtocol(uri, max_size=None)
        request = self.protocol.connect()
        request.headers.update(headers or {})
        self.protocol.send_request(request)
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(HANDSHAKE_S):
            if sock is None:
                transport, _ = await loop.create_connection(lambda: self, uri.host, uri.port)
            else:
                transport, _ = await loop.create_connection(lambda: self, sock=sock)
            try:
                await self._opened
            except BaseException:
                transport.abort()
                raise
        return self

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.flush()

    def data_received(self, data: bytes) -> None:
        self.protocol.receive_data(data)
        for event in self.protocol.events_received():
            if isinstance(event, SocketFrame):
                self._take(event)
        self.flush()
        if not self._opened.done() and self.protocol.state is State.OPEN:
            self._opened.set_result(None)

    def _take(self, frame: SocketFrame) -> None:
        if frame.opcode is Opcode.PONG:
            self._pong.set()
        elif frame.opcode in (Opcode.TEXT, Opcode.CONT):
            self._fragments += frame.data
            if frame.fin:
                message, self._fragments = bytes(self._fragments), bytearray()
                self.receive(message)

    def eof_received(self) -> None:
        self.protocol.receive_eof()

    def connection_lost(self, exc: Exception | None) -> None:
        self.protocol.receive_eof()
        self.close_code = self.protocol.close_code
        self.closed.set()
        self._pong.set()
        self._writable.set()
        if not self._opened.done():
            self._opened.set_exception(self.protocol.handshake_exc or ConnectionError("no handshake"))

    def flush(self) -> None:
        """Send the frames that the protocol has ready."""
        for data in self.protocol.data_to_send():
            if data and not self.transport.is_closing():
                self.transport.write(data)

    def write(self, data: bytes, *, binary: bool = False) -> None:
        if self.protocol.state is State.OPEN:
            (self.protocol.send_binary if binary else self.protocol.send_text)(data)
            self.flush()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    async def drained(self) -> None:
        """Wait while the server does not read."""
        await asyncio.sleep(0)
        await self._writable.wait()

    async def ping(self) -> None:
        """Wait until the server has answered a ping, and so has read all before it."""
        self._pong.clear()
        if self.protocol.state is State.OPEN:
            self.protocol.send_ping(b"")
            self.flush()
            await asyncio.wait_for(self._pong.wait(), HANDSHAKE_S)

    def cut(self) -> None:
        self.transport.abort()

    async def hang_up(self) -> None:
        if self.protocol.state is State.OPEN:
            self.protocol.send_close(1000)
            self.flush()
        try:
            await asyncio.wait_for(self.closed.wait(), self.close_s)
        except TimeoutError:
            self.cut()
            await self.closed.wait()


class Pipe:
    """A connection to a session of this process; the session takes one event at a time, as from a socket.

    To the session it is a `conductor.session.transport.Transport`. A ``slow`` pipe keeps the session's
    frames until `flush`.
    """

    resumes = False
    segments = False
    is_forwarded = False

    def __init__(self, receive: Receive, session: Session, *, slow: bool = False) -> None:
        self.receive = receive
        self.session = session
        self.slow = slow
        self.queue: deque[Frame] = deque()
        self.parked = False
        self.closed = asyncio.Event()
        self.close_code: int | None = None
        self._outgoing: asyncio.Queue[bytes] = asyncio.Queue()
        self._reader = asyncio.create_task(self._read())

    # -- the session's side

    def send(self, frame: Frame) -> None:
        if self.closed.is_set():
            return
        if frame.partial and self.queue and self.queue[-1].partial:
            self.queue.pop()
        self.queue.append(frame)
        if not self.slow:
            self.flush()

    def drop_partials(self) -> None:
        for frame in self.queue:
            frame.withdrawn = frame.withdrawn or frame.partial

    def suspend(self) -> None:
        self.parked = True
        self.queue.clear()

    def close(self, code: int, reason: str) -> None:
        raise AssertionError("a session closes no connection by itself")

    def ownership_lost(self, *, stale: bool) -> None:
        """Do nothing: only the session's frames count here."""

    # -- the app's side

    def flush(self, number: int | None = None) -> None:
        """Hand the session's frames, or the first ``number`` of them, to the app."""
        while self.queue and (number is None or number > 0):
            frame = self.queue.popleft()
            if frame.withdrawn:
                continue
            assert not self.parked, "a parked connection is silent"
            frame.is_written = True
            self.receive(frame.data)
            number = None if number is None else number - 1

    def write(self, data: bytes) -> None:
        self._outgoing.put_nowait(data)

    async def drained(self) -> None:
        """Wait until the session has taken everything that was sent."""
        await self._outgoing.join()

    def cut(self) -> None:
        if not self.closed.is_set():
            self.closed.set()
            self.queue.clear()
            self.write(b"")  # wakes the reader
            self.session.clients.detach(self)

    async def hang_up(self) -> None:
        self.cut()

    async def _read(self) -> None:
        while not self.closed.is_set():
            data = await self._outgoing.get()
            try:
                if not self.closed.is_set():
                    await self.deliver(decode_event(data))
            finally:
                self._outgoing.task_done()

    async def deliver(self, inbound: Inbound) -> None:
        """Give an event to the session."""
        await handle(self.session, inbound, self)
