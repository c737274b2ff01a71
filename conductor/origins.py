"""Where a client connects from: its address behind proxies, and the origin of its page."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Sequence
from typing import TypeAlias
from urllib.parse import urlsplit

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


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
    """Return whether an address belongs to a trusted proxy."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    ip = getattr(ip, "ipv4_mapped", None) or ip
    return any(ip in network for network in trusted)


def origin_allowed(origin: str | None, host: str | None, allowed: Collection[str], *, tokens: bool) -> bool:
    """Return whether a web page may connect; other clients send no Origin.

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
