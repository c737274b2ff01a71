"""The one thread that writes to a SQLite store's file: what waits is written together, with one fsync.

It also waits for other processes' locks, opens the file again after a failure, and sweeps.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from conductor.bounds import STILL_S
from conductor.errors import ConductorError, SettingsError, StoreError, StoreUnavailable
from conductor.stores.base import SessionKey
from conductor.stores.sqlite_group import Commit, Delete, Outcome, Sweep, TakeOver, Work, run
from conductor.stores.sqlite_schema import Failure, connect, failure

log = structlog.get_logger(__name__)

_GROUP = 256
_CLAIMS = 32
"""A claim reads a whole session: only so many keep a group's commits waiting."""

_LOOK_S = 1.0
"""How often to look whether the file is still there."""

_POLLS_S = (0.0005, 0.004)
"""SQLite's own waiting grows to 100 ms, in which a busy neighbour commits a dozen times."""

_PATIENCE_S = 0.2
"""Work whose time was over before it came to be written, since this process stood still, is tried so long."""

_REASONS: dict[Failure, str] = {
    "locked": "Another process keeps the session store locked.",
    "full": "The session store's disk is full.",
    "away": "The session store cannot be read or written now.",
    "refused": "The session store could not take this.",
}

# Whatever a value can do wrong on its way into a row; the group's other sessions have no part in it.
_MISTAKES = (sqlite3.Error, StoreUnavailable, SettingsError, ValueError, TypeError, ArithmeticError)


@dataclass(frozen=True, slots=True)
class Limits:
    """``session_ttl``, ``busy_timeout`` and ``sweep_every`` are seconds; ``now`` gives epoch seconds."""

    session_ttl: float
    busy_timeout: float
    sweep_every: float
    now: Callable[[], float]


@dataclass(frozen=True, slots=True)
class _Job:
    """``work`` is None for the last job; ``deadline`` is monotonic seconds."""

    work: Work | None
    future: asyncio.Future[Any] | None
    deadline: float

    @property
    def key(self) -> SessionKey | None:
        return None if self.work is None else self.work.key


