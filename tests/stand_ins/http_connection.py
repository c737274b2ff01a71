"""The stand-in's side of an HTTP/1.1 connection: requests in, one response at a time out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import cast

REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 429: "Too Many Requests"}
MAX_HEAD_BYTES = 64 * 1024


@dataclass(frozen=True)
class HttpRequest:
    """One request, whole. Header names are lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class Connection(asyncio.Protocol):
    """One client's connection.

    ``handle`` answers a request through it, and is cancelled when the client leaves; it catches its own
    errors. ``on_close`` is called when the connection is closed.
    """

    def __init__(
        self,
        handle: Callable[[Connection, HttpRequest], Awaitable[None]],
        on_close: Callable[[Connection], None],
    ) -> None:
        self._handle = handle
        self._on_close = on_close
        self._buffer = bytearray()
        self._head: tuple[str, str, dict[str, str]] | None = None
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._task is not None:
            self._task.cancel("the client left")
        self._on_close(self)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._next()

    def _next(self) -> None:
        """Start answering the next request, if it is whole and the one before is answered."""
        if self._task is not None:
            return
        if self._head is None and not self._read_head():
            return
        assert self._head is not None
        method, path, headers = self._head
        size = int(headers.get("content-length", "0"))
        if len(self._buffer) < size:
            return
        body = bytes(self._buffer[:size])
        del self._buffer[:size]
        self._head = None
        self._task = asyncio.get_running_loop().create_task(
            self._answer(HttpRequest(method, path, headers, body))
        )

    def _read_head(self) -> bool:
        head, end, tail = bytes(self._buffer).partition(b"\r\n\r\n")
        if not end:
            if len(self._buffer) > MAX_HEAD_BYTES:
                self.abort()
            return False
        self._buffer = bytearray(tail)
        first, *lines = head.decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ", 2)
        pairs = (line.partition(":") for line in lines)
        self._head = (method, path, {name.strip().lower(): value.strip() for name, _, value in pairs})
        return True

    async def _answer(self, request: HttpRequest) -> None:
        try:
            await self._handle(self, request)
        finally:
            self._task = None
        if self._transport is not None and not self._transport.is_closing():
            self._next()

    def respond(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        """Send a whole response."""
        self._send_head(status, {**headers, "content-length": str(len(body))}, body)

    def start(self, status: int, headers: Mapping[str, str]) -> None:
        """Begin a chunked response."""
        self._send_head(status, {**headers, "transfer-encoding": "chunked"}, b"")

    def _send_head(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._write(f"HTTP/1.1 {status} {REASONS.get(status, 'Error')}\r\n{lines}\r\n".encode() + body)

    def write(self, *parts: bytes) -> None:
        """Send parts of a chunked response, each as a chunk."""
        self._write(b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts if part))

    def end(self) -> None:
        """End a chunked response."""
        self._write(b"0\r\n\r\n")

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Cut the connection with a reset."""
        if self._transport is not None:
            self._transport.abort()

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)
