"""Token buckets, and the queue of expensive work."""

from __future__ import annotations

import asyncio

# A timer that is later than this many seconds shows that the process was suspended.
STILL_S = 0.5


class TokenBucket:
    """Allows ``per_second`` on average and ``burst`` at once.

    ``now`` is any clock in seconds; one that is set back stands still.
    """

    __slots__ = ("__weakref__", "_at", "_burst", "_per_second", "_tokens")

    def __init__(self, per_second: float, burst: float, now: float) -> None:
        self._per_second = per_second
        self._burst = burst
        self._tokens = burst
        self._at = now

    def take(self, now: float, tokens: float = 1.0) -> float:
        """Take tokens and return 0.0, or take no token and return the seconds until there are enough."""
        wait = self.wait(now, tokens)
        if not wait:
            self._tokens -= min(tokens, self._burst)
        return wait

    def wait(self, now: float, tokens: float = 1.0) -> float:
        """Return the seconds until there are ``tokens``; 0.0 if there are now.

        A cost over the burst is reduced to the burst.
        """
        self._tokens = min(self._burst, self._tokens + max(0.0, now - self._at) * self._per_second)
        self._at = now
        missing = min(tokens, self._burst) - self._tokens
        return missing / self._per_second if missing > 0 else 0.0

    def reserve(self, now: float, tokens: float = 1.0) -> float:
        """Take tokens in advance; returns the seconds that the caller must wait for them.

        Reservations are served in order. The debt is a burst at most.
        """
        wait = self.wait(now, tokens)
        # Bounded, so that a flooding client is served again soon after it stops.
        self._tokens = max(self._tokens - min(tokens, self._burst), -self._burst)
        return wait

    def deficit(self, now: float) -> float:
        """Return the number of tokens that are missing from the burst."""
        return max(0.0, self._burst - self._tokens - max(0.0, now - self._at) * self._per_second)

    def give_back(self, tokens: float = 1.0) -> None:
        """Return tokens that should not have been counted."""
        self._tokens += min(tokens, self._burst)  # `wait` caps them at the burst


class SharedRate:
    """Several token buckets: takes a token from all of them, or from none."""

    __slots__ = ("_buckets",)

    def __init__(self, *buckets: TokenBucket) -> None:
        self._buckets = buckets

    def take(self, now: float) -> float:
        """Take a token from each and return 0.0, or take no token and return the seconds to wait."""
        wait = self.wait(now)
        if not wait:
            for bucket in self._buckets:
                bucket.take(now)
        return wait

    def wait(self, now: float) -> float:
        """Return the seconds until each bucket has a token; 0.0 if each has one now."""
        return max(bucket.wait(now) for bucket in self._buckets)

    def give_back(self) -> None:
        """Return the tokens of a turn that should not have been counted."""
        for bucket in self._buckets:
            bucket.give_back()


class Admission:
    """Admits expensive work in order of arrival, ``pieces`` in two passes of the event loop.

    All other tasks run in between, and the core is never idle while work waits.
    """

    def __init__(self, pieces: int = 2) -> None:
        self._semaphore = asyncio.Semaphore(pieces)

    async def enter(self) -> None:
        """Wait to be admitted."""
        async with self._semaphore:
            await asyncio.sleep(0)
