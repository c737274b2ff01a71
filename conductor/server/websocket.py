"""The library's connection, with fair parsing, flood limits, marked binary messages and batched writes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from typing import Any

import structlog
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame as WebSocketFrame
from websockets.frames import Opcode
from websockets.protocol import OPEN, Event

from conductor.conversation.transport import Frame
from conductor.events.codec import BINARY_MARK
from conductor.rate_limit import TokenBucket
from conductor.server.access import UNKNOWN_CLIENT, Refusals
from conductor.server.admission import Slices
from conductor.settings import Limits

log = structlog.get_logger(__name__)


# Bytes of one connection that are parsed before other connections run, least and most. The slice shrinks
# while it holds more than SLICE_FRAMES frames, since tiny frames cost most, and grows otherwise.
SLICE_BYTES = 512
MAX_SLICE_BYTES = 65_536
SLICE_FRAMES = 32
# Least share of the ping interval, chosen at random: clients that connect together are pinged apart.
PING_LEAST = 0.75
# Unsent bytes of pongs and events at which a peer that does not read is cut.
MAX_UNSENT_BYTES = 1_048_576
# Bytes of a frame after which reading pauses until it is handled: else 16 frames of 1 MiB would wait.
LARGE_BYTES = 16_384
# Smaller frames that may wait for the reader.
MAX_WAITING = 16
# Reads in a row with an incomplete message before the connection is read only every CRUMBS_S seconds.
PIECES = 32
CRUMBS_S = 0.2
# A message is a fragment flood from this number of fragments on, if they average below CRUMB_BYTES bytes:
# then that many bytes are parsed every CRUMBS_S.
MAX_CRUMBS = 256
CRUMB_BYTES = 16
# Frames of any kind a connection may send, with fragments and pings: 1 MiB in pieces of 1 KiB is 1,000.
WIRE_FRAMES_PER_SECOND = 500
WIRE_FRAMES_BURST = 4_000


class Socket(ServerConnection):
    """One connection; ``client`` is the admitted client.

    ``message_timeout`` is the time limit of a fragmented message in seconds. Instances are made from the
    class that `sharing` returns.
    """

    # Slots: more than 30 attributes in its dict would cost each connection 1.3 KB.
    __slots__ = (
        "_advanced",
        "_backlog",
        "_feeding",
        "_fragment_bytes",
        "_fragments",
        "_frame_count",
        "_frames",
        "_gathering",
        "_incomplete",
        "_pieces",
        "_slice",
        "client",
        "message_timeout",
    )
    _slices: Slices
    _handshakes: Handshakes

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.client = UNKNOWN_CLIENT
        self.message_timeout = 30.0
        self._advanced = True
        self._backlog = bytearray()
        self._frames: TokenBucket | None = None
        self._frame_count = 0
        self._slice = SLICE_BYTES
        self._feeding = False
        self._incomplete: asyncio.TimerHandle | None = None
        self._pieces = 0
        self._fragments = 0
        self._fragment_bytes = 0
        self._gathering: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start. This class holds the unparsed bytes, so it decides when the transport reads."""
        super().connection_made(transport)
        self._handshakes.add(self)
        if self.ping_interval is not None:
            self.ping_interval *= random.uniform(PING_LEAST, 1.0)
        self.recv_messages.pause = self.transport.pause_reading
        self.recv_messages.resume = self._continue

    def data_received(self, data: bytes) -> None:
        """Parse bytes a slice at a time: a client that sends only tiny frames must not block the loop."""
        if not self._backlog and len(data) <= SLICE_BYTES and not self._is_shredded:
            self._parse(data)
            if self._incomplete is not None or self.protocol.reader.buffer:
                self._pieces += 1
                if self._pieces > PIECES:
                    self._gather()
            return
        self._backlog += data
        self.transport.pause_reading()
        self._continue()

    @property
    def _is_shredded(self) -> bool:
        return (
            self._advanced
            and self._fragments > MAX_CRUMBS
            and self._fragment_bytes < self._fragments * CRUMB_BYTES
        )

    def _gather(self) -> None:
        if self._gathering is None and not self.transport.is_closing():
            self.transport.pause_reading()
            self._gathering = self.loop.call_later(CRUMBS_S, self._gathered)

    def _gathered(self) -> None:
        self._gathering = None
        if not self.recv_messages.paused:
            self._continue()

    def eof_received(self) -> None:
        """Parse what is left, then handle the end of the stream."""
        self._parse(bytes(self._backlog))
        self._backlog.clear()
        super().eof_received()

    def _continue(self) -> None:
        if self._gathering is not None:
            return
        if self._backlog:
            if not self._feeding:
                self._feeding = True
                self._slices.add(self._feed)
        elif not self.transport.is_closing():
            self.transport.resume_reading()

    def _feed(self) -> None:
        self._feeding = False
        if self.transport.is_closing() or self.recv_messages.paused:
            return
        before, shredded = self._frame_count, self._is_shredded
        size = CRUMB_BYTES if shredded else self._slice
        data = bytes(self._backlog[:size])
        del self._backlog[:size]
        self._parse(data)
        frames = self._frame_count - before
        self._advanced = frames > 0
        if self._is_shredded:
            self._gather()
        elif frames > SLICE_FRAMES:
            self._slice = max(self._slice // 2, SLICE_BYTES)
        elif not shredded:
            self._slice = min(self._slice * 2, MAX_SLICE_BYTES)
        if not self.recv_messages.paused:
            self._continue()

    def _parse(self, data: bytes) -> None:
        if self.transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self.transport.abort()
        elif not self.transport.is_closing():
            before = self._frame_count
            super().data_received(data)
            if self._is_over_rate(self._frame_count - before):
                self.transport.abort()

    def process_event(self, event: Event) -> None:
        """Take one frame. A binary message is marked: an error event answers it instead of a close."""
        if isinstance(event, WebSocketFrame):
            self._frame_count += 1
            if event.opcode is Opcode.BINARY:
                event = WebSocketFrame(Opcode.TEXT, BINARY_MARK + event.data, event.fin)
            if event.opcode is Opcode.TEXT or event.opcode is Opcode.CONT:
                queue = self.recv_messages
                queue.high, queue.low = (
                    (0, 0) if len(event.data) > LARGE_BYTES else (MAX_WAITING, MAX_WAITING // 4)
                )
                self._watch(event.fin)
                self._fragments += 1
                self._fragment_bytes += len(event.data)
                if event.fin:
                    self._pieces = self._fragments = self._fragment_bytes = 0
        super().process_event(event)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers, and drop the unparsed bytes."""
        self._handshakes.discard(self)
        self._watch(complete=True)
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        self._backlog.clear()
        super().connection_lost(exc)

    async def send_texts(self, texts: Iterable[bytes], seconds: float) -> None:
        """Send text messages in one write, ten times cheaper than a `send` each.

        Raises TimeoutError if the peer does not make room within ``seconds``, and `ConnectionClosed`.
        """
        if self.protocol.state is not OPEN:
            await asyncio.shield(self.connection_lost_waiter)
            raise self.close_exc
        for text in texts:
            self.protocol.send_text(text)
        self.transport.write(b"".join(self.protocol.data_to_send()))
        if self.paused:
            async with asyncio.timeout(seconds):
                await self.drain()

    def _is_over_rate(self, frames: int) -> bool:
        now = self.loop.time()
        if self._frames is None:
            self._frames = TokenBucket(WIRE_FRAMES_PER_SECOND, WIRE_FRAMES_BURST, now)
        return frames > WIRE_FRAMES_BURST or self._frames.take(now, frames) > 0

    def _watch(self, complete: bool) -> None:
        if complete and self._incomplete is not None:
            self._incomplete.cancel()
            self._incomplete = None
        elif not complete and self._incomplete is None:
            self._incomplete = self.loop.call_later(self.message_timeout, self.transport.abort)


class Handshakes:
    """The connections with an incomplete handshake: over ``most`` of them the oldest is cut.

    A connection whose descriptor is not below ``descriptors`` is cut, too: the process is about to run out.
    """

    def __init__(self, most: int, descriptors: int, refusals: Refusals) -> None:
        self._most = most
        self._descriptors = descriptors
        self._refusals = refusals
        self._sockets: dict[Socket, None] = {}

    def __len__(self) -> int:
        return len(self._sockets)

    def add(self, socket: Socket) -> None:
        """Count a new connection."""
        self._sockets[socket] = None
        if socket.transport.get_extra_info("socket").fileno() >= self._descriptors:
            self._cut(socket, "out of file descriptors (ulimit -n)")
        elif len(self._sockets) > self._most:
            self._cut(next(iter(self._sockets)), "too many handshakes")

    def discard(self, socket: Socket) -> None:
        """Stop counting a connection: its handshake is complete, or it closed."""
        self._sockets.pop(socket, None)

    def _cut(self, socket: Socket, reason: str) -> None:
        self.discard(socket)
        peer = socket.remote_address
        self._refusals.count(reason, peer[0] if peer else "")
        socket.transport.abort()


def sharing(slices: Slices, handshakes: Handshakes) -> type[Socket]:
    """Make the class of connections that share these: a server takes a class, no factory."""
    members = {"__slots__": (), "_slices": slices, "_handshakes": handshakes}
    return type("SharingSocket", (Socket,), members)


# Seconds a client may take to answer the ping that precedes a takeover of its session.
ALIVE_S = 3.0
# Frames, and their bytes, that may be read while that pong is awaited.
READ_AHEAD = 64
READ_AHEAD_BYTES = 262_144


class Incoming:
    """Reads one socket; first what was read ahead while a pong was awaited."""

    def __init__(self, socket: Socket) -> None:
        self._socket = socket
        self._ahead: list[bytes] = []  # a list: an empty deque takes 600 bytes
        self._ahead_bytes = 0
        self._reading = asyncio.Lock()

    async def next(self) -> bytes:
        """Return the next frame. Raises `ConnectionClosed`."""
        async with self._reading:
            if not self._ahead:
                return await self._socket.recv(decode=False)
            frame = self._ahead.pop(0)
            self._ahead_bytes -= len(frame)
            return frame

    async def is_alive(self) -> bool:
        """Tell whether the client answers a ping.

        Events of a client that has gone to another process may be read late; they must not take the session
        back from there.
        """
        try:
            async with asyncio.timeout(ALIVE_S):
                pong = asyncio.ensure_future(await self._socket.ping())
                while not pong.done() and self._may_read_ahead:
                    await self._read_ahead(pong)
                await pong
        except (TimeoutError, ConnectionClosed):
            return False
        return True

    @property
    def _may_read_ahead(self) -> bool:
        return len(self._ahead) < READ_AHEAD and self._ahead_bytes < READ_AHEAD_BYTES

    async def _read_ahead(self, pong: asyncio.Future[float]) -> None:
        frame = asyncio.ensure_future(self._keep_next())
        try:
            waits: set[asyncio.Future[Any]] = {pong, frame}
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            frame.cancel()
            await asyncio.wait([frame])
            if not frame.cancelled():
                frame.exception()  # the pong raises the same if the connection closed

    async def _keep_next(self) -> None:
        async with self._reading:
            data = await self._socket.recv(decode=False)
            self._ahead.append(data)
            self._ahead_bytes += len(data)


# Frames in one write; more would only delay the last of them.
MAX_BATCH = 64


class Writer:
    """Writes queued frames while ``may_write`` is set. ``session_id`` is for the log."""

    def __init__(self, socket: Socket, limits: Limits, may_write: asyncio.Event, session_id: str) -> None:
        self.session_id = session_id
        self._socket = socket
        self._limits = limits
        self._may_write = may_write
        self._queue: list[Frame] = []  # a list: an empty deque takes 600 bytes
        self._wake = asyncio.Event()
        self._close: tuple[int, str] | None = None
        self._cut = False

    @property
    def closing(self) -> bool:
        return self._close is not None

    def send(self, frame: Frame) -> None:
        """Queue a frame; a partial replaces a queued partial. A full queue aborts the connection."""
        queue = self._queue
        if self._cut:
            return
        if frame.partial and queue and queue[-1].partial:
            queue[-1] = frame
        elif len(queue) >= self._limits.max_send_queue:
            self.abort("send queue full")
        else:
            queue.append(frame)
        self._wake.set()

    def drop_partials(self) -> None:
        """Drop the queued partials."""
        for frame in self._queue:
            if frame.partial:
                frame.withdrawn = True

    def clear(self) -> None:
        """Drop all queued frames."""
        self._queue.clear()

    def close(self, code: int, reason: str) -> None:
        """Close, after the queued frames are written."""
        self._close = (code, reason)
        self._wake.set()

    def abort(self, why: str) -> None:
        """Abort the connection; the session survives."""
        log.warning("connection cut", why=why, session=self.session_id)
        self._cut = True
        self._queue.clear()
        self._socket.transport.abort()

    async def run(self) -> None:
        """Write until the connection ends; abort a peer that does not read within SEND_TIMEOUT."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                await self._write_queue()
                if self._close is not None:
                    await self._socket.close(*self._close)
                    return
        except TimeoutError:
            self.abort("peer does not read")
        except ConnectionClosed:
            pass

    async def _write_queue(self) -> None:
        queue = self._queue
        while queue:
            await self._may_write.wait()
            frames = [frame for frame in queue[:MAX_BATCH] if not frame.withdrawn]
            del queue[:MAX_BATCH]
            for frame in frames:
                frame.written = True
            await self._socket.send_texts([frame.data for frame in frames], self._limits.send_timeout)
