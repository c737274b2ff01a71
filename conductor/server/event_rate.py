"""The rate of a connection's events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf

from conductor.conversation.inbound import InboundResult
from conductor.rate_limit import TokenBucket
from conductor.settings import Limits

# Bytes of an event per additional token, for the time to parse them.
BYTES_PER_TOKEN = 20_480
# Tokens of a refused transcript, which costs two events and a commit, and of an invalid frame.
REFUSED_COST = 20.0


class EventRate(TokenBucket):
    """Limits the events of one connection; ``on_flood`` gets the seconds to wait, once per flood."""

    def __init__(self, limits: Limits, on_flood: Callable[[float], None]) -> None:
        super().__init__(limits.frames_per_second, limits.frames_burst, asyncio.get_running_loop().time())
        self._limits = limits
        self._on_flood = on_flood
        self._flooding_since = self._waited_until = -inf
        self._is_admitted = False

    async def admit(self, size: int) -> bool:
        """Wait until an event of ``size`` bytes is allowed; False after ``flood_timeout`` of flooding."""
        is_admitted, self._is_admitted = self._is_admitted, False
        if is_admitted:
            return True
        now, cost = asyncio.get_running_loop().time(), 1 + size // BYTES_PER_TOKEN
        is_flooding = now - self._waited_until <= self._limits.flood_pause
        wait = self.reserve(now, cost * self._limits.flood_cost if is_flooding else cost)
        if not wait:
            if self.deficit(now) > self._limits.frames_in_a_row:
                await asyncio.sleep(0)  # other connections run between two events of a burst
            return True
        if not is_flooding:
            self._flooding_since = now
            self._on_flood(wait)
        elif now - self._flooding_since > self._limits.flood_timeout:
            return False
        self._waited_until = now + wait  # before the pause: several may wait at once
        await asyncio.sleep(wait)
        return True

    def settle(self, result: InboundResult) -> None:
        """Admit an event that the server requested; charge a refused one for its answer."""
        self._is_admitted = result is InboundResult.EXPECTED
        if result in (InboundResult.REFUSED, InboundResult.COSTLY):
            self.refuse()

    def refuse(self) -> None:
        """Charge an event that was refused."""
        self.reserve(asyncio.get_running_loop().time(), REFUSED_COST)
