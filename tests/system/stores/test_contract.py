"""PostgreSQL, Redis and Redis Cluster keep the contract of a session store."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import count

import pytest

from conductor.plugins.stores.postgres import PostgresStore
from conductor.plugins.stores.redis import RedisStore
from conductor.stores.base import StoreOptions
from conductor.testing.store import MakeStore, StoreContract
from tests.services.postgres_server import PostgresServer
from tests.services.redis_cluster import RedisCluster
from tests.services.redis_server import RedisServer

_numbers = count(1)


@pytest.fixture(scope="module", params=["postgres", "redis", "cluster"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeStore]:
    """Make stores of each engine."""
    folder = tmp_path_factory.mktemp(request.param)
    match request.param:
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


class TestEngines(StoreContract):
    """The contract on each engine."""

    @pytest.fixture
    def make(self, engine: MakeStore) -> MakeStore:
        return engine
