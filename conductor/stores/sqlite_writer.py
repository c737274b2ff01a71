"""The one thread that writes to a SQLite store's file, with one fsync for all queued work.

It also waits for other processes' locks, reopens the file after a failure, and sweeps.
"""

from __future__ import annotations

import asyncio
import os
import queue
import random
import secrets
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import structlog

from conductor.errors import ConductorError, SettingsError, StoreError, StoreUnavailable, TooManySessions
from conductor.rate_limit import STILL_S
from conductor.stores.base import LASTING, Claim, Operation, SessionKey, SessionState, too_many
from conductor.stores.sqlite_schema import (
    HEAD,
    SPARE_PAGES,
    Failure,
    Head,
    Proposal,
    commit,
    connect,
    delete_sessions,
    failure,
    load,
    rewrite,
)

log = structlog.get_logger(__name__)


# One step of a deletion or a sweep is bounded, because commits wait for it: sessions scanned, sessions
# deleted, pages freed, seconds.
_SCANNED = 1000
_DELETED = 64
_FREED = 1_024
_STEP_S = 0.02


@dataclass(frozen=True, slots=True)
class TakeOver:
    """Claim a session; its outcome is a `Claim`."""

    key: SessionKey


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit operations; its outcome is the session's new revision."""

    claim: Claim
    commit_id: str
    operations: Sequence[Operation]

    @property
    def key(self) -> SessionKey:
        return self.claim.key


@dataclass(frozen=True, slots=True)
class LetGo:
    """End a claim, if it is the session's present one; the session stays. Its outcome is None."""

    key: SessionKey
    token: str


@dataclass(slots=True)
class Delete:
    """Delete a subject's session, or all of them, in steps; its outcome is their number.

    ``left`` is how many are still to be deleted. Like a sweep it frees pages at the end, and is ``done``
    after that.
    """

    subject: str
    session_id: str | None
    left: int | None = None
    deleted: int = 0
    done: bool = False
    key: None = None


@dataclass(slots=True)
class Sweep:
    """Delete expired sessions in steps; its outcome is their number. ``after`` is None once all were seen."""

    after: int | None = 0
    deleted: int = 0
    freed: bool = False
    done: bool = False
    key: None = None


Work: TypeAlias = TakeOver | Commit | LetGo | Delete | Sweep
"""Work with a ``key`` may share a transaction with work on other keys; the rest runs alone."""

Outcome: TypeAlias = Claim | int | StoreError | None


def run(
    connection: sqlite3.Connection, group: Sequence[Work], now: float, ttl: float, kept: int
) -> list[Outcome]:
    """Do a group's work inside the caller's transaction; return the outcomes in the same order.

    ``now`` is epoch seconds; sessions without a write for ``ttl`` seconds count as deleted, except lasting
    ones. A subject may keep ``kept`` sessions. Raises `sqlite3.Error` and `StoreUnavailable`; the caller must
    then roll back.
    """
    outcomes: list[Outcome] = [None] * len(group)
    commits: list[tuple[int, Proposal]] = []
    for index, work in enumerate(group):
        match work:
            case Commit(claim, commit_id, operations):
                proposal = Proposal(_row(claim.token), claim.token, claim.revision, commit_id, operations)
                commits.append((index, proposal))
            case TakeOver(key):
                outcomes[index] = _take_over(connection, key, now, ttl, kept)
            case LetGo(_, token) if token:
                connection.execute("UPDATE session SET token='' WHERE id=? AND token=?", (_row(token), token))
            case Delete():
                outcomes[index] = _delete(connection, work)
            case Sweep():
                outcomes[index] = _sweep(connection, work, now - ttl)
    if commits:
        done = commit(connection, [proposal for _, proposal in commits], now)
        for (index, _), outcome in zip(commits, done, strict=True):
            outcomes[index] = outcome
    return outcomes


def _row(token: str) -> int:
    # Sessions are looked up by row number from now on. -1 stands for a made-up token.
    number, _, rest = token.partition(".")
    return int(number) if rest and number.isdecimal() else -1


