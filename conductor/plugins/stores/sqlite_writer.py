"""The SQLite file of the session store, and the thread that writes to it: an fsync for all queued work."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import structlog

from conductor.errors import SettingsError, StoreUnavailable

log = structlog.get_logger(__name__)

_T = TypeVar("_T")

SCHEMA_VERSION = 3
APPLICATION_ID = 0x436F6E64  # "Cond"

_SCHEMA = (
    """CREATE TABLE IF NOT EXISTS session(
        id INTEGER PRIMARY KEY,
        subject TEXT NOT NULL,
        session_id TEXT NOT NULL,
        token TEXT NOT NULL,
        epoch INTEGER NOT NULL,
        revision INTEGER NOT NULL,
        commit_id TEXT NOT NULL,
        updated REAL NOT NULL, -- epoch seconds
        UNIQUE(subject, session_id)
    )""",
    """CREATE TABLE IF NOT EXISTS record(
        session INTEGER, revision INTEGER, data BLOB NOT NULL, PRIMARY KEY(session, revision)
    ) WITHOUT ROWID""",
    f"PRAGMA application_id={APPLICATION_ID}",
    f"PRAGMA user_version={SCHEMA_VERSION}",
)
# Bytes of the write-ahead log above which it is restarted, and that only a reader that stays can exceed.
LOG_BYTES = 5 << 20
MAX_LOG_BYTES = 16 << 20
_SETTINGS = (
    "journal_mode=WAL",
    # An fsync for each group: with WAL and NORMAL a power failure loses acknowledged commits.
    "synchronous=FULL",
    "secure_delete=ON",  # deleted text is overwritten, in free pages too
    "wal_autocheckpoint=1000",  # in pages of 4 KiB
    "cache_size=-16000",  # in KiB; a smaller cache spills a large group before its commit
    f"journal_size_limit={LOG_BYTES}",  # it shrinks to this after a burst
)

# Jobs in one transaction, and changed rows after which it takes no further job: its pages fill the log.
_GROUP = 256
_CHANGES = 500
# Milliseconds that a restart of the log waits for readers, and tries. If the readers stay, the next restart
# comes after so many seconds, or when the log has grown by so many bytes, which double above `MAX_LOG_BYTES`.
_READERS_MS = 100
_READERS_TRIES = 5
_RETRY_S = 10.0
_RETRY_BYTES = 1 << 20

_Job: TypeAlias = tuple[Callable[[sqlite3.Connection], Any], asyncio.Future[Any]]


class Writer:
    """Takes work from the event loop, and does all waiting work as one group in its thread.

    A group waits ``busy_timeout`` seconds for other processes. After a failure the file is opened again.
    """

    def __init__(self, path: Path, busy_timeout: float) -> None:
        self.groups = 0
        self._path = path
        self._busy_timeout = busy_timeout
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, "session-store")
        self._jobs: list[_Job] = []
        self._writing: asyncio.Task[None] | None = None
        self._connection: sqlite3.Connection | None = None
        self._inode = 0
        self._closed = False
        self._next_restart = 0.0
        self._next_size, self._growth = LOG_BYTES, _RETRY_BYTES

    async def open(self) -> None:
        """Open the file. Raises `SettingsError`."""
        try:
            await self._loop.run_in_executor(self._thread, self._ready)
        except sqlite3.Error as error:
            await self.close()
            raise SettingsError(f"The session store's file {self._path} cannot be used: {error}.") from error
        except (SettingsError, asyncio.CancelledError):
            await self.close()
            raise

    def submit(self, work: Callable[[sqlite3.Connection], _T]) -> asyncio.Future[_T]:
        """Queue work for the next transaction.

        The future gets its result, or `StoreUnavailable`. Cancelling it does not undo the work.
        """
        if self._closed:
            raise StoreUnavailable("The session store is closed.")
        future: asyncio.Future[_T] = self._loop.create_future()
        self._jobs.append((work, future))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_all())
        return future

    async def checkpoint(self) -> None:
        """Shrink the file, and remove deleted text from the write-ahead log. A lock puts it off."""

        def work() -> None:
            with suppress(sqlite3.Error, SettingsError):
                self._ready().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

        await self._loop.run_in_executor(self._thread, work)

    async def close(self) -> None:
        """Finish queued work and close the file."""
        self._closed = True
        if self._writing is not None:
            await asyncio.wait([self._writing])
        closing = self._thread.submit(self._drop)
        self._thread.shutdown(wait=False)
        await asyncio.wrap_future(closing)

    async def _write_all(self) -> None:
        while self._jobs:
            group = self._jobs[:_GROUP]
            outcomes = await self._loop.run_in_executor(self._thread, self._write, group)
            del self._jobs[: len(outcomes)]
            for (_, future), outcome in zip(group, outcomes, strict=False):
                if future.done():
                    continue  # cancelled
                if isinstance(outcome, Exception):
                    future.set_exception(outcome)
                else:
                    future.set_result(outcome)
        self._writing = None

    # -- in the thread

    def _write(self, group: Sequence[_Job]) -> list[object]:
        # The outcomes of the first jobs, which are done.
        outcomes: list[object] = []
        try:
            connection = self._ready()
            connection.execute("BEGIN IMMEDIATE")
            before = connection.total_changes
            for work, _ in group:
                outcomes.append(_outcome(work, connection))
                if connection.total_changes - before > _CHANGES:
                    break
            connection.execute("COMMIT")
        except Exception as error:
            self._drop()  # which also ends the transaction
            return [StoreUnavailable(f"The session store cannot be used now: {error}.") for _ in group]
        self.groups += 1
        self._bound_log(connection)
        return outcomes

    def _bound_log(self, connection: sqlite3.Connection) -> None:
        """Restart a log that readers keep: SQLite alone never does while their transactions overlap."""
        now, size = time.monotonic(), log_size(self._path)
        if size <= LOG_BYTES or (size <= self._next_size and now < self._next_restart):
            return
        busy = 1
        with suppress(sqlite3.Error):
            connection.execute(f"PRAGMA busy_timeout={_READERS_MS}")
            try:
                # SQLite looks for readers once; a second try often succeeds where a longer wait does not.
                for _ in range(_READERS_TRIES):
                    busy, *_ = connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
                    if not busy:
                        break
            finally:
                connection.execute(f"PRAGMA busy_timeout={self._busy_timeout * 1000:.0f}")
        if not busy:
            self._next_size, self._growth = LOG_BYTES, _RETRY_BYTES
            return
        self._next_restart = now + _RETRY_S
        self._next_size = size + self._growth
        if size > MAX_LOG_BYTES:
            self._growth *= 2
            log.warning("a reader keeps the write-ahead log of the session store", bytes=size)

    def _ready(self) -> sqlite3.Connection:
        # Commits to a removed file would succeed and be lost.
        if self._connection is not None and self._inode != _inode(self._path):
            log.error("session store's file was removed or replaced")
            self._drop()
        if self._connection is None:
            self._connection = _connect(self._path, self._busy_timeout)
            self._inode = _inode(self._path)
        return self._connection

    def _drop(self) -> None:
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
        self._connection = None


def _outcome(work: Callable[[sqlite3.Connection], object], connection: sqlite3.Connection) -> object:
    try:
        return work(connection)
    except (UnicodeError, OverflowError):  # before the first statement: the rest of the group goes on
        return StoreUnavailable("The session store cannot store this name.")


def log_size(path: Path) -> int:
    """Return the bytes of a store's write-ahead log; 0 without one."""
    try:
        return os.stat(f"{path}-wal").st_size
    except OSError:
        return 0


