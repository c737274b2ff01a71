"""The PostgreSQL store keeps the contract, also when its server restarts, hangs or says no."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing
from itertools import count
from typing import ClassVar

import pytest
import structlog
from hypothesis import settings

from conductor.errors import Conflict, Rollback, SettingsError, StoreUnavailable
from conductor.messages import UserMessage
from conductor.stores.base import AppendLog, Claim, RememberInbound, SessionKey, SetField
from conductor.stores.postgres import PostgresStore
from conductor.stores.records import with_state
from tests.stores.contract import (
    HISTORY,
    KEY,
    AdminContract,
    ExpiryContract,
    SessionLimitContract,
    StoreContract,
    contents,
    filled,
    stored,
)
from tests.stores.machine import StoreMachine
from tests.stores.postgres_server import PostgresServer
from tests.stores.redis_server import WAIT, free_port

_schemas = (f"test_{number}" for number in count(1))
LONG = 30.0
SHORT = 0.4


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    running = PostgresServer("fsync=off", "max_connections=50")
    running.start()
    PostgresMachine.server = running
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


class PostgresMachine(StoreMachine):
    """Random histories, over PostgreSQL."""

    server: ClassVar[PostgresServer]
    forgets_on_release = False

    @staticmethod
    def make_store() -> PostgresStore:
        PostgresMachine.server.ask("DROP TABLE IF EXISTS conductor_session, conductor_record CASCADE")
        return PostgresStore(PostgresMachine.server.url)

    def __init__(self) -> None:
        super().__init__()
        assert isinstance(self.store, PostgresStore)
        self.run(self.store.open())


TestPostgresMachine = pytest.mark.usefixtures("server")(PostgresMachine.TestCase)
TestPostgresMachine.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)


class TestPostgresStore(StoreContract):
    """The contract, over PostgreSQL."""


class TestPostgresAdmin(AdminContract):
    """The operator's operations, over PostgreSQL."""


class TestPostgresSessionLimit(SessionLimitContract):
    """The limit of sessions per subject, over PostgreSQL."""

    @pytest.fixture
    async def few(self, url: str) -> AsyncIterator[PostgresStore]:
        async with aclosing(PostgresStore(url, max_sessions=2)) as store:
            await store.open()
            yield store


class TestPostgresExpiry(ExpiryContract):
    """Expiry, over PostgreSQL."""

    @pytest.fixture
    async def brief(self, url: str) -> AsyncIterator[PostgresStore]:
        async with aclosing(PostgresStore(url, session_ttl=0.1)) as store:
            await store.open()
            yield store

    @pytest.fixture
    def wait(self, server: PostgresServer, brief: PostgresStore) -> Callable[[], Awaitable[None]]:
        async def wait() -> None:
            server.ask("SELECT pg_sleep(0.11)")

        return wait

    async def test_expired_sessions_are_swept_and_the_others_stay(
        self, brief: PostgresStore, wait: Callable[[], Awaitable[None]]
    ) -> None:
        expired = [SessionKey("subject", f"s-{number}") for number in range(3)]
        for key in (*expired, self.GRANTS):
            await brief.commit(await brief.claim(key), "commit-1", [SetField("a", "b")])
        await brief.delete("subject", "s-2")
        await wait()
        await brief.claim(expired[0])
        assert await brief.sweep() == 2
        assert await brief.keys(None, None, None, 10) == [self.GRANTS, expired[0]]


# -- names and values


async def test_a_name_that_the_database_cannot_hold_is_refused_and_costs_no_other_session(
    store: PostgresStore,
) -> None:
    for name in ("\x00", "\ud800"):
        with pytest.raises(StoreUnavailable, match="refuses"):
            await store.claim(SessionKey("subject", name))
    claim = await store.claim(KEY)
    await store.commit(claim, "commit-1", [AppendLog(UserMessage("\x00\ud800")), RememberInbound("\x00")])
    assert (await stored(store)).log == [UserMessage("\x00?")]


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


def append(number: int) -> AppendLog:
    return AppendLog(UserMessage(f"message {number}"))


async def test_a_restart_loses_no_acknowledged_commit(own: PostgresServer) -> None:
    async with aclosing(await opened(own, LONG)) as store:
        acknowledged: list[int] = []
        numbers = count()
        reached, stop = asyncio.Event(), asyncio.Event()

        async def talk(claim: Claim) -> None:
            while not stop.is_set():
                number = next(numbers)
                operations = append(number), RememberInbound(f"in-{number}")
                await store.commit(claim, f"commit-{number}", operations)
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
        assert claim.state.log == [UserMessage(f"message {number}") for number in acknowledged]
        assert claim.revision == len(acknowledged)


async def test_a_server_that_stays_away_is_unavailable_and_then_is_used_again(own: PostgresServer) -> None:
    async with aclosing(await opened(own, SHORT)) as store:
        claim = await filled(store)
        own.kill()
        for number in range(2):
            with pytest.raises(StoreUnavailable, match="cannot be reached"):
                await asyncio.wait_for(store.commit(claim, f"commit-{number}", [append(number)]), WAIT)
        own.start()
        await store.commit(claim, "commit-2", [append(2)])
        assert (await stored(store)).log == [*HISTORY, UserMessage("message 2")]


async def test_a_server_that_hangs_is_waited_for_and_given_up_in_time(own: PostgresServer) -> None:
    async with aclosing(await opened(own, 1.0)) as store, aclosing(await opened(own, LONG)) as patient:
        claim = await filled(store)
        later = await patient.claim(SessionKey("subject", "later"))
        own.freeze()
        with pytest.raises(StoreUnavailable, match="did not answer in time"):
            await asyncio.wait_for(store.commit(claim, "commit-1", [append(1)]), WAIT)
        commit = asyncio.create_task(patient.commit(later, "commit-1", [append(1)]))
        finished, _ = await asyncio.wait([commit], timeout=0.05)
        assert not finished
        own.thaw()
        await asyncio.wait_for(commit, LONG)
        try:
            await store.commit(claim, "commit-2", [append(2)])
        except Conflict:  # the server had read the first commit
            claim = await store.claim(KEY)
            assert claim.state.log == [*HISTORY, UserMessage("message 1")]
            await store.commit(claim, "commit-3", [append(3)])


async def test_commits_that_a_failover_lost_are_a_rollback_and_may_be_repeated(
    server: PostgresServer, url: str, store: PostgresStore
) -> None:
    schema = url.rpartition("=")[2]
    claim = await filled(store)
    for table in ("session", "record"):
        server.ask(f"CREATE TABLE {schema}.kept_{table} AS TABLE {schema}.conductor_{table}")
    await store.commit(claim, "commit-1", [append(1)])
    for table in ("session", "record"):
        server.ask(f"TRUNCATE {schema}.conductor_{table}")
        server.ask(
            f"INSERT INTO {schema}.conductor_{table} OVERRIDING SYSTEM VALUE TABLE {schema}.kept_{table}"
        )
    with pytest.raises(Rollback):
        await store.commit(claim, "commit-2", [append(2)])
    fresh = await store.claim(KEY)
    assert fresh.revision == 1 and claim.state.continues(fresh.state)
    fresh = with_state(fresh, claim.state)
    await store.commit(fresh, "commit-3", [append(2)])
    assert contents(await stored(store)) == contents(fresh.state)
    server.ask(f"TRUNCATE {schema}.conductor_session")
    with pytest.raises(Rollback):
        await store.commit(fresh, "commit-4", [])


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
