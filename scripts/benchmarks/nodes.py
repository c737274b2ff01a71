"""Server processes, to end, kill, freeze and start again; their CPU time and memory, read from outside."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol, Self

from tests.services.ports import free_port

SERVER_CORE = "0"
LOAD_CORE = "1"
START_S = 60.0
"""A busy machine takes this long."""
STOP_S = 40.0
"""Longer than a server drains."""
_TICKS = os.sysconf("SC_CLK_TCK")

State = Literal["down", "up", "frozen"]
_STATES: Mapping[signal.Signals, State] = {
    signal.SIGKILL: "down",
    signal.SIGTERM: "down",
    signal.SIGSTOP: "frozen",
    signal.SIGCONT: "up",
}


def pin_load() -> bool:
    """Keep this process off the server's core; False where there is only one core."""
    if (os.cpu_count() or 1) < 2 or shutil.which("taskset") is None:
        return False
    os.sched_setaffinity(0, {int(LOAD_CORE)})
    return True


class DidNotStart(Exception):
    """A process ended before it was ready, or was not ready in time; the text holds its output."""


class Running(Protocol):
    """A running process and its asyncio handle."""

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None: ...

    async def wait(self) -> int: ...

    def send_signal(self, signal: int) -> None: ...


class Process:
    """A server that writes its address, ``ws://host:port``, to its standard error.

    It appends to ``log``, or to a temporary file, and runs in the log's folder. Every start uses a given
    ``port``. ``state`` is "up" once it is ready. ``headers`` are what a session's client sends.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        pinned: bool = False,
        port: int = 0,
        log: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.host, self.port = "127.0.0.1", port
        self.state: State = "down"
        self.started_in = 0.0
        self._command = [*(["taskset", "-c", SERVER_CORE] if pinned else []), *command]
        self._environment = {**clean_environment(), **(environment or {})}
        self._own = Path(tempfile.mkdtemp(prefix="conductor-bench-")) if log is None else None
        self.log = log or Path(self._own or "", "log")
        self.headers: Callable[[str], Mapping[str, str]] = lambda _: {}
        self._process: Running | None = None

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except DidNotStart as error:
            sys.exit(f"the server did not start:\n{error}")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start it, and wait until it is ready. Raises `DidNotStart`."""
        assert not self.runs
        began = time.perf_counter()
        log_size = self.log.stat().st_size if self.log.exists() else 0
        try:
            async with asyncio.timeout(START_S):
                self._process = await self._launch()
                await self._until_ready(log_size)
        except TimeoutError:
            await self.kill()
            raise DidNotStart(f"not ready in {START_S:g} s:\n{self.text()}") from None
        except asyncio.CancelledError:
            self.send(signal.SIGKILL)
            raise
        self.started_in = time.perf_counter() - began
        self.state = "up"

    async def _launch(self) -> Running:
        with self.log.open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                cwd=self.log.parent,
            )

    async def _until_ready(self, log_size: int) -> None:
        while True:  # another process: there is nothing to wait on
            if not self.port:
                match = re.search(r"ws://127\.0\.0\.1:(\d+)", self.text(log_size))
                self.port = int(match[1]) if match else 0
            if not self.runs:
                raise DidNotStart(self.text(log_size))
            # 426 is the answer of the bare echo.
            if self.port and await readiness(self.host, self.port) in (200, 426):
                return
            await asyncio.sleep(0.005)

    async def stop(self) -> None:
        """End it by SIGTERM, or by SIGKILL if that takes too long. A frozen process runs again, to drain."""
        self.thaw()
        self.send(signal.SIGTERM)
        try:
            await asyncio.wait_for(self.wait(), STOP_S)
        except TimeoutError:
            await self.kill()
        if self._own is not None:
            shutil.rmtree(self._own, ignore_errors=True)

    async def kill(self) -> None:
        """End it at once, as a crash would."""
        self.send(signal.SIGKILL)
        await asyncio.wait_for(self.wait(), STOP_S)

    async def wait(self) -> int:
        """Wait until it has ended, without a bound; returns its exit code."""
        return 0 if self._process is None else await self._process.wait()

    def freeze(self) -> None:
        """Stop it from running; its connections stay open without an answer."""
        self.send(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen process run again."""
        self.send(signal.SIGCONT)

    def send(self, signum: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signum)
            self.state = _STATES.get(signum, self.state)

    @property
    def runs(self) -> bool:
        """Whether the process exists, frozen or not."""
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def address(self) -> tuple[str, int]:
        return self.host, self.port

    @property
    def url(self) -> str:
        """Where a client connects."""
        return f"ws://{self.host}:{self.port}/ws"

    def text(self, start: int = 0) -> str:
        """Give the log from a byte on."""
        return self.log.read_bytes()[start:].decode(errors="replace") if self.log.exists() else ""

    def count(self, text: str) -> int:
        """Count a text in the log."""
        return self.text().count(text)

    def tracebacks(self) -> int:
        """Count the tracebacks in the log."""
        return self.count("Traceback")

    def cpu(self) -> float:
        """CPU seconds used so far, user and system, of the whole tree."""
        total = 0.0
        for pid in self._tree():
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / _TICKS
        return total

    def worked(self) -> float:
        """Seconds that the process's first thread was on a core so far; exact, where `cpu` counts ticks."""
        return self._scheduled(0)

    def queued(self) -> float:
        """Seconds that it was ready to run while its core was busy."""
        return self._scheduled(1)

    def _scheduled(self, field: int) -> float:
        return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[field]) / 1e9

    def rss(self) -> float:
        """Resident memory of the whole tree, in KB."""
        total = 0.0
        for pid in self._tree():
            match = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
            total += int(match[1]) if match else 0
        return total

    def descriptors(self) -> int:
        """Count open file descriptors of the process."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def _tree(self) -> list[int]:
        pids, waiting = [], [self.pid]
        while waiting:
            pid = waiting.pop()
            pids.append(pid)
            children = Path(f"/proc/{pid}/task/{pid}/children")
            waiting += [int(child) for child in children.read_text().split()] if children.exists() else []
        return pids


def clean_environment() -> dict[str, str]:
    """Give this process's environment without the user's settings of the model's service."""
    return {name: value for name, value in os.environ.items() if not name.startswith("ANTHROPIC_")}


