"""A Redis Cluster: the contract, slots that move, and primaries that die."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from redis.crc import key_slot

from conductor.errors import SettingsError, StoreUnavailable
from conductor.plugins.stores.redis import RedisStore
from conductor.plugins.stores.redis_scripts import session_name
from conductor.stores.base import SessionKey
from tests.services.redis_cluster import RedisCluster
from tests.services.redis_server import RedisServer
from tests.stand_ins.programs import WAIT
from tests.system.stores.conftest import StoreMaker
from tests.system.stores.redis_load import Load

LONG = 30.0

_prefixes = (f"test-{number}" for number in count(1))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    """Run a cluster of which no node dies."""
    with RedisCluster(tmp_path_factory.mktemp("cluster")).running() as cluster:
        yield cluster


def slot_of(store: RedisStore, key: SessionKey) -> int:
    """Say which slot a session is in."""
    slot: int = key_slot(session_name(store.prefix, key).encode())
    return slot


# -- slots that move


async def test_a_slot_that_moves_under_load_loses_nothing(
    shared: RedisCluster, make_store: StoreMaker
) -> None:
    store = make_store(shared.url, prefix=next(_prefixes), retry_for=LONG)
    load = Load(store)
    moving = load.owners[0]
    slot = slot_of(store, moving.key)
    source = shared.owner(slot)
    target = next(item for item in shared.primaries if item is not source)
    async with asyncio.timeout(LONG):
        await load.goes_on()
        await asyncio.to_thread(shared.begin_move, slot, source, target)
        settled = [item for item in load.owners if slot_of(store, item.key) != slot]
        for name in source.ask("CLUSTER", "GETKEYSINSLOT", str(slot), "10").splitlines():
            assert await asyncio.to_thread(
                source.ask, "MIGRATE", "127.0.0.1", str(target.port), name, "0", "5000"
            )
            await load.goes_on(settled)
        await asyncio.to_thread(shared.end_move, slot, target)
        await load.goes_on()
        await load.end()
    assert target.ask("CLUSTER", "COUNTKEYSINSLOT", str(slot)) != "0"
    assert source.ask("CLUSTER", "COUNTKEYSINSLOT", str(slot)) == "0"
    await asyncio.to_thread(shared.begin_move, slot, target, source)
    keys = (await asyncio.to_thread(target.ask, "CLUSTER", "GETKEYSINSLOT", str(slot), "10")).splitlines()
    target.ask("MIGRATE", "127.0.0.1", str(source.port), "", "0", "5000", "KEYS", *keys)
    shared.end_move(slot, source)  # for the tests that follow


# -- primaries that die


async def test_a_primary_that_hangs_does_not_delay_sessions_of_others(
    tmp_path: Path, make_store: StoreMaker
) -> None:
    with RedisCluster(tmp_path).running() as cluster:
        store = make_store(cluster.url, retry_for=LONG)
        load = Load(store)
        frozen = cluster.primaries[0]
        reachable = [owner for owner in load.owners if cluster.owner(slot_of(store, owner.key)) is not frozen]
        assert 0 < len(reachable) < len(load.owners)
        async with asyncio.timeout(LONG):
            await load.goes_on()
            frozen.freeze()
            async with asyncio.timeout(WAIT):  # less than one try takes
                for _ in range(10):
                    await load.goes_on(reachable)
            frozen.thaw()
            await load.goes_on()
            await load.end()


async def test_a_primary_without_a_replica_is_waited_for_or_is_unavailable(
    tmp_path: Path, make_store: StoreMaker
) -> None:
    with RedisCluster(tmp_path, "--appendonly", "yes", "--appendfsync", "always").running() as cluster:
        brief, patient = make_store(cluster.url, retry_for=2.0), make_store(cluster.url, retry_for=LONG)
        keys = [SessionKey("subject", f"s-{number}") for number in range(20)]
        dead = next(key for key in keys if cluster.owner(slot_of(brief, key)) is cluster.primaries[0])
        alive = next(key for key in keys if cluster.owner(slot_of(brief, key)) is cluster.primaries[1])
        claims = {key: await brief.claim(key) for key in (dead, alive)}
        cluster.primaries[0].kill()
        with pytest.raises(StoreUnavailable, match="cannot be used"):
            await brief.append(claims[dead], "commit-1", b"1")
        await brief.append(claims[alive], "commit-1", b"1")
        claiming = asyncio.create_task(patient.claim(dead))
        await asyncio.to_thread(cluster.primaries[0].start)
        assert (await asyncio.wait_for(claiming, LONG)).epoch == 2


# -- mistakes


async def test_a_cluster_used_as_a_single_server_is_reported(
    shared: RedisCluster, make_store: StoreMaker
) -> None:
    store = make_store(f"redis://127.0.0.1:{shared.primaries[0].port}", retry_for=1.0)
    with pytest.raises(StoreUnavailable, match="write redis\\+cluster:// before its address.$"):
        for number in range(20):
            await store.claim(SessionKey("subject", f"s-{number}"))


async def test_a_server_that_is_no_cluster_is_reported(tmp_path: Path, make_store: StoreMaker) -> None:
    with RedisServer(tmp_path / "redis", "--save", "").running() as server:
        with pytest.raises(SettingsError, match="cannot be used: .*luster"):
            await make_store(f"redis+cluster://127.0.0.1:{server.port}").open()
