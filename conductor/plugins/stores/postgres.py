"""The session store in PostgreSQL, shared by all nodes.

A commit is one statement. A statement without an answer is repeated under the same commit id. The server must
keep what it acknowledges: ``synchronous_commit`` and ``fsync`` are on by default.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from conductor.errors import SettingsError, StoreUnavailable
from conductor.stores.base import (
    MAX_SESSIONS,
    NO_ATTACHMENTS,
    Attachments,
    Claim,
    Meta,
    SessionKey,
    Stored,
    StoreOptions,
    describe,
    new_token,
    retry,
    settle,
    sweep_regularly,
    too_many,
)

try:
    import asyncpg
except ModuleNotFoundError as missing:
    raise SettingsError(
        "SESSION_STORE_URL needs the package asyncpg: pip install 'conductor-voice[postgres]'."
    ) from missing

# Connections of a process; each has one statement at a time.
_CONNECTIONS = 8
_SWEEP_S = 60.0
_FAILURES = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)

_TABLES = """
SELECT pg_advisory_xact_lock(1131376228);  -- servers that start at the same time
CREATE TABLE IF NOT EXISTS conductor_session(
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    subject text COLLATE "C" NOT NULL,
    session_id text COLLATE "C" NOT NULL,
    token text NOT NULL DEFAULT '',
    epoch bigint NOT NULL DEFAULT 0,          -- 0: deleted; its owner is fenced
    revision bigint NOT NULL DEFAULT 0,
    commit_id text NOT NULL DEFAULT '',
    updated double precision NOT NULL DEFAULT 0,  -- epoch seconds
    UNIQUE(subject, session_id)
);
CREATE TABLE IF NOT EXISTS conductor_record(
    session bigint, revision bigint, data bytea NOT NULL, PRIMARY KEY(session, revision)
);
CREATE TABLE IF NOT EXISTS conductor_attachment(
    session bigint, name text COLLATE "C", data bytea NOT NULL, PRIMARY KEY(session, name)
);
-- A function: a node that freezes in a transaction would keep its locks.
CREATE OR REPLACE FUNCTION conductor_claim(
    of_subject text, of_session text, new_token text, ttl float8, most integer,
    OUT meta conductor_session, OUT revisions bigint[], OUT records bytea[]
) LANGUAGE plpgsql AS $$
DECLARE
    now_s float8 := extract(epoch FROM clock_timestamp());
BEGIN
    SELECT * INTO meta FROM conductor_session WHERE subject=of_subject AND session_id=of_session FOR UPDATE;
    IF meta.updated < now_s - ttl THEN
        DELETE FROM conductor_record WHERE session=meta.id;
        DELETE FROM conductor_attachment WHERE session=meta.id;
        UPDATE conductor_session SET epoch=0, revision=0, commit_id='' WHERE id=meta.id;
        meta.epoch := 0;
    END IF;
    IF most IS NOT NULL AND coalesce(meta.epoch, 0)=0 THEN
        PERFORM pg_advisory_xact_lock(hashtextextended(of_subject, 0));
        IF (SELECT count(*) FROM conductor_session
            WHERE subject=of_subject AND epoch>0 AND left(session_id, 1)<>'$') >= most THEN
            meta := NULL;
            RETURN;
        END IF;
    END IF;
    -- A repeated claim has the same token and counts once.
    INSERT INTO conductor_session AS s(subject, session_id, token, epoch, updated)
        VALUES(of_subject, of_session, new_token, 1, now_s)
        ON CONFLICT (subject, session_id) DO UPDATE
        SET token=new_token, epoch=s.epoch + (s.token<>new_token)::int, updated=now_s RETURNING * INTO meta;
    SELECT array_agg(revision), array_agg(data) INTO revisions, records
        FROM conductor_record WHERE session=meta.id;
END $$;
"""

_META = "token, epoch, revision, commit_id, updated"
_KEY = "subject=$1 AND session_id=$2"
_NOW = "extract(epoch FROM clock_timestamp())::float8"
_EXPIRED = f"updated < {_NOW} - $1::float8 AND (epoch=0 OR left(session_id, 1)<>'$')"
_EXPIRE = f"""
WITH gone AS (DELETE FROM conductor_session WHERE {_EXPIRED} RETURNING id),
    dropped AS (DELETE FROM conductor_record USING gone WHERE session=gone.id),
    beside AS (DELETE FROM conductor_attachment USING gone WHERE session=gone.id)
