"""A worker's ties to its parent: options come by its standard input, its state goes to standard output."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from conductor.errors import SettingsError

READY = b"ready\n"
_STDIN, _STDOUT, _STDERR = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Worker:
    """One of several processes that are one server.

    ``descriptors`` are those of bound sockets, which it inherited. ``options`` are the command line's, with
    the true port.
    """

    number: int
    options: Mapping[str, Any]
    descriptors: tuple[int, ...]

    def sockets(self) -> list[socket.socket]:
        """Give the sockets to whoever listens on them, once."""
        return [socket.socket(fileno=descriptor) for descriptor in self.descriptors]

    def watch(self, stop: Callable[[], None]) -> None:
        """Have ``stop`` called once the parent is gone, however it went."""
        loop = asyncio.get_running_loop()

        def read() -> None:
            if not os.read(_STDIN, 1024):
                loop.remove_reader(_STDIN)
                stop()

        loop.add_reader(_STDIN, read)

    def ready(self) -> None:
        """Tell the parent that this worker listens."""
        os.write(_STDOUT, READY)

    def leave(self) -> None:
        """Tell the parent that this worker takes no more connections, so that another one may."""
        os.dup2(_STDERR, _STDOUT)


def order(options: Mapping[str, Any], sockets: tuple[socket.socket, ...]) -> bytes:
    """Make what a parent writes to its worker's standard input; the sockets are inherited."""
    descriptors = [one.fileno() for one in sockets]
    return json.dumps({"options": dict(options), "sockets": descriptors}).encode() + b"\n"


def join(number: int) -> Worker:
    """Read the parent's order. Raises `SettingsError` if there is none."""
    # Whoever signals all processes of the server means the parent by this one.
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    write_whole_lines()
    try:
        given = json.loads(sys.stdin.buffer.readline())
        return Worker(number, given["options"], tuple(given["sockets"]))
    except (ValueError, KeyError, TypeError, OSError):
        raise SettingsError("--worker is for the server's own use; --workers N starts several.") from None


def write_whole_lines() -> None:
    """Write each line to standard error at once, where several processes write: otherwise they mix."""
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(line_buffering=True, write_through=False)
