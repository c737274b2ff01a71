"""Fixtures that several engines' tests share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any, TypeAlias

import pytest

from conductor.plugins.stores.redis import RedisStore
from tests.stores.engines import Engine, Memory, Postgres, Redis, Sqlite
from tests.stores.postgres_server import PostgresServer
from tests.stores.redis_cluster import RedisCluster
from tests.stores.redis_sentinel import SentinelServers
from tests.stores.redis_server import RedisServer

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


@pytest.fixture(scope="module", params=["memory", "sqlite", "postgres", "redis", "sentinel", "cluster"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Run each engine."""
    folder = tmp_path_factory.mktemp(request.param)
    match request.param:
        case "memory":
            yield Memory()
        case "sqlite":
            yield Sqlite(folder)
        case "postgres":
            server = PostgresServer("fsync=off", "max_connections=50")
            server.start()
            yield Postgres(server)
            server.stop()
        case "redis":
            redis = RedisServer(folder, "--save", "")
            redis.start()
            yield Redis(redis.url)
            redis.kill()
        case "sentinel":
            with SentinelServers(folder).running() as servers:
                yield Redis(servers.url)
        case _:
            with RedisCluster(folder).running() as cluster:
                yield Redis(cluster.url)
