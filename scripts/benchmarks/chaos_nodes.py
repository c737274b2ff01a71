"""Nodes that start in a twentieth of the time: forks of a process that has imported the server already."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from benchmarks.nodes import free_port
from benchmarks.process import readiness

SCRIPTS = Path(__file__).resolve().parents[1]
READY_S = 20.0
DRAIN_S = 40.0
"""A node that is told to stop is out in 30 s, and a little for a busy machine."""

State = Literal["down", "up", "frozen"]


class Parent:
    """The process that nodes are forked from; a context manager, of any event loop."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        path = os.pathsep.join(map(str, (SCRIPTS.parent, SCRIPTS)))
        environment = {key: value for key, value in os.environ.items() if not key.startswith("ANTHROPIC_")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.chaos_parent"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**environment, "PYTHONPATH": path},
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        try:
            self._process.communicate(timeout=READY_S)  # its input ends: it ends its children, then itself
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate(timeout=READY_S)

    async def fork(self, order: Mapping[str, Any]) -> int:
        """Start a node as `chaos_parent` describes it, and give its process id. Raises TimeoutError."""
        async with asyncio.timeout(READY_S):
            return await asyncio.to_thread(self._order, json.dumps(order).encode())

    def _order(self, line: bytes) -> int:
        assert self._process is not None
        assert self._process.stdin is not None and self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()
            return int(self._process.stdout.readline())


class ChaosNode:
    """One node, always on the same port. ``state`` is "up" from when it is ready.

    It runs in ``folder`` and logs there; ``control`` names what is broken in it.
    """

    def __init__(
        self, name: str, parent: Parent, folder: Path, settings: Mapping[str, str], control: str | None
    ) -> None:
        self.name = name
        self.port = free_port()
        self.state: State = "down"
        self.starts = 0
        self._parent = parent
        self._folder = folder
        self._log = folder / f"{name}.log"
        self._settings = dict(settings)
        self._control = control
        self._pid: int | None = None

    async def start(self) -> None:
        """Start it, and wait until it is ready; again where it ends, as one does whose store is away.

        Raises TimeoutError.
        """
        async with asyncio.timeout(READY_S):
            while self.state != "up":
                self._pid = await self._parent.fork(self._order)
                self.starts += 1
                await self._wait_ready()

    @property
    def _order(self) -> dict[str, Any]:
        return {
            "port": self.port,
            "folder": str(self._folder),
            "log": str(self._log),
            "settings": self._settings,
            "control": self._control,
            "before": self._pid,
        }

    async def ended(self) -> None:
        """Wait until it has ended. Raises TimeoutError."""
        async with asyncio.timeout(DRAIN_S):
            while not self._has_ended:  # noqa: ASYNC110 -- another process: there is nothing to wait on
                await asyncio.sleep(0.05)

    async def _wait_ready(self) -> None:
        while not self._has_ended:
            if await readiness("127.0.0.1", self.port, 1.0) == 200:
                self.state = "up"
                return
            await asyncio.sleep(0.01)

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self.state = "down"
        self._signal(signal.SIGKILL)

    def freeze(self) -> None:
        """Stop it from running: its connections stay."""
        self.state = "frozen"
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)
        self.state = "up"

    def terminate(self) -> None:
        """Have it stop in good order: it drains first."""
        self.state = "down"
        self._signal(signal.SIGTERM)

    @property
    def tracebacks(self) -> int:
        """Count the tracebacks in its log."""
        return self._log.read_text(errors="replace").count("Traceback") if self._log.exists() else 0

    @property
    def _has_ended(self) -> bool:
        """Whether there is no process any more, or one that its parent has not looked at yet."""
        status = Path(f"/proc/{self._pid}/stat")
        return not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z"

    def _signal(self, number: signal.Signals) -> None:
        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, number)
