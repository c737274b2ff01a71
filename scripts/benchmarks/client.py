"""The load's WebSocket client: its own framing and no queues, so that it costs as little as possible."""

from __future__ import annotations

import asyncio
import base64
import os
import socket
from collections.abc import Callable
from typing import cast

import msgspec

TIMESTAMP = "2026-03-01T12:00:00.000Z"
TEXT, CONTINUATION, PING, PONG, FIN = 0x1, 0x0, 0x9, 0xA, 0x80


def frame(data: bytes, head: int = FIN | TEXT) -> bytes:
    """Write a WebSocket frame. Its mask is zero, which costs nothing and is valid."""
    size = len(data)
    if size < 126:
        start = bytes((head, 0x80 | size))
    elif size < 65_536:
        start = bytes((head, 0xFE)) + size.to_bytes(2, "big")
    else:
        start = bytes((head, 0xFF)) + size.to_bytes(8, "big")
    return start + b"\0\0\0\0" + data


class Frames(asyncio.Protocol):
    """A WebSocket client, down to the bytes."""

    def __init__(self) -> None:
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.closed = False
        self.transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._writable = asyncio.Event()
        self._writable.set()

    async def connect(
        self, host: str, port: int, path: str = "/ws", *, receive_buffer: int | None = None
    ) -> None:
        """Connect and upgrade; raises OSError if that is refused."""
        raw = socket.socket()
        if receive_buffer is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        raw.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_connect(raw, (host, port))
            await loop.create_connection(lambda: self, sock=raw)
        except BaseException:
            raw.close()
            raise
        key = base64.b64encode(os.urandom(16)).decode()
        self.write(
            f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        async with asyncio.timeout(30):
            await self.opened

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._writable.set()
        if not self.opened.done():
            self.opened.set_exception(ConnectionError("closed during the handshake"))

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
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
            if size >= 126:
                head = 4 if size == 126 else 10
                size = int.from_bytes(buffer[start + 2 : start + head], "big")
            if len(buffer) - start < head + size:
                break
            opcode = buffer[start] & 0x0F
            payload = bytes(buffer[start + head : start + head + size])
            start += head + size
            if opcode == 1:
                self.text(payload)
            elif opcode == PING:
                self.write(frame(payload, FIN | PONG))
            elif opcode == 8:
                self.abort()
        del buffer[:start]

    def text(self, data: bytes) -> None:
        """Take a text message."""

    def send(self, data: bytes) -> None:
        self.write(frame(data))

    def write(self, data: bytes) -> None:
        """Write bytes as they are, unless the connection is closing."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    async def drain(self) -> None:
        """Wait for as long as the server takes nothing. Raises ConnectionError once it has closed."""
        await self._writable.wait()
        await asyncio.sleep(0)
        if self.closed:
            raise ConnectionError("closed")

    def abort(self) -> None:
        """Cut the connection."""
        if self.transport is not None:
            self.transport.abort()


class _Payload(msgspec.Struct, rename="camel"):
    call_id: str = ""
    name: str = ""
    arguments: str = ""


class _Event(msgspec.Struct):
    type: str
    payload: _Payload


_decode = msgspec.json.Decoder(_Event).decode


class Phone(Frames):
    """Behaves as the shipped app does: one event after the other, each call answered before the next is read.

    ``on_partial`` and ``on_error`` are called with the phone, ``on_idle`` when the microphone opens,
    ``on_result`` just before the result of a device tool is sent, ``on_speech`` when something is to be said.
    """

    def __init__(self, session_id: str) -> None:
        super().__init__()
        self.session_id = session_id
        self.on_partial: Callable[[Phone], None] = _nothing
        self.on_idle: Callable[[Phone], None] = _nothing
        self.on_error: Callable[[Phone], None] = _nothing
        self.on_result: Callable[[Phone], None] = _nothing
        self.on_speech: Callable[[Phone], None] = _nothing
        self.said_at = 0.0
        self.partials = 0
        self._number = 0

    def encoded(self, event_type: str, payload: str) -> bytes:
        """Write an event; ``payload`` is JSON text."""
        self._number += 1
        return (
            f'{{"id":"{self.session_id}-{self._number}","type":"{event_type}","timestamp":"{TIMESTAMP}",'
            f'"sessionId":"{self.session_id}","protocolVersion":1,"payload":{payload}}}'.encode()
        )

    def event(self, event_type: str, payload: str) -> None:
        """Send an event; ``payload`` is JSON text."""
        self.send(self.encoded(event_type, payload))

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
            elif call.name == "tts.speak":
                self.on_speech(self)
            self.event("tool.result", f'{{"callId":"{call.call_id}","result":"{{}}","error":null}}')
            if ui and call.arguments == '{"state":"idle"}':
                self.on_idle(self)
        elif event.type == "error":
            self.on_error(self)


def _nothing(_: Phone) -> None:
    pass
