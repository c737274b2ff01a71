"""An address that belongs to one server, and on which several of its processes listen."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator, Sequence

from conductor.errors import SettingsError

_Info = tuple[socket.AddressFamily, str, int]
"""A family, an address of it, and its scope; the scope only matters to IPv6."""


class SharedAddress:
    """Keeps ``host`` and ``port`` (0: any) for this server, whether or not somebody listens at the moment.

    Each process that is to listen gets sockets of its own, among which Linux spreads what connects. Raises
    `SettingsError` if the address cannot be had. The system would let a second server of the same user
    share the port silently; here it is taken then.
    """

    def __init__(self, host: str, port: int) -> None:
        self.port = port
        self._kept: list[socket.socket] = []
        self._infos: list[_Info] = []
        if not hasattr(socket, "SO_REUSEPORT"):
            raise SettingsError("WORKERS needs SO_REUSEPORT, which this system does not have.")
        try:
            for info in _resolve(host):
                self._keep(info)
            if not self._kept:
                raise OSError(errno.EADDRNOTAVAIL, "cannot assign requested address")
        except (OSError, UnicodeError) as error:  # a name that is too long for the resolver is a UnicodeError
            self.close()
            reason = getattr(error, "strerror", None) or str(error)  # as the listener says it
            raise SettingsError(f"Cannot listen on {host}:{port}: {reason.lower()}.") from None

    def open(self) -> tuple[socket.socket, ...]:
        """Make the sockets of one process: bound, and not listening yet. Raises OSError."""
        opened: list[socket.socket] = []
        try:
            for info in self._infos:
                opened.append(_bind(info, self.port, (socket.SO_REUSEADDR, socket.SO_REUSEPORT)))
        except OSError:
            close(opened)
            raise
        return tuple(opened)

    def close(self) -> None:
        """Give the address up."""
        close(self._kept)
        self._kept.clear()

    def _keep(self, info: _Info) -> None:
        if self.port:
            # As a server that shares with nobody would: in use is what somebody else listens on.
            _bind(info, self.port, (socket.SO_REUSEADDR,)).close()
        try:
            # Without SO_REUSEADDR, so that the same attempt of another server fails from now on.
            kept = _bind(info, self.port, (socket.SO_REUSEPORT,))
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL and info[0] == socket.AF_INET6:
                return  # a name such as localhost, on a machine without IPv6
            if error.errno != errno.EADDRINUSE:
                raise
            # Connections of a server before this one that are not forgotten yet.
            kept = _bind(info, self.port, (socket.SO_REUSEADDR, socket.SO_REUSEPORT))
        self._kept.append(kept)
        self._infos.append(info)
        self.port = int(kept.getsockname()[1])


def close(sockets: Sequence[socket.socket]) -> None:
    """Close sockets."""
    for one in sockets:
        one.close()


def _resolve(host: str) -> Iterator[_Info]:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    for family, _, _, _, address in dict.fromkeys(found):
        yield family, str(address[0]), int(address[3]) if len(address) == 4 else 0


def _bind(info: _Info, port: int, options: Sequence[int]) -> socket.socket:
    family, address, scope = info
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        for option in options:
            made.setsockopt(socket.SOL_SOCKET, option, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            made.bind((address, port, 0, scope))
        else:
            made.bind((address, port))
    except BaseException:
        made.close()
        raise
    return made
