"""The SQLite file of the session store: its tables, how it is opened, and what its errors mean."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Literal

from conductor.errors import SettingsError

SCHEMA_VERSION = 1
APPLICATION_ID = 0x436F6E64  # "Cond"
_OLDEST_SQLITE = (3, 35)  # UPDATE ... FROM and upserts

_SCHEMA = """
CREATE TABLE session(
    id INTEGER PRIMARY KEY,
    subject TEXT NOT NULL,
    session_id TEXT NOT NULL,
    token TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    commit_id TEXT NOT NULL,
    log_start INTEGER NOT NULL,
    log_end INTEGER NOT NULL,
    placed INTEGER NOT NULL,     -- the last place given to a call or an outbound event
    remembered INTEGER NOT NULL, -- inbound ids noted so far: the place of the last one
    updated REAL NOT NULL,       -- epoch seconds
    UNIQUE(subject, session_id)
);
CREATE TABLE log(
    session INTEGER, position INTEGER, data TEXT NOT NULL, PRIMARY KEY(session, position)
) WITHOUT ROWID;
CREATE TABLE call(
    session INTEGER, call_id TEXT, place INTEGER NOT NULL, data TEXT NOT NULL, PRIMARY KEY(session, call_id)
) WITHOUT ROWID;
CREATE TABLE seen(
    session INTEGER, event_id TEXT, place INTEGER NOT NULL, PRIMARY KEY(session, event_id)
) WITHOUT ROWID;
CREATE TABLE outbound(
    session INTEGER, event_id TEXT, place INTEGER NOT NULL, data TEXT NOT NULL, PRIMARY KEY(session, event_id)
) WITHOUT ROWID;
CREATE TABLE field(
    session INTEGER, name TEXT, value TEXT NOT NULL, PRIMARY KEY(session, name)
) WITHOUT ROWID;
"""

PARTS = ("log", "call", "seen", "outbound", "field")
"""The tables that hold what a session consists of, by the column ``session``."""

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
    """Say what an error means: somebody else's lock, a full disk, a file that fails, or a bad statement."""
    code = getattr(error, "sqlite_errorcode", None)
    return "refused" if code is None else _FAILURES.get(code & 0xFF, "refused")


def connect(path: Path) -> sqlite3.Connection:
    """Open the store's file, and make it, its tables and its folder where they are missing.

    The connection belongs to the calling thread and waits for no lock. Raises `SettingsError` for what
    cannot be a store, and `sqlite3.Error` for what may pass, such as a lock.
    """
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        raise SettingsError(f"The session store needs SQLite 3.35; this one is {sqlite3.sqlite_version}.")
    _make_file(path)
    # A statement of each kind and size stays prepared: sqlite_rows.
    connection = sqlite3.connect(path, timeout=0, isolation_level=None, cached_statements=512)
    try:
        _prepare(connection, path)
    except sqlite3.Error as error:
        connection.close()
        if failure(error) in ("locked", "full"):
            raise
        raise SettingsError(_explain(path, error)) from error
    except BaseException:
        connection.close()
        raise
    return connection


def _make_file(path: Path) -> None:
    """Only the owner may read what people said: the file is made before SQLite would make it."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Exclusively: to open and close a file that is in use would drop its locks.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        if path.is_dir():
            raise SettingsError(f"The session store's file {path.name} is a folder.") from None
        if not path.parent.is_dir():
            raise SettingsError(f"The session store's folder {path.parent.name} is a file.") from None
    except OSError as error:
        raise SettingsError(
            f"The session store's file {path.name} cannot be made: {error.strerror}."
        ) from error


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    version = _check(connection, path)
    mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
    if mode != "wal":
        raise SettingsError(
            f"The session store's file {path.name} must be on a local disk that can share memory."
        )
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA secure_delete=ON")  # what was deleted is gone, free pages included
    connection.execute("PRAGMA wal_autocheckpoint=4000")  # pages; the same few are written again and again
    connection.execute("PRAGMA cache_size=-16000")  # KiB; less spills a large group before its commit
    connection.execute(f"PRAGMA journal_size_limit={64 << 20}")
    if version == 0:
        connection.execute("BEGIN IMMEDIATE")
        if _check(connection, path) == 0:  # nobody else was faster
            for statement in _SCHEMA.split(";")[:-1]:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        connection.execute("COMMIT")


def _check(connection: sqlite3.Connection, path: Path) -> int:
    """Read the schema's version; 0 for an empty file. Nothing of a file that is not ours is changed."""
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if application != APPLICATION_ID and (application or version or tables):
        raise SettingsError(f"The file {path.name} is another program's database, not a session store.")
    if version > SCHEMA_VERSION:
        raise SettingsError(
            f"The session store {path.name} was written by a newer version of the server"
            f" (format {version}, this one knows {SCHEMA_VERSION})."
        )
    return version


def _explain(path: Path, error: sqlite3.Error) -> str:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return f"The session store's file {path.name} is damaged, or no SQLite database."
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return f"The session store's file {path.name} cannot be opened for writing."
    return f"The session store's file {path.name} cannot be used: {error}."
