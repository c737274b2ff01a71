"""A server under test: its own process, on its own core, with its CPU time and memory read from outside."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

SERVER_CORE = "0"
LOAD_CORE = "1"
_TICKS = os.sysconf("SC_CLK_TCK")


def pin_load() -> bool:
    """Keep this process off the server's core; False where there is only one core."""
    if (os.cpu_count() or 1) < 2 or shutil.which("taskset") is None:
        return False
    os.sched_setaffinity(0, {int(LOAD_CORE)})
    return True


class Process:
    """A process that says on its standard error where to connect: ``ws://host:port``."""

    def __init__(self, command: Sequence[str], *, pinned: bool, **environment: str) -> None:
        self._command = [*(["taskset", "-c", SERVER_CORE] if pinned else []), *command]
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("ANTHROPIC_")},
            **environment,
        }
        self._process: asyncio.subprocess.Process | None = None
        self._log = Path(tempfile.mkdtemp(prefix="conductor-bench-")) / "log"
        self.host, self.port = "127.0.0.1", 0
        self.started_in = 0.0

    async def __aenter__(self) -> Self:
        began = time.perf_counter()
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdout=log, stderr=log, env=self._environment, cwd=self._log.parent
            )
        async with asyncio.timeout(20):
            while not self.port:
                found = re.search(r"ws://127\.0\.0\.1:(\d+)", self._log.read_text())
                if found:
                    self.port = int(found[1])
                elif self._process.returncode is not None:
                    sys.exit(f"the server did not start:\n{self._log.read_text()}")
                else:
                    await asyncio.sleep(0.005)
        async with asyncio.timeout(20):
            while not await self._is_ready():  # noqa: ASYNC110 -- another process: there is nothing to wait on
                await asyncio.sleep(0.005)
        self.started_in = time.perf_counter() - began
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), 40)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        shutil.rmtree(self._log.parent, ignore_errors=True)

    @property
    def pid(self) -> int:
        """The process's id."""
        assert self._process is not None
        return self._process.pid

    def tracebacks(self) -> int:
        """Count the tracebacks in the log."""
        return self._log.read_text(errors="replace").count("Traceback")

    def cpu(self) -> float:
        """CPU seconds used so far, user and system, of the whole tree."""
        total = 0.0
        for pid in self._tree():
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / _TICKS
        return total

    def rss(self) -> float:
        """Resident memory of the whole tree, in KB."""
        total = 0.0
        for pid in self._tree():
            found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
            total += int(found[1]) if found else 0
        return total

    def descriptors(self) -> int:
        """Count open file descriptors of the process."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def _tree(self) -> list[int]:
        found, todo = [], [self.pid]
        while todo:
            pid = todo.pop()
            found.append(pid)
            children = Path(f"/proc/{pid}/task/{pid}/children")
            todo += [int(child) for child in children.read_text().split()] if children.exists() else []
        return found

    async def _is_ready(self) -> bool:
        try:
            reader, writer = await asyncio.open_connection(self.host, self.port)
        except OSError:
            return False
        writer.write(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        line = await reader.readline()
        writer.close()
        return line.startswith(b"HTTP/1.1 200") or line.startswith(b"HTTP/1.1 426")


def conductor(base_url: str, *, pinned: bool, profile: str | None = None, **environment: str) -> Process:
    """Make the Conductor server, speaking to a stand-in at ``base_url``."""
    run = ["-m", "conductor"] if profile is None else ["-m", "cProfile", "-o", profile, "-m", "conductor"]
    return Process(
        [sys.executable, *run, "--port", "0"],
        pinned=pinned,
        ANTHROPIC_API_KEY="test-key",
        ANTHROPIC_BASE_URL=base_url,
        SESSION_RATE_LIMIT_PER_MIN="100000",
        **environment,
    )


def echo(*, pinned: bool) -> Process:
    """Make the yardstick: a bare echo on the same WebSocket library and loop."""
    program = """
import asyncio, sys, uvloop
from websockets.asyncio.server import serve
async def handle(socket):
    async for message in socket:
        await socket.send(message)
async def main():
    async with serve(handle, "127.0.0.1", 0, compression=None) as server:
        print("ws://127.0.0.1:%d" % server.sockets[0].getsockname()[1], file=sys.stderr, flush=True)
        await asyncio.get_running_loop().create_future()
uvloop.run(main())
"""
    return Process([sys.executable, "-c", program], pinned=pinned)
