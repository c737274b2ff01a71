"""The Redis store has one key for each session, of any name; sessions expire by themselves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from itertools import count

import pytest

from conductor.errors import StoreUnavailable
from conductor.plugins.stores.redis import RedisStore
from conductor.stores.base import SessionKey
from conductor.testing.store import FIRST, KEY, commits, filled
from tests.services.redis_server import RedisServer
from tests.system.stores.conftest import StoreMaker

_prefixes = (f"test-{number}" for number in count(1))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis"), "--save", "").running() as server:
        yield server


@pytest.fixture
def prefix() -> str:
    return next(_prefixes)


@pytest.fixture
async def store(server: RedisServer, prefix: str) -> AsyncIterator[RedisStore]:
    redis = RedisStore(server.url, prefix=prefix)
    yield redis
    await redis.aclose()


async def test_a_deleted_session_leaves_a_token_that_expires(server: RedisServer, store: RedisStore) -> None:
    await filled(store)
    await store.delete("subject", "s-1")
    (name,) = server.ask("KEYS", f"{store.prefix}:*").splitlines()
    assert server.ask("HGETALL", name) == "token" and int(server.ask("PTTL", name)) > 0


# -- names

ODD = [
    "",
    "a b",
    "a/b",
    "{a}",
    "}{",
    "a}/{b",
    "%7Ba",
    "日本",
    "🎉",
    "*",
    "a:b",
    "\n\r\n$5",
    "\x00",
    "\ud800",
    ".",
]


async def test_odd_names_are_sessions_of_their_own(
    server: RedisServer, store: RedisStore, prefix: str
) -> None:
    keys = [SessionKey(subject, session_id) for subject in ODD for session_id in ODD]
    for key in keys:
        claim = await store.claim(key)
        assert claim.epoch == 1
        await store.append(claim, "commit-1", ascii(key).encode())
    for key in keys:
        assert await commits(store, key) == [ascii(key).encode()]
    names = server.ask("KEYS", f"{prefix}:*").splitlines()
    names = [name for name in names if not name.endswith(":kept")]  # the indexes of subjects
    assert len(names) == len(set(names)) == len(keys)
    for name in names:
        # What a cluster hashes: from the first opening brace to the first closing one after it.
        tag = name.partition("{")[2].partition("}")[0]
        assert tag and name.isascii() and name.isprintable()


# -- expiry


async def test_a_session_expires_and_a_commit_and_a_claim_put_it_off(
    server: RedisServer, store: RedisStore, prefix: str
) -> None:
    def remaining_ms() -> list[int]:
        names = server.ask("KEYS", f"{prefix}:{{*/*}}").splitlines()
        return [int(server.ask("PTTL", name)) for name in names]

    claim = await filled(store)
    day = 86_400_000
    assert len(remaining_ms()) == 1 and all(day - 60_000 < remaining <= day for remaining in remaining_ms())

    def shorten() -> None:
        for name in server.ask("KEYS", f"{prefix}:*").splitlines():
            server.ask("PEXPIRE", name, "100000")

    shorten()
    await store.append(claim, "commit-1", b"1")
    assert all(remaining > day - 60_000 for remaining in remaining_ms())
    shorten()
    await store.append(claim, "commit-1", b"1")  # a retry, which writes nothing else
    assert all(remaining > day - 60_000 for remaining in remaining_ms())
    shorten()
    await store.claim(KEY)
    assert all(remaining > day - 60_000 for remaining in remaining_ms())


async def test_a_stored_session_that_is_not_counted_may_be_claimed(
    server: RedisServer, prefix: str, make_store: StoreMaker
) -> None:
    few = make_store(server.url, prefix=prefix, max_sessions=2)
    for number in range(2):
        await few.claim(SessionKey("subject", f"s-{number}"))
    server.ask("ZREM", f"{prefix}:{{subject}}:kept", "s-0")
    await few.claim(SessionKey("subject", "s-2"))
    assert (await few.claim(SessionKey("subject", "s-0"))).epoch == 2


async def test_sessions_that_have_expired_are_not_counted(
    server: RedisServer, prefix: str, make_store: StoreMaker
) -> None:
    brief = make_store(server.url, prefix=prefix, max_sessions=1, session_ttl=0.1)
    await brief.claim(SessionKey("subject", "s-0"))
    # Each question takes a few milliseconds.
    assert any(server.ask("KEYS", f"{prefix}:*") == "" for _ in range(1_000))
    assert (await brief.claim(SessionKey("subject", "s-1"))).epoch == 1


# -- unreadable data


async def test_unreadable_data_is_unavailable(server: RedisServer, store: RedisStore, prefix: str) -> None:
    await store.append(await filled(store), "commit-1", b"1")
    name = f"{prefix}:{{subject/s-1}}"
    server.ask("COPY", name, "aside")
    server.ask("HSET", name, "revision", "many")
    with pytest.raises(StoreUnavailable, match="cannot read"):
        await store.claim(KEY)
    server.ask("COPY", "aside", name, "REPLACE")
    server.ask("HDEL", name, "2")
    with pytest.raises(StoreUnavailable, match="lost a part"):
        await store.claim(KEY)
    server.ask("COPY", "aside", name, "REPLACE")
    assert await commits(store) == [FIRST, b"1"]
