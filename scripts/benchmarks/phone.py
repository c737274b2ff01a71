"""A voice app that costs the load generator as little as possible: its own WebSocket framing, no queues.

It behaves as the shipped app does: one event after the other, each call answered before the next is read.
"""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Callable
from typing import cast

import msgspec

TIMESTAMP = "2026-03-01T12:00:00.000Z"


class Frames(asyncio.Protocol):
    """A WebSocket client, down to the bytes; its masks are zero, which costs nothing and is valid."""

    def __init__(self) -> None:
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.closed = False
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None

    async def connect(self, host: str, port: int, path: str = "/ws") -> None:
        """Connect and upgrade; raises ConnectionError if that is refused."""
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: self, host, port)
        key = base64.b64encode(os.urandom(16)).decode()
        lines = [
            f"GET {path} HTTP/1.1",
            f"Host: {host}:{port}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {key}",
            "Sec-WebSocket-Version: 13",
        ]
        self.write("\r\n".join([*lines, "", ""]).encode())
        async with asyncio.timeout(30):
            await self.opened

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that it is gone."""
        self.closed = True
        if not self.opened.done():
            self.opened.set_exception(ConnectionError("closed during the handshake"))

    def data_received(self, data: bytes) -> None:
        """Read the answer to the upgrade, then frames."""
        self._buffer += data
        if not self.opened.done():
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            if not self._buffer.startswith(b"HTTP/1.1 101"):
                self.opened.set_exception(ConnectionError(bytes(self._buffer[:64]).decode("latin-1")))
                return
            del self._buffer[: end + 4]
            self.opened.set_result(None)
        self._read_frames()

    def _read_frames(self) -> None:
        buffer, start = self._buffer, 0
        while len(buffer) - start >= 2:
            size, head = buffer[start + 1] & 0x7F, 2
            if size == 126:
                if len(buffer) - start < 4:
                    break
                size, head = int.from_bytes(buffer[start + 2 : start + 4], "big"), 4
            elif size == 127:
                if len(buffer) - start < 10:
                    break
                size, head = int.from_bytes(buffer[start + 2 : start + 10], "big"), 10
            if len(buffer) - start < head + size:
                break
            opcode = buffer[start] & 0x0F
            payload = bytes(buffer[start + head : start + head + size])
            start += head + size
            if opcode == 1:
                self.text(payload)
            elif opcode == 9:
                self.send(payload, opcode=0x8A)
            elif opcode == 8:
                self.abort()
        del buffer[:start]

    def text(self, data: bytes) -> None:
        """Take a text message."""

    def send(self, data: bytes, opcode: int = 0x81) -> None:
        """Send one message."""
        size = len(data)
        if size < 126:
            head = bytes((opcode, 0x80 | size))
        elif size < 65536:
            head = bytes((opcode, 0xFE)) + size.to_bytes(2, "big")
        else:
            head = bytes((opcode, 0xFF)) + size.to_bytes(8, "big")
        self.write(head + b"\0\0\0\0" + data)

    def write(self, data: bytes) -> None:
        """Write bytes as they are."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def abort(self) -> None:
        """Cut the connection."""
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """Read no more."""
        assert self._transport is not None
        self._transport.pause_reading()


class _Payload(msgspec.Struct, rename="camel"):
    call_id: str = ""
    name: str = ""
    arguments: str = ""


class _Event(msgspec.Struct):
    type: str
    payload: _Payload


_decode = msgspec.json.Decoder(_Event).decode


class Phone(Frames):
    """Answers every call at once and tells of what happens by its callbacks.

    ``on_partial`` and ``on_error`` are called with the phone, ``on_idle`` when the microphone opens,
    ``on_result`` just before the result of a device tool is sent.
    """

    def __init__(self, session_id: str) -> None:
        super().__init__()
        self.session_id = session_id
        self.on_partial: Callable[[Phone], None] = _nothing
        self.on_idle: Callable[[Phone], None] = _nothing
        self.on_error: Callable[[Phone], None] = _nothing
        self.on_result: Callable[[Phone], None] = _nothing
        self.said_at = 0.0
        self.partials = 0
        self._number = 0

    def event(self, event_type: str, payload: str) -> None:
        """Send an event; ``payload`` is JSON text."""
        self._number += 1
        self.send(
            f'{{"id":"{self.session_id}-{self._number}","type":"{event_type}","timestamp":"{TIMESTAMP}",'
            f'"sessionId":"{self.session_id}","protocolVersion":1,"payload":{payload}}}'.encode()
        )

    def start(self) -> None:
        """Start or resume the session."""
        self.event("session.start", f'{{"sessionId":"{self.session_id}"}}')

    def say(self, text: str) -> None:
        """Send a final transcript."""
        self.said_at = asyncio.get_running_loop().time()
        self.partials = 0
        self.event("user.audio.transcript.final", f'{{"text":"{text}"}}')

    def interrupt(self) -> None:
        """Barge in."""
        self.event("audio.output.interrupted", '{"reason":"user"}')

    def text(self, data: bytes) -> None:
        """Take an event."""
        if b'"assistant.speech.partial"' in data[:160]:
            self.partials += 1
            self.on_partial(self)
            return
        event = _decode(data)
        if event.type == "tool.call":
            call = event.payload
            ui = call.name.startswith(("convo.", "tts."))
            if not ui:
                self.on_result(self)
            self.event("tool.result", f'{{"callId":"{call.call_id}","result":"{{}}","error":null}}')
            if ui and call.arguments == '{"state":"idle"}':
                self.on_idle(self)
        elif event.type == "error":
            self.on_error(self)


def _nothing(_: Phone) -> None:
    pass
