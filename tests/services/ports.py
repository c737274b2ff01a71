"""Ports for servers of tests and benchmarks that are told their port, or that start again on it."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from functools import cache
from pathlib import Path

_PORTS = range(15_000, 30_000)
"""Below the ports of outgoing connections, so that a port stays free while its server is down."""

_given: set[int] = set()


def free_port() -> int:
    """Find a free port that no process of a test has been given: a server may not have bound it yet."""
    for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
        if port not in _given and _is_free(port) and _reserve(port):
            _given.add(port)
            return port
    raise AssertionError("no port of this machine is free")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _reserve(port: int) -> bool:
    """Keep the port from the tests of other processes until this process ends."""
    try:
        fcntl.lockf(_locks(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except BlockingIOError:
        return False
    return True


@cache
def _locks() -> int:
    """Open the file in which a locked byte stands for a port that was given, until this process ends."""
    return os.open(Path(tempfile.gettempdir(), f"conductor-ports-{os.getuid()}"), os.O_RDWR | os.O_CREAT)