def _inode(path: Path) -> int:
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0


def _connect(path: Path, busy_timeout: float) -> sqlite3.Connection:
    """Open the file; create it, its tables and its folder if they are missing.

    Raises `SettingsError` for a file that cannot be made or is no session store, and `sqlite3.Error`.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Not by SQLite: only the owner may read the file. Exclusive: opening and closing a file in use would
        # drop its POSIX locks.
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise SettingsError(f"The session store's file {path} cannot be made: {reason}.") from error
    connection = sqlite3.connect(path, timeout=busy_timeout, isolation_level=None)
    try:
        _prepare(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    queries = ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
    connection.execute("BEGIN")  # one snapshot: another process may make the tables now
    application, version, tables = (connection.execute(query).fetchone()[0] for query in queries)
    connection.execute("COMMIT")
    is_new = not (application or version or tables)
    # The database of another program or format is not changed.
    if not is_new and application != APPLICATION_ID:
        raise SettingsError(f"The file {path} is another program's database, not a session store.")
    if not is_new and version != SCHEMA_VERSION:
        raise SettingsError(
            f"The session store {path} has format {version}; this version of the server reads and writes "
            f"format {SCHEMA_VERSION}."
        )
    if is_new:
        connection.execute("PRAGMA auto_vacuum=FULL")  # must be set before the first table
    for setting in _SETTINGS:
        connection.execute(f"PRAGMA {setting}")
    if is_new:
        # Another process may have been first; then nothing changes.
        for statement in ("BEGIN IMMEDIATE", *_SCHEMA, "COMMIT"):
            connection.execute(statement)
