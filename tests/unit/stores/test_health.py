"""A checked store is unavailable from its first failure until a probe succeeds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from conductor.errors import Fenced, StoreUnavailable
from conductor.stores.base import Claim, SessionKey
from conductor.stores.health import PROBE, HealthCheckedStore
from conductor.stores.memory import MemoryStore
from conductor.testing.store import KEY
from tests.server.wires import WAIT, WiredStore, until

SOON = 0.005


class Counted(WiredStore):
    """Counts probes."""

    def __init__(self) -> None:
        super().__init__()
        self.probes = 0
        self.closed = False

    async def claim(self, key: SessionKey) -> Claim:
        self.probes += key == PROBE
        return await super().claim(key)

    async def aclose(self) -> None:
        self.closed = True
        await super().aclose()


@asynccontextmanager
async def watching(inner: Counted) -> AsyncIterator[HealthCheckedStore]:
    store = HealthCheckedStore(inner, SOON)
    try:
        yield store
    finally:
        await asyncio.wait_for(store.aclose(), WAIT)


async def test_a_store_that_answers_is_available_and_is_not_probed() -> None:
    inner = Counted()
    async with watching(inner) as store:
        fenced = await store.claim(KEY)
        claim = await store.claim(KEY)
        with pytest.raises(Fenced):
            await store.append(fenced, "commit-1", b"1")
        await store.append(claim, "commit-1", b"1")
        await store.release(claim)
        assert store.available and inner.probes == 0


@pytest.mark.parametrize("operation", ["claim", "append"])
async def test_a_store_is_unavailable_from_its_first_failure_until_a_probe_succeeds(operation: str) -> None:
    inner = Counted()
    async with watching(inner) as store:
        claim = await store.claim(KEY)
        inner.away = True
        with pytest.raises(StoreUnavailable):
            await (store.claim(KEY) if operation == "claim" else store.append(claim, "commit-1", b"1"))
        assert not store.available
        await until(lambda: inner.probes >= 3)
        assert not store.available
        inner.away = False
        await until(lambda: store.available)
        probes = inner.probes
        await store.append(claim, "commit-2", b"1")
        await asyncio.sleep(3 * SOON)
        assert inner.probes == probes, "it is probed only while it is away"


async def fails(*_: object, **__: object) -> None:
    """Fail as a driver may."""
    raise ZeroDivisionError


@pytest.mark.parametrize("operation", ["claim", "append", "release", "keys", "read", "delete"])
async def test_an_error_that_a_store_does_not_name_is_unavailable_too(operation: str) -> None:
    inner = Counted()
    async with watching(inner) as store:
        claim = await store.claim(KEY)
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "claim": lambda: store.claim(KEY),
            "append": lambda: store.append(claim, "commit-1", b"1"),
            "release": lambda: store.release(claim),
            "keys": lambda: store.keys(None, None, None, 10),
            "read": lambda: store.read(KEY),
            "delete": lambda: store.delete("subject"),
        }
        setattr(inner, operation, fails)
        with pytest.raises(StoreUnavailable):
            await calls[operation]()
        assert store.available == (operation not in ("claim", "append"))


async def test_many_failures_at_once_start_one_probe() -> None:
    inner = Counted()
    async with watching(inner) as store:
        inner.away = True
        await asyncio.gather(*(store.claim(KEY) for _ in range(20)), return_exceptions=True)
        inner.claim_gate.clear()
        await until(lambda: inner.probes == 1)
        await asyncio.sleep(3 * SOON)
        assert inner.probes == 1
        inner.away = False
        inner.claim_gate.set()
        await until(lambda: store.available)


async def test_a_failing_probe_is_followed_by_another() -> None:
    class Uneven(Counted):
        async def claim(self, key: SessionKey) -> Claim:
            claim = await super().claim(key)
            if key == PROBE and self.probes < 3:
                raise ZeroDivisionError
            return claim

    inner = Uneven()
    async with watching(inner) as store:
        inner.away = True
        with pytest.raises(StoreUnavailable):
            await store.claim(KEY)
        inner.away = False
        await until(lambda: store.available)
        assert inner.probes == 3


async def test_it_closes_while_it_probes() -> None:
    inner = Counted()
    async with watching(inner) as store:
        inner.away = True
        with pytest.raises(StoreUnavailable):
            await store.claim(KEY)
        await until(lambda: inner.probes >= 1)
    assert inner.closed
    probes = inner.probes
    await asyncio.sleep(3 * SOON)
    assert inner.probes == probes


async def test_a_checked_store_delegates_everything() -> None:
    inner = Counted()
    async with watching(inner) as store:
        assert store.durable and not HealthCheckedStore(MemoryStore()).durable
        await store.append(await store.claim(KEY), "commit-1", b"1")
        assert await store.keys(None, None, None, 10) == [KEY]
        stored = await store.read(KEY)
        assert stored is not None and stored.commits() == [b"1"]
        assert await store.warnings() == []
        assert await store.delete("subject") == 1
