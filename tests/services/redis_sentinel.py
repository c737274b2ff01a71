"""Runs a Redis primary, its replica and a Sentinel on loopback for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.services.ports import free_port
from tests.services.redis_server import RedisServer

SENTINEL_PASSWORD = "watch-word"
"""The Sentinel's, if the servers have one."""


class SentinelServers:
    """A primary, a replica of it and a Sentinel, all on loopback.

    A primary is down after ``down_ms``. Below 1.1 s the Sentinel takes the next one for down, too, since it
    connects once a second: for ten seconds or more there are then two primaries without a replica.
    """

    def __init__(self, folder: Path, password: str = "", down_ms: int = 1_500) -> None:
        secret = ("--requirepass", password, "--masterauth", password) if password else ()
        options = ("--save", "", "--repl-diskless-sync-delay", "0", *secret)
        self.primary = RedisServer(folder / "primary", *options)
        follow = f"127.0.0.1 {self.primary.port}"
        self.replica = RedisServer(folder / "replica", *options, "--replicaof", follow)
        lines = [f"sentinel auth-pass main {password}", f"requirepass {SENTINEL_PASSWORD}"]
        self._options = ("-a", SENTINEL_PASSWORD, "--no-auth-warning") if password else ()
        self._nowhere = free_port()
        self.sentinel = RedisServer.sentinel(
            folder / "sentinel", self.primary, *(lines if password else []), down_ms=down_ms
        )

    @property
    def url(self) -> str:
        """The Sentinel's address, after one where nothing listens."""
        return f"redis+sentinel://127.0.0.1:{self._nowhere},127.0.0.1:{self.sentinel.port}/main"

    @contextmanager
    def running(self) -> Iterator[SentinelServers]:
        """Run all three; begins when the Sentinel knows the replica."""
        with ExitStack() as stack:
            for server in (self.primary, self.replica, self.sentinel):
                stack.enter_context(server.running())
            while str(self.replica.port) not in self._replicas():
                pass  # each question takes a few milliseconds
            yield self

    def fail_over(self, _key: str = "") -> None:
        """Kill the primary, and wait until the replica has taken its place."""
        self.primary.kill()
        while not self.replica.is_primary():
            pass  # each question takes a few milliseconds
        self.primary, self.replica = self.replica, self.primary

    def restore(self) -> None:
        """Start the killed server again, as the replica."""
        self.replica.start()
        self.replica.ask("REPLICAOF", "127.0.0.1", str(self.primary.port))
        while "connected" not in self.replica.ask("ROLE").splitlines():
            pass  # each question takes a few milliseconds

    def _replicas(self) -> list[str]:
        return self.sentinel.ask("SENTINEL", "REPLICAS", "main", options=self._options).splitlines()
