"""The operator's view of a SQLite store, on read-only connections beside the writer's."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from typing import Any, TypeVar

from conductor.errors import StoreUnavailable
from conductor.stores.admin import SessionInfo, dump
from conductor.stores.base import SessionKey
from conductor.stores.sqlite import SqliteStore
from conductor.stores.sqlite_schema import HEAD, Head, load

_T = TypeVar("_T")
# Seconds that a read waits for another process's lock.
_LOCK_S = 2.0
# Sessions read in one transaction.
_PAGE = 100

_INFO = """
SELECT subject, session_id, updated, epoch, revision, token != '', log_end - log_start,
    (SELECT count(*) FROM call WHERE session=id),
    (SELECT count(*) FROM outbound WHERE session=id),
    (SELECT total(length(CAST(data AS BLOB))) FROM log WHERE session=id)
    + (SELECT total(length(CAST(data AS BLOB))) FROM call WHERE session=id)
    + (SELECT total(length(CAST(data AS BLOB))) FROM outbound WHERE session=id)
    + (SELECT total(length(CAST(value AS BLOB))) FROM field WHERE session=id)
FROM session
"""


class SqliteAdmin:
    """Lists, shows, exports and deletes sessions; expired ones too, until they are swept.

    The store must be open. A server may use the same file at the same time.
    """

    def __init__(self, store: SqliteStore) -> None:
        self._store = store

    async def sessions(
        self, subject: str | None = None, *, after: SessionKey | None = None, limit: int = _PAGE
    ) -> list[SessionInfo]:
        """List sessions by subject and id, all or a subject's. Raises `StoreUnavailable`."""

        def read(connection: sqlite3.Connection) -> list[SessionInfo]:
            where, values = ["1"], list[str]()
            if subject is not None:
                where.append("subject=?")
                values.append(subject)
            if after is not None:
                where.append("(subject, session_id) > (?, ?)")
                values += [after.subject, after.session_id]
            sql = f"{_INFO} WHERE {' AND '.join(where)} ORDER BY subject, session_id LIMIT ?"
            return [_info(row) for row in connection.execute(sql, (*values, limit)).fetchall()]

        return await self._read(read)

    async def subjects(self, session_id: str) -> list[str]:
        """List the subjects that have a session with this id. Raises `StoreUnavailable`."""

        def read(connection: sqlite3.Connection) -> list[str]:
            sql = "SELECT subject FROM session WHERE session_id=? ORDER BY subject"
            return [subject for (subject,) in connection.execute(sql, (session_id,)).fetchall()]

        return await self._read(read)

    async def show(self, key: SessionKey) -> dict[str, Any] | None:
        """Give all that is stored of a session as JSON values. Raises `StoreUnavailable`."""

        def read(connection: sqlite3.Connection) -> dict[str, Any] | None:
            names = (key.subject, key.session_id)
            row = connection.execute(f"{_INFO} WHERE subject=? AND session_id=?", names).fetchone()
            if row is None:
                return None
            sql = f"SELECT {HEAD} FROM session WHERE subject=? AND session_id=?"
            return dump(_info(row), load(connection, Head(*connection.execute(sql, names).fetchone())))

        return await self._read(read)

    async def export(self, subject: str | None = None) -> AsyncIterator[dict[str, Any]]:
        """Give all sessions, or a subject's. Raises `StoreUnavailable`."""
        after: SessionKey | None = None
        while page := await self.sessions(subject, after=after):
            for info in page:
                after = SessionKey(info.subject, info.session_id)
                session = await self.show(after)
                if session is not None:  # it may have expired since it was listed
                    yield session

    async def delete(self, key: SessionKey) -> bool:
        """Delete a session and fence its owner. Raises `StoreUnavailable`."""
        return await self._store.delete(key.subject, key.session_id) > 0

    async def delete_subject(self, subject: str) -> int:
        """Delete all sessions of a subject. Raises `StoreUnavailable`."""
        return await self._store.delete(subject)

    async def _read(self, read: Callable[[sqlite3.Connection], _T]) -> _T:
        # One transaction, so that all rows are of one moment.
        def work() -> _T:
            uri = f"{self._store.path.absolute().as_uri()}?mode=ro"
            connection = sqlite3.connect(uri, uri=True, timeout=_LOCK_S, isolation_level=None)
            with closing(connection):
                connection.execute("BEGIN")
                return read(connection)

        try:
            return await asyncio.to_thread(work)
        except sqlite3.Error as error:
            raise StoreUnavailable("The session store cannot be read now.") from error


def _info(row: tuple[Any, ...]) -> SessionInfo:
    subject, session_id, updated, epoch, revision, owned, messages, calls, outbound, size = row
    return SessionInfo(
        subject, session_id, updated, epoch, revision, bool(owned), messages, calls, outbound, int(size)
    )
