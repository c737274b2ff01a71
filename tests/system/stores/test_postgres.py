"""The PostgreSQL store: expiry, names, and mistakes at the start."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing

import pytest
import structlog

from conductor.errors import SettingsError, StoreUnavailable
from conductor.plugins.stores.postgres import PostgresStore
from conductor.settings import load_settings
from conductor.stores.base import SessionKey
from conductor.stores.registry import open_store
from conductor.testing.store import KEY, filled
from tests.services.ports import free_port
from tests.services.postgres_server import PostgresServer

SHORT = 2.0
"""Leaves time for what succeeds, on a busy machine."""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer("fsync=off", "max_connections=50").running() as server:
        yield server


@pytest.fixture
def url(server: PostgresServer) -> str:
    return server.schema()


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
        refused = (store.claim(SessionKey("subject", name)) for name in ("\x00", "\ud800"))
        for problem in await asyncio.gather(*refused, return_exceptions=True):
            assert isinstance(problem, StoreUnavailable) and "cannot be used" in str(problem)
        claim = await store.claim(KEY)
        await store.append(claim, "commit-1", b"1")


async def test_servers_that_start_at_the_same_time_share_the_tables(url: str) -> None:
    stores = [PostgresStore(url) for _ in range(5)]
    await asyncio.gather(*(store.open() for store in stores))
    claims = await asyncio.gather(*(store.claim(KEY) for store in stores))
    assert sorted(claim.epoch for claim in claims) == [1, 2, 3, 4, 5]
    await asyncio.gather(*(store.aclose() for store in stores))


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


async def test_a_configuration_that_may_lose_sessions_is_logged_at_the_start(url: str) -> None:
    store = PostgresStore(url)
    with structlog.testing.capture_logs() as lines:
        async with aclosing(store):
            await open_store(store, load_settings(None, session_store_url=url))
    assert [(line["event"], line["reason"]) for line in lines] == [
        ("sessions may be lost", "fsync is off: a crash loses acknowledged commits")
    ]
