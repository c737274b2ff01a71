"""The SQLite file of the session store, and the thread that writes to it: an fsync for all queued work."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import structlog

from conductor.errors import SettingsError, StoreError, StoreUnavailable

log = structlog.get_logger(__name__)

_T = TypeVar("_T")

SCHEMA_VERSION = 4
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
    # Not without a rowid, which is for small rows.
    """CREATE TABLE IF NOT EXISTS attachment(
        session INTEGER, name TEXT, data BLOB NOT NULL, PRIMARY KEY(session, name)
    )""",
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
# Seconds between two looks at a file that another process makes.
_LOOK_S = 0.02

# Bytes of the head of a log, and before each page; https://www.sqlite.org/fileformat2.html#walformat
_HEAD_BYTES = 32
_FRAME_BYTES = 24

_Job: TypeAlias = tuple[Callable[[sqlite3.Connection], Any], asyncio.Future[Any]]


class Writer:
    """Takes work from the event loop, and does all waiting work as one group in its thread.

    A group waits ``busy_timeout`` seconds for other processes. After a failure the file is opened again.
    ``losses`` counts how often commits may have been lost, because a file was removed, replaced or cut.
    """

    def __init__(self, path: Path, busy_timeout: float) -> None:
        self.groups = self.losses = 0
        self._path = path
        self._busy_timeout = busy_timeout
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, "session-store")
        self._jobs: list[_Job] = []
        self._writing: asyncio.Task[None] | None = None
        self._connection: sqlite3.Connection | None = None
        self._files = _Files(0, 0, 0)
        self._closed = False
        self._next_restart = 0.0
        self._next_size, self._growth = LOG_BYTES, _RETRY_BYTES

    async def open(self) -> None:
        """Open the file. Raises `SettingsError`."""
        try:
            await self._loop.run_in_executor(self._thread, self._open)
        except sqlite3.Error as error:
            await self.close()
            raise SettingsError(f"The session store's file {self._path} cannot be used: {error}.") from error
        except (SettingsError, asyncio.CancelledError):
            await self.close()
            raise

    def submit(self, work: Callable[[sqlite3.Connection], _T]) -> asyncio.Future[_T]:
        """Queue work for the next transaction.

        The future gets its result, or `StoreUnavailable`. Cancelling it does not undo work that has begun.
        """
        if self._closed:
            raise StoreUnavailable("The session store is closed.")
        future: asyncio.Future[_T] = self._loop.create_future()
        self._jobs.append((work, future))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_all())
        return future

    def checkpoint(self) -> asyncio.Future[None]:
        """Shrink the file, and remove deleted text from the write-ahead log. A lock puts it off."""

        def work() -> None:
            with suppress(sqlite3.Error, SettingsError):
                self._open().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
                self._note_log()

        return self._loop.run_in_executor(self._thread, work)

    async def close(self) -> None:
        """Finish queued work and close the file; a disk that stalls is not waited for."""
        self._closed = True
        if self._writing is not None:
            await asyncio.wait([self._writing], timeout=self._busy_timeout)
        closing = asyncio.wrap_future(self._thread.submit(self._drop))
        self._thread.shutdown(wait=False)
        await asyncio.wait([closing], timeout=self._busy_timeout)

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
            connection = self._begin()
            before = connection.total_changes
            for work, future in group:
                # Work that nobody waits for any more is not begun: a late claim would fence the next owner.
                outcomes.append(None if future.done() else _outcome(work, connection))
                if connection.total_changes - before > _CHANGES:
                    break
            connection.execute("COMMIT")
        except Exception as error:
            self._drop()  # which also ends the transaction
            return [StoreUnavailable(f"The session store cannot be used now: {error}.") for _ in group]
        self.groups += 1
        self._bound_log(connection)
        self._note_log()
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

    def _begin(self) -> sqlite3.Connection:
        """Begin a transaction in the files that the path names: commits to removed ones would be lost."""
        while True:
            connection = self._open()
            if self._begins(connection):
                return connection
            log.error("session store's file or its write-ahead log was removed, replaced or cut")
            self.losses += 1
            self._move_log(connection)
            self._drop()

    def _move_log(self, connection: sqlite3.Connection) -> None:
        """Move the commits of a removed log to the file.

        The last process that closes the log would do so, but a process that opens the file meanwhile
        with a new log may be the last. Beside a new log nobody knows the frames of the old one.
        """
        now = _Files.of(self._path)
        if now.inode == self._files.inode and not now.log_inode:
            with suppress(sqlite3.Error):
                connection.execute("PRAGMA wal_checkpoint(FULL)").fetchall()

    def _begins(self, connection: sqlite3.Connection) -> bool:
        try:
            connection.execute("BEGIN IMMEDIATE")
            if self._files.are_kept(self._path):
                return True
            connection.execute("ROLLBACK")
        except sqlite3.Error:
            if self._files.are_kept(self._path):
                raise
        if not self._is_whole(connection):
            return False
        self._note_log()
        connection.execute("BEGIN IMMEDIATE")
        return True

    def _is_whole(self, connection: sqlite3.Connection) -> bool:
        """Return whether a log that has shrunk was emptied by another process, and not cut."""
        now = _Files.of(self._path)
        if not now.are_those(self._files):
            return False
        if now.log_head == self._files.log_head:  # cut, as an emptied log begins anew
            # SQLite would move what is left to the file, which then held parts of commits.
            with suppress(OSError):
                os.truncate(f"{self._path}-wal", 0)
            return False
        with suppress(sqlite3.Error):
            (page,) = connection.execute("PRAGMA page_size").fetchone()
            _, frames, _ = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            return bool(frames * (page + _FRAME_BYTES) <= log_size(self._path))
        return False

    def _note_log(self) -> None:
        size, head = log_size(self._path), _head(self._path)
        self._files = replace(self._files, log_size=size, log_head=head)

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = _connect(self._path, self._busy_timeout)
            self._files = _Files.of(self._path)
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
    except StoreError as error:  # one session too many, or a row that cannot be read
        return error


@dataclass(frozen=True, slots=True)
class _Files:
    """The file and its write-ahead log, as they were seen last; 0 for a missing one and for an empty file."""

    inode: int
    log_inode: int
    log_size: int
    log_head: bytes = b""

    @classmethod
    def of(cls, path: Path) -> _Files:
        """Look at the files of a path."""
        (inode, size), log = _look(str(path)), _look(f"{path}-wal")
        return cls(inode if size else 0, *log, _head(path))

    def are_those(self, others: _Files) -> bool:
        """Return whether they are the same files, whatever their content."""
        return (self.inode, self.log_inode) == (others.inode, others.log_inode)

    def are_kept(self, path: Path) -> bool:
        """Return whether the path has the same files, and its log has not shrunk."""
        now = _Files.of(path)
        return now.are_those(self) and now.log_size >= self.log_size


def log_size(path: Path) -> int:
    """Return the bytes of a store's write-ahead log; 0 without one."""
    return _look(f"{path}-wal")[1]


def _head(path: Path) -> bytes:
    """Return the head of a store's write-ahead log, which is another one after each restart of the log."""
    try:
        with open(f"{path}-wal", "rb") as log:
            return log.read(_HEAD_BYTES)
    except OSError:
        return b""


def _look(path: str) -> tuple[int, int]:
    """Return a file's inode and its bytes; zeros without one."""
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_ino, found.st_size


def _connect(path: Path, busy_timeout: float) -> sqlite3.Connection:
    """Open the file; create it, its tables and its folder if they are missing.

    Raises `SettingsError` for a file that cannot be made or is no session store, and `sqlite3.Error`.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Not by SQLite: only the owner may read the file. Exclusive: opening and closing a file in use would
        # drop its POSIX locks.
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        except FileExistsError:
            _refuse_empty(path, busy_timeout)
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


def _refuse_empty(path: Path, seconds: float) -> None:
    """Refuse a file without content, which was a store before; another process may be making one now."""
    end = time.monotonic() + seconds
    while path.is_file() and not path.stat().st_size:
        if time.monotonic() > end:
            raise SettingsError(
                f"The session store's file {path} is empty: restore a backup, or delete it for a new store."
            )
        threading.Event().wait(_LOOK_S)


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
