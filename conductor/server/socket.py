"""The WebSocket library's connection, with binary messages marked and many messages in one write."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from typing import Any

from websockets.asyncio.server import ServerConnection
from websockets.frames import Frame, Opcode
from websockets.protocol import OPEN, Event

from conductor.bounds import TokenBucket
from conductor.events.codec import BINARY_MARK
from conductor.server.slices import Slices

SLICE_BYTES = 512
MAX_SLICE_BYTES = 65_536
"""How much of one connection is parsed before others have their turn; more where the frames are large."""
SLICE_FRAMES = 32
PING_LEAST = 0.75
"""The least share of the interval between two pings: clients that came at once are not pinged at once."""
MAX_UNSENT_BYTES = 1_048_576
"""The library answers each ping at once; a peer that takes so little of it does not read."""
PIECES = 32
"""After so many small reads that left a message or a frame incomplete, it is read more seldom."""
CRUMBS_S = 0.2
"""How long crumbs are left to gather: five reads a second cost little, however small the pieces are."""
MAX_CRUMBS = 256
"""So many fragments, if they are smaller than `CRUMB_BYTES` on average, make a message a shredded one."""
CRUMB_BYTES = 16
"""So much of a shredded message is parsed at once, and nothing for `CRUMBS_S` after it."""
WIRE_FRAMES_PER_SECOND = 500
WIRE_FRAMES_BURST = 4_000
"""Frames of any kind, fragments and pings too: 1 MiB in pieces of 1 KiB is a thousand of them."""


class Socket(ServerConnection):
    """One connection; ``subject`` is who was authenticated, ``client_address`` where they are, if known.

    ``message_timeout`` is how many seconds a message in fragments may take. Made by the class that
    `sharing` gives.
    """

    # Slots: with more than 30 attributes in its dict each connection would have 1.3 KB more.
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
        "client_address",
        "message_timeout",
        "subject",
    )
    _slices: Slices

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.subject = ""
        self.client_address = ""
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
        """Begin. What is not parsed yet belongs to this class, so it decides when the transport reads."""
        super().connection_made(transport)
        if self.ping_interval is not None:
            self.ping_interval *= random.uniform(PING_LEAST, 1.0)
        self.recv_messages.pause = self.transport.pause_reading
        self.recv_messages.resume = self._continue

    def data_received(self, data: bytes) -> None:
        """Take bytes, a slice at a time: whoever sends nothing but tiny frames must not hold the loop."""
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
        """Whether only crumbs come; a large frame among them is taken as any other."""
        return (
            self._advanced
            and self._fragments > MAX_CRUMBS
            and self._fragment_bytes < self._fragments * CRUMB_BYTES
        )

    def _gather(self) -> None:
        """Read and parse nothing for a while."""
        if self._gathering is None and not self.transport.is_closing():
            self.transport.pause_reading()
            self._gathering = self.loop.call_later(CRUMBS_S, self._gathered)

    def _gathered(self) -> None:
        self._gathering = None
        if not self.recv_messages.paused:
            self._continue()

    def eof_received(self) -> None:
        """Take the end of what the peer sends, after all that came before it."""
        self._parse(bytes(self._backlog))
        self._backlog.clear()
        super().eof_received()

    def _continue(self) -> None:
        """Go on with what is not parsed yet, after everybody else had a turn."""
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
        """Take one frame. A binary message is to be answered, not to close the connection."""
        if isinstance(event, Frame):
            self._frame_count += 1
            if event.opcode is Opcode.BINARY:
                event = Frame(Opcode.TEXT, BINARY_MARK + event.data, event.fin)
            if event.opcode is Opcode.TEXT or event.opcode is Opcode.CONT:
                self._watch(event.fin)
                self._fragments += 1
                self._fragment_bytes += len(event.data)
                if event.fin:
                    self._pieces = self._fragments = self._fragment_bytes = 0
        super().process_event(event)

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that it is gone."""
        self._watch(complete=True)
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        self._backlog.clear()
        super().connection_lost(exc)

    async def send_texts(self, texts: Iterable[bytes], seconds: float) -> None:
        """Send text messages in one write: ten times cheaper than a `send` each.

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
        """Give a message in fragments its time."""
        if complete and self._incomplete is not None:
            self._incomplete.cancel()
            self._incomplete = None
        elif not complete and self._incomplete is None:
            self._incomplete = self.loop.call_later(self.message_timeout, self.transport.abort)


def sharing(slices: Slices) -> type[Socket]:
    """Make the class of connections that share their parsing time: a server takes a class, no factory."""
    return type("SharingSocket", (Socket,), {"__slots__": (), "_slices": slices})
