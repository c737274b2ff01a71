"""Addresses that a tool may connect to: public ones, and networks that the operator permits."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Iterator, Sequence
from typing import TypeAlias

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

LOCAL: Sequence[Network] = [
    ipaddress.ip_network(network)
    for network in ("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1/128", "fc00::/7")
]
"""This machine and private networks, without link-local ones: clouds serve metadata there."""

# Prefixes that lead to an IPv4 address in their last 32 bits: NAT64 (RFC 6052), SIIT and "compatible" ones.
_EMBEDDING = [ipaddress.IPv6Network(prefix) for prefix in ("64:ff9b::/96", "::ffff:0:0:0/96", "::/96")]
# Public by the library, at least in older versions of Python, but blocked: metadata services of clouds, NAT64
# of a local network (RFC 8215), 6to4 relays, segment routing and documentation.
_BLOCKED = [
    ipaddress.ip_network(network)
    for network in (
        *("168.63.129.16/32", "100.100.100.200/32", "192.0.0.0/24", "192.88.99.0/24"),
        *("64:ff9b:1::/48", "5f00::/16", "3fff::/20"),
    )
]


def may_connect(address: str, allowed: Sequence[Network] = ()) -> bool:
    """Return whether an IP address and its embedded addresses are public, or it is in an allowed network."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    ip = getattr(ip, "ipv4_mapped", None) or ip
    if any(ip in network for network in allowed if network.version == ip.version):
        return True
    return all(map(_is_public, (ip, *_embedded(ip))))


def _is_public(ip: Address) -> bool:
    blocked = any(ip in network for network in _BLOCKED if network.version == ip.version)
    site_local = getattr(ip, "is_site_local", False)
    return ip.is_global and not (ip.is_multicast or site_local or blocked)


def _embedded(ip: Address) -> Iterator[Address]:
    if not isinstance(ip, ipaddress.IPv6Address):
        return
    if ip.sixtofour is not None:
        yield ip.sixtofour
    if ip.teredo is not None:
        yield from ip.teredo
    if any(ip in prefix for prefix in _EMBEDDING):
        yield ipaddress.IPv4Address(int(ip) & 0xFFFF_FFFF)


def is_local(address: str) -> bool:
    """Return whether an IP address belongs to this machine or a private or link-local network."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    ip = getattr(ip, "ipv4_mapped", None) or ip
    return ip.is_link_local or any(ip in network for network in LOCAL if network.version == ip.version)


def is_local_name(host: str) -> bool:
    """Return whether a host is a local address, or a name of this machine or of a local network."""
    try:
        return is_local(host)
    except ValueError:
        return "." not in host or host.endswith((".localhost", ".local", ".internal", ".lan"))


async def is_local_host(host: str) -> bool:
    """Return whether all addresses of a host are local."""
    try:
        entries = await asyncio.get_running_loop().getaddrinfo(host, None)
    except OSError:
        return False
    return all(is_local(str(info[4][0])) for info in entries)
