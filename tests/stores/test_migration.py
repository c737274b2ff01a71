"""Sessions of the former layout are all there, as they were, after their migration.

The files in ``format_1/`` were made at commit f20878b, which did what `told` does: the SQL dump of
its SQLite file, and the commands that make what it kept in Redis.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import aclosing, closing
from pathlib import Path

import pytest

from conductor.errors import StoreUnavailable
from conductor.messages import AssistantMessage, ToolResult, UserMessage
from conductor.stores.admin import SessionAdmin
from conductor.stores.base import (
    AckOutbound,
    Amendment,
    AppendLog,
    FinishCall,
    ForgetCall,
    OpenCall,
    Operation,
    PutOutbound,
    SessionKey,
    SessionState,
    SessionStore,
    SetField,
)
from conductor.stores.memory import MemoryStore
from conductor.stores.migration import migrate_redis
from conductor.stores.redis import RedisStore
from conductor.stores.sqlite import SqliteStore
from tests.stores.contract import EVERYTHING, KEY, call, contents, filled, outbound
from tests.stores.redis_server import RedisServer

FILES = Path(__file__).parent / "format_1"
WHEN = 1_772_366_400.5
GRANTS = SessionKey("subject", "$grants")
EMPTY = SessionKey("a/b {c}", "s-2")


async def told() -> SessionState:
    """Give the state of the session that was told to the former version."""
    store = MemoryStore()
    claim = await filled(store)
    await store.commit(claim, "commit-1", EVERYTHING)
    result = ToolResult("c-2", '{"日":"本"}', is_error=True)
    done = OpenCall(call("c-3", ToolResult("c-3", "x")))
    put = PutOutbound(outbound("evt-3"))
    await store.commit(claim, "commit-2", [FinishCall("c-2", result), put, AckOutbound("evt-2"), done])
    said = [AppendLog(AssistantMessage("two\nlines")), AppendLog(UserMessage("line\u2028 separator"))]
    again: list[Operation] = [PutOutbound(outbound("evt-0")), ForgetCall("c-1"), OpenCall(call("c-1"))]
    heard = AppendLog(Amendment(6, "two"))
    await store.commit(claim, "commit-3", [*again, SetField("line", "a\nb"), *said, heard])
    return claim.state


async def is_all_there(store: SessionStore) -> None:
    claim = await store.claim(KEY)
    assert (claim.epoch, claim.revision) == (3, 4)
    assert contents(claim.state) == contents(await told())
    await store.commit(claim, "commit-4", [SetField("a", "c")])
    assert (await store.claim(KEY)).state.fields["a"] == "c"
    grants, empty = await store.claim(GRANTS), await store.claim(EMPTY)
    assert (grants.epoch, grants.revision, grants.state.fields) == (2, 1, {"grants": "all"})
    assert (empty.epoch, empty.revision, contents(empty.state)) == (2, 0, contents(SessionState()))


# -- SQLite, at the first start


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "sessions.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript((FILES / "sqlite.sql").read_text())
    return path


async def test_a_sqlite_file_is_migrated_when_it_is_opened(path: Path) -> None:
    store = SqliteStore(path, now=lambda: WHEN)
    async with aclosing(store):
        await store.open()
        assert [info.updated for info in await SessionAdmin(store).sessions()] == [WHEN] * 3
        await is_all_there(store)
    with closing(sqlite3.connect(path)) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")}
    assert tables == {"session", "record"}


async def test_a_session_that_cannot_be_read_stops_no_start(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE log SET data='{' WHERE position=3")
    store = SqliteStore(path, now=lambda: WHEN)
    async with aclosing(store):
        await store.open()
        assert (await store.claim(KEY)).epoch == 1
        assert (await store.claim(GRANTS)).state.fields == {"grants": "all"}


async def test_a_file_that_another_process_holds_is_migrated_at_a_later_start(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable):
            await SqliteStore(path, busy_timeout=0.0).open()
    store = SqliteStore(path, now=lambda: WHEN)
    async with aclosing(store):
        await store.open()
        await is_all_there(store)


# -- Redis, by ``conductor sessions migrate``


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[RedisStore]:
    server = RedisServer(tmp_path / "redis", "--save", "")
    server.start()
    try:
        store = RedisStore(server.url)
        async with aclosing(store):
            for line in (FILES / "redis.jsonl").read_text().split("\n")[:-1]:
                name, *rest = json.loads(line)
                await store.client.query(rest[0], name, *rest)
            yield store
    finally:
        server.kill()


async def ttl(store: RedisStore, name: str) -> object:
    return await store.client.query(name, "PTTL", name)


async def test_sessions_in_redis_are_migrated_once(store: RedisStore) -> None:
    admin = SessionAdmin(store)
    assert await admin.sessions() == []
    assert await migrate_redis(store) == (3, 0)
    assert await migrate_redis(store) == (0, 0)
    assert len(await admin.sessions()) == 3
    left = await ttl(store, "conductor:{subject/s-1}")
    assert isinstance(left, int) and 86_000_000 < left <= 86_400_000
    assert await ttl(store, "conductor:{subject/%24grants}") == -1
    await is_all_there(store)
    names = [name for page in [names async for names in store.client.scan("*")] for name in page]
    assert {name for name in names if isinstance(name, bytes) and not name.endswith((b"}", b":kept"))} == {
        b"conductor:{gone/s-9}:meta"  # of a session that was deleted; it expires
    }


async def test_what_cannot_be_read_or_was_begun_again_is_left_as_it_is(store: RedisStore) -> None:
    await store.claim(EMPTY)
    log = "conductor:{subject/s-1}:log"
    await store.client.query(log, "RPUSH", log, "{")
    assert await migrate_redis(store) == (1, 2)
    assert (await store.claim(GRANTS)).state.fields == {"grants": "all"}
    assert (await store.claim(KEY)).epoch == 1
