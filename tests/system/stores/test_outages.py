"""The stores of servers when the server restarts, stays away, or hangs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, aclosing
from itertools import count
from pathlib import Path
from typing import TypeAlias

import pytest

from conductor.errors import Conflict, StoreUnavailable
from conductor.plugins.stores.postgres import PostgresStore
from conductor.plugins.stores.redis import RedisStore
from conductor.stores.base import Claim, SessionKey, SessionLog
from conductor.testing.store import FIRST, KEY, commits, filled
from tests.services.postgres_server import PostgresServer
from tests.services.redis_server import RedisServer
from tests.stand_ins.programs import WAIT

LONG = 30.0
"""A commit that is retried for this time outlasts every fault of a test."""
SHORT = 2.0
"""A commit that is retried for this time fails during the test; another one succeeds, on a busy machine."""

Server: TypeAlias = RedisServer | PostgresServer
Open: TypeAlias = Callable[[float], Awaitable[SessionLog]]


@pytest.fixture(params=["redis", "postgres"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """Run a server for one test, which loses nothing that it acknowledged."""
    durable = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")
    server = RedisServer(tmp_path / "redis", *durable) if request.param == "redis" else PostgresServer()
    with server.running():
        yield server


@pytest.fixture
async def open_store(server: Server) -> AsyncIterator[Open]:
    """Open stores by the seconds for which they retry; they are closed after the test."""
    async with AsyncExitStack() as stack:

        async def open_one(retry_for: float) -> SessionLog:
            engine = RedisStore if isinstance(server, RedisServer) else PostgresStore
            store = engine(server.url, retry_for=retry_for)
            stack.push_async_callback(store.aclose)
            await store.open()
            return store

        yield open_one


def message(number: int) -> bytes:
    return b"message %d" % number


async def test_a_restart_loses_no_acknowledged_commit(server: Server, open_store: Open) -> None:
    store = await open_store(LONG)
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
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
    reached.clear()
    await asyncio.wait_for(reached.wait(), WAIT)
    stop.set()
    await asyncio.wait_for(talking, WAIT)
    claim = await store.claim(KEY)
    assert list(claim.commits) == [message(number) for number in acknowledged]
    assert claim.revision == len(acknowledged)


async def test_connections_that_postgresql_ends_cost_no_commit() -> None:
    with PostgresServer("fsync=off").running() as server:
        async with aclosing(PostgresStore(server.url, retry_for=LONG)) as store:
            await store.open()
            stop = asyncio.Event()

            async def talk(number: int) -> Claim:
                claim = await store.claim(SessionKey("subject", str(number)))
                while not stop.is_set():
                    await store.append(claim, f"commit-{claim.revision}", message(claim.revision))
                return claim

            talking = [asyncio.create_task(talk(number)) for number in range(12)]
            for _ in range(20):
                await asyncio.to_thread(server.end_connections, 3)
            await asyncio.to_thread(server.restart)
            stop.set()
            for claim in await asyncio.wait_for(asyncio.gather(*talking), LONG):
                stored = await store.read(claim.key)
                assert stored is not None
                assert stored.commits() == [message(number) for number in range(claim.revision)]


async def test_a_server_that_stays_away_is_unavailable_and_then_is_used_again(
    server: Server, open_store: Open
) -> None:
    store = await open_store(SHORT)
    claim = await filled(store)
    server.kill()
    for number in range(2):
        with pytest.raises(StoreUnavailable, match="cannot be used"):
            await asyncio.wait_for(store.append(claim, f"commit-{number}", message(number)), WAIT)
    server.start()
    await store.append(claim, "commit-2", message(2))
    assert await commits(store) == [FIRST, message(2)]


async def test_a_server_that_hangs_is_waited_for_and_given_up_in_time(
    server: Server, open_store: Open
) -> None:
    store, patient = await open_store(1.0), await open_store(LONG)
    claim = await filled(store)
    later = await patient.claim(SessionKey("subject", "later"))
    server.freeze()
    with pytest.raises(StoreUnavailable, match="did not answer in time"):
        await asyncio.wait_for(store.append(claim, "commit-1", message(1)), WAIT)
    commit = asyncio.create_task(patient.append(later, "commit-1", message(1)))
    finished, _ = await asyncio.wait([commit], timeout=0.05)
    assert not finished
    server.thaw()
    await asyncio.wait_for(commit, LONG)
    try:
        await store.append(claim, "commit-2", message(2))
    except Conflict:  # the server had read the first commit
        claim = await store.claim(KEY)
        assert list(claim.commits) == [FIRST, message(1)]
        await store.append(claim, "commit-3", message(3))