def _take_over(
    connection: sqlite3.Connection, key: SessionKey, now: float, ttl: float, kept: int
) -> Claim | TooManySessions:
    found = connection.execute(
        f"SELECT {HEAD}, updated FROM session WHERE subject=? AND session_id=?", (key.subject, key.session_id)
    ).fetchone()
    if found is not None and found[-1] < now - ttl and not key.lasting:
        delete_sessions(connection, [found[0]])
        found = None
    if found is None:
        if key.counted and _count(connection, key.subject, kept) >= kept:
            return too_many(kept)
        state = SessionState()
        row = connection.execute(
            "INSERT INTO session VALUES(NULL, ?, ?, '', 0, 0, '', 0, 0, 0, 0, ?)",
            (key.subject, key.session_id, now),
        ).lastrowid
        assert row is not None
        head = Head(row, "", 0, 0, "", 0, 0, 0, 0)
    else:
        head = Head(*found[:-1])
        state = load(connection, head)
    token = f"{head.id}.{secrets.token_hex(16)}"
    connection.execute(
        "UPDATE session SET token=?, epoch=?, updated=? WHERE id=?", (token, head.epoch + 1, now, head.id)
    )
    return Claim(key, token, head.epoch + 1, head.revision, state)


def _count(connection: sqlite3.Connection, subject: str, most: int) -> int:
    (count,) = connection.execute(
        "SELECT count(*) FROM"
        " (SELECT 1 FROM session WHERE subject=? AND substr(session_id, 1, 1)<>? LIMIT ?)",
        (subject, LASTING, most),
    ).fetchone()
    return int(count)


def _delete(connection: sqlite3.Connection, delete: Delete) -> int:
    which = "session WHERE subject=?1 AND (?2 IS NULL OR session_id=?2)"
    names = (delete.subject, delete.session_id)
    if delete.left is None:  # counted once: sessions created after the request are not meant
        (delete.left,) = connection.execute(f"SELECT count(*) FROM {which}", names).fetchone()
    if delete.left:
        rows = connection.execute(f"SELECT id FROM {which} LIMIT {_DELETED}", names).fetchall()
        deleted = _delete_some(connection, [row for (row,) in rows])
        delete.deleted += deleted
        delete.left = max(delete.left - deleted, 0) if deleted else 0
    else:
        delete.done = not _free_space(connection)
    return delete.deleted


def _delete_some(connection: sqlite3.Connection, rows: Sequence[int]) -> int:
    # At least one, so that a slow disk makes progress, too.
    until = time.monotonic() + _STEP_S
    for count, row in enumerate(rows, 1):
        delete_sessions(connection, [row])
        if time.monotonic() > until:
            return count
    return len(rows)


def _free_space(connection: sqlite3.Connection) -> bool:
    until = time.monotonic() + _STEP_S
    (free,) = connection.execute("PRAGMA freelist_count").fetchone()
    if free <= SPARE_PAGES:
        return False
    for _ in range(min(free - SPARE_PAGES, _FREED)):
        connection.execute(
            "PRAGMA incremental_vacuum(1)"
        )  # of one page: Python runs only the first step of the statement
        if time.monotonic() > until:
            break
    (left,) = connection.execute("PRAGMA freelist_count").fetchone()
    return bool(SPARE_PAGES < left < free)


def _sweep(connection: sqlite3.Connection, sweep: Sweep, before: float) -> int:
    if sweep.after is None:
        sweep.done = not _free_space(connection)
        sweep.freed = sweep.freed or not sweep.done
        return sweep.deleted
    (last,) = connection.execute(
        "SELECT max(id) FROM (SELECT id FROM session WHERE id>? ORDER BY id LIMIT ?)", (sweep.after, _SCANNED)
    ).fetchone()
    rows = connection.execute(
        "SELECT id FROM session WHERE id>? AND id<=? AND updated<? AND substr(session_id, 1, 1)<>?"
        " ORDER BY id LIMIT ?",
        (sweep.after, last, before, LASTING, _DELETED),
    ).fetchall()
    expired = [row for (row,) in rows]
    deleted = _delete_some(connection, expired)
    sweep.after = expired[deleted - 1] if deleted < len(expired) or deleted == _DELETED else last
    sweep.deleted += deleted
    return sweep.deleted


