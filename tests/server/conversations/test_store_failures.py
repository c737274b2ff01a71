"""A store that goes away under a running server: nothing is lost or doubled, without a restart."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import shutil
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, aclosing, asynccontextmanager, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from conductor.app import make_services, running
from conductor.conversation.replay import replay
from conductor.messages import ToolCall, ToolResult, UserMessage
from conductor.models.base import ModelRequest, TextDelta
from conductor.plugins.stores.redis import RedisStore
from conductor.plugins.stores.redis_scripts import session_name
from conductor.plugins.stores.sqlite import SqliteStore
from conductor.session.fields import SubjectRecords
from conductor.settings import load_settings
from conductor.stores.base import NO_ATTACHMENTS, Attachments, Claim, SessionKey, SessionLog
from conductor.stores.health import HealthCheckedStore
from tests.app import WAIT, App
from tests.conftest import IOS_CATALOG
from tests.models import Script, ScriptedProvider
from tests.server.nodes import calm, node
from tests.server.nodes import echo as nodes_echo
from tests.server.wires import WiredStore, get, http
from tests.services.redis_cluster import RedisCluster
from tests.services.redis_sentinel import SentinelServers
from tests.services.redis_server import RedisServer
from tests.serving import Served
from tests.shapes import Event
from tests.system.stores.test_redis_faults import Proxy

BUSY_S = 0.1
"""How long the stores here wait for a lock, or try again, before they say that they are away."""

OPERATOR = "the-operators-own-token"

ROOM = 16_384
"""Bytes that a file may have where the disk is full: fewer than the store's already has."""


def echo(request: ModelRequest) -> Script:
    """Answer with all of the person's words so far."""
    texts = [message.text for message in request.messages if isinstance(message, UserMessage)]
    return [TextDelta(f"You said {', '.join(texts)}.")]


@asynccontextmanager
async def serving(
    store: SessionLog, replies: Any = echo, mode: str = "queue", **limits: Any
) -> AsyncIterator[Served]:
    """Run a server with this store."""
    watched = HealthCheckedStore(store, 0.02)
    provider = ScriptedProvider(replies)
    settings = load_settings(
        None, interruption_mode=mode, port=0, device_tools_file=IOS_CATALOG, admin_token=OPERATOR
    )
    services = make_services(settings, provider)
    limits = {"turns_per_minute": 1e6, **limits}
    services = replace(
        services,
        store=watched,
        subject_records=SubjectRecords(watched),
        limits=replace(services.limits, **limits),
    )
    async with running(settings, services) as listener:
        await listener.ready.wait()
        yield Served(listener)


async def ready(served: Served) -> int:
    """Ask the server whether it is ready; gives the status."""
    status, _ = await http(served.listener.port, get("/readyz", "Connection: close"))
    return status


async def becomes(served: Served, status: int) -> None:
    async with asyncio.timeout(WAIT):
        while await ready(served) != status:
            pass  # each request is a round trip


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the file's lock, as another program may."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        yield


