"""What comes from one client, a frame at a time, and whether anybody is still there."""

from __future__ import annotations

import asyncio
from typing import Any

from websockets.exceptions import ConnectionClosed

from conductor.server.socket import Socket

ALIVE_S = 3.0
"""How long a client may take to answer a ping before it may take its session back."""
READ_AHEAD = 64
READ_AHEAD_BYTES = 262_144
"""What may stand before its answer."""


class Incoming:
    """Reads one socket. What was read while a pong was waited for comes first."""

    def __init__(self, socket: Socket) -> None:
        self._socket = socket
        self._ahead: list[bytes] = []  # an empty deque has 600 bytes
        self._ahead_bytes = 0
        self._reading = asyncio.Lock()

    async def next(self) -> bytes:
        """Give the next frame. Raises `ConnectionClosed`."""
        async with self._reading:
            if not self._ahead:
                return await self._socket.recv(decode=False)
            frame = self._ahead.pop(0)
            self._ahead_bytes -= len(frame)
            return frame

    async def is_alive(self) -> bool:
        """Tell whether the client answers a ping.

        What a dead client had said may be read long after it has gone to another process, and must not take
        the session back from there.
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
        """Take a frame that stands before the pong: while too many wait, nothing is read."""
        frame = asyncio.ensure_future(self._keep_next())
        try:
            waits: set[asyncio.Future[Any]] = {pong, frame}
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            frame.cancel()
            await asyncio.wait([frame])
            if not frame.cancelled():
                frame.exception()  # that the connection is closed is told by the pong as well

    async def _keep_next(self) -> None:
        async with self._reading:
            data = await self._socket.recv(decode=False)
            self._ahead.append(data)
            self._ahead_bytes += len(data)
