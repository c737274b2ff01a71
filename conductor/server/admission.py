"""Admission: rate limits of inbound events, and turnstiles for expensive work."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from conductor.rate_limit import TokenBucket
from conductor.settings import Limits

# Bytes of a frame that cost one more token: a large frame takes longer to parse.
FRAME_BYTES = 20_480
# Tokens a connection may use in a row before it yields to others.
IN_A_ROW = 5
# Tokens a connection may use without the node's shared rate; a phone that reconnects sends fewer events.
AT_ONCE = 40
# Seconds without an event after which a connection does not count as flooding.
CALM_S = 0.04
# The node's rate for long bursts of all connections together, in events: about a tenth of a core.
RUSH_PER_SECOND = 400
RUSH_AT_ONCE = 1_000
# Flooding connections from which on FLOOD_TIMEOUT is stretched: each gets less of the shared rate.
CROWD = 50
# Tokens of a refused transcript: the server answers it with two events and a commit.
REFUSED_COST = 20


class Rush:
    """The rate that all long bursts share; ``crowd`` counts the flooding connections."""

    def __init__(self) -> None:
        self.bucket = TokenBucket(RUSH_PER_SECOND, RUSH_AT_ONCE, _now())
        self.crowd = 0


class Pace:
    """Limits the rate of one connection. ``rush`` is the node's; ``on_flood`` gets the seconds to wait."""

    def __init__(self, limits: Limits, rush: Rush, on_flood: Callable[[float], None]) -> None:
        self._limits = limits
        self._rush = rush
        self._on_flood = on_flood
        self._bucket = TokenBucket(limits.frames_per_second, limits.frames_burst, _now())
        self._flooding_since: float | None = None
        self._taken_at = 0.0

    def close(self) -> None:
        """Stop counting this connection as flooding."""
        if self._flooding_since is not None:
            self._flooding_since = None
            self._rush.crowd -= 1

    async def admit(self, size: int) -> bool:
        """Wait until an event of ``size`` bytes may be taken; False after FLOOD_TIMEOUT of flooding."""
        now, cost = _now(), _cost(size)
        if now - self._taken_at > CALM_S:
            self.close()
        used = self._bucket.used(now)
        wait = self._bucket.take(now, cost)
        if wait:
            self._bucket.spend(now, cost)
        if used > AT_ONCE or self._flooding_since is not None:
            wait = max(wait, self._rush.bucket.reserve(now, cost))
        elif used <= IN_A_ROW and not wait:
            self._taken_at = now
            return True
        if wait and not self._may_wait(now, wait):
            return False
        await asyncio.sleep(wait)
        self._taken_at = _now()
        return True

    def expected(self, size: int) -> None:
        """Return the tokens of an event that the server had asked for."""
        self._bucket.give_back(_cost(size))

    def refused(self) -> None:
        """Charge a refused transcript for its answer."""
        self._bucket.spend(_now(), REFUSED_COST)

    def _may_wait(self, now: float, wait: float) -> bool:
        if self._flooding_since is None:
            self._flooding_since = now
            self._rush.crowd += 1
            self._on_flood(wait)
        return now - self._flooding_since <= self._limits.flood_timeout * max(1.0, self._rush.crowd / CROWD)


def _cost(size: int) -> int:
    return 1 + size // FRAME_BYTES


def _now() -> float:
    return asyncio.get_running_loop().time()


# Seconds of CPU in one pass that count at most: the rest was other tasks' work, or a one-time import.
STEP_S = 0.003


class Turnstile:
    """Admits one task in each pass of the event loop, in order of arrival.

    With ``rests`` it pauses after each task, for about the CPU time that the task took times its ``weight``:
    at a weight of 1 such work takes half of the core at most.
    """

    def __init__(self, *, rests: bool = False, clock: Callable[[], float] = time.thread_time) -> None:
        self._rests = rests
        self._clock = clock
        self._waiting: deque[tuple[asyncio.Future[None], float]] = deque()
        self._taken = False
        self._weight = 1.0
        self._entered_at = 0.0

    async def enter(self, weight: float = 1.0) -> None:
        """Wait to be admitted."""
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
        if self._rests:
            pause = min(self._clock() - self._entered_at, STEP_S) * self._weight
            asyncio.get_running_loop().call_later(pause, self._next)
        else:
            self._next()

    def _next(self) -> None:
        while self._waiting:
            waiting, weight = self._waiting.popleft()
            if not waiting.done():  # its connection may have been closed
                waiting.set_result(None)
                self._enters(weight)
                return
        self._taken = False


# Slices parsed in one pass of the event loop: a fraction of a millisecond.
MESSAGES_AT_ONCE = 4


class Slices:
    """Parses the slices of all connections in order, a few in each pass of the event loop."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._scheduled = False

    def add(self, parse: Callable[[], None]) -> None:
        """Queue a slice."""
        self._waiting.append(parse)
        self._go_on()

    def _go_on(self) -> None:
        if self._waiting and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._pass)

    def _pass(self) -> None:
        self._scheduled = False
        try:
            for _ in range(min(MESSAGES_AT_ONCE, len(self._waiting))):
                self._waiting.popleft()()
        finally:
            self._go_on()