# Jobs in one transaction.
_GROUP = 256
# Claims in one transaction: each reads a whole session, and the commits beside them wait.
_CLAIMS = 32

# Seconds between attempts to get the lock. SQLite's own waits grow to 100 ms, in which a busy neighbour
# commits a dozen times.
_POLLS_S = (0.0005, 0.004)

# Seconds left for work whose deadline passed while this process was suspended.
_PATIENCE_S = 0.2

_REASONS: dict[Failure, str] = {
    "locked": "Another process keeps the session store locked.",
    "full": "The session store's disk is full.",
    "away": "The session store cannot be read or written now.",
    "refused": "The session store could not take this.",
}

# A value that cannot be stored fails its own session only, not the rest of the group.
_MISTAKES = (sqlite3.Error, StoreUnavailable, SettingsError, ValueError, TypeError, ArithmeticError)


@dataclass(frozen=True, slots=True)
class Limits:
    """``session_ttl``, ``busy_timeout`` and ``sweep_every`` are seconds; ``now`` gives epoch seconds.

    ``look_every`` is the number of seconds between checks that the file is still there. ``kept`` is the limit
    of sessions of a subject.
    """

    session_ttl: float
    busy_timeout: float
    sweep_every: float
    look_every: float
    now: Callable[[], float]
    kept: int


@dataclass(frozen=True, slots=True)
class _Job:
    # ``work`` None ends the thread; ``deadline`` is in monotonic seconds.
    work: Work | None
    future: asyncio.Future[Any] | None
    deadline: float

    @property
    def key(self) -> SessionKey | None:
        return None if self.work is None else self.work.key


class Writer:
    """Takes work from the event loop that it was made in, and answers there, once for each group."""

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
        """Open the file and start the thread. Raises `SettingsError` and `StoreUnavailable`."""
        opened: asyncio.Future[None] = self._loop.create_future()
        threading.Thread(target=self._run, args=(opened,), name="session-store", daemon=True).start()
        try:
            await opened
        except (ConductorError, asyncio.CancelledError):
            self._closed = True
            self._queue.put(_Job(None, None, 0))
            raise

    def submit(self, work: Work) -> asyncio.Future[Any]:
        """Queue work; its future gets the outcome or a `StoreError`. Cancelling it does not undo the work."""
        if self._closed:
            raise StoreUnavailable("The session store is closed.")
        future: asyncio.Future[Any] = self._loop.create_future()
        self._queue.put(_Job(work, future, time.monotonic() + self._limits.busy_timeout))
        return future

    async def close(self, seconds: float) -> None:
        """Finish queued work, and close the file; give up after some seconds."""
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
            # The commit may have succeeded; its id makes the retry safe.
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
            limits = self._limits
            outcomes = run(connection, works, limits.now(), limits.session_ttl, limits.kept)
            connection.execute("COMMIT")
        except BaseException:
            self._roll_back(connection)
            raise
        self.groups += 1
        work = group[0].work
        if isinstance(work, Sweep | Delete) and work.done:
            self._shrink(connection, erase=isinstance(work, Delete) or work.freed)
        return outcomes

    def _shrink(self, connection: sqlite3.Connection, *, erase: bool) -> None:
        # Only a checkpoint makes the file itself smaller, and the write-ahead log still holds what was
        # deleted.
        try:
            if rewrite(connection) or erase:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.Error as error:
            log.warning("session store not made smaller now", error=str(error))

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
        # The file may have been removed or replaced while the store was open.
        if self._connection is not None and time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + self._limits.look_every
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
            elif isinstance(work, Sweep | Delete) and not work.done:
                self._waiting.append(_Job(work, job.future, time.monotonic() + self._limits.busy_timeout))
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
            pass  # the loop is closed: no caller waits


def _group(waiting: deque[_Job]) -> tuple[list[_Job], deque[_Job]]:
    # At most one job of a session, so that its jobs stay in order.
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
