"""A primary behind Sentinels: the contract, failovers, and errors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from conductor.errors import SettingsError, StoreUnavailable
from conductor.plugins.stores.redis_scripts import session_name
from conductor.stores.base import SessionKey
from conductor.testing.store import FIRST, KEY, commits, filled
from tests.services.redis_cluster import RedisCluster
from tests.services.redis_sentinel import SENTINEL_PASSWORD, SentinelServers
from tests.stand_ins.programs import WAIT
from tests.system.stores.conftest import StoreMaker
from tests.system.stores.redis_load import Load

PASSWORD = "s3cret/p@ss"
CODED = "s3cret%2Fp%40ss"
LONG = 30.0

_prefixes = (f"test-{number}" for number in count(1))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SentinelServers]:
    """Run servers that nothing happens to."""
    with SentinelServers(tmp_path_factory.mktemp("sentinel")).running() as servers:
        yield servers


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[SentinelServers]:
    """Run servers for one test."""
    with SentinelServers(tmp_path).running() as servers:
        yield servers


# -- failovers


@pytest.mark.parametrize(
    "servers", [SentinelServers, partial(RedisCluster, replicas=True)], ids=["sentinel", "cluster"]
)
async def test_a_primary_that_dies_is_replaced_under_load_and_nothing_is_lost(
    servers: Any, make_store: StoreMaker, tmp_path: Path
) -> None:
    with servers(tmp_path).running() as running:
        load = Load(make_store(running.url, retry_for=LONG))
        async with asyncio.timeout(LONG):
            await load.goes_on()
            await asyncio.to_thread(running.fail_over, session_name("conductor", load.owners[0].key))
            await load.goes_on()
            await load.end()


async def test_a_primary_that_hangs_is_replaced_and_its_writes_count_no_more(
    servers: SentinelServers, make_store: StoreMaker
) -> None:
    load = Load(make_store(servers.url, retry_for=8.0))
    async with asyncio.timeout(LONG):
        await load.goes_on()
        servers.primary.freeze()
        await load.goes_on()
        servers.primary.thaw()
        await load.goes_on()
        await load.end()
    assert servers.replica.is_primary()


# -- mistakes


async def test_passwords_of_the_servers_and_of_the_sentinel_are_used(
    tmp_path: Path, make_store: StoreMaker
) -> None:
    with SentinelServers(tmp_path, PASSWORD).running() as servers:
        right = servers.url.replace("://", f"://:{CODED}@") + f"?sentinel_password={SENTINEL_PASSWORD}"
        store = make_store(right)
        await store.open()
        await filled(store)
        assert await commits(store) == [FIRST]
        for url, reason in (
            (right.replace(CODED, "wr0ng"), "the address has no password, or a wrong one"),
            (right.replace(SENTINEL_PASSWORD, "wr0ng"), "its Sentinels name no primary"),
        ):
            with pytest.raises(SettingsError, match=f"cannot be used: {reason}") as caught:
                await make_store(url).open()
            assert "wr0ng" not in str(caught.value)


async def test_a_name_that_the_sentinels_do_not_know_is_reported(
    shared: SentinelServers, make_store: StoreMaker
) -> None:
    store = make_store(shared.url.replace("/main", "/other"), retry_for=0.5)
    with pytest.raises(SettingsError, match="its Sentinels name no primary that is up.$"):
        await store.open()
    with pytest.raises(StoreUnavailable, match="its Sentinels name no primary that is up.$"):
        await store.claim(KEY)


async def test_a_sentinel_that_hangs_leaves_time_for_the_next(
    shared: SentinelServers, make_store: StoreMaker
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as silent:
        port = silent.sockets[0].getsockname()[1]
        url = f"redis+sentinel://127.0.0.1:{port},127.0.0.1:{shared.sentinel.port}/main"
        store = make_store(url, prefix=next(_prefixes))
        claim = await asyncio.wait_for(store.claim(SessionKey("subject", "s-1")), WAIT)
        assert claim.epoch == 1
        await store.aclose()
