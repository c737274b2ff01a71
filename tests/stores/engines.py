"""The engines that the contract runs on. Each makes stores with no session at first."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

from conductor.plugins.stores.postgres import PostgresStore
from conductor.plugins.stores.redis import RedisStore
from conductor.stores.base import Claim, SessionKey, SessionLog
from conductor.stores.memory import MemoryStore
from conductor.stores.sqlite import SqliteStore
from tests.stores.postgres_server import PostgresServer

KEY = SessionKey("subject", "s-1")
FIRST = b"first \x00\xff\r\n"
"""The first commit of `filled`."""


class Engine:
    """An engine; ``make`` gives a store that is not open yet."""

    durable = True
    numbers = count(1)

    def make(self, **options: Any) -> SessionLog:
        """Make an empty store."""
        raise NotImplementedError

    async def open(self, store: SessionLog) -> None:
        """Open a store."""
        await store.open()

    @asynccontextmanager
    async def opened(self, **options: Any) -> AsyncIterator[SessionLog]:
        """Open an empty store for the time of the block."""
        store = self.make(**options)
        await self.open(store)
        try:
            yield store
        finally:
            await store.aclose()


class Memory(Engine):
    """Memory, which deletes a released session and lets none expire."""

    durable = False

    def make(self, **options: Any) -> SessionLog:
        return MemoryStore(**options)


class Sqlite(Engine):
    """A file in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def make(self, **options: Any) -> SessionLog:
        return SqliteStore(self._folder / f"a file?#% {next(self.numbers)}.db", **options)


class Postgres(Engine):
    """A schema of a running server."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server

    def make(self, **options: Any) -> SessionLog:
        schema = f"engine_{next(self.numbers)}"
        self._server.ask(f"CREATE SCHEMA {schema}")
        # Patient: a busy machine takes seconds to make the tables.
        return PostgresStore(f"{self._server.url}?search_path={schema}", retry_for=20.0, **options)


class Redis(Engine):
    """Names with their own prefix, at a server, at the primary of Sentinels, or in a cluster."""

    def __init__(self, url: str) -> None:
        self._url = url

    def make(self, **options: Any) -> SessionLog:
        return RedisStore(self._url, prefix=f"engine-{next(self.numbers)}", **options)

    async def open(self, store: SessionLog) -> None:
        """Do nothing: its opening only warns, and does not wait for Sentinels that look for the primary."""


async def filled(store: SessionLog, key: SessionKey = KEY) -> Claim:
    """Claim a session that has one commit."""
    claim = await store.claim(key)
    await store.append(claim, "commit-0", FIRST)
    return claim


async def commits(store: SessionLog, key: SessionKey = KEY) -> list[bytes]:
    """Read a session's commits by a claim, which fences the previous one."""
    return list((await store.claim(key)).commits)
