"""Copies of a SQLite store, and its write-ahead log while others read it."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from conductor.errors import SettingsError
from conductor.plugins.stores import sqlite_writer
from conductor.plugins.stores.sqlite import SqliteStore
from conductor.plugins.stores.sqlite_backup import back_up, restore
from conductor.plugins.stores.sqlite_writer import log_size
from conductor.stores.base import Claim, SessionKey
from conductor.testing.store import FIRST, KEY, commits, filled
from tests.unit.stores.test_sqlite import opened

MAX_LOG = 16 << 20
RECORD = os.urandom(3_000)


async def test_a_backup_of_a_store_in_use_holds_its_commits(tmp_path: Path) -> None:
    file, elsewhere = tmp_path / "backup.db", tmp_path / "other" / "sessions.db"
    async with opened(tmp_path / "sessions.db") as store:
        claim = await filled(store)
        assert log_size(tmp_path / "sessions.db") > 0, "the commits are in the log"
        assert back_up(tmp_path / "sessions.db", file, replace=False) == 1
        await store.append(claim, "commit-1", b"later")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert sorted(os.listdir(tmp_path)) == ["backup.db", "sessions.db"]
    assert restore(file, elsewhere, replace=False) == 1
    async with opened(elsewhere) as store:
        assert await commits(store) == [FIRST]


async def test_an_existing_file_is_replaced_on_request_only(tmp_path: Path) -> None:
    file, store_file = tmp_path / "backup.db", tmp_path / "sessions.db"
    async with opened(store_file) as store:
        await filled(store)
        file.write_text("precious")
        with pytest.raises(SettingsError, match=r"backup\.db exists; --force replaces it"):
            back_up(store_file, file, replace=False)
        assert file.read_text() == "precious"
        back_up(store_file, file, replace=True)
        await store.delete(KEY.subject)
    with pytest.raises(SettingsError, match=r"sessions\.db exists; --force replaces it"):
        restore(file, store_file, replace=False)
    assert restore(file, store_file, replace=True) == 1
    async with opened(store_file) as store:
        assert await commits(store) == [FIRST]


async def test_the_store_of_a_running_server_is_not_replaced(tmp_path: Path) -> None:
    file, store_file = tmp_path / "backup.db", tmp_path / "sessions.db"
    async with opened(store_file) as store:
        claim = await filled(store)
        back_up(store_file, file, replace=False)
        with pytest.raises(SettingsError, match="A server uses .*; stop it before"):
            restore(file, store_file, replace=True)
        await store.append(claim, "commit-1", b"1")
        assert await commits(store) == [FIRST, b"1"]


async def test_restored_sessions_are_as_old_as_at_the_backup(tmp_path: Path) -> None:
    now = [1_000_000.0]
    store = SqliteStore(tmp_path / "sessions.db", session_ttl=100, now=lambda: now[0])
    await store.open()
    await filled(store, SessionKey("subject", "old"))
    now[0] += 150
    await filled(store, SessionKey("subject", "new"))
    await store.aclose()
    back_up(tmp_path / "sessions.db", tmp_path / "backup.db", replace=False)
    restore(tmp_path / "backup.db", tmp_path / "sessions.db", replace=True)
    async with opened(tmp_path / "sessions.db", session_ttl=100) as again:  # years later
        await again.sweep()
        assert await again.keys("subject", None, None, 9) == [SessionKey("subject", "new")]


@pytest.mark.parametrize("damage", ["missing", "text", "another program", "cut"])
async def test_a_file_that_is_no_backup_replaces_nothing(tmp_path: Path, damage: str) -> None:
    file, store_file = tmp_path / "backup.db", tmp_path / "sessions.db"
    async with opened(store_file) as store:
        for session in range(30):
            claim = await store.claim(SessionKey("subject", str(session)))
            await store.append(claim, "commit-1", RECORD)
    back_up(store_file, file, replace=False)
    before = store_file.read_bytes()
    match damage:
        case "missing":
            file.unlink()
        case "text":
            file.write_text("hello " * 1000)
        case "another program":
            with closing(sqlite3.connect(file)) as other:
                other.execute("PRAGMA application_id=1")
        case _:
            file.write_bytes(file.read_bytes()[:40_000])
    with pytest.raises(SettingsError, match=r"backup\.db (cannot be restored|is no backup|is damaged)"):
        restore(file, store_file, replace=True)
    assert store_file.read_bytes() == before


@pytest.mark.parametrize("ending", ["", "-wal", "-shm"])
async def test_the_store_is_no_place_for_its_backup(tmp_path: Path, ending: str) -> None:
    path = tmp_path / "sessions.db"
    async with opened(path) as store:
        await store.claim(SessionKey("subject", "s-1"))
        with pytest.raises(SettingsError, match="belongs to the store itself"):
            back_up(path, Path(f"{path}{ending}"), replace=True)


async def test_a_damaged_store_is_replaced(tmp_path: Path) -> None:
    path, file = tmp_path / "sessions.db", tmp_path / "backup.db"
    async with opened(path) as store:
        await store.claim(SessionKey("subject", "s-1"))
        back_up(path, file, replace=False)
    path.write_bytes(b"not a database" * 1000)
    assert restore(file, path, replace=True) == 1


# -- the log


@contextmanager
def readers(path: Path, count: int) -> Iterator[None]:
    """Read the file in transactions that overlap, so that it is read at each moment."""
    ending = threading.Event()

    def read(number: int) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            while not ending.is_set():
                connection.execute("BEGIN")
                connection.execute("SELECT count(*) FROM session").fetchone()
                ending.wait(0.02 + 0.005 * number)
                connection.execute("COMMIT")

    threads = [threading.Thread(target=read, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ending.set()
        for thread in threads:
            thread.join()


async def load(
    path: Path, store: SqliteStore, sessions: int, commits_each: int, record: bytes = RECORD
) -> int:
    """Append commits, with a snapshot after each 64; returns the largest size of the log."""
    largest = 0

    async def talk(number: int, claim: Claim) -> None:
        nonlocal largest
        for count in range(commits_each):
            snapshot = (count + number) % 64 == 63
            await store.append(claim, f"commit-{count}", record, snapshot=snapshot)
            largest = max(largest, log_size(path))

    claims = [await store.claim(SessionKey("subject", str(number))) for number in range(sessions)]
    await asyncio.gather(*(talk(number, claim) for number, claim in enumerate(claims)))
    return largest


async def test_the_log_stays_small_while_others_read(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    async with opened(path) as store:
        with readers(path, 4):
            largest = await load(path, store, sessions=40, commits_each=200)
    assert 1 << 20 < largest < MAX_LOG  # more than 100 MiB without restarts


@pytest.mark.extended
@pytest.mark.timeout(600)
async def test_the_log_of_an_hour_stays_small(tmp_path: Path) -> None:
    """An hour of 200 sessions, with a turn of 8 commits each minute, as fast as it can be written."""
    path = tmp_path / "sessions.db"
    async with opened(path) as store:
        with readers(path, 2):
            largest = await load(path, store, sessions=200, commits_each=480)
    sys.stdout.write(f"largest write-ahead log: {largest / (1 << 20):.1f} MiB of {200 * 480} commits\n")
    assert largest < MAX_LOG


async def test_a_reader_that_never_ends_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_writer, "_READERS_MS", 1)  # it is waited for 16 times
    path = tmp_path / "sessions.db"
    async with opened(path) as store:
        with closing(sqlite3.connect(path, isolation_level=None)) as reader, capture_logs() as captured:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM session").fetchone()
            largest = await load(path, store, sessions=40, commits_each=20, record=10 * RECORD)
        assert largest > MAX_LOG
        (event,) = {line["event"] for line in captured}
        assert event == "a reader keeps the write-ahead log of the session store"
        await load(path, store, sessions=1, commits_each=2)
        assert log_size(path) < MAX_LOG
