"""The SQLite store when its file is locked, full, removed or damaged, and the space that it gives back."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conductor.errors import Conflict, Fenced, Rollback, SettingsError, StoreError, StoreUnavailable
from conductor.plugins.stores import sqlite
from conductor.plugins.stores.sqlite import SqliteStore
from conductor.plugins.stores.sqlite_writer import APPLICATION_ID
from conductor.settings import load_settings
from conductor.stores.base import Claim, SessionKey
from conductor.stores.memory import MemoryStore
from conductor.stores.registry import make_store
from conductor.testing.store import FIRST, KEY, commits, filled
from tests.conftest import Main
from tests.server.wires import WAIT
from tests.stand_ins.programs import launched
from tests.unit.stores import sqlite_process


@asynccontextmanager
async def opened(path: Path, **limits: Any) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, **limits)
    await store.open()
    try:
        yield store
    finally:
        await store.aclose()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sessions.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    async with opened(path) as store:
        yield store


@contextmanager
def locked(path: Path) -> Iterator[sqlite3.Connection]:
    """Hold the file's lock, on a connection of our own."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
    finally:
        connection.close()


@asynccontextmanager
async def process(command: str, path: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run another process at the file; it is killed at the end."""
    line, pipe = (sys.executable, "-m", sqlite_process.__name__, command, path), asyncio.subprocess.PIPE
    async with launched(*line, stdin=pipe, stdout=pipe, cwd=Path(__file__).parents[3]) as running:
        yield running


def _remove(path: Path) -> None:
    """Delete a file and its log, which SQLite would apply to a new file of the same name."""
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()


async def claims(store: SqliteStore | MemoryStore, count: int) -> list[Claim]:
    return [await store.claim(SessionKey("subject", str(number))) for number in range(count)]


async def test_deleted_text_is_overwritten(path: Path, store: SqliteStore) -> None:
    claim = await store.claim(KEY)
    await store.append(claim, "commit-1", b"SECRET-" * 40)
    await store.delete("subject")
    assert not any(b"SECRET-" in file.read_bytes() for file in path.parent.iterdir())


# -- groups


async def test_queued_commits_are_written_in_one_transaction(path: Path, store: SqliteStore) -> None:
    batch = await claims(store, 100)
    assert store._writer is not None
    before = store._writer.groups
    with locked(path):  # so that all of them have to wait
        appends = [asyncio.ensure_future(store.append(claim, "commit-1", b"1")) for claim in batch]
        await asyncio.sleep(0)
    await asyncio.gather(*appends)
    assert store._writer.groups - before <= 2 and all(claim.revision == 1 for claim in batch)


async def test_each_commit_of_a_group_has_its_own_outcome(path: Path, store: SqliteStore) -> None:
    batch = await claims(store, 80)
    bad: dict[int, tuple[type[StoreError], Claim]] = {
        5: (Fenced, replace(batch[5], token="made-up")),
        6: (Conflict, batch[6]),
        40: (Rollback, replace(batch[40], revision=9)),
        75: (StoreUnavailable, replace(batch[75], revision=2**70)),
    }
    await store.append(batch[6], "commit-0", b"0")
    batch[6].revision = 0
    with locked(path):
        appends = []
        for number, claim in enumerate(batch):
            _, writer = bad.get(number, (None, claim))
            appends.append(asyncio.ensure_future(store.append(writer, "commit-1", b"%d" % number)))
        await asyncio.sleep(0)
    outcomes = await asyncio.gather(*appends, return_exceptions=True)
    for number, outcome in enumerate(outcomes):
        assert type(outcome) is (bad[number][0] if number in bad else type(None)), number
    for number, claim in enumerate(await claims(store, 80)):
        expected = [b"%d" % number] if number not in bad else [b"0"] if number == 6 else []
        assert list(claim.commits) == expected


async def test_a_cancelled_commit_does_not_affect_the_others_of_its_group(
    path: Path, store: SqliteStore
) -> None:
    batch = await claims(store, 9)
    with locked(path):
        appends = [asyncio.ensure_future(store.append(claim, "commit-1", b"1")) for claim in batch]
        await asyncio.sleep(0)
        appends[4].cancel()
    finished, _ = await asyncio.wait(appends, timeout=WAIT)
    assert len(finished) == 9
    assert [commit.cancelled() for commit in appends] == [number == 4 for number in range(9)]


async def test_a_name_that_cannot_be_stored_does_not_affect_the_group(store: SqliteStore) -> None:
    good, bad = store.claim(KEY), store.claim(SessionKey("\ud800", "s-1"))
    claim, refused = await asyncio.gather(good, bad, return_exceptions=True)
    assert isinstance(refused, StoreUnavailable) and isinstance(claim, Claim)
    await store.append(claim, "commit-1", b"1")


# -- several processes


async def test_two_stores_write_to_one_file_at_the_same_time(path: Path, store: SqliteStore) -> None:
    async def write(at: SqliteStore, session: str) -> None:
        claim = await at.claim(SessionKey("subject", session))
        for number in range(60):
            await at.append(claim, f"commit-{number}", b"%d" % number)

    async with opened(path) as second:
        stores = [store, second]
        await asyncio.gather(*(write(stores[n % 2], str(n)) for n in range(10)))
        for claim in await claims(second, 10):
            assert list(claim.commits) == [b"%d" % number for number in range(60)]


async def test_a_kill_loses_no_acknowledged_commit_and_leaves_no_partial_one(path: Path) -> None:
    for _ in range(3):
        _remove(path)
        acknowledged = dict.fromkeys(range(sqlite_process.SESSIONS), 0)
        async with process("write", path) as writer:
            assert writer.stdout is not None
            for _ in range(1500):
                session, number = map(int, (await writer.stdout.readline()).split())
                acknowledged[session] = number
            writer.kill()
            for line in (await writer.stdout.read()).splitlines():
                if len(line.split()) == 2:
                    session, number = map(int, line.split())
                    acknowledged[session] = max(number, acknowledged[session])
        async with opened(path) as store:
            for claim in await claims(store, sqlite_process.SESSIONS):
                count = claim.revision
                assert count >= acknowledged[int(claim.key.session_id)]
                assert list(claim.commits) == [b"%d" % number for number in range(1, count + 1)]


async def test_a_lock_of_another_process_ends_or_is_refused_in_time(path: Path) -> None:
    async with opened(path, busy_timeout=0.2) as store:
        claim = await store.claim(KEY)
        async with process("lock", path) as locker:
            assert locker.stdout is not None and locker.stdin is not None
            await locker.stdout.readline()
            for _ in range(2):
                with pytest.raises(StoreUnavailable, match="locked"):
                    await asyncio.wait_for(store.append(claim, "commit-1", b"1"), WAIT)
            locker.stdin.close()
            await locker.wait()
        await store.append(claim, "commit-1", b"1")
        assert await commits(store) == [b"1"]


# -- disks that fail


async def test_a_write_that_fails_refuses_and_the_store_recovers(path: Path, store: SqliteStore) -> None:
    resource = pytest.importorskip("resource")
    claim = await store.claim(KEY)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))
    try:
        with pytest.raises(StoreUnavailable):
            await store.append(claim, "commit-1", b"x" * 1_000_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    await store.append(claim, "commit-1", b"y")
    assert await commits(store) == [b"y"]


async def test_a_file_that_is_damaged_and_then_replaced_needs_no_restart(path: Path) -> None:
    async with opened(path) as store:
        old = await filled(store)
        _remove(path)
        path.write_bytes(b"no database " * 1000)  # noqa: ASYNC240 - a small file
        with pytest.raises(StoreUnavailable):
            await store.claim(KEY)
        _remove(path)
        with pytest.raises(Rollback):  # its owner writes it again
            await store.append(old, "commit-1", b"1")
        assert (await store.claim(KEY)).epoch == 1


# -- a log that is removed, or cut


def _log(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


async def test_processes_that_share_a_file_lose_no_commit_with_its_log(path: Path) -> None:
    acknowledged = dict.fromkeys(range(sqlite_process.SESSIONS), 0)
    async with process("write", path) as writer:
        assert writer.stdout is not None
        async with opened(path) as store:
            claim = await store.claim(SessionKey("another", "s-1"))
            for line in range(600):
                words = (await writer.stdout.readline()).split()
                if len(words) == 2:  # else a line of its log
                    acknowledged[int(words[0])] = int(words[1])
                if line in (200, 400):
                    _log(path).unlink()
                await sqlite_process.insist(store, claim, line)
        writer.kill()
    async with opened(path) as left:
        assert list((await left.claim(claim.key)).commits) == [b"%d" % line for line in range(600)]
        for claim in await claims(left, sqlite_process.SESSIONS):
            assert claim.revision >= acknowledged[int(claim.key.session_id)]
            assert list(claim.commits) == [b"%d" % number for number in range(1, claim.revision + 1)]


@pytest.mark.parametrize("left", [0, 31, 4_200, 20_000])
async def test_the_owners_learn_that_a_log_was_cut(path: Path, store: SqliteStore, left: int) -> None:
    claim = await filled(store)
    await fill(store, "subject", 40, words=200)
    with _log(path).open("r+b") as log:
        log.truncate(left)
    with pytest.raises(Rollback):
        await store.append(claim, "commit-1", b"1")
    claim = await store.claim(KEY)
    await store.append(claim, "commit-1", b"1", snapshot=True)
    assert await commits(store) == [b"1"]


async def test_a_log_that_another_process_empties_is_whole(path: Path, store: SqliteStore) -> None:
    claim = await filled(store)
    async with opened(path) as second:
        for number in range(3):
            await store.append(claim, f"commit-{number + 1}", b"x" * 50_000)
            await second.claim(SessionKey("another", "s-1"))
            assert await second.delete("another") == 1 and not _log(path).stat().st_size
    await store.append(claim, "commit-4", b"1")
    assert store._writer is not None and store._writer.losses == 0


async def test_work_that_a_stalled_disk_kept_from_beginning_is_not_done_later(path: Path) -> None:
    async with opened(path, busy_timeout=0.1) as store:
        begun, go_on = threading.Event(), threading.Event()

        def stall(_: sqlite3.Connection) -> None:
            begun.set()
            go_on.wait()

        assert store._writer is not None
        stalled = store._writer.submit(stall)
        await asyncio.to_thread(begun.wait)
        with pytest.raises(StoreUnavailable, match="did not answer in time"):
            await store.claim(KEY)
        go_on.set()
        await stalled
        assert (await store.claim(KEY)).epoch == 1


# -- rows that another program has changed


@pytest.mark.parametrize("value", ["'seven'", "x'07'"])
@pytest.mark.parametrize(
    "column", ["session.token", "session.epoch", "session.revision", "session.commit_id", "record.revision"]
)
async def test_a_row_of_another_type_makes_only_its_session_unavailable(
    path: Path, store: SqliteStore, column: str, value: str
) -> None:
    owned = await filled(store)
    other = await filled(store, SessionKey("subject", "s-2"))
    table, _, name = column.partition(".")
    with closing(sqlite3.connect(path)) as editor, editor:
        editor.execute(
            f"UPDATE {table} SET {name}={value} WHERE rowid=1"
            if table == "session"
            else f"UPDATE {table} SET {name}={value} WHERE session=1"
        )
    outcomes = await asyncio.gather(
        store.append(other, "commit-9", b"9"),
        store.read(KEY),
        store.append(owned, "commit-9", b"9"),
        store.claim(KEY),  # which writes some of the columns
        return_exceptions=True,
    )
    assert outcomes[0] is None
    if value.startswith("x") or name not in ("token", "commit_id"):
        assert isinstance(outcomes[1], StoreUnavailable)
    assert not any(isinstance(outcome, TypeError | ValueError) for outcome in outcomes)


# -- opening and closing


async def test_the_settings_decide_when_sessions_expire(path: Path) -> None:
    async with opened(path) as store:
        await store.claim(KEY)
    with closing(sqlite3.connect(path)) as aged, aged:
        aged.execute("UPDATE session SET updated = updated - 7200")
    configured = make_store(load_settings(None, session_store_url=f"sqlite:///{path}", session_ttl_s=3600))
    await configured.open()
    assert (await configured.claim(KEY)).epoch == 1, "the earlier one has expired"
    await configured.aclose()


async def test_only_the_owner_may_read_the_file_and_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "new" / "sessions.db"
    async with opened(path) as store:
        await filled(store)
        files = {file.name for file in path.parent.iterdir()}
        assert files == {"sessions.db", "sessions.db-wal", "sessions.db-shm"}
        for file in path.parent.iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def _database(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


async def test_an_empty_file_is_no_new_store(tmp_path: Path) -> None:
    path = tmp_path / "cut.db"
    path.touch()
    store = SqliteStore(path, busy_timeout=0.05)
    with pytest.raises(SettingsError, match="is empty: restore a backup, or delete it"):
        await store.open()
    assert not path.read_bytes()
    await store.aclose()


async def test_a_wrong_file_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "text").write_text("hello " * 1000)
    _database(tmp_path / "other", "CREATE TABLE t(a)")
    reasons = {
        "folder": "folder cannot be used: unable to open database file",
        "text": "text cannot be used: file is not a database",
        "text/below": "below cannot be made: file exists",
        "other": "another program's",
    }
    for name, reason in reasons.items():
        before = (tmp_path / name).read_bytes() if (tmp_path / name).is_file() else b""
        store = SqliteStore(tmp_path / name)
        with pytest.raises(SettingsError, match=reason):
            await store.open()
        assert not before or (tmp_path / name).read_bytes() == before
        with pytest.raises(StoreUnavailable):
            await store.claim(KEY)
        await store.aclose()
    with pytest.raises(StoreUnavailable):  # it is not open
        await SqliteStore(tmp_path / "none.db").keys(None, None, None, 1)


@pytest.mark.parametrize("version", [2, 99])
def test_a_file_of_another_format_is_refused_with_one_sentence_and_exit_code_2(
    path: Path, conductor: Main, version: int
) -> None:
    _database(path, f"PRAGMA application_id={APPLICATION_ID}", f"PRAGMA user_version={version}")
    content = path.read_bytes()
    code, _, problem = conductor("sessions", "list", SESSION_STORE_URL=f"sqlite:///{path}")
    assert code == 2
    assert problem == (
        f"conductor: The session store {path} has format {version}; this version of the server reads and "
        "writes format 4.\n"
    )
    assert path.read_bytes() == content


async def test_closing_finishes_queued_commits_and_refuses_new_ones(path: Path) -> None:
    store = SqliteStore(path)
    await store.aclose()
    await store.open()
    await store.open()
    batch = await claims(store, 50)
    appends = [asyncio.ensure_future(store.append(claim, "commit-1", b"1")) for claim in batch]
    await asyncio.sleep(0)
    await store.aclose()
    await store.aclose()
    await asyncio.gather(*appends)
    with pytest.raises(StoreUnavailable):
        await store.claim(KEY)
    assert not path.with_name("sessions.db-wal").exists()


# -- expiry


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1_772_366_400.0

    def __call__(self) -> float:
        return self.now


async def test_expired_sessions_are_swept_and_the_others_stay(path: Path) -> None:
    clock = Clock()
    store = SqliteStore(path, session_ttl=100, now=clock)
    await store.open()
    old = await claims(store, 100)
    for claim in old:
        await store.append(claim, "commit-1", b"x")
    clock.now += 60
    for claim in old[::7]:
        await store.append(claim, "commit-2", b"1")
    clock.now += 60
    assert await store.sweep() == 85
    assert await store.sweep() == 0
    for number, claim in enumerate(await claims(store, 100)):
        assert (claim.epoch == 2) == (number % 7 == 0) == bool(claim.commits)
    await store.aclose()


async def test_sweeping_happens_by_itself(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "_SWEEP_S", 0.01)
    clock = Clock()
    store = SqliteStore(path, session_ttl=100, now=clock)
    await store.open()
    claim = await filled(store)
    clock.now += 101
    await asyncio.wait_for(_until_fenced(store, claim), WAIT)
    await store.aclose()


async def _until_fenced(store: SqliteStore, claim: Claim) -> None:
    """Retry a commit that changes nothing, until the session is gone."""
    with suppress(Fenced):
        while True:
            await store.append(claim, "commit-0", FIRST)


# -- space

SPARE = 5_000_000
"""What a file may keep of the space that it has had, in bytes."""


def size(path: Path) -> int:
    return path.stat().st_size


async def fill(store: SqliteStore, subject: str, sessions: int, words: int = 100_000) -> None:
    """Store sessions, each with a commit of this number of words."""
    for number in range(sessions):
        claim = await store.claim(SessionKey(subject, f"large-{number}"))
        await store.append(claim, "commit-1", b"word " * words)


async def test_a_file_gives_space_back_when_sessions_are_deleted(store: SqliteStore, path: Path) -> None:
    await fill(store, "subject", 40)
    claim = await filled(store)  # of the same subject
    assert size(path) > 2 * SPARE
    assert await store.delete("subject") == 41
    assert size(path) < SPARE
    with pytest.raises(Fenced):
        await store.append(claim, "commit-1", b"1")


async def test_commits_go_on_while_many_sessions_are_deleted(store: SqliteStore) -> None:
    sessions = 300  # which are deleted in steps of 64 at most
    await fill(store, "subject", sessions, words=1)
    claim = await store.claim(SessionKey("another", "s-1"))
    deleting = asyncio.ensure_future(store.delete("subject"))
    count = 0
    while not deleting.done():
        count += 1
        await store.append(claim, f"commit-{count}", b"1")
    assert await deleting == sessions and count > 3
