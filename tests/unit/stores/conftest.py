"""Fixtures that several engines' tests share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from functools import partial
from itertools import count
from typing import Any, TypeAlias

import pytest

from conductor.plugins.stores.postgres import PostgresStore
from conductor.plugins.stores.redis import RedisStore
from conductor.stores import memory, sqlite
from conductor.stores.base import StoreOptions
from tests.contract.store import MakeStore
from tests.services.postgres_server import PostgresServer
from tests.services.redis_cluster import RedisCluster
from tests.services.redis_server import RedisServer

StoreMaker: TypeAlias = Callable[..., RedisStore]


@pytest.fixture
async def make_store() -> AsyncIterator[StoreMaker]:
    """Make Redis stores by URL and options; they are closed after the test."""
    async with AsyncExitStack() as stack:

        def make(url: str, **options: Any) -> RedisStore:
            store = RedisStore(url, **options)
            stack.push_async_callback(store.aclose)
            return store

        yield make


_numbers = count(1)


def _extended(*names: str) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.extended) for name in names]


@pytest.fixture(scope="module", params=["memory", "sqlite", *_extended("postgres", "redis", "cluster")])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeStore]:
    """Make stores of each engine."""
    folder = tmp_path_factory.mktemp(request.param)
    match request.param:
        case "memory":
            yield partial(memory.from_url, "memory://")
        case "sqlite":
            yield lambda options: sqlite.from_url(f"sqlite:///{folder}/a?#% {next(_numbers)}.db", options)
        case "postgres":
            with PostgresServer("fsync=off", "max_connections=50").running() as server:
                # Patient: a busy machine takes seconds to make the tables.
                yield lambda options: PostgresStore(
                    server.schema(),
                    retry_for=20.0,
                    session_ttl=options.session_ttl_s,
                    max_sessions=options.max_sessions,
                )
        case "redis":
            with RedisServer(folder, "--save", "").running() as redis:
                yield partial(_redis, redis.url)
        case _:
            with RedisCluster(folder).running() as cluster:
                yield partial(_redis, cluster.url)


def _redis(url: str, options: StoreOptions) -> RedisStore:
    return RedisStore(
        url,
        session_ttl=options.session_ttl_s,
        max_sessions=options.max_sessions,
        prefix=f"engine-{next(_numbers)}",
    )