@contextmanager
def full(_: Path) -> Iterator[None]:
    """Limit the size of this process's files: SQLite sees a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sessions.db"


async def refused(phone: App, text: str) -> None:
    """Say something while the store is away: an error comes, and ``idle``, and nothing else."""
    since = len(phone.log)
    event_id = phone.say(text)
    await phone.idle(since=since)
    shape = [message for message in phone.shapes(since) if message != "event.ack"]
    assert shape == ["error", "state idle"], shape
    (error,) = phone.errors(since)
    assert error["code"] == "store_unavailable" and error["eventId"] == event_id


def is_final_of(end: str) -> Callable[[Event], bool]:
    return lambda e: e["type"] == "assistant.speech.final" and e["payload"]["text"].endswith(end)


# -- a driver's own errors


class Odd(WiredStore):
    """A store that fails with an error of its driver while ``odd``."""

    odd = 0

    async def append(
        self,
        claim: Claim,
        commit_id: str,
        data: bytes,
        *,
        snapshot: bool = False,
        attachments: Attachments = NO_ATTACHMENTS,
    ) -> None:
        if self.odd:
            self.odd -= 1
            raise RuntimeError("cannot switch to state 12; another operation (2) is in progress")
        await super().append(claim, commit_id, data, snapshot=snapshot, attachments=attachments)


def looks(request: ModelRequest) -> Script:
    """Look an agent up on the device."""
    if isinstance(last := request.messages[-1], ToolResult):
        return [TextDelta(f"It said {last.content}")]
    return [ToolCall("c-1", "agent.status", '{"id":"a"}')]


async def test_a_result_outlives_an_unexpected_error_of_the_store() -> None:
    store = Odd()
    async with serving(store, looks, store_retry=0.01) as served, served.phone() as phone:
        phone.say("how is it?")
        call = await phone.until("agent.status")
        store.odd = 2
        phone.result(call["payload"]["callId"], '{"status":"running"}')
        await phone.until("assistant.speech.final")
        assert "running" in phone.finals()[-1] and "unknown" not in phone.finals()[-1]
        assert "internal_error" not in [error["code"] for error in phone.errors()]


async def test_words_that_an_unexpected_error_meets_are_refused_as_by_a_store_that_is_away() -> None:
    store = Odd()
    async with node(store, nodes_echo) as served, served.phone() as phone:
        await phone.ask("one")
        await calm(served)
        store.odd = 1
        await refused(phone, "lost")
        await phone.ask("two")
        assert phone.finals()[-1] == "Heard one, two."


# -- SQLite


@pytest.mark.parametrize("failing", [locked, full], ids=["locked", "full disk"])
async def test_a_failing_file_gives_an_apology_and_the_next_turn_works(
    path: Path, failing: Callable[[Path], AbstractContextManager[None]]
) -> None:
    async with serving(SqliteStore(path, busy_timeout=BUSY_S)) as served, served.phone() as phone:
        await phone.ask("one")
        await calm(served)
        assert await ready(served) == 200
        with failing(path):
            await refused(phone, "lost")
            assert await ready(served) == 503
            await refused(phone, "lost again")
        await becomes(served, 200)
        since = len(phone.log)
        await phone.ask("two")
        assert phone.finals(since) == ["You said one, two."]


async def test_the_readiness_check_and_the_metrics_name_a_store_that_is_away(path: Path) -> None:
    async def told() -> tuple[str, str]:
        port = served.listener.port
        (_, check), (_, metrics) = [
            await http(port, get(path, f"Authorization: Bearer {OPERATOR}"))
            for path in ("/readyz", "/metrics")
        ]
        (value,) = re.findall(r"^conductor_ready (.*)$", metrics, re.MULTILINE)
        return check.rpartition("\r\n\r\n")[2], value

    async with serving(SqliteStore(path, busy_timeout=BUSY_S)) as served, served.phone() as phone:
        assert await told() == ("ready\n", "1.0")
        with locked(path):
            await refused(phone, "lost")
            assert await told() == ("not ready: the session store cannot be used\n", "0.0")
        await becomes(served, 200)
        assert await told() == ("ready\n", "1.0")


async def test_a_new_client_is_told_and_may_try_again(path: Path) -> None:
    async with serving(SqliteStore(path, busy_timeout=BUSY_S)) as served:
        phone = served.phone()
        with locked(path):
            await phone.open(start=False)
            phone.start()
            error = await phone.until("error")
            assert error["payload"]["code"] == "store_unavailable"
            await refused(phone, "lost")
        await becomes(served, 200)
        phone.start()
        await phone.until("session.started")
        await phone.ask("one")
        await calm(served)
        assert phone.finals() == ["You said one."]
        await phone.close()


async def test_a_deleted_file_is_created_again_and_the_next_turn_works(path: Path) -> None:
    store = SqliteStore(path, busy_timeout=BUSY_S)
    async with serving(store) as served, served.phone() as phone:
        await phone.ask("one")
        await calm(served)
        for file in path.parent.glob(f"{path.name}*"):
            file.unlink()
        since = len(phone.log)
        await phone.ask("two")
        assert phone.finals(since)[-1] == "You said one, two."
        assert await ready(served) == 200


def remove_log(store: Path) -> None:
    Path(f"{store}-wal").unlink()


def cut_log(store: Path) -> None:
    """Cut it to nothing, as a shell's redirection does."""
    os.truncate(f"{store}-wal", 0)


def cut_log_in_a_commit(store: Path) -> None:
    """Keep one page."""
    os.truncate(f"{store}-wal", 4_200)


def cut_file(store: Path) -> None:
    os.truncate(store, 0)


