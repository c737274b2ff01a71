"""The Redis store when replies are lost, and the server restarts, hangs, is full, or goes back in time."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from conductor.errors import Fenced, Rollback, StoreUnavailable
from conductor.stores.base import SessionKey
from conductor.testing.store import FIRST, KEY, commits, filled
from tests.services.redis_server import RedisServer
from tests.stand_ins.programs import WAIT
from tests.system.stores.conftest import StoreMaker

LONG = 30.0
"""A commit that is retried for this time outlasts every fault of a test."""
SHORT = 2.0
"""A commit that is retried for this time fails during the test."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """Run a server for one test, which loses nothing that it acknowledged."""
    with RedisServer(
        tmp_path / "redis", "--appendonly", "yes", "--appendfsync", "always", "--save", ""
    ).running() as server:
        yield server


@pytest.fixture
def replica(server: RedisServer, tmp_path: Path) -> Iterator[RedisServer]:
    """Run a replica of the server, which follows it soon."""
    server.ask("CONFIG", "SET", "repl-diskless-sync-delay", "0")
    with RedisServer(
        tmp_path / "replica", "--replicaof", f"127.0.0.1 {server.port}", "--save", ""
    ).running() as server:
        yield server


@pytest.fixture
def make_store(make_store: StoreMaker, server: RedisServer) -> StoreMaker:
    """Make stores at the server, or at another URL."""
    return lambda url=server.url, **options: make_store(url, **options)


def message(number: int) -> bytes:
    return b"message %d" % number


async def bounded(work: Awaitable[None]) -> None:
    await asyncio.wait_for(work, WAIT)


# -- replies that are lost


class Proxy:
    """Stands between store and server; ``swallows`` is how many replies end their connections instead."""

    def __init__(self, port: int) -> None:
        self.swallows = 0
        self.swallowed = asyncio.Event()
        self.connections = 0
        self.server_port = port
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """Listen for the time of the block; gives the URL."""
        listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        try:
            yield f"redis://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        finally:
            listener.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.server_port)
        back = asyncio.create_task(self._pump(far_reader, writer, replies=True))
        try:
            await self._pump(reader, far_writer, replies=False)
        finally:
            for stream in (writer, far_writer):
                stream.close()
            back.cancel()
            await asyncio.gather(back, return_exceptions=True)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, replies: bool
    ) -> None:
        while data := await reader.read(65_536):
            if replies and self.swallows:
                self.swallows -= 1
                self.swallowed.set()
                writer.transport.abort()
                return
            writer.write(data)


async def test_a_commit_whose_reply_is_lost_is_recorded_once(
    server: RedisServer, make_store: StoreMaker
) -> None:
    proxy = Proxy(server.port)
    async with proxy.running() as url:
        store = make_store(url)
        claim = await filled(store)  # and now the server knows the script
        proxy.swallows = 1
        await bounded(store.append(claim, "commit-1", message(1)))
        assert proxy.swallowed.is_set() and claim.revision == 2
        await store.append(claim, "commit-2", message(2))
        await store.aclose()
    assert await commits(make_store()) == [FIRST, message(1), message(2)]


async def test_a_recorded_commit_is_fenced_when_it_is_retried_after_a_takeover(
    server: RedisServer, make_store: StoreMaker
) -> None:
    proxy = Proxy(server.port)
    successor = make_store()
    async with proxy.running() as url:
        store = make_store(url, retry_for=LONG)
        claim = await filled(store)
        proxy.swallows = 1_000
        commit = asyncio.create_task(store.append(claim, "commit-1", message(1)))
        await asyncio.wait_for(proxy.swallowed.wait(), WAIT)
        new_claim = await successor.claim(KEY)
        proxy.swallows = 0
        with pytest.raises(Fenced):
            await bounded(commit)
        await store.aclose()
    assert list(new_claim.commits) == [FIRST, message(1)]
    await successor.append(new_claim, "commit-2", message(2))


# -- a server that hangs


async def test_a_cancelled_commit_does_not_delay_the_others(
    server: RedisServer, make_store: StoreMaker
) -> None:
    store = make_store(retry_for=LONG)
    claims = [await store.claim(SessionKey("subject", f"s-{number}")) for number in range(4)]
    server.freeze()
    appends = [asyncio.create_task(store.append(claim, "commit-1", message(1))) for claim in claims]
    await asyncio.wait(appends, timeout=0.05)
    appends[1].cancel()
    server.thaw()
    connections = connections_made(server)
    results = await asyncio.wait_for(asyncio.gather(*appends, return_exceptions=True), WAIT)
    assert [type(result) for result in results] == [
        type(None),
        asyncio.CancelledError,
        type(None),
        type(None),
    ]
    # Each has its own reply, not the one before.
    for claim in claims[2:]:
        await store.append(claim, "commit-2", message(2))
        assert claim.revision == 2
    assert connections_made(server) == connections + 1  # the one that asks


def connections_made(server: RedisServer) -> int:
    lines = (line.strip().partition(":") for line in server.ask("INFO", "stats").splitlines())
    return int({name: value for name, _, value in lines}["total_connections_received"])


# -- a server that goes back in time


async def back_to_a_copy(server: RedisServer) -> None:
    """Restart the server with the copy of its folder, as after a failover."""
    server.kill()
    shutil.rmtree(server.folder)
    server.folder.with_name("copy").rename(server.folder)
    server.start()


async def test_commits_that_a_failover_lost_are_a_rollback(
    server: RedisServer, make_store: StoreMaker
) -> None:
    store = make_store()
    claim = await filled(store)
    shutil.copytree(server.folder, server.folder.with_name("copy"))
    for number in range(2):
        await store.append(claim, f"commit-{number}", message(number))
    await back_to_a_copy(server)
    with pytest.raises(Rollback):
        await store.append(claim, "commit-3", message(3))
    # The owner claims again and writes its state.
    claim = await store.claim(KEY)
    assert (claim.revision, list(claim.commits)) == (1, [FIRST])
    await store.append(claim, "commit-4", message(2), snapshot=True)
    await store.append(claim, "commit-5", message(3))
    assert await commits(store) == [message(2), message(3)]


# -- a server that refuses


async def test_scripts_that_the_server_forgot_are_given_to_it_again(
    server: RedisServer, make_store: StoreMaker
) -> None:
    store = make_store()
    claim = await filled(store)
    server.ask("SCRIPT", "FLUSH")
    await store.append(claim, "commit-1", message(1))
    server.ask("SCRIPT", "FLUSH")
    assert await commits(store) == [FIRST, message(1)]


async def test_a_server_that_is_full_records_nothing_and_works_again_when_there_is_room(
    server: RedisServer, make_store: StoreMaker
) -> None:
    store = make_store(retry_for=SHORT)
    claim = await filled(store)
    server.ask("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(StoreUnavailable, match="OOM"):
        await store.append(claim, "commit-1", message(1))
    server.ask("CONFIG", "SET", "maxmemory", "0")
    await store.append(claim, "commit-2", message(2))
    assert await commits(store) == [FIRST, message(2)]


# -- replicas


async def test_a_commit_waits_for_the_replica(replica: RedisServer, make_store: StoreMaker) -> None:
    # The first claim is retried until the replica is connected.
    store = make_store(replicas=1, wait_ms=200, retry_for=LONG)
    claim = await asyncio.wait_for(filled(store), LONG)
    await store.append(claim, "commit-1", message(1))
    assert replica.ask("HGET", "conductor:{subject/s-1}", "revision") == "2"


async def test_a_retried_commit_still_waits_for_the_replica(
    replica: RedisServer, make_store: StoreMaker
) -> None:
    store = make_store(replicas=1, wait_ms=20, retry_for=LONG)
    claim = await asyncio.wait_for(filled(store), LONG)
    replica.freeze()
    commit = asyncio.create_task(store.append(claim, "commit-1", message(1)))
    finished, _ = await asyncio.wait([commit], timeout=0.3)  # several retries
    assert not finished
    replica.thaw()
    await bounded(commit)
    assert replica.ask("HGET", "conductor:{subject/s-1}", "revision") == "2"
