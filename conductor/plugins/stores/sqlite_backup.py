"""Copies of a SQLite store: a backup while servers use it, and its restoration."""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from conductor.errors import SettingsError
from conductor.plugins.stores.sqlite_writer import APPLICATION_ID, SCHEMA_VERSION

# Seconds to wait for a lock of a server.
_PATIENCE_S = 5.0
_WHOLE = "ok"
_SESSIONS = "SELECT count(*) FROM session WHERE substr(session_id, 1, 1)<>'$'"


def back_up(store: Path, file: Path, *, replace: bool) -> int:
    """Copy a store to a file, which holds every commit that was acknowledged before; returns the sessions.

    Raises `SettingsError` for a store that cannot be read, and for an existing file unless ``replace``.
    """
    own = [Path(f"{store}{ending}").resolve() for ending in ("", "-wal", "-shm", "-journal")]
    if file.resolve() in own:
        raise SettingsError(f"{file} belongs to the store itself; choose another file.")
    with _copy(store, file, replace=replace) as copy:
        if (damage := _damage(copy)) != _WHOLE:
            raise SettingsError(f"{store} is damaged ({damage}) and was not copied: restore a backup.")
        (sessions,) = copy.execute(_SESSIONS).fetchone()
    return int(sessions)


def check_pages(store: Path) -> None:
    """Read all pages of a store, which a server may use. Raises `SettingsError` for a damaged one."""
    try:
        with closing(_open(store)) as connection:
            damage = _damage(connection)
    except sqlite3.Error as error:
        damage = str(error)
    if damage != _WHOLE:
        raise SettingsError(f"{store} is damaged ({damage}): restore a backup.")


def _damage(connection: sqlite3.Connection) -> str:
    try:
        (damage,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.DatabaseError as error:
        return str(error)
    return " ".join(str(damage).split())


def restore(file: Path, store: Path, *, replace: bool) -> int:
    """Make a backup the store; returns the sessions. They are as old as they were at the backup.

    Raises `SettingsError` for a file that is no backup, for a store that a server uses, and for an existing
    store unless ``replace``.
    """
    _check(file)
    store.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _unused(store), _copy(file, store, replace=replace) as copy:
        # Else the sessions of an old backup would have expired.
        copy.execute(
            "UPDATE session SET updated=updated+?-(SELECT max(updated) FROM session)", (time.time(),)
        )
        (sessions,) = copy.execute(_SESSIONS).fetchone()
    return int(sessions)


@contextmanager
def _copy(source: Path, target: Path, *, replace: bool) -> Iterator[sqlite3.Connection]:
    """Copy a database in one step, since a copy in several steps starts again after each commit of a server.

    ``target`` is replaced at the end of the block, and can be read by its owner only.
    """
    if not replace and os.path.lexists(target):
        raise SettingsError(f"{target} exists; --force replaces it.")
    try:
        with tempfile.TemporaryDirectory(prefix=".conductor-", dir=target.parent) as folder:
            temporary = Path(folder, target.name)
            temporary.touch(0o600)
            with closing(sqlite3.connect(temporary, isolation_level=None)) as copy:
                with closing(_open(source)) as original:
                    original.backup(copy)
                copy.execute("PRAGMA journal_mode=DELETE")  # a single file
                yield copy
            with temporary.open("rb") as copy:
                os.fsync(copy.fileno())
            for remainder in ("-wal", "-shm"):
                Path(f"{target}{remainder}").unlink(missing_ok=True)
            temporary.replace(target)
    except OSError as error:
        raise SettingsError(f"{target} cannot be written: {error.strerror}.") from None
    except sqlite3.Error as error:
        raise SettingsError(f"{source} cannot be copied: {error}.") from None


def _open(path: Path) -> sqlite3.Connection:
    # Read and write, as the log of a database is part of it; a missing file is not created.
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=_PATIENCE_S)


def _check(file: Path) -> None:
    try:
        with closing(_open(file)) as backup:
            queries = ("PRAGMA application_id", "PRAGMA user_version", "PRAGMA quick_check(1)")
            application, version, damage = (backup.execute(query).fetchone()[0] for query in queries)
    except sqlite3.Error as error:
        raise SettingsError(f"{file} cannot be restored: {error}.") from None
    if (application, version) != (APPLICATION_ID, SCHEMA_VERSION):
        raise SettingsError(f"{file} is no backup of a session store in format {SCHEMA_VERSION}.")
    if damage != "ok":
        raise SettingsError(f"{file} is damaged: {damage}.")


@contextmanager
def _unused(store: Path) -> Iterator[None]:
    """Keep servers out of a store; without a file there is nothing to keep them out of."""
    if not store.exists():
        yield
        return
    with closing(sqlite3.connect(store, isolation_level=None, timeout=0)) as connection:
        try:
            # Possible for the only connection.
            connection.execute("PRAGMA journal_mode=DELETE").fetchone()
            connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError:
            raise SettingsError(f"A server uses {store}; stop it before you restore a backup.") from None
        except sqlite3.DatabaseError:
            pass  # a damaged store, which no server can use
        yield
