"""Has connections parse what they have read, a few of them in each pass of the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

AT_ONCE = 4
"""So many slices in one pass: a fraction of a millisecond, however many connections have more to parse."""


class Slices:
    """Calls what it is given, in order."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._scheduled = False

    def add(self, parse: Callable[[], None]) -> None:
        """Have a slice parsed in its turn."""
        self._waiting.append(parse)
        self._go_on()

    def _go_on(self) -> None:
        if self._waiting and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._pass)

    def _pass(self) -> None:
        self._scheduled = False
        try:
            for _ in range(min(AT_ONCE, len(self._waiting))):
                self._waiting.popleft()()
        finally:
            self._go_on()
