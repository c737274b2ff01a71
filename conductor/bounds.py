"""How much a client may send, and from where: token buckets, addresses and origins, all of it pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Sequence
from typing import TypeAlias
from urllib.parse import urlsplit

STILL_S = 0.5
"""A timer that goes off so late means more than a long piece of work: the process stood still."""

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
        """Take tokens; returns 0.0, or the seconds to wait until there are so many, and then takes none."""
        wait = self.wait(now, tokens)
        if not wait:
            self._tokens -= min(tokens, self._burst)
        return wait

    def wait(self, now: float, tokens: float = 1.0) -> float:
        """Say how many seconds it is until there are so many tokens; 0.0 if there are now.

        What costs more than the burst costs the burst.
        """
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._per_second)
        self._at = now
        missing = min(tokens, self._burst) - self._tokens
        return missing / self._per_second if missing > 0 else 0.0

    def spend(self, now: float, tokens: float = 1.0) -> None:
        """Take tokens that are there or not: the one who takes them has waited long enough."""
        if self.take(now, tokens):
            self._tokens -= min(tokens, self._burst)

    def reserve(self, now: float, tokens: float = 1.0) -> float:
        """Take tokens at once; returns in how many seconds they are there, which is to be waited for.

        Whoever reserves first has them first, however many wait. The debt is a burst at most.
        """
        wait = self.wait(now, tokens)
        self._tokens = max(self._tokens - min(tokens, self._burst), -self._burst)
        return wait

    def used(self, now: float) -> float:
        """Say how many tokens it is short of its burst."""
        return max(0.0, self._burst - self._tokens - (now - self._at) * self._per_second)

    def give_back(self, tokens: float = 1.0) -> None:
        """Give back what should not have been counted."""
        self._tokens = min(self._burst, self._tokens + min(tokens, self._burst))


def client_address(peer: str, forwarded: Sequence[str], trusted: Sequence[Network]) -> str | None:
    """Say from which address a client connects; None where nobody can tell.

    ``peer`` is who holds the socket, ``forwarded`` are the values of X-Forwarded-For in their order. Each
    proxy adds the address it sees at the end, so they are read from there, as far as the ``trusted`` ones
    reach; what a client writes there itself stands before that. Without trusted proxies nothing is told: the
    address may be that of a proxy, and of many people.
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
        mapped = getattr(address, "ipv4_mapped", None)
        address = mapped or address
        found = str(address)
        if not any(address in network for network in trusted):
            return found
    return found


def origin_allowed(origin: str | None, host: str | None, allowed: Collection[str], *, tokens: bool) -> bool:
    """Tell whether a browser's page may connect; other clients send no Origin.

    ``allowed`` are the operator's; where there are none, pages of this machine may. Where ``tokens`` keep
    strangers out, so may pages of the very ``host`` that is connected to: without tokens that proves nothing,
    since any page can have its own name resolve to this machine.
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
