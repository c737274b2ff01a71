"""The PostgreSQL store when its server restarts, hangs, says no, or goes back in time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from itertools import count

import pytest
import structlog

from conductor.errors import Conflict, SettingsError, StoreUnavailable
from conductor.plugins.stores.postgres import PostgresStore
from conductor.stores.base import Claim, SessionKey
from tests.contract.store import FIRST, KEY, commits, filled
from tests.stores.postgres_server import PostgresServer
from tests.stores.redis_server import WAIT, free_port

_schemas = (f"test_{number}" for number in count(1))
LONG = 30.0
SHORT = 0.4


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    running = PostgresServer("fsync=off", "max_connections=50")
    running.start()
    yield running
    running.stop()


def emptied(server: PostgresServer) -> str:
    """Name a schema with nothing in it."""
    schema = next(_schemas)
    server.ask(f"CREATE SCHEMA {schema}")
    return f"{server.url}?search_path={schema}"


@pytest.fixture
def url(server: PostgresServer) -> str:
    return emptied(server)


@pytest.fixture
async def store(url: str) -> AsyncIterator[PostgresStore]:
    async with aclosing(PostgresStore(url)) as store:
        await store.open()
        yield store


async def test_expired_sessions_are_swept_and_the_others_stay(server: PostgresServer, url: str) -> None:
    grants = SessionKey("subject", "$grants")
    expired = [SessionKey("subject", f"s-{number}") for number in range(3)]
    async with aclosing(PostgresStore(url, session_ttl=0.1)) as brief:
        await brief.open()
        for key in (*expired, grants):
            await filled(brief, key)
        await brief.delete("subject", "s-2")
        server.ask("SELECT pg_sleep(0.11)")
        await brief.claim(expired[0])
        assert await brief.sweep() == 2
        assert await brief.keys(None, None, None, 10) == [grants, expired[0]]


# -- names and values


async def test_a_name_that_the_database_cannot_hold_is_refused_and_costs_no_other_session(url: str) -> None:
    async with aclosing(PostgresStore(url, retry_for=SHORT)) as store:
        await store.open()
        for name in ("\x00", "\ud800"):
            with pytest.raises(StoreUnavailable, match="cannot be used"):
                await store.claim(SessionKey("subject", name))
        claim = await store.claim(KEY)
        await store.append(claim, "commit-1", b"1")


async def test_servers_that_start_at_the_same_time_share_the_tables(url: str) -> None:
    stores = [PostgresStore(url) for _ in range(5)]
    await asyncio.gather(*(store.open() for store in stores))
    claims = await asyncio.gather(*(store.claim(KEY) for store in stores))
    assert sorted(claim.epoch for claim in claims) == [1, 2, 3, 4, 5]
    await asyncio.gather(*(store.aclose() for store in stores))


# -- a server that restarts, hangs, or goes back in time


@pytest.fixture
def own(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    """Run a server for one test."""
    running = PostgresServer()
    running.start()
    yield running
    running.stop()


async def opened(server: PostgresServer, retry_for: float) -> PostgresStore:
    store = PostgresStore(server.url, retry_for=retry_for)
    await store.open()
    return store


def message(number: int) -> bytes:
    return b"message %d" % number


async def test_a_restart_loses_no_acknowledged_commit(own: PostgresServer) -> None:
    async with aclosing(await opened(own, LONG)) as store:
        acknowledged: list[int] = []
        numbers = count()
        reached, stop = asyncio.Event(), asyncio.Event()

        async def talk(claim: Claim) -> None:
            while not stop.is_set():
                number = next(numbers)
                await store.append(claim, f"commit-{number}", message(number))
                acknowledged.append(number)
                reached.set()

        talking = asyncio.create_task(talk(await store.claim(KEY)))
        for _ in range(2):
            reached.clear()
            await asyncio.wait_for(reached.wait(), WAIT)
            await asyncio.to_thread(own.kill)
            await asyncio.to_thread(own.start)
        reached.clear()
        await asyncio.wait_for(reached.wait(), WAIT)
        stop.set()
        await asyncio.wait_for(talking, WAIT)
        claim = await store.claim(KEY)
        assert list(claim.commits) == [message(number) for number in acknowledged]
        assert claim.revision == len(acknowledged)


async def test_a_server_that_stays_away_is_unavailable_and_then_is_used_again(own: PostgresServer) -> None:
    async with aclosing(await opened(own, SHORT)) as store:
        claim = await filled(store)
        own.kill()
        for number in range(2):
            with pytest.raises(StoreUnavailable, match="cannot be used"):
                await asyncio.wait_for(store.append(claim, f"commit-{number}", message(number)), WAIT)
        own.start()
        await store.append(claim, "commit-2", message(2))
        assert await commits(store) == [FIRST, message(2)]


async def test_a_server_that_hangs_is_waited_for_and_given_up_in_time(own: PostgresServer) -> None:
    async with aclosing(await opened(own, 1.0)) as store, aclosing(await opened(own, LONG)) as patient:
        claim = await filled(store)
        later = await patient.claim(SessionKey("subject", "later"))
        own.freeze()
        with pytest.raises(StoreUnavailable, match="did not answer in time"):
            await asyncio.wait_for(store.append(claim, "commit-1", message(1)), WAIT)
        commit = asyncio.create_task(patient.append(later, "commit-1", message(1)))
        finished, _ = await asyncio.wait([commit], timeout=0.05)
        assert not finished
        own.thaw()
        await asyncio.wait_for(commit, LONG)
        try:
            await store.append(claim, "commit-2", message(2))
        except Conflict:  # the server had read the first commit
            claim = await store.claim(KEY)
            assert list(claim.commits) == [FIRST, message(1)]
            await store.append(claim, "commit-3", message(3))


# -- the start


async def test_a_missing_server_is_reported_in_one_sentence() -> None:
    url = f"postgres://me:s3cret@127.0.0.1:{free_port()}/talks?sslmode=disable"
    with pytest.raises(SettingsError) as caught:
        await PostgresStore(url).open()
    address = url.partition("?")[0].replace("me:s3cret@", "")
    assert str(caught.value) == (
        f"SESSION_STORE_URL names {address}, which cannot be used: nothing listens there."
    )


async def test_a_missing_database_is_reported_in_one_sentence(server: PostgresServer) -> None:
    with pytest.raises(
        SettingsError, match=r"cannot be used: the server says 3D000 \(InvalidCatalogName\)\.$"
    ):
        await PostgresStore(server.url.replace("/postgres", "/none")).open()


async def test_a_configuration_that_may_lose_sessions_is_logged(server: PostgresServer, url: str) -> None:
    with structlog.testing.capture_logs() as lines:
        async with aclosing(PostgresStore(url)) as store:
            await store.open()
            assert await store.warnings() == ["fsync is off: a crash loses acknowledged commits"]
    assert [line["event"] for line in lines] == ["sessions may be lost"]
