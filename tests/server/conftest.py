"""Stores that several nodes share."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from conductor.plugins.models import anthropic_client, http
from conductor.plugins.stores.redis import RedisStore
from conductor.plugins.stores.sqlite import SqliteStore
from tests.hasty import HastyLoop
from tests.server.nodes import Shelf
from tests.services.redis_server import RedisServer

# The import takes a second, which no test's wait should hold.
assert anthropic_client and http

_prefixes = itertools.count(1)


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Name the event loop of the tests in this folder."""
    return {"hasty": HastyLoop}


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Run one server for all tests of a module."""
    folder = tmp_path_factory.mktemp("redis")
    with RedisServer(folder, "--save", "", "--appendonly", "no").running() as server:
        yield server


@pytest.fixture(params=["sqlite", "redis"])
def shelf(request: pytest.FixtureRequest, tmp_path: Path) -> Shelf:
    """Make a store that several nodes share."""
    if request.param == "sqlite":
        path = tmp_path / "sessions.db"
        return Shelf(lambda: SqliteStore(path), path)
    server: RedisServer = request.getfixturevalue("redis")
    prefix = f"p{next(_prefixes)}"
    return Shelf(lambda: RedisStore(server.url, prefix=prefix))


@pytest.fixture
def file_shelf(tmp_path: Path) -> Shelf:
    """Make the path of a session file."""
    path = tmp_path / "sessions.db"
    return Shelf(lambda: SqliteStore(path), path)