SELECT count(*) FROM gone
"""
_CLAIM = """
SELECT (meta).token, (meta).epoch, (meta).revision, (meta).commit_id, (meta).updated, revisions, records
FROM conductor_claim($1, $2, $3, $4, $5)
"""
_READ = f"""
SELECT {_META}, ARRAY(SELECT r.revision FROM conductor_record AS r WHERE session=id ORDER BY 1),
    ARRAY(SELECT data FROM conductor_record AS r WHERE session=id ORDER BY r.revision)
FROM conductor_session WHERE {_KEY} AND epoch>0
"""
_APPEND = f"""
WITH owned AS (
        UPDATE conductor_session SET revision=revision + 1, commit_id=$4, updated={_NOW}
        WHERE {_KEY} AND token=$3 AND token<>'' AND revision=$5 AND commit_id<>$4 RETURNING id, revision
    ),
    covered AS (
        DELETE FROM conductor_record USING owned
        WHERE $7 AND session=owned.id AND conductor_record.revision<owned.revision
    ),
    dropped AS (
        DELETE FROM conductor_attachment AS a USING owned WHERE a.session=owned.id AND a.name=ANY($8::text[])
    ),
    put AS (
        INSERT INTO conductor_attachment
        SELECT owned.id, new.name, new.data FROM owned, unnest($9::text[], $10::bytea[]) AS new(name, data)
        ON CONFLICT (session, name) DO UPDATE SET data=excluded.data
    )
INSERT INTO conductor_record SELECT id, revision, $6 FROM owned RETURNING revision
"""
_READ_ATTACHMENTS = f"""
SELECT name, data FROM conductor_attachment JOIN conductor_session ON id=session
WHERE {_KEY} AND epoch>0 AND name=ANY($3::text[])
"""
_FIND = f"SELECT {_META} FROM conductor_session WHERE {_KEY}"
_DELETE = f"""
WITH gone AS (
        UPDATE conductor_session SET token='', epoch=0, revision=0, commit_id='', updated={_NOW}
        WHERE subject=$1 AND ($2::text IS NULL OR session_id=$2) AND epoch>0 RETURNING id
    ),
    dropped AS (DELETE FROM conductor_record USING gone WHERE session=gone.id),
    beside AS (DELETE FROM conductor_attachment USING gone WHERE session=gone.id)
SELECT count(*) FROM gone
"""
_LIST = """
SELECT subject, session_id FROM conductor_session
WHERE epoch>0 AND ($1::text IS NULL OR subject=$1) AND ($2::text IS NULL OR session_id=$2)
    AND ($3::text IS NULL OR (subject, session_id) > ($3, $4)) AND updated>=$6
