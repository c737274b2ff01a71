"""Token buckets, the queue of expensive work, daily budgets, client addresses and origins, without I/O."""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias
from urllib.parse import urlsplit

# Seconds of lateness of a timer that show that the process was suspended, not only busy.
STILL_S = 0.5

# The subject of all clients without tokens. It stands for many people, so no limit by subject applies to it.
ANONYMOUS = "anonymous"
DAY_S = 86_400

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


class TokenBucket:
    """Allows ``per_second`` on average and ``burst`` at once; ``now`` is any clock in seconds."""

    __slots__ = ("_at", "_burst", "_per_second", "_tokens")

    def __init__(self, per_second: float, burst: float, now: float) -> None:
        self._per_second = per_second
        self._burst = burst
        self._tokens = burst
        self._at = now

    def take(self, now: float, tokens: float = 1.0) -> float:
        """Take tokens; returns 0.0, or takes none and returns the seconds until there are enough."""
        wait = self.wait(now, tokens)
        if not wait:
            self._tokens -= min(tokens, self._burst)
        return wait

    def wait(self, now: float, tokens: float = 1.0) -> float:
        """Return the seconds until there are ``tokens``; 0.0 if there are now.

        A cost over the burst counts as the burst.
        """
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._per_second)
        self._at = now
        missing = min(tokens, self._burst) - self._tokens
        return missing / self._per_second if missing > 0 else 0.0

    def reserve(self, now: float, tokens: float = 1.0) -> float:
        """Take tokens in advance; returns the seconds that the caller must wait for them.

        Reservations are served in order. The debt is a burst at most.
        """
        wait = self.wait(now, tokens)
        # Bounded, so that who sends too much is served again soon after stopping.
        self._tokens = max(self._tokens - min(tokens, self._burst), -self._burst)
        return wait

    def used(self, now: float) -> float:
        """Return how many tokens are missing from the burst."""
        return max(0.0, self._burst - self._tokens - (now - self._at) * self._per_second)

    def give_back(self, tokens: float = 1.0) -> None:
        """Return tokens that should not have been counted."""
        self._tokens += min(tokens, self._burst)  # `wait` caps them at the burst


class SharedRate:
    """Several token buckets: takes from all of them, or from none if one has too few."""

    __slots__ = ("_buckets",)

    def __init__(self, *buckets: TokenBucket) -> None:
        self._buckets = buckets

    def take(self, now: float) -> float:
        """Take a token from each; returns 0.0, or takes none and returns the seconds to wait."""
        wait = self.wait(now)
        if not wait:
            for bucket in self._buckets:
                bucket.take(now)
        return wait

    def wait(self, now: float) -> float:
        """Return the seconds until each has a token; 0.0 if each has one now."""
        return max(bucket.wait(now) for bucket in self._buckets)

    def give_back(self) -> None:
        """Return the tokens of a turn that should not have been counted."""
        for bucket in self._buckets:
            bucket.give_back()


class Admission:
    """Admits expensive work in order of arrival, ``pieces`` in two passes of the event loop.

    All other tasks run in between. Nothing waits for time to pass, so the core is never idle meanwhile.
    """

    def __init__(self, pieces: int = 2) -> None:
        self._semaphore = asyncio.Semaphore(pieces)

    async def enter(self) -> None:
        """Wait to be admitted."""
        async with self._semaphore:
            await asyncio.sleep(0)


class DailyBudget:
    """A daily budget of model tokens for each subject; the day starts at midnight UTC.

    ``now`` returns epoch seconds. Usage is known only after a reply, so the last replies may exceed it.
    """

    def __init__(self, tokens: int, now: Callable[[], float] = time.time) -> None:
        self._tokens = tokens
        self._now = now
        self._day = 0
        self._spent: Counter[str] = Counter()

    def is_spent(self, subject: str) -> bool:
        """Tell whether a subject has used up today's budget."""
        return self._today()[subject] >= self._tokens

    def spend(self, subject: str, tokens: int) -> None:
        """Count used tokens."""
        self._today()[subject] += tokens

    def _today(self) -> Counter[str]:
        today = int(self._now() // DAY_S)
        # Never backwards: a clock that is set back must not give the budget a second time.
        if today > self._day:
            self._day = today
            self._spent.clear()
        return self._spent


def client_address(peer: str, forwarded: Sequence[str], trusted: Sequence[Network]) -> str | None:
    """Return the address of a client; None if it cannot be known.

    ``peer`` is the socket's remote address, ``forwarded`` the values of X-Forwarded-For in order. Each proxy
    appends the address that it sees, so they are read from the end, as far as the ``trusted`` proxies reach;
    what a client forges stands before that. Without trusted proxies the result is None: the peer may be a
    proxy that many people share.
    """
    if not trusted:
        return None
    hops = [hop.strip() for value in forwarded for hop in value.split(",")]
    found: str | None = None
    for hop in (peer, *reversed(hops)):
        try:
            address = ipaddress.ip_address(hop)
        except ValueError:
            return found
        # On a socket for both families an IPv4 peer is written as IPv6.
        mapped = getattr(address, "ipv4_mapped", None)
        address = mapped or address
        found = str(address)
        if not any(address in network for network in trusted):
            return found
    return found


def origin_allowed(origin: str | None, host: str | None, allowed: Collection[str], *, tokens: bool) -> bool:
    """Tell whether a web page may connect; other clients send no Origin.

    ``allowed`` are the operator's origins; if there are none, pages of this machine may connect. With
    ``tokens``, pages of the requested ``host`` may, too. Without tokens that would be unsafe: a page can have
    its own name resolve to this machine (DNS rebinding).
    """
    if origin is None or origin in allowed:
        return True
    try:
        parts = urlsplit(origin)
        name = parts.hostname
    except ValueError:
        return False
    if parts.scheme not in ("http", "https"):
        return False
    if tokens and host is not None and parts.netloc == host:
        return True
    return not allowed and name in ("localhost", "127.0.0.1", "::1")
