"""The thread that writes to the SQLite file, with one fsync for all queued work.

It waits for locks of other processes, and reopens the file after a failure.
"""

from __future__ import annotations

import asyncio
import os
import queue
import random
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
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

# A value that cannot be stored fails its own job only.
_MISTAKES = (sqlite3.Error, StoreUnavailable, SettingsError, ValueError, TypeError, ArithmeticError)


class _Job(NamedTuple):
    # ``work`` None ends the thread; ``deadline`` is in monotonic seconds; ``alone``: outside a transaction.
    work: Callable[[sqlite3.Connection], Any] | None
    future: asyncio.Future[Any]
    deadline: float
    alone: bool


class Writer:
    """Takes work from the event loop, and answers there once for each group of jobs.

    Work waits ``busy_timeout`` seconds for other processes. ``look_every`` seconds lie between checks that
    the file exists.
    """

    def __init__(self, path: Path, busy_timeout: float, look_every: float) -> None:
        self.groups = 0
        self._path = path
        self._busy_timeout = busy_timeout
        self._look_every = look_every
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._waiting: deque[_Job] = deque()
        self._connection: sqlite3.Connection | None = None
        self._inode: tuple[int, int] | None = None
        self._look_at = 0.0
        self._tried_at = 0.0
        self._pause = threading.Event()
        self._failing = False
        self._closed = False
        self._ended: asyncio.Future[None] = self._loop.create_future()

    async def open(self) -> None:
        """Open the file and start the thread. Raises `SettingsError` and `StoreUnavailable`."""
        opened: asyncio.Future[None] = self._loop.create_future()
        threading.Thread(target=self._run, args=(opened,), name="session-store", daemon=True).start()
        try:
            await opened
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
        self._queue.put(_Job(work, future, time.monotonic() + self._busy_timeout, alone))
        return future

    async def close(self, seconds: float) -> None:
        """Finish queued work and close the file; give up after ``seconds``."""
        if not self._closed:
            self._end()
        finished, _ = await asyncio.wait([self._ended], timeout=seconds)
        if not finished:
            log.error("session store not closed in time", seconds=seconds)

    def _end(self) -> None:
        self._closed = True
        self._queue.put(_Job(None, self._ended, 0, alone=True))

    # -- in the thread

    def _run(self, opened: asyncio.Future[None]) -> None:
        try:
            if self._opens(opened):
                while (group := self._gather())[0].work is not None:
                    self._serve(group)
        finally:
            self._closed = True
            self._drop()
            self._drain()
            self._refuse([job for job in self._waiting if job.work is not None], _REASONS["away"])
            # Last, after all other futures.
            self._answer([(self._ended, None)])

    def _opens(self, opened: asyncio.Future[None]) -> bool:
        outcome: ConductorError | None = None
        try:
            self._begin(time.monotonic() + self._busy_timeout).execute("ROLLBACK")
        except SettingsError as error:
            outcome = error
        except sqlite3.Error as error:
            kind = failure(error)
            outcome = (StoreLocked if kind == "locked" else StoreUnavailable)(_REASONS[kind])
        self._answer([(opened, outcome)])
        return outcome is None

    def _gather(self) -> list[_Job]:
        waiting = self._waiting
        if not waiting:
            waiting.append(self._queue.get())
        self._drain()
        group = [waiting.popleft()]
        while not group[0].alone and waiting and not waiting[0].alone and len(group) < _GROUP:
            group.append(waiting.popleft())
        return group

    def _drain(self) -> None:
        with suppress(queue.Empty):
            while True:
                self._waiting.append(self._queue.get_nowait())

    def _serve(self, group: list[_Job], *, is_retry: bool = False) -> None:
        kind: Failure
        try:
            outcomes = self._write(group)
        except _MISTAKES as error:
            mistake = error
        else:
            self._waiting.extendleft(reversed(group[len(outcomes) :]))
            if self._failing:
                self._failing = False
                log.info("session store available")
            self._answer([(job.future, outcome) for job, outcome in zip(group, outcomes, strict=False)])
            return
        if isinstance(mistake, sqlite3.Error):
            kind = failure(mistake)
        else:
            kind = "away" if isinstance(mistake, SettingsError) else "refused"
        if kind == "away":
            self._drop()
        if kind == "away" and not is_retry:
            # The commit may have succeeded; its id makes the retry safe.
            self._serve(group, is_retry=True)
        # One by one: only the faulty job fails.
        elif kind == "refused" and len(group) > 1:
            for job in group:
                self._serve([job])
        else:
            self._fail(group, kind, mistake)

    def _write(self, group: Sequence[_Job]) -> list[Any]:
        connection = self._begin(min(job.deadline for job in group))
        if group[0].alone:
            connection.execute("ROLLBACK")
        outcomes: list[Any] = []
        until = time.monotonic() + _GROUP_S
        try:
            for job in group:
                assert job.work is not None
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

    def _fail(self, group: Sequence[_Job], kind: Failure, mistake: BaseException) -> None:
        if kind == "locked":  # later jobs may wait longer
            now = time.monotonic()
            self._waiting.extendleft(job for job in reversed(group) if job.deadline > now)
            group = [job for job in group if job.deadline <= now]
        if kind == "refused":
            log.error("session store refused a commit", error=type(mistake).__name__)
        elif not self._failing:
            self._failing = True
            log.error("session store unavailable", reason=kind, error=str(mistake))
        self._refuse(group, _REASONS[kind])

    def _refuse(self, jobs: Iterable[_Job], reason: str) -> None:
        self._answer([(job.future, StoreUnavailable(reason)) for job in jobs])

    def _answer(self, answers: Sequence[tuple[asyncio.Future[Any], object]]) -> None:
        with suppress(RuntimeError):  # the loop is closed: no caller waits
            # One wake-up of the loop for the whole group.
            self._loop.call_soon_threadsafe(_settle, answers)


def _settle(answers: Sequence[tuple[asyncio.Future[Any], object]]) -> None:
    for future, outcome in answers:
        if future.done():
            continue  # cancelled
        if isinstance(outcome, ConductorError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
