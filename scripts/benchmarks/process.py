"""A server under test: its own process, on its own core, with its CPU time and memory read from outside."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

SERVER_CORE = "0"
LOAD_CORE = "1"
START_S = 20.0
STOP_S = 40.0
"""More than a server takes to drain."""
_TICKS = os.sysconf("SC_CLK_TCK")


def pin_load() -> bool:
    """Keep this process off the server's core; False where there is only one core."""
    if (os.cpu_count() or 1) < 2 or shutil.which("taskset") is None:
        return False
    os.sched_setaffinity(0, {int(LOAD_CORE)})
    return True


class DidNotStart(Exception):
    """A process ended, or said nothing in time, before it was ready; the text holds what it wrote."""


class Process:
    """A process that says on its standard error where to connect: ``ws://host:port``.

    It writes to ``log``, behind what is there, and runs in ``folder``; without them both are its own, and
    go with it. Ctrl-C in a terminal does not reach one that is ``apart``: whoever started it ends it.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        pinned: bool,
        log: Path | None = None,
        folder: Path | None = None,
        apart: bool = False,
        **environment: str,
    ) -> None:
        self._command = [*(["taskset", "-c", SERVER_CORE] if pinned else []), *command]
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("ANTHROPIC_")},
            **environment,
        }
        self._process: asyncio.subprocess.Process | None = None
        self._own = Path(tempfile.mkdtemp(prefix="conductor-bench-")) if log is None else None
        self._log = log or Path(self._own or "", "log")
        self._folder = folder or self._log.parent
        self._apart = {"process_group": 0} if apart else {}  # uvloop does not know the option
        self.host, self.port = "127.0.0.1", 0
        self.started_in = 0.0

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except DidNotStart as error:
            sys.exit(f"the server did not start:\n{error}")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self, ready: bool = True) -> None:
        """Start it, and wait until it says where to connect and, if ``ready``, answers ``/readyz``.

        Raises `DidNotStart`.
        """
        began = time.perf_counter()
        with self._log.open("ab") as log:
            written = log.tell()
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                cwd=self._folder,
                **self._apart,  # type: ignore[arg-type] # one option, where there is one
            )
        try:
            async with asyncio.timeout(START_S):
                await self._announced(written)
                while ready and not await self._is_ready():  # noqa: ASYNC110 -- another process: as above
                    await asyncio.sleep(0.005)
        except TimeoutError:
            await self.kill()
            raise DidNotStart(f"not ready in {START_S:g} s:\n{self.text()}") from None
        except asyncio.CancelledError:
            self.send(signal.SIGKILL)
            raise
        self.started_in = time.perf_counter() - began

    async def stop(self) -> None:
        """End it by SIGTERM, or by SIGKILL if that takes too long; one that has ended is left alone."""
        self.send(signal.SIGTERM)
        try:
            await asyncio.wait_for(self.wait(), STOP_S)
        except TimeoutError:
            await self.kill()
        if self._own is not None:
            shutil.rmtree(self._own, ignore_errors=True)

    async def kill(self) -> None:
        """End it at once."""
        self.send(signal.SIGKILL)
        await asyncio.wait_for(self.wait(), STOP_S)

    async def wait(self) -> int:
        """Wait until it has ended, without a bound; returns its exit code."""
        return 0 if self._process is None else await self._process.wait()

    def send(self, signum: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signum)

    @property
    def runs(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int:
        """The process's id."""
        assert self._process is not None
        return self._process.pid

    def text(self) -> str:
        """Give the log."""
        return self._log.read_text(errors="replace")

    def tracebacks(self) -> int:
        """Count the tracebacks in the log."""
        return self.text().count("Traceback")

    def cpu(self) -> float:
        """CPU seconds used so far, user and system, of the whole tree."""
        total = 0.0
        for pid in self._tree():
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / _TICKS
        return total

    def worked(self) -> float:
        """Seconds that the process's first thread was on a core so far; exact, where `cpu` counts ticks."""
        return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[0]) / 1e9

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

    async def _announced(self, since: int) -> None:
        """Wait until the log, from an offset on, says where to connect; a port that is known stays."""
        assert self._process is not None
        while not self.port:  # another process: there is nothing to wait on
            said = self._log.read_bytes()[since:].decode(errors="replace")
            found = re.search(r"ws://127\.0\.0\.1:(\d+)", said)
            if found:
                self.port = int(found[1])
            elif self._process.returncode is not None:
                raise DidNotStart(said)
            else:
                await asyncio.sleep(0.005)

    async def _is_ready(self) -> bool:
        return await readiness(self.host, self.port) in (200, 426)  # 426 is the bare echo's

    def _tree(self) -> list[int]:
        found, todo = [], [self.pid]
        while todo:
            pid = todo.pop()
            found.append(pid)
            children = Path(f"/proc/{pid}/task/{pid}/children")
            todo += [int(child) for child in children.read_text().split()] if children.exists() else []
        return found


async def readiness(host: str, port: int, timeout_s: float = 5.0) -> int | None:
    """Ask a server whether it is ready: the HTTP status of ``/readyz``; 0: nothing listens, None: dead."""
    writer = None
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            line = await reader.readline()
    except ConnectionRefusedError:
        return 0
    except (OSError, TimeoutError):
        return None
    finally:
        if writer is not None:
            writer.transport.abort()
    found = re.match(rb"HTTP/1\.1 (\d{3})", line)
    return int(found[1]) if found else None


def conductor(base_url: str, *, pinned: bool, profile: str | None = None, **environment: str) -> Process:
    """Make the Conductor server, speaking to a stand-in at ``base_url``."""
    run = ["-m", "conductor"] if profile is None else ["-m", "cProfile", "-o", profile, "-m", "conductor"]
    return Process(
        [sys.executable, *run, "--port", "0"],
        pinned=pinned,
        log=None,
        folder=None,
        apart=False,
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
