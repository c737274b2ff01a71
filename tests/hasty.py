"""An event loop whose time a test can hasten, for limits that are to pass over real sockets.

A limit of a second leaves room for whatever has to happen before it, also on a busy machine. Once that has
happened, `hasten` lets the seconds pass in milliseconds, for the loop and for the clock of sessions.
"""

from __future__ import annotations

import asyncio
import selectors

from conductor import clock

RATE = 100.0
SHORT_S = 1.0
"""A limit that is to pass, in seconds."""


class _Selector(selectors.DefaultSelector):
    longest_s: float | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout and self.longest_s is not None:
            timeout = min(timeout, self.longest_s)
        return super().select(timeout)


class HastyLoop(asyncio.SelectorEventLoop):
    """The usual loop, with `hasten`."""

    def __init__(self) -> None:
        self._waits = _Selector()
        self._gained = self._to_gain = 0.0
        self._seen = 0.0
        super().__init__(self._waits)

    def time(self) -> float:
        now = super().time()
        if self._to_gain > 0:
            step = min((now - self._seen) * (RATE - 1), self._to_gain)
            self._to_gain -= step
            self._gain(step)
            self._seen = now
            if self._to_gain <= 0:
                self._waits.longest_s = None
        return now + self._gained

    def _gain(self, seconds: float) -> None:
        self._gained += seconds
        clock._STARTED_NS += round(seconds * 1e9)

    def close(self) -> None:
        self._gain(-self._gained)
        super().close()

    def hasten(self, seconds: float) -> None:
        self._seen = super().time()
        self._to_gain = seconds
        self._waits.longest_s = 0.001


def hasten(seconds: float = 2 * SHORT_S) -> None:
    """Let this many seconds of the running loop pass a hundred times faster than others, from now on."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, HastyLoop)
    loop.hasten(seconds)
