"""How fast one client's events are taken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from conductor.bounds import TokenBucket
from conductor.settings import Limits

FRAME_BYTES = 20_480
"""A frame counts once more against the rate for each so many bytes."""
IN_A_ROW = 5
"""So many events of a burst are taken in a row; between any more all others have their turn."""
AT_ONCE = 40
"""So many are taken as they come, more than a phone that reconnects says; the rest share the node's rush."""
CALM_S = 0.04
"""Who floods has the next event ready when one is taken; who has nothing to say for so long does not."""
RUSH_PER_SECOND = 400
RUSH_AT_ONCE = 1_000
"""Events of long bursts that a node takes, for all connections together: a tenth of a core."""
CROWD = 50
"""So many may flood before all of them are given longer: each has less of the rush then."""
REFUSED_COST = 20
"""A transcript that is refused counts for so many events: it is answered by two, one of them recorded."""


class Rush:
    """What long bursts share; ``crowd`` counts the connections that wait for it."""

    def __init__(self) -> None:
        self.bucket = TokenBucket(RUSH_PER_SECOND, RUSH_AT_ONCE, _now())
        self.crowd = 0


class Pace:
    """Slows one client down. ``rush`` is the node's; ``on_flood`` is told how long it waits."""

    def __init__(self, limits: Limits, rush: Rush, on_flood: Callable[[float], None]) -> None:
        self._limits = limits
        self._rush = rush
        self._on_flood = on_flood
        self._bucket = TokenBucket(limits.frames_per_second, limits.frames_burst, _now())
        self._flooding_since: float | None = None
        self._taken_at = 0.0

    def close(self) -> None:
        """Be none of the crowd any more."""
        if self._flooding_since is not None:
            self._flooding_since = None
            self._rush.crowd -= 1

    async def admit(self, size: int) -> bool:
        """Wait until an event of so many bytes may be taken; False if this client only ever floods."""
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
        """Do not count an event of so many bytes: the server had asked for it."""
        self._bucket.give_back(_cost(size))

    def refused(self) -> None:
        """Count a transcript that was refused for what its answer costs."""
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
