"""Runs a PostgreSQL server for tests: on loopback, a free port, in a folder of its own.

Without one on the machine the tests are skipped and say so. ``.ci/run`` installs it and sets
``CI_REQUIRE_POSTGRES=1``, with which a skip is a failure.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from itertools import count
from pathlib import Path

from tests.services.ports import free_port
from tests.stand_ins.programs import end, missing, program, started


def server_program(name: str) -> str:
    """Find one of its programs, which Debian keeps off the PATH; skips or fails without it."""
    if find_spec("asyncpg") is None:
        missing("the Python package asyncpg", "POSTGRES")
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return program("POSTGRES", name, path=os.pathsep.join([*map(str, folders), os.environ["PATH"]]))


def as_user() -> list[str]:
    """Begin a command line so that it is not run by root, for whom the server refuses to start."""
    if os.geteuid():
        return []
    if shutil.which("setpriv") is None:
        missing("setpriv, by which root becomes another user,", "POSTGRES")
    try:
        pwd.getpwnam("postgres")
    except KeyError:
        missing("the user postgres", "POSTGRES")
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]


_numbers = count(1)


class PostgresServer:
    """A server; ``options`` are settings such as ``fsync=off``. It may be killed, restarted and frozen."""

    def __init__(self, *options: str) -> None:
        self.port = free_port()
        self._options = options
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Its address, with the database that every server has."""
        return f"postgres://conductor@127.0.0.1:{self.port}/postgres"

    @contextmanager
    def running(self) -> Iterator[PostgresServer]:
        """Run it for the time of the block."""
        self.start()
        try:
            yield self
        finally:
            self.stop()

    def schema(self) -> str:
        """Make a schema with nothing in it; give its address."""
        name = f"schema_{next(_numbers)}"
        self.ask(f"CREATE SCHEMA {name}")
        return f"{self.url}?search_path={name}"

    def start(self) -> None:
        """Start it with the data of its folder, and wait until it answers."""
        user = as_user()
        if self._folder is None:
            # Not in pytest's folder, which other users cannot reach.
            self._folder = Path(tempfile.mkdtemp(prefix="conductor-postgres-"))
            if user:
                shutil.chown(self._folder, "postgres", "postgres")
            make = [
                server_program("initdb"),
                "--username=conductor",
                "--auth=trust",
                "--no-sync",
                "--encoding=UTF8",
            ]
            self._run([*user, *make, "--no-locale", "-D", str(self._folder / "data")])
        settings = ("listen_addresses=127.0.0.1", f"port={self.port}", "unix_socket_directories=")
        command = [*user, server_program("postgres"), "-D", str(self._folder / "data")]
        command += [part for setting in (*settings, *self._options) for part in ("-c", setting)]
        self._process = started(command, b"ready to accept connections", cwd=self._folder)

    def kill(self) -> None:
        """End it at once, as a crash would: the next start recovers from its log."""
        self._end(signal.SIGQUIT)

    def restart(self) -> None:
        """Restart it as ``pg_ctl restart -m fast`` does: it ends the connections, and loses nothing."""
        self._end(signal.SIGINT)
        self.start()

    def end_connections(self, most: int) -> None:
        """End the connections of stores, at random, in the middle of their work."""
        self.ask(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            f"WHERE application_name='conductor' ORDER BY random() LIMIT {most}"
        )

    def stop(self) -> None:
        """End it, and delete its folder."""
        try:
            self.kill()
        finally:
            if self._folder is not None:
                shutil.rmtree(self._folder)
                self._folder = None

    def freeze(self) -> None:
        """Stop it from running: its connections stay and nothing answers."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen server go on."""
        self._signal(signal.SIGCONT)

    def ask(self, sql: str) -> str:
        """Run a statement with ``psql``; return its output."""
        return self._run([server_program("psql"), "-X", "-q", "-A", "-t", "-c", sql, self.url]).strip()

    def _end(self, signum: signal.Signals) -> None:
        if self._process is not None:
            try:
                self.thaw()
            finally:
                end(self._process, signum)
                self._process = None

    def _signal(self, number: int) -> None:
        # Each process of the server leads a group of its own.
        assert self._process is not None
        os.kill(self._process.pid, number)
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        for pid in map(int, children):
            with suppress(ProcessLookupError):  # it may have ended: each connection has a process
                os.kill(pid, number)

    @staticmethod
    def _run(command: Sequence[str]) -> str:
        process = subprocess.run(command, capture_output=True, timeout=60, stdin=subprocess.DEVNULL, cwd="/")
        assert process.returncode == 0, process.stderr.decode()
        return process.stdout.decode()
