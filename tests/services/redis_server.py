"""Runs a Redis or Valkey server for tests: on loopback, a free port, in a folder of its own.

Without one on the machine the tests are skipped and say so. ``.ci/run`` installs it and sets
``CI_REQUIRE_REDIS=1``, with which a skip is a failure.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from tests.services.ports import free_port
from tests.stand_ins.programs import WAIT, end, missing, program, started


def server_program() -> str:
    """Find a server; its tests are skipped without one, and without the library that talks to it."""
    for package in ("redis", "hiredis"):
        if find_spec(package) is None:
            missing(f"the Python package {package}", "REDIS")
    return program("REDIS", "redis-server", "valkey-server")


class RedisServer:
    """A server; ``options`` are its command line's. It may be killed, started again and frozen.

    Ctrl-C in a terminal does not reach it; its owner must end it.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.port = free_port()
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Its address, database 0."""
        return f"redis://127.0.0.1:{self.port}/0"

    @contextmanager
    def running(self) -> Iterator[RedisServer]:
        """Run it for the time of the block."""
        self.start()
        try:
            yield self
        finally:
            self.kill()

    @property
    def is_running(self) -> bool:
        """Whether it was started, and not killed since."""
        return self._process is not None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it with the data of its folder, and wait until it answers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [server_program(), *self._options, "--port", str(self.port), "--bind", "127.0.0.1"]
        command += ["--dir", str(self.folder), "--daemonize", "no", "--logfile", ""]
        self._process = started(command, b"Ready to accept connections", b"+monitor master")

    def kill(self) -> None:
        """End it at once, as a power cut would."""
        if self._process is not None:
            end(self._process)
            self._process = None

    @classmethod
    def sentinel(cls, folder: Path, primary: RedisServer, *settings: str, down_ms: int) -> RedisServer:
        """Make a Sentinel that decides alone and calls the primary ``main``."""
        folder.mkdir(parents=True)
        watch = (
            f"sentinel down-after-milliseconds main {down_ms}",
            "sentinel failover-timeout main 1000",
            *settings,
        )
        file = folder / "sentinel.conf"
        file.write_text("\n".join([f"sentinel monitor main 127.0.0.1 {primary.port} 1", *watch, ""]))
        return cls(folder, str(file), "--sentinel")

    def freeze(self) -> None:
        """Stop it from running: its connections stay and nothing answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen server go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def is_primary(self) -> bool:
        """Ask whether it takes writes; a Sentinel that makes it so cuts all connections, and the answer."""
        try:
            return self.ask("ROLE").startswith("master")
        except subprocess.CalledProcessError:
            return False

    def ask(self, *command: str, options: Sequence[str] = ()) -> str:
        """Run a command with ``redis-cli``; return its output."""
        client = server_program().replace("-server", "-cli")
        process = subprocess.run(
            [client, "-h", "127.0.0.1", "-p", str(self.port), *options, *command],
            capture_output=True,
            timeout=WAIT,
            check=True,
            stdin=subprocess.DEVNULL,
        )
        return process.stdout.decode().rstrip("\n")
