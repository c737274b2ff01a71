"""An operator lists, shows, exports and deletes sessions in Redis, and fences nobody by looking."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Iterator
from itertools import count

import pytest

from conductor.errors import Fenced, StoreUnavailable
from conductor.stores.admin import SessionAdmin
from conductor.stores.base import SessionKey, SetField
from conductor.stores.redis import RedisStore
from tests.stores.contract import HISTORY, KEY, filled
from tests.stores.redis_server import RedisServer

_prefixes = (f"test-{number}" for number in count(1))
KEYS = [SessionKey(subject, f"s-{number}") for subject in ("a", "a/b", "b*", "bc") for number in range(5)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    running = RedisServer(tmp_path_factory.mktemp("redis"), "--save", "")
    running.start()
    yield running
    running.kill()


@pytest.fixture
async def store(server: RedisServer) -> AsyncIterator[RedisStore]:
    one = RedisStore(server.url, prefix=next(_prefixes))
    yield one
    await one.aclose()


@pytest.fixture
def admin(store: RedisStore) -> SessionAdmin:
    return SessionAdmin(store)


async def fill(store: RedisStore, keys: list[SessionKey]) -> None:
    for key in reversed(keys):
        await store.commit(await store.claim(key), "commit-1", [SetField("name", key.session_id)])


async def test_sessions_are_listed_by_subject_and_id(store: RedisStore, admin: SessionAdmin) -> None:
    assert await admin.sessions() == []
    await fill(store, KEYS)
    found = [SessionKey(info.subject, info.session_id) for info in await admin.sessions()]
    assert found == KEYS
    for subject in ("a", "a/b", "b*", "b", "?"):
        found = [SessionKey(info.subject, info.session_id) for info in await admin.sessions(subject)]
        assert found == [key for key in KEYS if key.subject == subject]


async def test_those_who_have_a_session_of_an_id_are_named(store: RedisStore, admin: SessionAdmin) -> None:
    assert await admin.subjects("s-1") == []
    await fill(store, [*KEYS, SessionKey("a", "$grants"), SessionKey("c", "s-*"), SessionKey("d", "x/s-1")])
    assert await admin.subjects("s-1") == ["a", "a/b", "b*", "bc"]
    assert await admin.subjects("$grants") == ["a"]
    assert await admin.subjects("s-*") == ["c"]
    await admin.delete("a/b", "s-1")
    assert await admin.subjects("s-1") == ["a", "b*", "bc"]


@pytest.mark.parametrize("limit", [1, 3, 20, 21])
async def test_pages_follow_each_other(store: RedisStore, admin: SessionAdmin, limit: int) -> None:
    await fill(store, KEYS)
    found: list[SessionKey] = []
    after: SessionKey | None = None
    while page := await admin.sessions(after=after, limit=limit):
        assert len(page) <= limit
        found += [SessionKey(info.subject, info.session_id) for info in page]
        after = found[-1]
    assert found == KEYS


async def test_a_page_is_full_although_sessions_were_deleted(store: RedisStore, admin: SessionAdmin) -> None:
    await fill(store, KEYS)
    for key in KEYS[:12]:
        assert await admin.delete(key.subject, key.session_id)
    assert len(await admin.sessions(limit=5)) == 5
    assert [info.subject for info in await admin.sessions(limit=3)] == ["b*"] * 3


async def test_a_session_is_described(store: RedisStore, admin: SessionAdmin) -> None:
    claim = await filled(store)
    (info,) = await admin.sessions()
    assert (info.subject, info.session_id, info.epoch, info.revision) == ("subject", "s-1", 1, 1)
    assert (info.messages, info.calls, info.outbound, info.owned) == (len(HISTORY), 1, 1, True)
    assert abs(info.updated - time.time()) < 60 and 300 < info.size < 3_000
    await store.release(claim)
    (info,) = await admin.sessions()
    assert not info.owned


async def test_a_session_is_shown_and_nobody_is_fenced_by_it(store: RedisStore, admin: SessionAdmin) -> None:
    claim = await filled(store)
    shown = await admin.show(KEY)
    assert shown is not None
    assert [one["position"] for one in shown["log"]] == list(range(len(HISTORY)))
    assert (shown["seen"], shown["fields"]) == (["in-1"], {"a": "b"})
    assert shown["outbound_records"][0]["frame"] == {"text": '日本 " 🎉'}
    assert shown["epoch"] == 1 and json.dumps(shown)
    await store.commit(claim, "commit-1", [SetField("a", "c")])
    assert await admin.show(SessionKey("subject", "another")) is None


async def test_all_sessions_or_a_subjects_are_exported(store: RedisStore, admin: SessionAdmin) -> None:
    await fill(store, KEYS)
    exported = [(one["subject"], one["fields"]["name"]) async for one in admin.export()]
    assert exported == [(key.subject, key.session_id) for key in KEYS]
    assert len([one async for one in admin.export("b*")]) == 5


async def test_a_deleted_session_is_gone_and_its_owner_is_fenced(
    server: RedisServer, store: RedisStore, admin: SessionAdmin
) -> None:
    claim = await filled(store)
    assert await admin.delete(KEY.subject, KEY.session_id) == 1
    assert await admin.delete(KEY.subject, KEY.session_id) == 0
    assert await admin.show(KEY) is None and await admin.sessions() == []
    with pytest.raises(Fenced):
        await store.commit(claim, "commit-1", [SetField("a", "c")])
    # What is left of it for a day says nothing of it.
    names = server.ask("KEYS", f"{store.prefix}:*").splitlines()
    assert len(names) == 1 and int(server.ask("PTTL", names[0])) > 0
    assert server.ask("HGETALL", names[0]) == "token"
    again = await store.claim(KEY)
    assert again.epoch == 1 and not again.state.log
    await store.commit(again, "commit-2", [SetField("a", "d")])


async def test_all_of_a_subject_is_deleted_and_nobody_elses(store: RedisStore, admin: SessionAdmin) -> None:
    await fill(store, KEYS)
    assert await admin.delete("b*") == 5
    assert await admin.delete("b*") == 0
    assert {info.subject for info in await admin.sessions()} == {"a", "a/b", "bc"}


async def test_what_cannot_be_read_is_unavailable(
    server: RedisServer, store: RedisStore, admin: SessionAdmin
) -> None:
    await filled(store)
    server.ask("HSET", f"{store.prefix}:{{subject/s-1}}", "2", "no JSON", "revision", "2")
    with pytest.raises(StoreUnavailable):
        await admin.show(KEY)
    assert len(await admin.sessions()) == 1
