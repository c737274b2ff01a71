"""The session store in a SQLite file, shared by the processes of one host."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from conductor.errors import Rollback, SettingsError, StoreUnavailable
from conductor.plugins.stores.sqlite_writer import Writer
from conductor.stores.base import (
    MAX_SESSIONS,
    NO_ATTACHMENTS,
    Attachments,
    Claim,
    Meta,
    SessionKey,
    Stored,
    StoreOptions,
    new_token,
    retry,
    settle,
    sweep_regularly,
    too_many,
)

_T = TypeVar("_T")

_SWEEP_S = 60.0
# Seconds between two looks at the files of a store at rest.
_WATCH_S = 1.0
# Seconds after the time limit of a lock in which its failure comes.
_GRACE_S = 0.5
# Sessions that one transaction deletes, since commits wait for it.
_DELETED = 64

_META = "token, epoch, revision, commit_id, updated"
_KEY = "subject=?1 AND session_id=?2"
_TYPES = (str, int, int, str, int | float)
_CLIENTS = "substr(session_id, 1, 1)<>'$'"  # without the server's own records
_CLAIM = f"""
INSERT INTO session(subject, session_id, {_META}) VALUES(?, ?, ?, 1, 0, '', ?)
ON CONFLICT DO UPDATE SET token=excluded.token, epoch=epoch+1, updated=excluded.updated
RETURNING id, {_META}
"""
_ADVANCE = f"""
UPDATE session SET revision=revision+1, commit_id=?4, updated=?6
WHERE {_KEY} AND token=?3 AND token<>'' AND revision=?5 AND commit_id<>?4 RETURNING id, revision
"""
_LIST = """
SELECT subject, session_id FROM session
WHERE (?1 IS NULL OR subject=?1) AND (?2 IS NULL OR session_id=?2)
    AND (?3 IS NULL OR (subject, session_id) > (?3, ?4)) AND updated>=?6
    AND typeof(subject)='text' AND typeof(session_id)='text'
