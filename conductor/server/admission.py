"""The rate limit of a connection's events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf

from conductor.conversation.inbound import InboundResult
from conductor.rate_limit import TokenBucket
from conductor.settings import Limits

# An event costs one more token for each: it takes longer to parse.
BYTES_PER_TOKEN = 20_480
# Tokens of a refused transcript, which the server answers with two events and a commit, and of a frame that
# is not valid: an app sends none, and some are made to cost more than others.
REFUSED_COST = 20.0


class EventRate(TokenBucket):
    """Limits the events of one connection; ``on_flood`` gets the seconds to wait, once for each flood."""

    def __init__(self, limits: Limits, on_flood: Callable[[float], None]) -> None:
        super().__init__(limits.frames_per_second, limits.frames_burst, _now())
        self._limits = limits
        self._on_flood = on_flood
        self._flooding_since = self._waited_until = -inf

    async def admit(self, size: int) -> bool:
        """Wait until an event of ``size`` bytes may be taken; False after FLOOD_TIMEOUT of flooding."""
        now, cost = _now(), self._cost(size)
        floods = now - self._waited_until <= self._limits.flood_pause
        wait = self.reserve(now, cost * self._limits.flood_cost if floods else cost)
        if not wait:
            if self.used(now) > self._limits.frames_in_a_row:
                await asyncio.sleep(0)  # a burst lets other connections run between two events
            return True
        if not floods:
            self._flooding_since = now
            self._on_flood(wait)
        elif now - self._flooding_since > self._limits.flood_timeout:
            return False
        self._waited_until = now + wait  # before the pause: several may wait at once
        await asyncio.sleep(wait)
        return True

    def settle(self, result: InboundResult, size: int) -> None:
        """Return the tokens of an event that the server asked for; charge a refused one for its answer."""
        match result:
            case InboundResult.EXPECTED:
                self.give_back(self._cost(size))
            case InboundResult.REFUSED:
                self.refuse()

    def refuse(self) -> None:
        """Charge an event that was refused."""
        self.reserve(_now(), REFUSED_COST)

    def _cost(self, size: int) -> int:
        return 1 + size // BYTES_PER_TOKEN


def _now() -> float:
    return asyncio.get_running_loop().time()
