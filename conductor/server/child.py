"""A worker's process, from its parent's side."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import Mapping
from typing import Any

from conductor.server.worker import READY, order


class Child:
    """A worker's process, from the parent's side."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._ready = False
        self._reload_due = False

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    async def becomes_ready(self, timeout: float) -> bool:
        """Wait until it listens; False if it ended before, or is none after that time and was ended."""
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(timeout):
                async for line in self._process.stdout:
                    if line == READY:
                        self._ready = True
                        break
        except TimeoutError:
            self.send(signal.SIGKILL)
        if self._ready and self._reload_due:
            self.send(signal.SIGHUP)
        return self._ready

    async def left(self) -> None:
        """Wait until it takes no more connections, without a bound: it is stopping, or has ended."""
        assert self._process.stdout is not None
        while await self._process.stdout.read(4_096):
            pass

    async def ended(self, timeout: float) -> int | None:
        """Wait until it has ended, for so long; its exit code, or None."""
        try:
            return await asyncio.wait_for(self._process.wait(), timeout)
        except TimeoutError:
            return None

    def reload(self) -> None:
        """Have it reload; one that is starting does not know the signal yet, and is told afterwards."""
        if self._ready:
            self.send(signal.SIGHUP)
        self._reload_due = True

    def send(self, signum: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self._process.returncode is None:
            self._process.send_signal(signum)


async def start_child(number: int, options: Mapping[str, Any], sockets: tuple[socket.socket, ...]) -> Child:
    """Start a worker that inherits ``sockets``; its options, which may be secret, go through a pipe.

    It is in a process group of its own: Ctrl-C reaches the parent alone, which forwards it. Raises OSError.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "conductor", "serve", "--worker", str(number)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        pass_fds=[one.fileno() for one in sockets],
        process_group=0,
    )
    assert process.stdin is not None
    with contextlib.suppress(ConnectionError):  # it ended already, and that is seen by whoever waits for it
        # No more than a pipe takes at once, so nothing waits for the worker to read.
        process.stdin.write(order(options, sockets))
    return Child(process)
