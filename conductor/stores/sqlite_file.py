"""The SQLite file of the session store: its tables, its settings, and its errors."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Literal

from conductor.errors import SettingsError

SCHEMA_VERSION = 3
APPLICATION_ID = 0x436F6E64  # "Cond"
_OLDEST_SQLITE = (3, 35)

_SCHEMA = """
CREATE TABLE session(
    id INTEGER PRIMARY KEY,
    subject TEXT NOT NULL,
    session_id TEXT NOT NULL,
    token TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    commit_id TEXT NOT NULL,
    updated REAL NOT NULL, -- epoch seconds
    UNIQUE(subject, session_id)
);
CREATE TABLE record(
    session INTEGER, revision INTEGER, data BLOB NOT NULL, PRIMARY KEY(session, revision)
) WITHOUT ROWID;
"""

Failure = Literal["locked", "full", "away", "refused"]

_FAILURES: dict[int, Failure] = {
    sqlite3.SQLITE_BUSY: "locked",
    sqlite3.SQLITE_LOCKED: "locked",
    sqlite3.SQLITE_PROTOCOL: "locked",
    sqlite3.SQLITE_FULL: "full",
    sqlite3.SQLITE_READONLY: "away",
    sqlite3.SQLITE_IOERR: "away",
    sqlite3.SQLITE_CANTOPEN: "away",
    sqlite3.SQLITE_CORRUPT: "away",
    sqlite3.SQLITE_NOTADB: "away",
    sqlite3.SQLITE_NOMEM: "away",
    sqlite3.SQLITE_PERM: "away",
}


def failure(error: sqlite3.Error) -> Failure:
    """Classify an error: another process's lock, a full disk, a failing file, or a bad statement."""
    # Errors of the module itself, such as a closed connection, carry no code.
    code = getattr(error, "sqlite_errorcode", None)
    # Extended codes hold the primary one in their low byte.
    return "refused" if code is None else _FAILURES.get(code & 0xFF, "refused")


def connect(path: Path) -> sqlite3.Connection:
    """Open the file; create it, its tables and its folder if they are missing.

    The connection belongs to the calling thread and does not wait for locks. Raises `SettingsError` for a
    wrong file, and `sqlite3.Error` for a temporary failure such as a lock.
    """
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        raise SettingsError(f"The session store needs SQLite 3.35; this one is {sqlite3.sqlite_version}.")
    _make_file(path)
    connection = sqlite3.connect(path, timeout=0, isolation_level=None)
    try:
        _prepare(connection, path)
    except sqlite3.Error as error:
        connection.close()
        # These are temporary; the others are mistakes of the configuration.
        if failure(error) in ("locked", "full"):
            raise
        raise SettingsError(_explain(path, error)) from error
    except BaseException:
        connection.close()
        raise
    return connection


def _make_file(path: Path) -> None:
    # Not by SQLite: only the owner may read the file.
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Exclusive: opening and closing a file in use would drop its POSIX locks.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        if path.is_dir():
            raise SettingsError(f"The session store's file {path} is a folder.") from None
        if not path.parent.is_dir():
            raise SettingsError(f"The session store's folder {path.parent} is a file.") from None
    except OSError as error:
        raise SettingsError(why_not_made(path, error)) from error


def why_not_made(path: Path, error: OSError) -> str:
    """Explain in a sentence why the file cannot be created."""
    reason = (error.strerror or str(error)).lower()
    return f"The session store's file {path} cannot be made in {existing_folder(path)}: {reason}."


def existing_folder(path: Path) -> Path:
    """Find the deepest existing folder above a file."""
    return next((folder for folder in path.absolute().parents if os.path.exists(folder)), Path("/"))


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    is_new = _check(connection, path)
    if is_new:
        connection.execute("PRAGMA auto_vacuum=FULL")  # must be set before the first table
    mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
    if mode != "wal":
        raise SettingsError(f"The session store's file {path} must be on a local disk that can share memory.")
    # An fsync for each group: with WAL and NORMAL a power failure loses acknowledged commits.
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA secure_delete=ON")  # deleted text is overwritten, in free pages too
    connection.execute("PRAGMA wal_autocheckpoint=4000")  # in pages; the same few are written often
    # In KiB; a smaller cache spills a large group before its commit.
    connection.execute("PRAGMA cache_size=-16000")
    # The write-ahead log shrinks after a burst.
    connection.execute(f"PRAGMA journal_size_limit={64 << 20}")
    if is_new:
        connection.execute("BEGIN IMMEDIATE")
        if _check(connection, path):  # another process may have been first
            for statement in _SCHEMA.split(";")[:-1]:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        connection.execute("COMMIT")


def _check(connection: sqlite3.Connection, path: Path) -> bool:
    # True for an empty file. The database of another program or format is refused and not changed.
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if application != APPLICATION_ID and (application or version or tables):
        raise SettingsError(f"The file {path} is another program's database, not a session store.")
    if version not in (0, SCHEMA_VERSION):
        raise SettingsError(
            f"The session store {path} has format {version}; this version of the server reads and writes "
            f"format {SCHEMA_VERSION}."
        )
    return version == 0


def _explain(path: Path, error: sqlite3.Error) -> str:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return f"The session store's file {path} is damaged, or no SQLite database."
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return f"The session store's file {path} cannot be opened for writing."
    return f"The session store's file {path} cannot be used: {error}."