ORDER BY subject, session_id LIMIT $5
"""


class PostgresStore:
    """Keeps sessions for ``session_ttl`` seconds after their last claim or commit.

    A commit that fails for ``retry_for`` seconds is `StoreUnavailable`; it may have been recorded.
    """

    durable = True

    def __init__(
        self,
        url: str,
        *,
        session_ttl: float = 86_400.0,
        retry_for: float = 2.0,
        max_sessions: int = MAX_SESSIONS,
    ) -> None:
        self.url = url
        self._session_ttl = session_ttl
        self._retry_for = retry_for
        self._max_sessions = max_sessions
        self._pool: Any = None
        self._sweeping: asyncio.Task[None] | None = None

    async def open(self) -> None:
        if self._pool is not None:
            return
        try:
            pool = await asyncpg.create_pool(
                self.url,
                min_size=1,
                max_size=_CONNECTIONS,
                timeout=self._retry_for / 2,
                server_settings={"application_name": "conductor"},
                reset=_keep,
            )
            if await pool.fetchval("SELECT to_regclass('conductor_attachment')") is None:
                await pool.execute(_TABLES)
        except (*_FAILURES, ValueError) as error:
            address = describe(self.url)
            raise SettingsError(
                f"SESSION_STORE_URL names {address}, which cannot be used: {_reason(error)}."
            ) from None
        self._pool = pool
        self._sweeping = asyncio.create_task(sweep_regularly(self.sweep, _SWEEP_S))

    async def warnings(self) -> list[str]:
        sql = "SELECT name FROM pg_settings WHERE name IN ('fsync', 'synchronous_commit') AND setting='off'"
        return [f"{name} is off: a crash loses acknowledged commits" for (name,) in await self._fetch(sql)]

    async def claim(self, key: SessionKey) -> Claim:
        token = new_token()
        ttl = math.inf if key.never_expires else self._session_ttl
        most = self._max_sessions if key.counted else None
        (row,) = await self._fetch(_CLAIM, key.subject, key.session_id, token, ttl, most)
        if row[0] is None:
            raise too_many(self._max_sessions)
        return _stored(row).claim(key)

    async def append(
        self,
        claim: Claim,
        commit_id: str,
        data: bytes,
        *,
        snapshot: bool = False,
        attachments: Attachments = NO_ATTACHMENTS,
    ) -> None:
        names = (claim.key.subject, claim.key.session_id)
        put = attachments.put
        beside = (list(attachments.drop), list(put), list(put.values()))
        if await self._fetch(
            _APPEND, *names, claim.token, commit_id, claim.revision, data, snapshot, *beside
        ):
            claim.revision += 1
        else:
            rows = await self._fetch(_FIND, *names)
            settle(claim, commit_id, Meta(*rows[0]) if rows else None)

    async def read_attachments(self, key: SessionKey, names: Sequence[str]) -> Mapping[str, bytes]:
        rows = await self._fetch(_READ_ATTACHMENTS, key.subject, key.session_id, list(names))
        return {row["name"]: row["data"] for row in rows}

    async def release(self, claim: Claim) -> None:
        sql = f"UPDATE conductor_session SET token='' WHERE {_KEY} AND token=$3"
        await self._fetch(sql, claim.key.subject, claim.key.session_id, claim.token)

    async def aclose(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait([self._sweeping])
        if self._pool is not None:
            self._pool.terminate()

    async def sweep(self) -> int:
        """Delete all expired sessions and return their number; it also runs regularly."""
        return int((await self._fetch(_EXPIRE, self._session_ttl))[0][0])

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
        rows = await self._fetch(_LIST, subject, session_id, *behind, limit, since)
        return [SessionKey(*row) for row in rows]

    async def read(self, key: SessionKey) -> Stored | None:
        rows = await self._fetch(_READ, key.subject, key.session_id)
        return _stored(rows[0]) if rows else None

    async def delete(self, subject: str, session_id: str | None = None) -> int:
        return int((await self._fetch(_DELETE, subject, session_id))[0][0])

    # -- connections

    async def _fetch(self, sql: str, *values: object) -> list[Any]:
        return await retry(partial(self._try, sql, values), self._retry_for, _FAILURES, _reason)

    async def _try(self, sql: str, values: Sequence[object]) -> list[Any]:
        if self._pool is None:
            raise StoreUnavailable("The session store is not open.")
        # One try may take half of the time, so that a dead connection leaves time for another one.
        async with asyncio.timeout(self._retry_for / 2):
            async with self._pool.acquire() as connection:
                try:
                    rows: list[Any] = await connection.fetch(sql, *values)
                    return rows
                # An answer is still outstanding, also after the other one: the server ended the connection.
                except (asyncio.CancelledError, asyncpg.InternalClientError):
                    with suppress(asyncpg.InterfaceError):  # it is closed already
                        connection.terminate()
                    raise


async def _keep(connection: Any) -> None:
    """Do not reset a connection: the statements leave no state on it."""


def _stored(row: Any) -> Stored:
    *meta, revisions, records = row
    return Stored(Meta(*meta), dict(zip(revisions or (), records or (), strict=True)))


def _reason(error: Exception) -> str:
    # The server's message is not quoted: it may name the user.
    match error:
        case asyncpg.PostgresError():
            return f"the server says {error.sqlstate} ({type(error).__name__.removesuffix('Error')})"
        case ConnectionRefusedError():
            return "nothing listens there"
        case OSError():
            return error.strerror or "it did not answer in time"
        case asyncpg.InternalClientError():
            return "the connection was closed"
    return "the address or a value is not valid"


def from_url(url: str, options: StoreOptions) -> PostgresStore:
    """Make the store of an address."""
    return PostgresStore(url, session_ttl=options.session_ttl_s, max_sessions=options.max_sessions)
