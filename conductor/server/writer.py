"""One client's writer: a bounded queue of frames, written in order, each in its time."""

from __future__ import annotations

import asyncio

import structlog
from websockets.exceptions import ConnectionClosed

from conductor.conversation.transport import Frame
from conductor.server.socket import Socket
from conductor.settings import Limits

log = structlog.get_logger(__name__)

MAX_BATCH = 64
"""Frames in one write: more would only make the last of them late."""


class Writer:
    """Writes what is queued, while ``may_write`` is set. ``session_id`` is for the log."""

    def __init__(self, socket: Socket, limits: Limits, may_write: asyncio.Event, session_id: str) -> None:
        self.session_id = session_id
        self._socket = socket
        self._limits = limits
        self._may_write = may_write
        self._queue: list[Frame] = []  # an empty deque has 600 bytes
        self._wake = asyncio.Event()
        self._close: tuple[int, str] | None = None
        self._cut = False

    @property
    def closing(self) -> bool:
        """Whether the connection is about to be closed from here."""
        return self._close is not None

    def send(self, frame: Frame) -> None:
        """Queue a frame; a partial takes the place of one that was not written yet."""
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
        """Forget the partials that were not written yet."""
        for frame in self._queue:
            if frame.partial:
                frame.withdrawn = True

    def clear(self) -> None:
        """Forget what was not written yet."""
        self._queue.clear()

    def close(self, code: int, reason: str) -> None:
        """Begin to close, after what is queued."""
        self._close = (code, reason)
        self._wake.set()

    def abort(self, why: str) -> None:
        """Cut the connection; the session survives."""
        log.warning("connection cut", why=why, session=self.session_id)
        self._cut = True
        self._queue.clear()
        self._socket.transport.abort()

    async def run(self) -> None:
        """Write until the connection ends: a peer that never reads must not hold anything."""
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