ORDER BY subject, session_id LIMIT ?5
"""


class SqliteStore:
    """Keeps sessions for ``session_ttl`` seconds after their last claim or commit.

    A commit waits ``busy_timeout`` seconds for other processes, and not much longer for the disk. ``now``
    gives epoch seconds. Use it in one event loop.
    """

    durable = True

    def __init__(
        self,
        path: Path | str,
        *,
        session_ttl: float = 86_400.0,
        busy_timeout: float = 2.0,
        now: Callable[[], float] = time.time,
        max_sessions: int = MAX_SESSIONS,
    ) -> None:
        self.path = Path(path)
        self._session_ttl = session_ttl
        self._busy_timeout = busy_timeout
        self._now = now
        self._max_sessions = max_sessions
        self._writer: Writer | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open the file; create it and its folder if they are missing. Raises `SettingsError`."""
        if self._writer is not None:
            return
        writer = Writer(self.path, self._busy_timeout)
        await writer.open()
        self._writer = writer
        self._sweeping = asyncio.create_task(sweep_regularly(self.sweep, _SWEEP_S))
        self._watching = asyncio.create_task(self._watch())

    async def claim(self, key: SessionKey) -> Claim:
        now = self._now()
        claiming = partial(_claim, key, now, now - self._session_ttl, self._max_sessions)
        session, losses = await self._run(lambda connection: (claiming(connection), self._losses))
        claim = session.claim(key)
        claim.losses = losses
        return claim

    async def append(
        self,
        claim: Claim,
        commit_id: str,
        data: bytes,
        *,
        snapshot: bool = False,
        attachments: Attachments = NO_ATTACHMENTS,
    ) -> None:
        """Append a commit; it cannot be cancelled."""
        work = partial(
            _append, claim, commit_id, data, snapshot=snapshot, attachments=attachments, now=self._now()
        )
        meta = await self._run(work)
        if meta is None:
            claim.revision += 1
            return
        if meta.token != claim.token and claim.losses < self._losses:
            raise Rollback("The store has lost this claim.")
        settle(claim, commit_id, meta)

    async def read_attachments(self, key: SessionKey, names: Sequence[str]) -> Mapping[str, bytes]:
        return await self._run(partial(_read_attachments, key, names))

    async def release(self, claim: Claim) -> None:
        sql = f"UPDATE session SET token='' WHERE {_KEY} AND token=?3"
        values = (claim.key.subject, claim.key.session_id, claim.token)
        await self._run(lambda connection: connection.execute(sql, values).rowcount)

    async def aclose(self) -> None:
        if self._sweeping is None or self._watching is None or self._writer is None:
            return
        for task in (self._sweeping, self._watching):
            task.cancel()
        await asyncio.wait([self._sweeping, self._watching])
        self._sweeping = self._watching = None
        await self._writer.close()

    async def sweep(self) -> int:
        """Delete all expired sessions and return their number; it also runs regularly."""
        return await self._delete(f"updated<? AND {_CLIENTS}", (self._now() - self._session_ttl,))

    # -- the operator's operations

    async def keys(
        self,
        subject: str | None,
        session_id: str | None,
        after: SessionKey | None,
        limit: int,
        since: float = 0.0,
    ) -> list[SessionKey]:
        behind = (None, None) if after is None else (after.subject, after.session_id)
        values = (subject, session_id, *behind, limit, since)
        rows = await self._run(lambda connection: connection.execute(_LIST, values).fetchall())
        return [SessionKey(*row) for row in rows]

    async def read(self, key: SessionKey) -> Stored | None:
        return await self._run(partial(_read, key))

    async def delete(self, subject: str, session_id: str | None = None) -> int:
        if session_id is not None:
            return await self._delete("subject=? AND session_id=?", (subject, session_id))
        return await self._delete("subject=?", (subject,))

    async def warnings(self) -> list[str]:
        """Return an empty list: the disk keeps all commits."""
        return []

    async def _delete(self, where: str, values: Sequence[object]) -> int:
        total, count = 0, _DELETED
        while count == _DELETED:
            count = await self._run(partial(_delete, where, values))
            total += count
        if total and self._writer is not None:
            await self._answer(self._writer.checkpoint())
        return total

    @property
    def _losses(self) -> int:
        return 0 if self._writer is None else self._writer.losses

    async def _run(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        if self._writer is None:
            raise StoreUnavailable("The session store is not open.")
        return await self._answer(self._writer.submit(work))

    async def _watch(self) -> None:
        """Let the writer look at its files: a process at rest must not keep a removed log for itself."""
        while True:
            await asyncio.sleep(_WATCH_S)
            with suppress(StoreUnavailable):
                await self._run(lambda _: None)

    async def _answer(self, future: asyncio.Future[_T]) -> _T:
        """Wait for the writer; a disk may stall."""
        try:
            return await retry(lambda: asyncio.shield(future), self._busy_timeout + _GRACE_S, (), str)
        except StoreUnavailable:
            future.cancel()
            raise


# -- work for the writer's thread


def _claim(key: SessionKey, now: float, expired: float, most: int, connection: sqlite3.Connection) -> Stored:
    names = (key.subject, key.session_id)
    if not key.never_expires:  # expired, and not swept yet
        _delete("subject=? AND session_id=? AND updated<?", (*names, expired), connection)
    if key.counted and not connection.execute(f"SELECT 1 FROM session WHERE {_KEY}", names).fetchone():
        sql = f"SELECT count(*) FROM session WHERE subject=? AND {_CLIENTS}"
        if connection.execute(sql, (key.subject,)).fetchone()[0] >= most:
            raise too_many(most)
    (row,) = connection.execute(_CLAIM, (*names, new_token(), now)).fetchall()
    return _stored(connection, row)


def _meta(values: Sequence[object]) -> Meta:
    """Read a session's fields: a column may hold any type. Raises `StoreUnavailable`."""
    if not all(map(isinstance, values, _TYPES)):
        raise StoreUnavailable("The store holds a damaged session.")
    return Meta(*values)  # type: ignore[arg-type]  # checked above


def _read(key: SessionKey, connection: sqlite3.Connection) -> Stored | None:
    sql = f"SELECT id, {_META} FROM session WHERE {_KEY}"
    row = connection.execute(sql, (key.subject, key.session_id)).fetchone()
    return None if row is None else _stored(connection, row)


def _stored(connection: sqlite3.Connection, row: tuple[Any, ...]) -> Stored:
    sql = "SELECT revision, data FROM record WHERE session=?"
    records = dict(connection.execute(sql, row[:1]))
    if not all(isinstance(revision, int) and isinstance(data, bytes) for revision, data in records.items()):
        raise StoreUnavailable("The store holds a damaged session.")
    return Stored(_meta(row[1:]), records)


def _append(
    claim: Claim,
    commit_id: str,
    data: bytes,
    connection: sqlite3.Connection,
    *,
    snapshot: bool,
    attachments: Attachments,
    now: float,
) -> Meta | None:
    # None if the commit was appended, else the session's fields.
    names = (claim.key.subject, claim.key.session_id)
    rows = connection.execute(_ADVANCE, (*names, claim.token, commit_id, claim.revision, now)).fetchall()
    if not rows:
        meta = connection.execute(f"SELECT {_META} FROM session WHERE {_KEY}", names).fetchone()
        return Meta("", 0, 0, "") if meta is None else _meta(meta)
    if snapshot:
        connection.execute("DELETE FROM record WHERE session=?", rows[0][:1])
    connection.execute("INSERT INTO record VALUES(?, ?, ?)", (*rows[0], data))
    session = rows[0][0]
    for name in attachments.drop:
        connection.execute("DELETE FROM attachment WHERE session=? AND name=?", (session, name))
    for name, content in attachments.put.items():
        connection.execute("INSERT OR REPLACE INTO attachment VALUES(?, ?, ?)", (session, name, content))
    return None


def _read_attachments(
    key: SessionKey, names: Sequence[str], connection: sqlite3.Connection
) -> dict[str, bytes]:
    sql = f"""SELECT data FROM attachment JOIN session ON session.id=attachment.session
        WHERE {_KEY} AND name=?3"""
    found: dict[str, bytes] = {}
    for name in names:
        row = connection.execute(sql, (key.subject, key.session_id, name)).fetchone()
        if row is not None and isinstance(row[0], bytes):
            found[name] = row[0]
    return found


def _delete(where: str, values: Sequence[object], connection: sqlite3.Connection) -> int:
    rows = connection.execute(f"SELECT id FROM session WHERE {where} LIMIT {_DELETED}", values).fetchall()
    connection.executemany("DELETE FROM record WHERE session=?", rows)
    connection.executemany("DELETE FROM attachment WHERE session=?", rows)
    connection.executemany("DELETE FROM session WHERE id=?", rows)
    return len(rows)


def from_url(url: str, options: StoreOptions) -> SqliteStore:
    """Make the store of ``sqlite:///FILE``. Raises `SettingsError` for an address without a file."""
    path = url.removeprefix("sqlite:///")
    if path in ("", url):
        raise SettingsError("SESSION_STORE_URL needs sqlite:///FILE, with four slashes for an absolute path.")
    file = os.path.expanduser(path)
    return SqliteStore(file, session_ttl=options.session_ttl_s, max_sessions=options.max_sessions)
