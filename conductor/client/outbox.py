"""The results that are still to be sent: each goes out once, in order, over whatever socket there is."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from conductor.client.errors import ConnectionLost

log = logging.getLogger(__name__)

MAX_KEPT = 1_000


class Outbox:
    """Frames of ``tool.result``, oldest first. Those that the socket did not take wait for the next one."""

    def __init__(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        self._send = send
        self._frames: deque[bytes] = deque()
        self._sending = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._frames)

    async def put(self, frame: bytes) -> None:
        """Add a frame and send what can be sent now."""
        if len(self._frames) >= MAX_KEPT:
            self._frames.popleft()
            log.warning("a tool result was dropped: %d wait for a connection", MAX_KEPT)
        self._frames.append(frame)
        await self.flush()

    async def flush(self) -> None:
        """Send what waits, as far as the socket takes it; bounded by the socket's own time limit."""
        async with self._sending:
            while self._frames:
                frame = self._frames.popleft()
                try:
                    await self._send(frame)
                except ConnectionLost:
                    # It may have left all the same. Its envelope id stays, so the server processes it once.
                    self._frames.appendleft(frame)
                    return
