"""The session store in a SQLite file, shared by the processes of one host."""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TypeVar

import structlog

from conductor.errors import StoreUnavailable, TooManySessions
from conductor.settings import Settings
from conductor.stores.base import (
    MAX_SESSIONS,
    NEVER_EXPIRES,
    Claim,
    Meta,
    SessionKey,
    Stored,
    settle,
    sweep_regularly,
    too_many,
)
from conductor.stores.sqlite_writer import Writer

log = structlog.get_logger(__name__)

_T = TypeVar("_T")

# Seconds that closing waits for queued work.
_CLOSE_S = 5.0
# The longest time between two sweeps in seconds.
_SWEEP_MOST_S = 86_400.0
# Seconds that a reader waits for another process's lock.
_LOCK_S = 2.0
# The bounds of one step of a deletion or a sweep, since commits wait for it: sessions scanned, sessions
# deleted, seconds.
_SCANNED = 1000
_DELETED = 64
_STEP_S = 0.02

_META = "token, epoch, revision, commit_id, updated"
_ADVANCE = (
    "UPDATE session SET revision=revision+1, commit_id=?1, updated=?2"
    " WHERE id=?3 AND token=?4 AND revision=?5 AND commit_id<>?1"
)
_APPEND = "INSERT INTO record VALUES(?, ?, ?)"
_WHICH = "session WHERE subject=?1 AND (?2 IS NULL OR session_id=?2)"


