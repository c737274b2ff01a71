"""``conductor check``: the session store."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from conductor.commands.check import reported, store_items
from conductor.errors import SettingsError
from conductor.plugins.stores.sqlite import SqliteStore
from conductor.plugins.stores.sqlite_backup import back_up
from conductor.settings import load_settings
from conductor.stores.base import SessionKey
from tests.hasty import SHORT_S
from tests.services.redis_server import RedisServer

PASSWORD = "hunter2-hunter2"
WAIT = 60.0


async def run_checks(seconds: float = WAIT, **values: object) -> list[str]:
    """Check the store of these settings; return the lines."""
    items = store_items(load_settings(None, **values), seconds=seconds)
    lines = [str(item) async for item in reported("sessions", items)]
    assert PASSWORD not in "\n".join(lines)
    return lines


async def test_memory_suits_one_process() -> None:
    (line,) = await run_checks()
    assert line.startswith("ok    sessions: in memory: they end with the server")


async def test_memory_does_not_suit_several_processes(tmp_path: Path) -> None:
    (line,) = await run_checks(workers=2)
    assert line.startswith("fail  sessions: WORKERS is 2, but a store in memory belongs to one process")
    (line,) = await run_checks(workers=2, data_dir=tmp_path)
    assert line.startswith("ok ")


async def test_a_missing_store_is_tested_without_creating_it(tmp_path: Path) -> None:
    (line,) = await run_checks(data_dir=tmp_path / "new" / "data")
    assert line == f"ok    sessions: {tmp_path}/new/data/conductor.db, not created yet."
    assert os.listdir(tmp_path) == []


async def test_a_store_in_use_keeps_its_sessions(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "conductor.db")
    await store.open()
    claim = await store.claim(SessionKey("subject", "s-1"))
    (line,) = await run_checks(data_dir=tmp_path)
    assert line.startswith(f"ok    sessions: {tmp_path}/conductor.db; writes took ")
    await store.append(claim, "commit-1", b"1")
    assert await store.keys(None, None, None, 10) == [SessionKey("subject", "s-1")]
    await store.aclose()


async def test_a_damaged_page_fails_and_is_not_backed_up(tmp_path: Path) -> None:
    path = tmp_path / "conductor.db"
    async with aclosing(SqliteStore(path)) as store:
        await store.open()
        for number in range(40):
            claim = await store.claim(SessionKey("subject", str(number)))
            await store.append(claim, "commit-1", b"word " * 1_000)
    with path.open("r+b") as file:
        file.seek(file.seek(0, os.SEEK_END) // 2 // 4096 * 4096)
        file.write(b"\xff" * 4096)
    (line,) = await run_checks(data_dir=tmp_path)
    assert line.startswith(f"fail  sessions: {path} is damaged (") and "restore a backup" in line
    with pytest.raises(SettingsError, match="is damaged .* restore a backup"):
        back_up(path, tmp_path / "backup.db", replace=False)
    assert not (tmp_path / "backup.db").exists()


async def test_an_empty_file_fails(tmp_path: Path) -> None:
    (tmp_path / "conductor.db").touch()
    (line,) = await run_checks(data_dir=tmp_path)
    assert line.startswith("fail  sessions: ") and "is empty: restore a backup, or delete it" in line


async def test_a_file_of_another_format_fails_and_stays_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "conductor.db"
    file.write_text("hello " * 1000)
    (line,) = await run_checks(data_dir=tmp_path)
    assert line == f"fail  sessions: The session store's file {file} cannot be used: file is not a database."
    assert file.read_text() == "hello " * 1000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    options = ("--save", "", "--requirepass", PASSWORD)
    with RedisServer(tmp_path_factory.mktemp("redis"), *options).running() as server:
        yield server


async def test_a_redis_server_without_persistence_is_a_warning(server: RedisServer) -> None:
    url = f"redis://:{PASSWORD}@127.0.0.1:{server.port}/0"

    def ask(*command: str) -> str:
        return server.ask(*command, options=("--no-auth-warning", "-a", PASSWORD))

    good, warned = await run_checks(session_store_url=url)
    assert good.startswith(f"ok    sessions: redis://127.0.0.1:{server.port}/0; writes took ")
    assert warned == "warn  sessions: appendonly is off: a restart of Redis loses commits; set it to yes."
    ask("CONFIG", "SET", "appendonly", "yes")
    assert len(await run_checks(session_store_url=url)) == 1


async def test_missing_replicas_fail(server: RedisServer) -> None:
    url = f"redis://:{PASSWORD}@127.0.0.1:{server.port}/0"
    (line,) = await run_checks(session_store_url=url, session_store_replicas=1)
    assert line == "fail  sessions: The session store cannot be used: fewer than 1 replicas have it."


async def test_a_failed_connection_does_not_print_the_password(server: RedisServer) -> None:
    (line,) = await run_checks(session_store_url=f"redis://:{PASSWORD}@127.0.0.1:1")
    assert line.startswith("fail  sessions: SESSION_STORE_URL names redis://127.0.0.1:1, which cannot")
    (line,) = await run_checks(session_store_url=f"redis://:x{PASSWORD}@127.0.0.1:{server.port}")
    assert line.startswith(f"fail  sessions: SESSION_STORE_URL names redis://127.0.0.1:{server.port}, ")
    (line,) = await run_checks(session_store_url=f"redis://:{PASSWORD}@h:port")
    assert line.startswith("fail  sessions: SESSION_STORE_URL is no Redis address")


async def test_a_silent_server_fails_in_time() -> None:
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as silent:
        port = silent.sockets[0].getsockname()[1]
        (line,) = await run_checks(session_store_url=f"redis://127.0.0.1:{port}", seconds=SHORT_S)
    assert line == f"fail  sessions: redis://127.0.0.1:{port} did not store a session within 1 s."
