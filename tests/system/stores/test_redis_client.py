"""Login, TLS and wrong servers; errors are one sentence without the password."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeAlias

import pytest
import structlog

from conductor.errors import SettingsError, StoreUnavailable
from conductor.plugins.stores.redis import RedisStore
from conductor.testing.store import FIRST, KEY, commits, filled
from tests.services.ports import free_port
from tests.services.redis_server import RedisServer
from tests.stand_ins.programs import WAIT, missing
from tests.system.stores.conftest import StoreMaker

PASSWORD = "s3cret/p@ss:{word}"
CODED = "s3cret%2Fp%40ss%3A%7Bword%7D"

WRONG_PASSWORD = "the address has no password, or a wrong one"

Connect: TypeAlias = Callable[[str], RedisStore]


@pytest.fixture
def connect(make_store: StoreMaker) -> Connect:
    return partial(make_store, retry_for=1.0)


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Run a server that wants a password."""
    user = f"--user phone on >{PASSWORD} ~* +@all".split()
    options = ["--save", "", "--requirepass", PASSWORD, *user]
    with RedisServer(tmp_path_factory.mktemp("locked"), *options).running() as server:
        yield server


# -- signing in


async def test_a_password_lets_in(locked: RedisServer, connect: Connect) -> None:
    for user in ("", "phone", "default"):
        store = connect(f"redis://{user}:{CODED}@127.0.0.1:{locked.port}/0")
        await store.open()
        await store.claim(KEY)


@pytest.mark.parametrize(
    ("sign_in", "code"), [("", "NOAUTH"), (":wr0ng@", "WRONGPASS"), ("nobody:wr0ng@", "WRONGPASS")]
)
async def test_a_wrong_password_is_reported_in_one_sentence(
    locked: RedisServer, connect: Connect, sign_in: str, code: str
) -> None:
    store = connect(f"redis://{sign_in}127.0.0.1:{locked.port}")
    address = f"redis://127.0.0.1:{locked.port}"
    with pytest.raises(SettingsError) as caught:
        await store.open()
    assert str(caught.value).endswith(f"names {address}, which cannot be used: {WRONG_PASSWORD} ({code}).")
    with pytest.raises(StoreUnavailable, match=f"cannot be used: {WRONG_PASSWORD} .{code}"):
        await store.claim(KEY)


async def test_a_missing_password_is_named_for_long_commands_too(tmp_path: Path, connect: Connect) -> None:
    with RedisServer(tmp_path, "--save", "").running() as server:
        claim = await connect(server.url).claim(KEY)
        server.ask("CONFIG", "SET", "requirepass", PASSWORD)
        store = connect(server.url)  # its connections are new
        for commit in (b"short", bytes(100_000)):
            with pytest.raises(StoreUnavailable, match=f"cannot be used: {WRONG_PASSWORD} .NOAUTH"):
                await store.append(claim, "c-1", commit)


@pytest.mark.parametrize(
    ("setting", "value", "meaning"),
    [
        ("maxmemory", "1", "its memory is full .OOM"),
        ("min-replicas-to-write", "1", "it has fewer replicas than its min-replicas-to-write .NOREPLICAS"),
        ("replicaof", "127.0.0.1 1", "it is a replica, which takes no writes .READONLY"),
    ],
)
async def test_what_keeps_a_server_from_writing_is_said_in_words(
    tmp_path: Path, connect: Connect, setting: str, value: str, meaning: str
) -> None:
    with RedisServer(tmp_path, "--save", "", f"--{setting}", *value.split()).running() as server:
        store = connect(server.url)
        with pytest.raises(StoreUnavailable, match=f"cannot be used: {meaning}"):
            await store.claim(KEY)


async def test_the_password_is_in_no_error_and_no_log(locked: RedisServer, connect: Connect) -> None:
    location = f"{CODED}@127.0.0.1:{locked.port}/99"
    store = connect(f"redis://:{location}")
    with structlog.testing.capture_logs() as lines:
        with pytest.raises(SettingsError) as caught:
            await store.open()
        with pytest.raises(StoreUnavailable) as later:
            await store.claim(KEY)
    errors = [caught.value, caught.value.__cause__, later.value, later.value.__cause__]
    texts = f"{errors} {lines} {store!r}"
    assert PASSWORD not in texts and CODED not in texts
    assert "it answered ERR" in texts  # there is no such database


# -- servers of another kind


async def test_a_server_of_another_protocol_is_reported_in_one_sentence(connect: Connect) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        await reader.read()
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listener:
        store = connect(f"redis://127.0.0.1:{listener.sockets[0].getsockname()[1]}")
        with pytest.raises(SettingsError, match="cannot be used: Protocol error"):
            await store.open()


async def test_a_server_that_never_answers_is_reported_in_time(connect: Connect) -> None:
    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        over.set()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listener:
        store = connect(f"redis://127.0.0.1:{listener.sockets[0].getsockname()[1]}")
        with pytest.raises(SettingsError, match="cannot be used: it did not answer in time"):
            await asyncio.wait_for(store.open(), WAIT)
        await asyncio.wait_for(over.wait(), WAIT)


# -- TLS


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Run a server that speaks TLS only; its folder holds ``certificate.pem``."""
    if shutil.which("openssl") is None:
        missing("openssl", "REDIS")
    folder = tmp_path_factory.mktemp("secure")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    make += ["-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", "/CN=localhost"]
    make += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run(make, check=True, capture_output=True, timeout=WAIT, stdin=subprocess.DEVNULL)
    tls_port = free_port()
    options = ["--save", "", "--tls-port", str(tls_port), "--tls-cert-file", str(certificate)]
    options += ["--tls-key-file", str(key), "--tls-auth-clients", "no"]
    with RedisServer(folder, *options).running() as running:
        running.port = tls_port
        yield running


async def test_a_server_with_tls_is_used_if_its_certificate_is_trusted(
    secure: RedisServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(secure.folder / "certificate.pem"))
    store = connect(f"rediss://127.0.0.1:{secure.port}")
    await store.open()
    await filled(store)
    assert await commits(store) == [FIRST]


async def test_a_server_with_tls_is_refused_if_its_certificate_is_not_trusted(
    secure: RedisServer, connect: Connect
) -> None:
    with pytest.raises(SettingsError, match="cannot be used: .*CERTIFICATE_VERIFY_FAILED"):
        await connect(f"rediss://127.0.0.1:{secure.port}").open()


# -- connections and configuration


async def test_a_configuration_that_may_lose_sessions_is_warned_of(tmp_path: Path, connect: Connect) -> None:
    with RedisServer(tmp_path / "redis", "--save", "", "--maxmemory", "100mb").running() as server:
        for policy, number in (("noeviction", 1), ("allkeys-lru", 2)):
            server.ask("CONFIG", "SET", "maxmemory-policy", policy)
            warnings = await connect(server.url).warnings()
            assert len(warnings) == number and "appendonly" in warnings[0]
        server.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
        server.ask("CONFIG", "SET", "appendonly", "yes")
        assert await connect(server.url).warnings() == []
