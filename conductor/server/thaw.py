"""Notices that the process stood still: its sessions may be another's by then."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from conductor.bounds import STILL_S

TICK_S = 0.25


class Thaw:
    """Calls ``on_thaw`` in the first pass of the event loop after the process stood still, with the seconds.

    Whoever waits for what was read in that pass goes on only later.
    """

    def __init__(self, on_thaw: Callable[[float], None], clock: Callable[[], float] = time.time) -> None:
        self._on_thaw = on_thaw
        self._clock = clock
        self._due = clock() + TICK_S
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def close(self) -> None:
        """Stop watching."""
        self._timer.cancel()

    def _tick(self) -> None:
        now = self._clock()
        late = now - self._due
        self._due = now + TICK_S
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)
        if late > STILL_S:
            self._on_thaw(late)
