"""The thread that writes to the SQLite file, with one fsync for all queued work.

It waits for locks of other processes, and reopens the file after a failure.
"""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import structlog

from conductor.errors import ConductorError, SettingsError, StoreLocked, StoreUnavailable
from conductor.rate_limit import STILL_S
from conductor.stores.sqlite_file import Failure, connect, failure

log = structlog.get_logger(__name__)

_T = TypeVar("_T")

# Jobs in one transaction, and the seconds after which no more are started.
_GROUP = 256
_GROUP_S = 0.02

# Seconds between attempts to get the lock. SQLite's own waits grow to 100 ms, and a busy process commits a
# dozen times in that.
_POLLS_S = (0.0005, 0.004)

# Seconds for work whose deadline passed while this process was suspended.
_PATIENCE_S = 0.2

_REASONS: dict[Failure, str] = {
    "locked": "Another process keeps the session store locked.",
    "full": "The session store's disk is full.",
    "away": "The session store cannot be read or written now.",
    "refused": "The session store refuses the commit.",
}

# The outcome of a job whose turn has not come.
_LATER = object()


class _Job(NamedTuple):
    # ``deadline`` is in monotonic seconds; ``alone``: outside a transaction.
    work: Callable[[sqlite3.Connection], Any]
    future: asyncio.Future[Any]
    deadline: float
    alone: bool