class SqliteStore:
    """Keeps sessions for ``session_ttl`` seconds after their last claim or commit.

    A commit waits ``busy_timeout`` seconds for other processes. ``look_every`` seconds lie between checks
    that the file exists. ``now`` gives epoch seconds. Use it in one event loop.
    """

    durable = True

    def __init__(
        self,
        path: Path | str,
        *,
        session_ttl: float = 86_400.0,
        busy_timeout: float = 2.0,
        sweep_every: float = 60.0,
        look_every: float = 1.0,
        now: Callable[[], float] = time.time,
        max_sessions: int = MAX_SESSIONS,
    ) -> None:
        self.path = Path(path)
        self._session_ttl = session_ttl
        self._busy_timeout = busy_timeout
        self._sweep_every = min(sweep_every, _SWEEP_MOST_S)
        self._look_every = look_every
        self._now = now
        self._max_sessions = max_sessions
        self._writer: Writer | None = None
        self._sweeping: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open the file; create it and its folder if they are missing.

        Raises `SettingsError` for a folder, a file of another program or format, a damaged or a read-only
        file, and `StoreLocked` for a locked one.
        """
        if self._writer is not None:
            return
        writer = Writer(self.path, self._busy_timeout, self._look_every)
        await writer.open()
        self._writer = writer
        self._sweeping = asyncio.create_task(sweep_regularly(self.sweep, self._sweep_every))

    async def claim(self, key: SessionKey) -> Claim:
        now = self._now()
        session = await self._run(partial(_claim, key, now, now - self._session_ttl, self._max_sessions))
        assert isinstance(session, Stored)
        return session.claim(key)

    async def append(self, claim: Claim, commit_id: str, data: bytes, *, snapshot: bool = False) -> None:
        """Append a commit; it cannot be cancelled."""
        meta = await self._run(partial(_append, claim, commit_id, data, snapshot, self._now()))
        if meta is None:
            claim.revision += 1
        else:
            settle(claim, commit_id, meta)

    async def release(self, claim: Claim) -> None:
        await self._run(partial(_release, claim.token))

    async def aclose(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait([self._sweeping])
        if self._writer is not None:
            await self._writer.close(_CLOSE_S)

    # -- deletion and expiry

    async def sweep(self) -> int:
        """Delete all expired sessions and return their number; it also runs regularly."""
        before, deleted, after = self._now() - self._session_ttl, 0, 0
        while True:
            after, count, more = await self._run(partial(_sweep, after, before))
            deleted += count
            if not more:
                break
        if deleted and self._writer is not None:
            await self._writer.submit(_checkpoint, alone=True)
        return deleted

    async def delete(self, subject: str, session_id: str | None = None) -> int:
        # Sessions that are created during the deletion do not count.
        total = await self._run(partial(_count, subject, session_id))
        deleted = 0
        while deleted < total and (count := await self._run(partial(_delete, subject, session_id))):
            deleted += count
        if self._writer is not None:
            await self._writer.submit(_checkpoint, alone=True)
        return deleted

    # -- the operator's operations

    async def warnings(self) -> list[str]:
        """Give an empty list: the disk keeps all commits."""
        return []

    async def keys(
        self, subject: str | None, session_id: str | None, after: SessionKey | None, limit: int
    ) -> list[SessionKey]:
        # Only conditions that apply: with ``?1 IS NULL OR`` SQLite would not use the index.
        terms: dict[str, tuple[str | None, ...]] = {"subject=?": (subject,), "session_id=?": (session_id,)}
        terms["(subject, session_id) > (?, ?)"] = (
            (None,) if after is None else (after.subject, after.session_id)
        )
        terms = {term: values for term, values in terms.items() if None not in values}
        where = " AND ".join(["1", *terms])
        sql = f"SELECT subject, session_id FROM session WHERE {where} ORDER BY subject, session_id LIMIT ?"
        values = (*chain(*terms.values()), limit)
        rows = await self._read(lambda connection: connection.execute(sql, values).fetchall())
        return [SessionKey(*row) for row in rows]

    async def read(self, key: SessionKey) -> Stored | None:

        def read(connection: sqlite3.Connection) -> Stored | None:
            connection.execute("BEGIN")  # one snapshot for all rows
            sql = f"SELECT id, {_META} FROM session WHERE subject=? AND session_id=?"
            row = connection.execute(sql, (key.subject, key.session_id)).fetchone()
            return None if row is None else Stored(Meta(*row[1:]), _commits(connection, row[0]))

        return await self._read(read)

    async def _read(self, read: Callable[[sqlite3.Connection], _T]) -> _T:
        # On its own connection, so that no commit waits for it.
        def work() -> _T:
            # Read-only: a reader does not create a missing file.
            uri = f"{self.path.absolute().as_uri()}?mode=ro"
            connection = sqlite3.connect(uri, uri=True, timeout=_LOCK_S, isolation_level=None)
            with closing(connection):
                return read(connection)

        try:
            return await asyncio.to_thread(work)
        except sqlite3.Error as error:
            raise StoreUnavailable("The session store cannot be read now.") from error

    async def _run(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        if self._writer is None:
            raise StoreUnavailable("The session store is not open.")
        return await self._writer.submit(work)


def from_settings(settings: Settings) -> SqliteStore:
    """Make the store at SESSION_STORE_URL or in DATA_DIR."""
    return SqliteStore(
        settings.store_path,
        session_ttl=settings.session_ttl_s,
        max_sessions=settings.max_kept_sessions_per_subject,
    )


# -- work for the writer's thread; a failure may repeat it


def _claim(
    key: SessionKey, now: float, expired: float, max_sessions: int, connection: sqlite3.Connection
) -> Stored | TooManySessions:
    sql = f"SELECT id, {_META} FROM session WHERE subject=? AND session_id=?"
    columns = connection.execute(sql, (key.subject, key.session_id)).fetchone()
    # Expired, and not swept yet.
    if columns is not None and columns[-1] < expired and not key.never_expires:
        _delete_rows(connection, [columns[0]])
        columns = None
    if columns is not None:
        row, meta = columns[0], Meta(*columns[1:])
    elif key.counted and _count_up_to(connection, key.subject, max_sessions) >= max_sessions:
        return too_many(max_sessions)
    else:
        meta = Meta("", 0, 0, "", now)
        sql = f"INSERT INTO session(subject, session_id, {_META}) VALUES(?, ?, '', 0, 0, '', ?)"
        row = connection.execute(sql, (key.subject, key.session_id, now)).lastrowid
    # The row number in the token finds the session without an index.
    meta.token = f"{row}.{secrets.token_hex(16)}"
    meta.epoch += 1
    connection.execute(
        "UPDATE session SET token=?, epoch=?, updated=? WHERE id=?", (meta.token, meta.epoch, now, row)
    )
    return Stored(meta, _commits(connection, row))


def _commits(connection: sqlite3.Connection, row: int) -> dict[int, bytes]:
    return dict(connection.execute("SELECT revision, data FROM record WHERE session=?", (row,)))


def _count_up_to(connection: sqlite3.Connection, subject: str, most: int) -> int:
    (count,) = connection.execute(
        "SELECT count(*) FROM"
        " (SELECT 1 FROM session WHERE subject=? AND substr(session_id, 1, 1)<>? LIMIT ?)",
        (subject, NEVER_EXPIRES, most),
    ).fetchone()
    return int(count)


def _append(
    claim: Claim, commit_id: str, data: bytes, snapshot: bool, now: float, connection: sqlite3.Connection
) -> Meta | None:
    # None if the commit was appended, else the session's fields.
    number, _, secret = claim.token.partition(".")
    row = int(number) if secret and number.isdecimal() else -1  # a made-up token
    values = (commit_id, now, row, claim.token, claim.revision)
    if connection.execute(_ADVANCE, values).rowcount:
        if snapshot:
            connection.execute("DELETE FROM record WHERE session=?", (row,))
        connection.execute(_APPEND, (row, claim.revision + 1, data))
        return None
    columns = connection.execute(f"SELECT {_META} FROM session WHERE id=?", (row,)).fetchone()
    return Meta("", 0, 0, "") if columns is None else Meta(*columns)


def _release(token: str, connection: sqlite3.Connection) -> None:
    row = token.partition(".")[0]
    connection.execute("UPDATE session SET token='' WHERE id=? AND token=?", (row, token))


def _count(subject: str, session_id: str | None, connection: sqlite3.Connection) -> int:
    sql = f"SELECT count(*) FROM {_WHICH}"
    return int(connection.execute(sql, (subject, session_id)).fetchone()[0])


def _delete(subject: str, session_id: str | None, connection: sqlite3.Connection) -> int:
    sql = f"SELECT id FROM {_WHICH} LIMIT {_DELETED}"
    return _delete_rows(connection, [row for (row,) in connection.execute(sql, (subject, session_id))])


def _sweep(after: int, before: float, connection: sqlite3.Connection) -> tuple[int, int, bool]:
    # The last row, the number of deletions, and whether there are more rows.
    sql = "SELECT id, updated<? AND substr(session_id, 1, 1)<>? FROM session WHERE id>? ORDER BY id LIMIT ?"
    rows = connection.execute(sql, (before, NEVER_EXPIRES, after, _SCANNED)).fetchall()
    expired = [row for row, is_expired in rows if is_expired][:_DELETED]
    deleted = _delete_rows(connection, expired)
    if deleted < len(expired) or deleted == _DELETED:
        return expired[deleted - 1], deleted, True
    return (rows[-1][0] if rows else after), deleted, len(rows) == _SCANNED


def _delete_rows(connection: sqlite3.Connection, rows: Sequence[int]) -> int:
    # At least one, so that a slow disk makes progress.
    until = time.monotonic() + _STEP_S
    for count, row in enumerate(rows, 1):
        connection.execute("DELETE FROM record WHERE session=?", (row,))
        connection.execute("DELETE FROM session WHERE id=?", (row,))
        if time.monotonic() > until:
            return count
    return len(rows)


def _checkpoint(connection: sqlite3.Connection) -> None:
    # A checkpoint shrinks the file and removes deleted text from the write-ahead log.
    try:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    except sqlite3.Error as error:
        log.warning("checkpoint failed; will retry", error=str(error))
