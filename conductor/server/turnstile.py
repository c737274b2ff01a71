"""Lets dear work through one at a time: a hundred clients that begin at once must not hold up all others."""

from __future__ import annotations

import asyncio
from collections import deque


class Turnstile:
    """One may enter in each pass of the event loop, in the order of arrival; between them all others go on.

    Nothing is slower by it where there is no crowd, and nothing is lost in one: a pass lasts as long as the
    work in it.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._taken = False

    async def enter(self) -> None:
        """Wait for one's turn."""
        loop = asyncio.get_running_loop()
        if not self._taken:
            self._taken = True
            loop.call_soon(self._next)
            return
        waiting = loop.create_future()
        self._waiting.append(waiting)
        await waiting

    def _next(self) -> None:
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():  # whoever waited may have been cut off
                waiting.set_result(None)
                asyncio.get_running_loop().call_soon(self._next)
                return
        self._taken = False
