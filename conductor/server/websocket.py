"""The WebSocket library's connection with limits, marked binary messages and batched writes; event rates."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from math import inf
from typing import Any

import structlog
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame as WebSocketFrame
from websockets.frames import Opcode
from websockets.protocol import OPEN, Event

from conductor.events.codec import BINARY_MARK
from conductor.rate_limit import TokenBucket
from conductor.server.access import UNKNOWN_CLIENT
from conductor.server.refusals import Refusals
from conductor.session.inbound import InboundResult
from conductor.session.transport import Frame
from conductor.settings import Limits

log = structlog.get_logger(__name__)


# Bytes that are parsed before the limits are checked: at most 700 frames.
SLICE_BYTES = 4_096
# Least share of the ping interval. The share is random, so that clients are not pinged at the same time.
PING_SPREAD = 0.75
# Events, and their bytes, that are read while a pong is awaited.
READ_AHEAD = 64
READ_AHEAD_BYTES = 262_144
# Events in one write; more would only delay the last of them.
MAX_WRITE = 64


# Bytes of an event per additional token, for the time to parse them.
BYTES_PER_TOKEN = 20_480
# Tokens of a refused transcript, which costs two events and a commit, and of an invalid frame.
REFUSED_COST = 20.0


class Socket(ServerConnection):
    """One connection; ``client`` is the admitted client.

    It is cut if its peer exceeds the rate of frames, including pings, does not read pongs, or does not
    complete a message in time.
    """

    # Slots: more than 30 attributes in its dict would cost each connection 1.3 KB.
    __slots__ = ("_ahead", "_frames", "_handshakes", "_incomplete", "_limits", "_reading", "client")

    def __init__(self, *args: Any, limits: Limits, handshakes: Handshakes, **options: Any) -> None:
        super().__init__(*args, **options)
        self.client = UNKNOWN_CLIENT
        self._limits = limits
        self._handshakes = handshakes
        self._frames = TokenBucket(limits.wire_frames_per_second, limits.wire_frames_burst, self.loop.time())
        self._incomplete: asyncio.TimerHandle | None = None
        self._ahead: list[bytes] = []  # a list: an empty deque takes 600 bytes
        self._reading = asyncio.Lock()
        if self.ping_interval is not None:
            self.ping_interval *= random.uniform(PING_SPREAD, 1.0)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start, and count the handshake."""
        super().connection_made(transport)
        self._handshakes.add(self.transport)

    def data_received(self, data: bytes) -> None:
        """Parse bytes, a slice at a time."""
        for start in range(0, len(data), SLICE_BYTES):
            if self.transport.is_closing():
                return
            super().data_received(data[start : start + SLICE_BYTES])
            if self.transport.get_write_buffer_size() > self._limits.max_unsent_bytes:
                self.transport.abort()

    def process_event(self, event: Event) -> None:
        """Return one frame. A binary message is marked: an error event answers it instead of a close."""
        if isinstance(event, WebSocketFrame):
            if self._frames.take(self.loop.time()):
                self.transport.abort()
                return
            if event.opcode is Opcode.BINARY:
                event = WebSocketFrame(Opcode.TEXT, BINARY_MARK + event.data, event.fin)
            if event.opcode is Opcode.TEXT or event.opcode is Opcode.CONT:
                self._watch(event.fin)
        super().process_event(event)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop counting the handshake and the time of a message."""
        self._handshakes.discard(self.transport)
        self._watch(complete=True)
        super().connection_lost(exc)
        if (error := self.protocol.parser_exc) is not None:
            error.__traceback__ = None  # it holds the protocol, in a cycle

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

    async def next_message(self) -> bytes:
        """Return the next message; first those read while a pong was awaited. Raises `ConnectionClosed`."""
        async with self._reading:
            return self._ahead.pop(0) if self._ahead else await self.recv(decode=False)

    async def is_alive(self) -> bool:
        """Return whether the client answers a ping.

        Late events of a client that has moved to another process must not take its session back.
        """
        try:
            async with asyncio.timeout(self._limits.alive_timeout):
                pong = asyncio.ensure_future(await self.ping())
                while not pong.done() and len(self._ahead) < READ_AHEAD:
                    if sum(map(len, self._ahead)) >= READ_AHEAD_BYTES:
                        break
                    await self._read_ahead(pong)
                await pong
        except (TimeoutError, ConnectionClosed):
            return False
        return True

    async def _read_ahead(self, pong: asyncio.Future[float]) -> None:
        message = asyncio.ensure_future(self._keep_next())
        try:
            waits: set[asyncio.Future[Any]] = {pong, message}
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            message.cancel()
            await asyncio.wait([message])
            if not message.cancelled():
                message.exception()  # the pong raises the same if the connection closed

    async def _keep_next(self) -> None:
        async with self._reading:
            self._ahead.append(await self.recv(decode=False))

    def _watch(self, complete: bool) -> None:
        if complete and self._incomplete is not None:
            self._incomplete.cancel()
            self._incomplete = None
        elif not complete and self._incomplete is None:
            self._incomplete = self.loop.call_later(self._limits.message_timeout, self.transport.abort)


class Handshakes:
    """The transports with an incomplete handshake; over ``most`` of them the oldest is cut.

    A transport whose descriptor is not below ``descriptors`` is cut, too.
    """

    def __init__(self, most: int, descriptors: int, refusals: Refusals) -> None:
        self._most = most
        self._descriptors = descriptors
        self._refusals = refusals
        self._transports: dict[asyncio.Transport, None] = {}

    def add(self, transport: asyncio.Transport) -> None:
        """Count a new connection."""
        self._transports[transport] = None
        if transport.get_extra_info("socket").fileno() >= self._descriptors:
            self._cut(transport, "out of file descriptors (ulimit -n)")
        elif len(self._transports) > self._most:
            self._cut(next(iter(self._transports)), "too many handshakes")

    def discard(self, transport: asyncio.Transport) -> bool:
        """Stop counting a connection: it is admitted, or closed. Tells whether it was counted."""
        was_counted = transport in self._transports
        self._transports.pop(transport, None)
        return was_counted

    def _cut(self, transport: asyncio.Transport, reason: str) -> None:
        self.discard(transport)
        peer = transport.get_extra_info("peername")
        self._refusals.count(reason, peer[0] if peer else "")
        transport.abort()


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

    def suspend(self) -> None:
        """Drop all queued frames."""
        self._queue.clear()

    def close(self, code: int, reason: str) -> None:
        """Close, after the queued frames are written."""
        self._close = (code, reason)
        self._wake.set()

    def abort(self, reason: str) -> None:
        """Abort the connection; the session survives."""
        log.warning("connection cut", reason=reason, session=self.session_id)
        self._cut = True
        self._queue.clear()
        self._socket.transport.abort()

    async def write(self) -> None:
        """Write until the connection ends; abort a peer that does not read within ``send_timeout``."""
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
            frames = [frame for frame in queue[:MAX_WRITE] if not frame.withdrawn]
            del queue[:MAX_WRITE]
            for frame in frames:
                frame.is_written = True
            await self._socket.send_texts([frame.data for frame in frames], self._limits.send_timeout)


class EventRate(TokenBucket):
    """Limits the events of one connection; ``on_flood`` gets the seconds to wait, once per flood."""

    def __init__(self, limits: Limits, on_flood: Callable[[float], None]) -> None:
        super().__init__(limits.frames_per_second, limits.frames_burst, asyncio.get_running_loop().time())
        self._limits = limits
        self._on_flood = on_flood
        self._flooding_since = self._waited_until = -inf
        self._is_admitted = False

    async def admit(self, size: int) -> bool:
        """Wait until an event of ``size`` bytes is allowed; False after ``flood_timeout`` of flooding."""
        is_admitted, self._is_admitted = self._is_admitted, False
        if is_admitted and size <= self._limits.max_event_bytes:
            return True
        now, cost = asyncio.get_running_loop().time(), 1 + size // BYTES_PER_TOKEN
        is_flooding = now - self._waited_until <= self._limits.flood_pause
        wait = self.reserve(now, cost * self._limits.flood_cost if is_flooding else cost)
        if not wait:
            if self.deficit(now) > self._limits.frames_in_a_row:
                await asyncio.sleep(0)  # other connections run between two events of a burst
            return True
        if not is_flooding:
            self._flooding_since = now
            self._on_flood(wait)
        elif now - self._flooding_since > self._limits.flood_timeout:
            return False
        self._waited_until = now + wait  # before the pause: several may wait at once
        await asyncio.sleep(wait)
        return True

    def settle(self, result: InboundResult) -> None:
        """Admit an event that the server requested; charge a refused one for its answer."""
        self._is_admitted = result is InboundResult.EXPECTED
        if result in (InboundResult.REFUSED, InboundResult.COSTLY):
            self.refuse()

    def refuse(self) -> None:
        """Charge an event that was refused."""
        self.reserve(asyncio.get_running_loop().time(), REFUSED_COST)
