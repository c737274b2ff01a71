"""Moves sessions from the former layouts, with a table or a key for each part of one, into snapshots."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from conductor.messages import ToolResult
from conductor.stores.base import (
    MAX_SEEN,
    AppendLog,
    CallRecord,
    FinishCall,
    LogEntry,
    OpenCall,
    OutboundRecord,
    PutOutbound,
    SessionKey,
    SessionState,
)
from conductor.stores.records import Record, encode
from conductor.stores.redis_scripts import Reply, session_name, session_of, session_pattern, text

if TYPE_CHECKING:
    from conductor.stores.redis import RedisStore

log = structlog.get_logger(__name__)

_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, ValueError, KeyError)


def migrate_sqlite(connection: sqlite3.Connection) -> None:
    """Fill the tables of format 2 from those of format 1, and drop these; ``former`` was ``session``.

    Runs in the caller's transaction. A session that cannot be read is left out.
    """

    def column(what: str, session: int, order: str) -> list[Any]:
        rows = connection.execute(f"SELECT {what} WHERE session=? ORDER BY {order}", (session,))
        return [value for (value,) in rows]

    columns = "id, subject, session_id, token, epoch, revision, commit_id, updated"
    for *row, log_start in connection.execute(f"SELECT {columns}, log_start FROM former").fetchall():
        number, token, revision = row[0], row[3], row[5]
        try:
            state = _state(
                log_start,
                column("data FROM log", number, "position"),
                column("data FROM call", number, "place"),
                column("event_id FROM seen", number, "place"),
                column("data FROM outbound", number, "place"),
                dict(connection.execute("SELECT name, value FROM field WHERE session=?", (number,))),
            )
        except _UNREADABLE:
            log.error("session cannot be migrated", session=row[2])
            continue
        connection.execute("INSERT INTO session VALUES(?, ?, ?, ?, ?, ?, ?, ?)", row)
        if revision:
            connection.execute(
                "INSERT INTO record VALUES(?, ?, ?)", (number, revision, _snapshot(state, token))
            )
    # In the same transaction, so that a crash leaves the former tables or the new ones, never both.
    for table in ("former", "log", "call", "seen", "outbound", "field"):
        connection.execute(f"DROP TABLE {table}")


_MOVE = """
-- KEYS: the session, then its former keys. ARGV: milliseconds to live, then fields and values.
-- Returns 0, and moves nothing, if there is a session already.
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
redis.call('HSET', KEYS[1], unpack(ARGV, 2))
if tonumber(ARGV[1]) > 0 then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
redis.call('DEL', unpack(KEYS, 2))
return 1
"""


async def migrate_redis(store: RedisStore) -> tuple[int, int]:
    """Move all sessions of the former layout; return how many were moved, and how many left as they are.

    Those are left that cannot be read, and those that a server has begun again since. No server of the
    former version may run. Raises `StoreUnavailable`.
    """
    moved = left = 0
    async for names in store.client.scan(f"{session_pattern(store.prefix)}:meta"):
        for key in filter(None, (session_of(text(name)) for name in names)):
            outcome = await _move(store, key)
            moved += outcome is True
            left += outcome is False
    return moved, left


async def _move(store: RedisStore, key: SessionKey) -> bool | None:
    # None for what is no session: it was deleted, or has been moved.
    name, query = session_name(store.prefix, key), store.client.query
    former = [f"{name}:{part}" for part in ("meta", "log", "calls", "seen", "out")]
    meta = _pairs(await query(former[0], "HGETALL", former[0]))
    if "epoch" not in meta:
        return None
    try:
        fields = {each[2:]: value for each, value in meta.items() if each.startswith("f:")}
        state = _state(
            int(meta.get("start", 0)),
            _texts(await query(former[1], "LRANGE", former[1], "0", "-1")),
            _placed(await query(former[2], "HGETALL", former[2])),
            _texts(await query(former[3], "ZRANGE", former[3], "0", "-1")),
            _placed(await query(former[4], "HGETALL", former[4])),
            fields,
        )
    except _UNREADABLE:
        log.error("session cannot be migrated", session=key.session_id)
        return False
    columns: dict[str, str] = {
        each: meta[each] for each in ("token", "epoch", "revision", "commit", "updated") if each in meta
    }
    if "revision" in columns:
        columns[columns["revision"]] = _snapshot(state, columns["token"]).decode()
    arguments = [str(await query(former[0], "PTTL", former[0])), *chain(*columns.items())]
    return await query(name, "EVAL", _MOVE, "6", name, *former, *arguments) == 1


def _texts(reply: Reply) -> list[str]:
    return [text(each) for each in reply] if isinstance(reply, list) else []


def _pairs(reply: Reply) -> dict[str, str]:
    flat = iter(_texts(reply))
    return dict(zip(flat, flat, strict=True))


def _placed(reply: Reply) -> list[str]:
    # Values begin with their place in the order, and those of calls with a letter before it.
    parts = (value.partition(" ") for value in _pairs(reply).values())
    return [record for _, record in sorted((int(place.lstrip("PD")), record) for place, _, record in parts)]


def _state(
    log_start: int,
    entries: Iterable[str],
    calls: Iterable[str],
    seen: Sequence[str],
    outbound: Iterable[str],
    fields: dict[str, str],
) -> SessionState:
    # In Redis an entry is followed by its amendment, and a call by its result, on a line of its own.
    state = SessionState(log_start=log_start, seen=dict.fromkeys(seen[-MAX_SEEN:]), fields=fields)
    for line in (line for entry in entries for line in entry.split("\n")):
        state.apply(AppendLog(msgspec.json.decode(line, type=LogEntry)))
    for record, _, result in (each.partition("\n") for each in calls):
        call = msgspec.json.decode(record, type=CallRecord)
        state.apply(OpenCall(call))
        if result:
            state.apply(FinishCall(call.call_id, msgspec.json.decode(result, type=ToolResult)))
    for each in outbound:
        state.apply(PutOutbound(msgspec.json.decode(each, type=OutboundRecord)))
    return state


def _snapshot(state: SessionState, token: str) -> bytes:
    return encode(Record(token, (), state))
