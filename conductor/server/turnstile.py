"""Lets dear work through one at a time: a hundred clients that begin at once must not hold up all others."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

STEP_S = 0.003
"""More than this of what was done in a pass was others' work, or is done only once, as an import is."""


class Turnstile:
    """One may enter in each pass of the event loop, in the order of arrival; between them all others go on.

    With ``rests`` there is a pause after each, as long as what it did, about, times its ``weight``: at a
    weight of 1 such work takes half of the core at most. Nothing is slower by it where there is no crowd, and
    nothing is lost in one.
    """

    def __init__(self, *, rests: bool = False, clock: Callable[[], float] = time.thread_time) -> None:
        self._rests = rests
        self._clock = clock
        self._waiting: deque[tuple[asyncio.Future[None], float]] = deque()
        self._taken = False
        self._weight = 1.0
        self._entered_at = 0.0

    async def enter(self, weight: float = 1.0) -> None:
        """Wait for one's turn."""
        loop = asyncio.get_running_loop()
        if not self._taken:
            self._taken = True
            self._enters(weight)
            return
        waiting = loop.create_future()
        self._waiting.append((waiting, weight))
        await waiting

    def _enters(self, weight: float) -> None:
        self._weight, self._entered_at = weight, self._clock()
        asyncio.get_running_loop().call_soon(self._pass)

    def _pass(self) -> None:
        """Go on after the one who has entered: whoever waited for that has had its time by then."""
        if self._rests:
            pause = min(self._clock() - self._entered_at, STEP_S) * self._weight
            asyncio.get_running_loop().call_later(pause, self._next)
        else:
            self._next()

    def _next(self) -> None:
        while self._waiting:
            waiting, weight = self._waiting.popleft()
            if not waiting.done():  # whoever waited may have been cut off
                waiting.set_result(None)
                self._enters(weight)
                return
        self._taken = False