class Writer:
    """Takes work from the event loop, and does all that has come meanwhile as one group in its thread.

    Work waits ``busy_timeout`` seconds for other processes. ``look_every`` seconds lie between checks that
    the file exists.
    """

    def __init__(self, path: Path, busy_timeout: float, look_every: float) -> None:
        self.groups = 0
        self._path = path
        self._busy_timeout = busy_timeout
        self._look_every = look_every
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, "session-store")
        self._jobs: deque[_Job] = deque()
        self._writing: asyncio.Task[None] | None = None
        self._connection: sqlite3.Connection | None = None
        self._inode: tuple[int, int] | None = None
        self._look_at = 0.0
        self._tried_at = 0.0
        self._pause = threading.Event()
        self._failing = False
        self._closed = False

    async def open(self) -> None:
        """Open the file. Raises `SettingsError` and `StoreUnavailable`."""
        try:
            await self._loop.run_in_executor(self._thread, self._open)
        except (ConductorError, asyncio.CancelledError):
            self._end()
            raise

    def submit(self, work: Callable[[sqlite3.Connection], _T], *, alone: bool = False) -> asyncio.Future[_T]:
        """Queue work for the thread, in a transaction unless it is ``alone``; a retry may repeat it.

        The future gets its result, or `StoreUnavailable`. Cancelling it does not undo the work.
        """
        if self._closed:
            raise StoreUnavailable("The session store is closed.")
        future: asyncio.Future[_T] = self._loop.create_future()
        self._jobs.append(_Job(work, future, time.monotonic() + self._busy_timeout, alone))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_all())
        return future

    async def close(self, seconds: float) -> None:
        """Finish queued work and close the file; give up after ``seconds``."""
        if self._closed:
            return
        self._closed = True
        if self._writing is not None:
            await asyncio.wait([self._writing], timeout=seconds)
        finished, _ = await asyncio.wait([asyncio.wrap_future(self._end())], timeout=seconds)
        if not finished:
            log.error("session store not closed in time", seconds=seconds)

    def _end(self) -> Future[None]:
        self._closed = True
        closing = self._thread.submit(self._drop)
        self._thread.shutdown(wait=False)
        return closing

    async def _write_all(self) -> None:
        try:
            while self._jobs:
                group = [self._jobs.popleft()]
                while not group[0].alone and self._jobs and not self._jobs[0].alone and len(group) < _GROUP:
                    group.append(self._jobs.popleft())
                self._settle(group, await self._loop.run_in_executor(self._thread, self._serve, group))
        finally:
            self._writing = None

    def _settle(self, group: Sequence[_Job], outcomes: Sequence[object]) -> None:
        later: list[_Job] = []
        for job, outcome in zip_longest(group, outcomes, fillvalue=_LATER):
            assert isinstance(job, _Job)
            if outcome is _LATER:
                later.append(job)
            elif job.future.done():
                continue  # cancelled
            elif isinstance(outcome, ConductorError):
                job.future.set_exception(outcome)
            else:
                job.future.set_result(outcome)
        self._jobs.extendleft(reversed(later))

    # -- in the thread

    def _open(self) -> None:
        try:
            self._begin(time.monotonic() + self._busy_timeout).execute("ROLLBACK")
        except sqlite3.Error as error:
            kind = failure(error)
            raise (StoreLocked if kind == "locked" else StoreUnavailable)(_REASONS[kind]) from error

    def _serve(self, group: Sequence[_Job], *, is_retry: bool = False) -> list[object]:
        # The outcome of each job; those that are missing at the end come later.
        kind: Failure
        try:
            outcomes = self._write(group)
        except Exception as error:
            mistake = error
        else:
            if self._failing:
                self._failing = False
                log.info("session store available")
            return outcomes
        if isinstance(mistake, sqlite3.Error):
            kind = failure(mistake)
        else:
            kind = "away" if isinstance(mistake, SettingsError) else "refused"
        if kind == "away":
            self._drop()
        if kind == "away" and not is_retry:
            # The commit may have succeeded; its id makes the retry safe.
            return self._serve(group, is_retry=True)
        # One by one: only the faulty job fails.
        if kind == "refused" and len(group) > 1:
            return [self._serve([job])[0] for job in group]
        return self._refuse(group, kind, mistake)

    def _write(self, group: Sequence[_Job]) -> list[object]:
        connection = self._begin(min(job.deadline for job in group))
        if group[0].alone:
            connection.execute("ROLLBACK")
        outcomes: list[object] = []
        until = time.monotonic() + _GROUP_S
        try:
            for job in group:
                outcomes.append(job.work(connection))
                if time.monotonic() > until:
                    break
            if connection.in_transaction:
                connection.execute("COMMIT")
        # An open transaction would lock the file.
        except BaseException:
            self._roll_back(connection)
            raise
        self.groups += 1
        return outcomes

    def _begin(self, deadline: float) -> sqlite3.Connection:
        # A suspended process gets more time: its deadline passed while it did not run.
        now = time.monotonic()
        if now - self._tried_at > STILL_S:
            deadline = max(deadline, now + _PATIENCE_S)
        while True:
            self._tried_at = time.monotonic()
            try:
                connection = self._ready()
                connection.execute("BEGIN IMMEDIATE")
                return connection
            except sqlite3.Error as error:
                if failure(error) != "locked" or time.monotonic() >= deadline:
                    raise
            self._pause.wait(random.uniform(*_POLLS_S))

    def _ready(self) -> sqlite3.Connection:
        if self._connection is not None and time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + self._look_every
            # Commits to a removed file would succeed and be lost.
            if self._identity() != self._inode:
                log.error("session store's file was removed or replaced")
                self._drop()
        if self._connection is None:
            self._connection = connect(self._path)
            self._inode = self._identity()
        return self._connection

    def _identity(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            self._drop()

    def _drop(self) -> None:
        if self._connection is None:
            return
        try:
            self._connection.close()
        except sqlite3.Error as error:
            log.warning("session store not closed cleanly", error=str(error))
        self._connection = None

    def _refuse(self, group: Sequence[_Job], kind: Failure, mistake: Exception) -> list[object]:
        if kind == "refused":
            log.error("session store refused a commit", error=type(mistake).__name__)
        elif not self._failing:
            self._failing = True
            log.error("session store unavailable", reason=kind, error=str(mistake))
        now = time.monotonic()
        # Later jobs may wait longer for a lock.
        return [
            _LATER if kind == "locked" and job.deadline > now else StoreUnavailable(_REASONS[kind])
            for job in group
        ]