async def readiness(host: str, port: int, timeout_s: float = 5.0) -> int | None:
    """Ask a server for the HTTP status of ``/readyz``; 0: connection refused, None: no answer."""
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
    match = re.match(rb"HTTP/1\.1 (\d{3})", line)
    return int(match[1]) if match else None


class Node(Process):
    """One Conductor server; every start has the same port, settings and log.

    ``settings`` are environment variables; ``arguments`` are the command's. It runs in the folder ``logs``,
    where its log is a file named like the node.
    """

    def __init__(
        self, name: str, logs: Path, *arguments: str, settings: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        port = free_port()
        command = [sys.executable, "-m", "conductor", "--host", "127.0.0.1", "--port", str(port), *arguments]
        super().__init__(command, port=port, log=logs / f"{name}.log", environment=settings)

    async def restart(self) -> None:
        """Stop it and start it again. Raises `DidNotStart`."""
        await self.stop()
        await self.start()

    async def ready(self, timeout_s: float = 1.0) -> bool:
        """Ask ``/readyz`` once."""
        return await readiness(*self.address, timeout_s) == 200

    async def wait_ready(self, timeout_s: float = START_S) -> None:
        """Wait until it is ready. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while not await self.ready():  # noqa: ASYNC110 -- another process: there is nothing to wait on
                await asyncio.sleep(0.02)


DURABLE = ("--appendonly", "yes", "--save", "")
"""Options of a Redis that writes each command to its folder before it answers."""


def redis_program() -> str | None:
    """Find ``redis-server`` or ``valkey-server``; None without one."""
    return shutil.which("redis-server") or shutil.which("valkey-server")


def postgres_program(name: str) -> str | None:
    """Find one of PostgreSQL's programs, which Debian keeps off the PATH; None without one."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next(filter(None, (shutil.which(name, path=folder) for folder in (*folders, None))), None)


def conductor(base_url: str, *, pinned: bool, profile: str | None = None, **environment: str) -> Process:
    """Make the Conductor server, speaking to a stand-in at ``base_url``."""
    profiled = [] if profile is None else ["-m", "cProfile", "-o", profile]
    command = [sys.executable, *profiled, "-m", "conductor", "--port", "0"]
    return Process(command, pinned=pinned, environment={**stand_in_settings(base_url), **environment})


def stand_in_settings(base_url: str) -> dict[str, str]:
    """Give the environment of a server with a stand-in at ``base_url`` and without a rate limit."""
    return {
        "ANTHROPIC_API_KEY": "test-key",
        "ANTHROPIC_BASE_URL": base_url,
        "SESSION_RATE_LIMIT_PER_MIN": "100000",
        "SESSION_STORE_URL": "memory://",
    }