class Writer:
    """Takes work from the loop that it was made in, and answers there, once for each group."""

    def __init__(self, path: Path, limits: Limits) -> None:
        self.groups = 0
        self._path = path
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._waiting: deque[_Job] = deque()
        self._connection: sqlite3.Connection | None = None
        self._inode: tuple[int, int] | None = None
        self._look_at = 0.0
        self._tried_at = 0.0
        self._pause = threading.Event()
        self._sweep_at = time.monotonic() + limits.sweep_every
        self._failing = False
        self._closed = False
        self._ended: asyncio.Future[None] = self._loop.create_future()

    async def open(self) -> None:
        """Open the file and start. Raises `SettingsError` and `StoreUnavailable`; then nothing runs."""
        opened: asyncio.Future[None] = self._loop.create_future()
        threading.Thread(target=self._run, args=(opened,), name="session-store", daemon=True).start()
        try:
            await opened
        except (ConductorError, asyncio.CancelledError):
            self._closed = True
            self._queue.put(_Job(None, None, 0))
            raise

    def submit(self, work: Work) -> asyncio.Future[Any]:
        """Queue work; its future has the outcome or a `StoreError`. What was cancelled is done too."""
        if self._closed:
            raise StoreUnavailable("The session store is closed.")
        future: asyncio.Future[Any] = self._loop.create_future()
        self._queue.put(_Job(work, future, time.monotonic() + self._limits.busy_timeout))
        return future

    async def close(self, seconds: float) -> None:
        """Finish what waits, and close the file; give up waiting for that after some seconds."""
        if not self._closed:
            self._closed = True
            self._queue.put(_Job(None, None, 0))
        done, _ = await asyncio.wait([self._ended], timeout=seconds)
        if not done:
            log.error("session store not closed in time", seconds=seconds)

    # -- in the thread

    def _run(self, opened: asyncio.Future[None]) -> None:
        try:
            if self._opens(opened):
                while (group := self._gather()) is not None:
                    self._serve(group)
        finally:
            self._closed = True
            self._drop()
            self._drain()
            self._refuse(self._waiting, _REASONS["away"])
            self._call(_settle, [(self._ended, None)])

    def _opens(self, opened: asyncio.Future[None]) -> bool:
        outcome: ConductorError | None = None
        try:
            self._begin(time.monotonic() + self._limits.busy_timeout).execute("ROLLBACK")
        except SettingsError as error:
            outcome = error
        except sqlite3.Error as error:
            outcome = StoreUnavailable(_REASONS[failure(error)])
        self._call(_settle, [(opened, outcome)])
        return outcome is None

    def _gather(self) -> list[_Job] | None:
        """Wait for work, and take what may go together; None at the end."""
        waiting = self._waiting
        if not waiting:
            try:
                waiting.append(self._queue.get(timeout=max(self._sweep_at - time.monotonic(), 0.0)))
            except queue.Empty:
                self._sweep_at = 0
        if time.monotonic() >= self._sweep_at:
            self._sweep_at = time.monotonic() + self._limits.sweep_every
            waiting.append(_Job(Sweep(), None, 0))
        self._drain()
        group, self._waiting = _group(waiting)
        return None if group[0].work is None else group

    def _drain(self) -> None:
        try:
            while True:
                self._waiting.append(self._queue.get_nowait())
        except queue.Empty:
            pass

    def _serve(self, group: list[_Job], *, again: bool = False) -> None:
        """Write a group and answer it, whatever happens."""
        kind: Failure
        try:
            outcomes = self._write(group)
        except _MISTAKES as error:
            mistake = error
        else:
            self._answer(group, outcomes)
            return
        if isinstance(mistake, sqlite3.Error):
            kind = failure(mistake)
        else:
            kind = "away" if isinstance(mistake, SettingsError) else "refused"
        if kind == "away":
            self._drop()
        if kind == "away" and not again:
            # Whether the commit came through is unknown; its id makes the second attempt safe.
            self._serve(group, again=True)
        elif kind == "refused" and len(group) > 1:
            for job in group:
                self._serve([job])
        else:
            self._fail(group, kind, mistake)

    def _write(self, group: Sequence[_Job]) -> list[Outcome]:
        connection = self._begin(min(job.deadline for job in group))
        try:
            works = [job.work for job in group if job.work is not None]
            outcomes = run(connection, works, self._limits.now(), self._limits.session_ttl)
            connection.execute("COMMIT")
        except BaseException:
            self._roll_back(connection)
            raise
        self.groups += 1
        if isinstance(group[0].work, Delete):
            self._erase(connection)
        return outcomes

    def _erase(self, connection: sqlite3.Connection) -> None:
        """Empty the write-ahead log, which still holds what was deleted, unless somebody reads it now."""
        try:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.Error as error:
            log.warning("session store not erased from its log", error=str(error))

    def _begin(self, deadline: float) -> sqlite3.Connection:
        """Begin a transaction, waiting for other processes; for a little more if this one stood still."""
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
        """Open the file where that is needed: also if it was taken away or replaced under us."""
        if self._connection is not None and time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + _LOOK_S
            if self._identity() != self._inode:
                log.error("session store taken away")
                self._drop()
        if self._connection is None:
            self._connection = connect(self._path)
            self._inode = self._identity()
        return self._connection

    def _identity(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_dev, found.st_ino

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

    def _answer(self, group: Sequence[_Job], outcomes: Sequence[Outcome]) -> None:
        if self._failing:
            self._failing = False
            log.info("session store is back")
        answers: list[tuple[asyncio.Future[Any], object]] = []
        for job, outcome in zip(group, outcomes, strict=True):
            work = job.work
            if isinstance(work, Commit) and isinstance(outcome, int):
                work.claim.revision = outcome
            elif isinstance(work, Sweep) and work.after is not None:
                self._waiting.append(job)
                continue
            if job.future is not None:
                answers.append((job.future, outcome))
        if answers:
            self._call(_settle, answers)

    def _fail(self, group: Sequence[_Job], kind: Failure, mistake: BaseException) -> None:
        patient: list[_Job] = []
        if kind == "locked":
            now = time.monotonic()
            patient = [job for job in group if job.deadline > now]
            group = [job for job in group if job.deadline <= now]
        if kind != "refused" and not self._failing:
            self._failing = any(job.future is not None for job in group)
            log.error("session store unavailable", reason=kind, error=str(mistake))
        elif kind == "refused":
            log.error("session store refused", error=type(mistake).__name__)
        self._waiting.extendleft(reversed(patient))
        self._refuse(group, _REASONS[kind])

    def _refuse(self, jobs: Iterable[_Job], reason: str) -> None:
        futures = [job.future for job in jobs if job.future is not None]
        self._call(_settle, [(future, StoreUnavailable(reason)) for future in futures])

    def _call(self, function: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            pass  # the loop is closed: nobody waits any more


def _group(waiting: deque[_Job]) -> tuple[list[_Job], deque[_Job]]:
    """Pick what may share a transaction: of each session one piece, in order. Returns the rest, too."""
    group: list[_Job] = []
    later: deque[_Job] = deque()
    keys: set[SessionKey] = set()
    claims = _CLAIMS
    while waiting:
        job = waiting.popleft()
        if job.key is None:
            (later if group or later else group).append(job)
            break
        if job.key in keys or len(group) == _GROUP or (isinstance(job.work, TakeOver) and not claims):
            later.append(job)
        else:
            group.append(job)
            claims -= isinstance(job.work, TakeOver)
        keys.add(job.key)
    later.extend(waiting)
    return group, later


def _settle(answers: Sequence[tuple[asyncio.Future[Any], object]]) -> None:
    for future, outcome in answers:
        if future.done():
            continue  # cancelled
        if isinstance(outcome, StoreError | SettingsError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
