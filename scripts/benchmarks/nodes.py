"""Conductor nodes and the Redis between them: processes to end, kill, freeze and start again."""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
import socket
import sys
from pathlib import Path

from benchmarks.process import DidNotStart, Process, readiness

WAIT_S = 20.0
"""Bound for what a process does: to start, to answer, to end after SIGKILL."""
_PORTS = range(15_000, 30_000)
"""Below the ports that outgoing connections are given: nobody takes one while its process is down."""


def free_port() -> int:
    """Find a port of loopback that nobody listens on."""
    for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise DidNotStart("no port of this machine is free")


class Node:
    """One ``python -m conductor``; every start has the same port, settings and log.

    ``settings`` are environment variables; ``arguments`` are the command's. The log is a file in ``logs``
    named like the node. It runs in ``folder`` (whose ``.env`` it reads), or in ``logs``. Ctrl-C in a terminal
    does not reach one that is ``apart``.
    """

    def __init__(
        self,
        name: str,
        logs: Path,
        *arguments: str,
        folder: Path | None = None,
        apart: bool = False,
        **settings: str,
    ) -> None:
        self.name = name
        self.port = free_port()
        self.log = logs / f"{name}.log"
        self._arguments = arguments
        self._folder = folder
        self._apart = apart
        self._settings = settings
        self._process: Process | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return "127.0.0.1", self.port

    @property
    def url(self) -> str:
        """Where a client connects that wants this node."""
        return f"ws://127.0.0.1:{self.port}/ws"

    @property
    def process(self) -> Process:
        """The process of the last start: its id, its CPU time and memory."""
        assert self._process is not None
        return self._process

    @property
    def runs(self) -> bool:
        """Whether there is a process; a frozen one is one."""
        return self._process is not None and self._process.runs

    async def start(self, ready: bool = True) -> None:
        """Start it, and wait until it answers ``/readyz`` if ``ready``. Raises `DidNotStart`."""
        assert not self.runs
        address = ["--host", "127.0.0.1", "--port", str(self.port)]
        self._process = Process(
            [sys.executable, "-m", "conductor", *address, *self._arguments],
            pinned=False,
            log=self.log,
            folder=self._folder,
            apart=self._apart,
            **self._settings,
        )
        await self._process.start(ready)

    async def stop(self) -> None:
        """End it by SIGTERM: it drains first, up to 25 s. A frozen one goes on, to do so."""
        if self._process is not None:
            self.thaw()
            await self._process.stop()

    async def kill(self) -> None:
        """End it by SIGKILL, as a crash would."""
        if self._process is not None:
            await self._process.kill()

    async def restart(self) -> None:
        """Stop it and start it again. Raises `DidNotStart`."""
        await self.stop()
        await self.start()

    def freeze(self) -> None:
        """Stop it from running: its connections stay, and nothing answers."""
        self.process.send(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen node go on."""
        self.process.send(signal.SIGCONT)

    async def ready(self, timeout_s: float = 1.0) -> bool:
        """Ask ``/readyz`` once."""
        return await readiness(*self.address, timeout_s) == 200

    async def wait_ready(self, timeout_s: float = WAIT_S) -> None:
        """Wait until it is ready. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while not await self.ready():  # noqa: ASYNC110 -- another process: there is nothing to wait on
                await asyncio.sleep(0.02)


def redis_program() -> str | None:
    """Find ``redis-server`` or ``valkey-server``; None without one."""
    return shutil.which("redis-server") or shutil.which("valkey-server")


class RedisServer:
    """A Redis or Valkey on loopback that writes each command to its ``folder`` before it answers.

    It may be killed and started again, on the same port with the same data. ``options`` are its command
    line's. Ctrl-C in a terminal does not reach one that is ``apart``.
    """

    def __init__(self, folder: Path, *options: str, apart: bool = False) -> None:
        self.folder = folder
        self.port = free_port()
        self._options = options
        self._apart = {"process_group": 0} if apart else {}  # uvloop does not know the option
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        """Its address, database 0: a SESSION_STORE_URL."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        """The process's id."""
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Start it, with what its folder holds, and wait until it answers. Raises `DidNotStart`."""
        program = redis_program()
        if program is None:
            raise DidNotStart("redis-server or valkey-server is needed, and neither was found")
        self.folder.mkdir(parents=True, exist_ok=True)
        log = self.folder / "redis.log"
        command = [program, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        command += ["--daemonize", "no", "--appendonly", "yes", "--save", "", *self._options]
        with log.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                **self._apart,  # type: ignore[arg-type] # one option, where there is one
            )
        try:
            async with asyncio.timeout(WAIT_S):
                while not await self._answers():
                    if self._process.returncode is not None:
                        raise DidNotStart(log.read_text(errors="replace"))
                    await asyncio.sleep(0.01)
        except TimeoutError:
            await self.kill()
            raise DidNotStart(f"Redis is not ready:\n{log.read_text(errors='replace')}") from None
        except asyncio.CancelledError:
            self._send(signal.SIGKILL)
            raise

    async def stop(self) -> None:
        """End it in good order."""
        self.thaw()
        await self._end(signal.SIGTERM)

    async def kill(self) -> None:
        """End it at once, as a crash would; what it acknowledged is in its folder."""
        await self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """Stop it from running: its connections stay, and nothing answers."""
        self._send(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen server go on."""
        self._send(signal.SIGCONT)

    async def _answers(self) -> bool:
        """Ask with PING; while it reads its files it answers that it is loading."""
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        try:
            writer.write(b"PING\r\n")
            return await reader.readline() == b"+PONG\r\n"
        except OSError:
            return False
        finally:
            writer.transport.abort()

    async def _end(self, signum: signal.Signals) -> None:
        self._send(signum)
        if self._process is not None:
            try:
                await asyncio.wait_for(self._process.wait(), WAIT_S)
            except TimeoutError:
                self._send(signal.SIGKILL)
                await asyncio.wait_for(self._process.wait(), WAIT_S)

    def _send(self, signum: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signum)
