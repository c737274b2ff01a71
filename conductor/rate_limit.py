"""Token buckets, the queue of expensive work, client addresses and origins, without I/O."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Collection, Sequence
from typing import TypeAlias
from urllib.parse import urlsplit

# A timer that is later than this many seconds shows that the process was suspended.
STILL_S = 0.5

# The subject of all clients without tokens. Limits by subject do not apply to it.
ANONYMOUS = "anonymous"
# The begin of the ids of people whom an identity provider, a proxy or the app's backend names.
PERSON = "person-"

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


class TokenBucket:
    """Allows ``per_second`` on average and ``burst`` at once.

    ``now`` is any clock in seconds; one that is set back counts as standing still.
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

        A cost over the burst counts as the burst.
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


def client_address(peer: str, forwarded: Sequence[str], trusted: Sequence[Network]) -> str | None:
    """Return the address of a client; None if it is not known.

    ``peer`` is the socket's remote address, ``forwarded`` the values of X-Forwarded-For in order. Each proxy
    appends the address that it sees, so they are read from the end, as far as the ``trusted`` proxies reach;
    forged values come before that. Without trusted proxies the result is None, because the peer may be a
    proxy that many people share.
    """
    if not trusted:
        return None
    hops = [hop.strip() for value in forwarded for hop in value.split(",")]
    client: str | None = None
    for hop in (peer, *reversed(hops)):
        try:
            address = ipaddress.ip_address(hop)
        except ValueError:
            return client
        # On a socket for both families an IPv4 peer is written as IPv6.
        client = str(getattr(address, "ipv4_mapped", None) or address)
        if not is_trusted(client, trusted):
            return client
    return client


def is_trusted(address: str, trusted: Sequence[Network]) -> bool:
    """Tell whether an address is that of a trusted proxy."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    ip = getattr(ip, "ipv4_mapped", None) or ip
    return any(ip in network for network in trusted)


def origin_allowed(origin: str | None, host: str | None, allowed: Collection[str], *, tokens: bool) -> bool:
    """Tell whether a web page may connect; other clients send no Origin.

    ``allowed`` are the operator's origins. Without them, a page may connect to the ``host`` and port that it
    is of: another port of this machine is another program. Without ``tokens`` that host must be this machine:
    a page can have its own name resolve to it (DNS rebinding).
    """
    if origin is None or origin in allowed:
        return True
    try:
        parts = urlsplit(origin)
        name = parts.hostname
    except ValueError:
        return False
    is_own = parts.scheme in ("http", "https") and parts.netloc == host
    return is_own and (tokens or name in ("localhost", "127.0.0.1", "::1"))