@pytest.mark.parametrize("harm", [remove_log, cut_log, cut_log_in_a_commit, cut_file])
async def test_sessions_outlive_a_file_or_log_that_was_removed_or_cut(
    path: Path, tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    store = SqliteStore(path)
    async with serving(store) as served:
        async with served.phone() as phone, served.phone("s-2") as resting:
            await resting.ask("rest")
            await phone.ask("one")
            await served.quiet()
            harm(path)
            await phone.ask("two")
            assert phone.finals()[-1] == "You said one, two." and not phone.errors()
            async with asyncio.timeout(WAIT):  # the other session writes again by itself
                while await said(store, "s-2") != ["rest"]:
                    pass
            killed = tmp_path / "killed"  # what a kill now would leave
            killed.mkdir()
            for file in path.parent.glob(f"{path.name}*"):
                shutil.copy(file, killed)
    async with aclosing(SqliteStore(killed / path.name)) as left:
        await left.open()
        assert await said(left, "s-1") == ["one", "two"] and await said(left, "s-2") == ["rest"]


async def said(store: SessionLog, session_id: str) -> list[str]:
    """List the person's texts of a session that is stored."""
    stored = await store.read(SessionKey("anonymous", session_id))
    log = [] if stored is None else replay(stored.commits(), stored.meta.revision).log
    return [message.text for message in log if isinstance(message, UserMessage)]


async def test_a_disk_that_stalls_gives_an_apology_and_the_next_turn_works(path: Path) -> None:
    store, go_on = SqliteStore(path, busy_timeout=BUSY_S), threading.Event()
    async with serving(store) as served, served.phone() as phone:
        await phone.ask("one")
        await calm(served)
        assert store._writer is not None
        stalled = store._writer.submit(lambda _: go_on.wait())  # its thread waits as for a write
        try:
            await refused(phone, "lost")
            assert await ready(served) == 503
        finally:
            go_on.set()
        await stalled
        await becomes(served, 200)
        since = len(phone.log)
        await phone.ask("two")
        assert phone.finals(since)[-1].endswith("two.")


# -- Redis


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    """Run a server for one test, which loses nothing that it acknowledged."""
    options = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")
    with RedisServer(tmp_path / "redis", *options).running() as server:
        yield server


@pytest.mark.extended
async def test_a_hanging_redis_gives_an_apology_and_its_late_commit_counts_once(redis: RedisServer) -> None:
    async with serving(RedisStore(redis.url, retry_for=2.0)) as served, served.phone() as phone:
        await phone.ask("one")
        await calm(served)
        redis.freeze()
        since = len(phone.log)
        phone.say("two")
        await phone.idle(since=since)
        assert phone.errors(since)[0]["code"] == "store_unavailable"
        assert await ready(served) == 503
        redis.thaw()
        await becomes(served, 200)
        phone.say("three")
        await phone.until(is_final_of("three."), since=since)
        assert phone.finals(since)[-1] == "You said one, two, three."


@pytest.mark.extended
async def test_a_replica_that_has_lost_commits_is_given_them_again(
    redis: RedisServer, tmp_path: Path
) -> None:
    replica = RedisServer(tmp_path / "replica", "--replicaof", f"127.0.0.1 {redis.port}", "--save", "")
    redis.ask("CONFIG", "SET", "repl-diskless-sync-delay", "0")
    proxy = Proxy(redis.port)
    with replica.running():
        async with proxy.running() as url, serving(RedisStore(url, retry_for=8.0)) as served:
            async with served.phone() as phone:
                await phone.ask("one")
                await calm(served)
                await asyncio.to_thread(follows, replica, redis)
                await asyncio.to_thread(replica.ask, "REPLICAOF", "NO", "ONE")
                await phone.ask("two")
                await calm(served)
                proxy.server_port = replica.port
                redis.kill()
                since = len(phone.log)
                await phone.ask("three")
                assert phone.finals(since) == ["You said one, two, three."] and not phone.errors()
                await calm(served)
            store = RedisStore(replica.url)
            log = replay((await store.claim(SessionKey("anonymous", "s-1"))).commits).log
            await store.aclose()
            texts = [message.text for message in log if isinstance(message, UserMessage)]
            assert texts == ["one", "two", "three"]


@pytest.mark.extended
@pytest.mark.parametrize(
    "servers", [SentinelServers, partial(RedisCluster, replicas=True)], ids=["sentinel", "cluster"]
)
async def test_a_primary_that_dies_and_is_replaced_is_not_noticed(servers: Any, tmp_path: Path) -> None:
    with servers(tmp_path).running() as running:
        store = RedisStore(running.url, retry_for=WAIT)
        name = session_name(store.prefix, SessionKey("anonymous", "s-1"))
        async with serving(store) as served, served.phone() as phone:
            await phone.ask("one")
            await calm(served)
            since = len(phone.log)
            failing = asyncio.create_task(asyncio.to_thread(running.fail_over, name))
            phone.say("two")
            await phone.idle(since=since)
            await failing
            await phone.ask("three")
            assert phone.finals(since) == ["You said one, two.", "You said one, two, three."]
            assert not phone.errors() and await ready(served) == 200


def follows(replica: RedisServer, primary: RedisServer) -> None:
    """Wait until a replica has all that its primary has."""
    for _ in range(500):
        if primary.ask("WAIT", "1", "100") == "1":
            return
    raise AssertionError("the replica does not follow")


# -- recorded, then acknowledged


@pytest.mark.parametrize("kind", ["tool.result", "tool.cancelled", "tool.accepted"])
async def test_a_report_is_acknowledged_once_it_is_recorded(kind: str) -> None:
    store = WiredStore()
    start = {"capabilities": ["resume", "cancel", "async"]}
    async with serving(store, looks, store_retry=0.01) as served, served.phone(start_fields=start) as phone:
        phone.say("how is it?")
        call_id = (await phone.until("agent.status"))["payload"]["callId"]
        store.away = True
        since = len(phone.log)
        fields = {
            "tool.result": {"result": "running"},
            "tool.cancelled": {"effect": "none"},
            "tool.accepted": {"jobId": "j-1"},
        }[kind]
        event_id = phone.send(kind, {"callId": call_id, **fields})
        await phone.until("error", since=since)  # the server insists, and has told so
        assert event_id not in acked(phone)
        (session,) = served.listener.registry.sessions
        assert session.state.open_call(call_id) is not None
        store.away = False
        await phone.until(lambda _: event_id in acked(phone), since=since)
        assert session.state.open_call(call_id) is None
        await phone.until("assistant.speech.final")


def acked(phone: App) -> list[str]:
    """List the ids that were acknowledged."""
    return [event_id for event in phone.events("event.ack") for event_id in event["payload"]["eventIds"]]
