"""The clock of a turn: it counts machine time, and stops while a person is waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class TurnClock:
    """Calls ``on_expired`` once, when ``seconds`` of unpaused time have passed since `start`."""

    def __init__(self, seconds: float, on_expired: Callable[[], None]) -> None:
        self._left = seconds
        self._on_expired = on_expired
        self._timer: asyncio.TimerHandle | None = None
        self._since = 0.0
        self._pauses = 0
        self._expired = False

    @property
    def left(self) -> float:
        """Seconds of machine time that are left."""
        if self._timer is None:
            return self._left
        return max(0.0, self._left - (asyncio.get_running_loop().time() - self._since))

    def start(self) -> None:
        """Let it run."""
        loop = asyncio.get_running_loop()
        self._since = loop.time()
        if not self._expired:
            self._timer = loop.call_later(self._left, self._expire)

    def stop(self) -> None:
        """Stop it for now, or for good."""
        self._left = self.left
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the clock while the block runs; pauses nest."""
        self._pauses += 1
        if self._pauses == 1:
            self.stop()
        try:
            yield
        finally:
            self._pauses -= 1
            if self._pauses == 0:
                self.start()

    def _expire(self) -> None:
        self._expired = True
        self.stop()
        self._on_expired()
