"""The SQLite file of the session store: its tables, how it is opened, and what its errors mean."""

from __future__ import annotations

import os
import sqlite3
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeAlias

from conductor.errors import (
    Conflict,
    Duplicate,
    Fenced,
    Rollback,
    SettingsError,
    StoreError,
    StoreUnavailable,
)
from conductor.messages import Message
from conductor.stores.base import (
    MAX_SEEN,
    AckOutbound,
    Amendment,
    AppendLog,
    CallRecord,
    FinishCall,
    ForgetCall,
    OpenCall,
    Operation,
    RememberInbound,
    SessionState,
    SetField,
    TrimLog,
    clean,
    decode_call,
    decode_entry,
    decode_outbound,
    encode_call,
    encode_entry,
    encode_outbound,
)

Row: TypeAlias = tuple[Any, ...]

# Rows in a chunk: as many as the first of these that can be filled, at the end the rest.
_MANY = 64
_SOME = 16


def select(
    connection: sqlite3.Connection, table: str, key: str, columns: str, keys: Sequence[Row]
) -> Iterator[Row]:
    """Read a table's rows by (session, key): the session, then ``columns``."""
    # A join, since SQLite scans the whole table for "(session, key) IN (VALUES ...)".
    for part in chunks(keys):
        sql = _sql(
            f"WITH wanted(a, b) AS (VALUES @) SELECT session, {columns} FROM wanted"
            f" CROSS JOIN {table} ON session=a AND {key}=b",
            "(?,?)",
            ",",
            len(part),
        )
        yield from connection.execute(sql, tuple(chain.from_iterable(part))).fetchall()


def put(connection: sqlite3.Connection, sql: str, row: str, rows: Sequence[Row]) -> None:
    """Run a statement with rows of values, such as ``(?,?)``, in place of ``@``."""
    for part in chunks(rows):
        connection.execute(_sql(sql, row, ",", len(part)), tuple(chain.from_iterable(part)))


def delete(connection: sqlite3.Connection, sql: str, row: str, rows: Sequence[Row]) -> None:
    """Run a statement with alternatives, such as ``(a=? AND b=?)``, in place of ``@``."""
    for part in chunks(rows):
        connection.execute(_sql(sql, row, " OR ", len(part)), tuple(chain.from_iterable(part)))


@cache
def _sql(template: str, row: str, separator: str, count: int) -> str:
    return template.replace("@", separator.join([row] * count))


def chunks(rows: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Split rows into chunks of few sizes, so that the number of prepared statements stays small."""
    at, count = 0, len(rows)
    while at < count:
        left = count - at
        size = _MANY if left >= _MANY else _SOME if left >= _SOME else left
        yield rows[at : at + size]
        at += size


SCHEMA_VERSION = 1
APPLICATION_ID = 0x436F6E64  # "Cond"
_NO_AUTO_VACUUM = 0
# Bytes of sessions in a file that may be rewritten: that takes a fraction of a second.
_MAX_REWRITTEN = 8 << 20
# Free pages that stay in the file for the next writes.
SPARE_PAGES = 1_024
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
"""The tables whose column ``session`` refers to a session's row."""

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
    code = getattr(error, "sqlite_errorcode", None)
    return "refused" if code is None else _FAILURES.get(code & 0xFF, "refused")


def connect(path: Path) -> sqlite3.Connection:
    """Open the store's file; create it, its tables and its folder if they are missing.

    The connection belongs to the calling thread and does not wait for locks. Raises `SettingsError` for what
    cannot be a store, and `sqlite3.Error` for what may pass, such as a lock.
    """
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        raise SettingsError(f"The session store needs SQLite 3.35; this one is {sqlite3.sqlite_version}.")
    _make_file(path)
    # One prepared statement for each kind and size of chunk.
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
    # Made before SQLite would make it, so that only the owner may read what people said.
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Exclusively: opening and closing a file that is in use would drop its POSIX locks.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        if path.is_dir():
            raise SettingsError(f"The session store's file {path} is a folder.") from None
        if not path.parent.is_dir():
            raise SettingsError(f"The session store's folder {path.parent} is a file.") from None
    except OSError as error:
        raise SettingsError(why_not_made(path, error)) from error


def why_not_made(path: Path, error: OSError) -> str:
    """Explain in a sentence why the store's file cannot be created."""
    reason = (error.strerror or str(error)).lower()
    return f"The session store's file {path} cannot be made in {existing_folder(path)}: {reason}."


def existing_folder(path: Path) -> Path:
    """Find the deepest existing folder on the way to a file."""
    return next((each for each in path.absolute().parents if os.path.exists(each)), Path("/"))


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    version = _check(connection, path)
    if version == 0:
        connection.execute("PRAGMA auto_vacuum=INCREMENTAL")  # before anything is written
    mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
    if mode != "wal":
        raise SettingsError(f"The session store's file {path} must be on a local disk that can share memory.")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA secure_delete=ON")  # deleted text is overwritten, in free pages too
    connection.execute("PRAGMA wal_autocheckpoint=4000")  # in pages; the same few are written often
    connection.execute(
        "PRAGMA cache_size=-16000"
    )  # in KiB; a smaller cache spills a large group before its commit
    connection.execute(f"PRAGMA journal_size_limit={64 << 20}")
    if version == 0:
        connection.execute("BEGIN IMMEDIATE")
        if _check(connection, path) == 0:  # no other process created the tables first
            for statement in _SCHEMA.split(";")[:-1]:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        connection.execute("COMMIT")


def rewrite(connection: sqlite3.Connection) -> bool:
    """Rewrite a file of an earlier version that cannot shrink; tells whether it was rewritten.

    Only if there is space to free and little data, so that it takes a moment.
    """
    pages, free, size, mode = (
        connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("page_count", "freelist_count", "page_size", "auto_vacuum")
    )
    if mode != _NO_AUTO_VACUUM or free <= SPARE_PAGES or (pages - free) * size > _MAX_REWRITTEN:
        return False
    connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
    connection.execute("VACUUM")
    return True


def _check(connection: sqlite3.Connection, path: Path) -> int:
    # A file that is not ours is not changed.
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if application != APPLICATION_ID and (application or version or tables):
        raise SettingsError(f"The file {path} is another program's database, not a session store.")
    if version > SCHEMA_VERSION:
        raise SettingsError(
            f"The session store {path} was written by a newer version of the server"
            f" (format {version}, this one knows {SCHEMA_VERSION})."
        )
    return version


def _explain(path: Path, error: sqlite3.Error) -> str:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return f"The session store's file {path} is damaged, or no SQLite database."
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return f"The session store's file {path} cannot be opened for writing."
    return f"The session store's file {path} cannot be used: {error}."


# Forgotten ids of inbound events are deleted in batches of this many: fewer statements.
_SEEN_SLACK = 64

HEAD = "id, token, epoch, revision, commit_id, log_start, log_end, placed, remembered"


@dataclass(slots=True)
class Head:
    """A session's row in the table ``session``."""

    id: int
    token: str
    epoch: int
    revision: int
    commit_id: str
    log_start: int
    log_end: int
    placed: int
    remembered: int


@dataclass(frozen=True, slots=True)
class Proposal:
    """A commit to be decided; ``head`` is the id of the session's row."""

    head: int
    token: str
    revision: int
    commit_id: str
    operations: Sequence[Operation]


@dataclass(slots=True)
class _Named:
    # ``low`` is the first position amended, or the end of the log.
    low: int
    trim: int
    finds: set[str] = field(default_factory=set)
    forgotten: list[str] = field(default_factory=list)
    remembers: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    fields: set[str] = field(default_factory=set)
    calls: dict[str, CallRecord] = field(default_factory=dict)
    seen: OrderedDict[str, None] = field(default_factory=OrderedDict)
    log: list[Message] = field(default_factory=list)


@dataclass(slots=True)
class _Writes:
    # Deletions come first: a row that is put again after that gets a new place.
    heads: list[Row] = field(default_factory=list)
    log: list[Row] = field(default_factory=list)
    log_before: list[Row] = field(default_factory=list)
    calls: list[Row] = field(default_factory=list)
    calls_gone: list[Row] = field(default_factory=list)
    seen: list[Row] = field(default_factory=list)
    seen_before: list[Row] = field(default_factory=list)
    outbound: list[Row] = field(default_factory=list)
    outbound_gone: list[Row] = field(default_factory=list)
    fields: list[Row] = field(default_factory=list)
    fields_gone: list[Row] = field(default_factory=list)


def commit(
    connection: sqlite3.Connection, proposals: Sequence[Proposal], now: float
) -> list[int | StoreError]:
    """Check and apply commits to different sessions; return each one's new revision or its refusal.

    Runs inside the caller's transaction. Raises `sqlite3.Error`; the caller must then roll back.
    """
    heads = _heads(connection, [proposal.head for proposal in proposals])
    outcomes: list[int | StoreError] = []
    accepted: list[tuple[int, Head, Proposal]] = []
    for index, proposal in enumerate(proposals):
        head = heads.get(proposal.head)
        outcome = _standing(head, proposal)
        outcomes.append(proposal.revision if outcome is None else outcome)
        if outcome is None and head is not None:
            accepted.append((index, head, proposal))
    named = [_name(head, proposal.operations) for _, head, proposal in accepted]
    _read_named(connection, [(head, names) for (_, head, _), names in zip(accepted, named, strict=True)])
    writes = _Writes()
    for (index, head, proposal), names in zip(accepted, named, strict=True):
        outcomes[index] = _decide(head, proposal, names, writes, now)
    _write(connection, writes)
    return outcomes


def _standing(head: Head | None, proposal: Proposal) -> int | StoreError | None:
    if head is None or head.token != proposal.token:
        gone = head is None or not head.token
        return Fenced("This session was deleted." if gone else "Another claim owns this session.", gone=gone)
    if head.commit_id == proposal.commit_id:
        return head.revision
    if head.revision < proposal.revision:
        return Rollback(f"The session is back at revision {head.revision}; it was at {proposal.revision}.")
    if head.revision > proposal.revision:
        return Conflict(f"The session is at revision {head.revision}, not {proposal.revision}.")
    return None


def _name(head: Head, operations: Sequence[Operation]) -> _Named:
    names = _Named(head.log_end, head.log_start)
    for operation in operations:
        match operation:
            case AppendLog(entry=entry):
                if isinstance(entry, Amendment) and entry.position >= head.log_start:
                    names.low = min(names.low, entry.position)
            case OpenCall(call=call):
                names.finds.add(call.call_id)
            case FinishCall(call_id=call_id):
                names.finds.add(call_id)
            case AckOutbound(event_id=event_id):
                names.gone.append(event_id)
            case RememberInbound(event_id=event_id):
                names.remembers.append(event_id)
            case SetField(name=name):
                names.fields.add(name)
            case ForgetCall(call_id=call_id):
                names.forgotten.append(call_id)
            case TrimLog(before=before):
                names.trim = max(names.trim, before)
    return names


def _read_named(connection: sqlite3.Connection, named: Sequence[tuple[Head, _Named]]) -> None:
    by_id = {head.id: (head, names) for head, names in named}
    finds = [(head.id, call_id) for head, names in named for call_id in names.finds]
    for session, data in select(connection, "call", "call_id", "data", finds):
        call = decode_call(data)
        by_id[session][1].calls[call.call_id] = call
    remembers = [(head.id, event_id) for head, names in named for event_id in names.remembers]
    for session, event_id, place in select(connection, "seen", "event_id", "event_id, place", remembers):
        head, names = by_id[session]
        if place > head.remembered - MAX_SEEN:
            names.seen[event_id] = None
    for head, names in named:
        if names.low < head.log_end:
            names.log = _log(connection, head.id, names.low)


def _decide(head: Head, proposal: Proposal, names: _Named, writes: _Writes, now: float) -> int | StoreError:
    state = SessionState(list(names.log), names.low, dict(names.calls), names.seen)
    known = state.duplicate(proposal.operations)
    if known is not None:
        return Duplicate(f"{known} was recorded before.")
    for operation in proposal.operations:
        state.apply(operation)
    place = head.placed
    _note_log(head, names, state, writes)
    for call_id in names.forgotten:
        writes.calls_gone.append((head.id, call_id))
    for call_id, call in state.calls.items():
        if call is not names.calls.get(call_id):
            place += 1
            writes.calls.append((head.id, call_id, place, encode_call(call)))
    for event_id in names.gone:
        writes.outbound_gone.append((head.id, event_id))
    for event_id, record in state.outbound.items():
        place += 1
        writes.outbound.append((head.id, event_id, place, encode_outbound(record)))
    remembered = _note_seen(head, names, state, writes)
    for name in names.fields:
        if name in state.fields:
            writes.fields.append((head.id, name, clean(state.fields[name])))
        else:
            writes.fields_gone.append((head.id, name))
    revision = head.revision + 1
    writes.heads.append(
        (head.id, revision, proposal.commit_id, names.trim, state.log_end, place, remembered, now)
    )
    return revision


def _note_log(head: Head, names: _Named, state: SessionState, writes: _Writes) -> None:
    for position, message in enumerate(state.log, state.log_start):
        before = names.log[position - names.low] if position < head.log_end else None
        if message is not before:
            writes.log.append((head.id, position, encode_entry(message)))
    if names.trim > head.log_start:
        writes.log_before.append((head.id, names.trim))


def _note_seen(head: Head, names: _Named, state: SessionState, writes: _Writes) -> int:
    remembered = head.remembered + len(names.remembers)
    writes.seen += [
        (head.id, event_id, place) for place, event_id in enumerate(state.seen, head.remembered + 1)
    ]
    if remembered // _SEEN_SLACK > head.remembered // _SEEN_SLACK:
        writes.seen_before.append((head.id, remembered - MAX_SEEN))
    return remembered


def load(connection: sqlite3.Connection, head: Head) -> SessionState:
    """Read all that is stored of a session. Raises `StoreUnavailable` for rows that cannot be decoded."""
    calls = map(decode_call, _column(connection, "data FROM call", head.id, "ORDER BY place"))
    outbound = map(decode_outbound, _column(connection, "data FROM outbound", head.id, "ORDER BY place"))
    seen = _column(connection, "event_id FROM seen", head.id, "ORDER BY place")
    rows = connection.execute("SELECT name, value FROM field WHERE session=?", (head.id,))
    state = SessionState(
        _log(connection, head.id, head.log_start),
        head.log_start,
        {call.call_id: call for call in calls},
        OrderedDict.fromkeys(seen[-MAX_SEEN:]),
        OrderedDict((record.event_id, record) for record in outbound),
        dict(rows.fetchall()),
    )
    if state.log_end != head.log_end:
        raise StoreUnavailable("The store has lost a part of a conversation.")
    return state


def delete_sessions(connection: sqlite3.Connection, sessions: Sequence[int]) -> None:
    """Delete sessions by the ids of their rows."""
    rows = [(session,) for session in sessions]
    for part in PARTS:
        connection.executemany(f"DELETE FROM {part} WHERE session=?", rows)
    connection.executemany("DELETE FROM session WHERE id=?", rows)


def _heads(connection: sqlite3.Connection, ids: Sequence[int]) -> dict[int, Head]:
    rows: list[Row] = []
    for part in chunks(ids):
        marks = ",".join("?" * len(part))
        rows += connection.execute(f"SELECT {HEAD} FROM session WHERE id IN ({marks})", part).fetchall()
    return {row[0]: Head(*row) for row in rows}


def _log(connection: sqlite3.Connection, session: int, start: int) -> list[Message]:
    rows = connection.execute(
        "SELECT data FROM log WHERE session=? AND position>=? ORDER BY position", (session, start)
    )
    entries = (decode_entry(data) for (data,) in rows.fetchall())
    return [entry for entry in entries if not isinstance(entry, Amendment)]


def _column(connection: sqlite3.Connection, what: str, session: int, order: str) -> list[Any]:
    rows = connection.execute(f"SELECT {what} WHERE session=? {order}", (session,))
    return [value for (value,) in rows.fetchall()]


_UPDATE_HEADS = (
    "UPDATE session SET revision=v.column2, commit_id=v.column3, log_start=v.column4, log_end=v.column5,"
    " placed=v.column6, remembered=v.column7, updated=v.column8 FROM (VALUES @) AS v WHERE id=v.column1"
)
_PUT_LOG = "INSERT INTO log VALUES @ ON CONFLICT DO UPDATE SET data=excluded.data"
_PUT_CALLS = "INSERT INTO call VALUES @ ON CONFLICT DO UPDATE SET data=excluded.data"
_PUT_SEEN = "INSERT INTO seen VALUES @ ON CONFLICT DO UPDATE SET place=excluded.place"
_PUT_OUTBOUND = "INSERT INTO outbound VALUES @ ON CONFLICT DO UPDATE SET data=excluded.data"
_PUT_FIELDS = "INSERT INTO field VALUES @ ON CONFLICT DO UPDATE SET value=excluded.value"


def _write(connection: sqlite3.Connection, writes: _Writes) -> None:
    if writes.log_before:
        connection.executemany("DELETE FROM log WHERE session=? AND position<?", writes.log_before)
    delete(connection, "DELETE FROM call WHERE @", "(session=? AND call_id=?)", writes.calls_gone)
    delete(connection, "DELETE FROM outbound WHERE @", "(session=? AND event_id=?)", writes.outbound_gone)
    delete(connection, "DELETE FROM field WHERE @", "(session=? AND name=?)", writes.fields_gone)
    put(connection, _PUT_LOG, "(?,?,?)", writes.log)
    put(connection, _PUT_CALLS, "(?,?,?,?)", writes.calls)
    put(connection, _PUT_SEEN, "(?,?,?)", writes.seen)
    put(connection, _PUT_OUTBOUND, "(?,?,?,?)", writes.outbound)
    put(connection, _PUT_FIELDS, "(?,?,?)", writes.fields)
    if writes.seen_before:
        connection.executemany("DELETE FROM seen WHERE session=? AND place<=?", writes.seen_before)
    put(connection, _UPDATE_HEADS, "(?,?,?,?,?,?,?,?)", writes.heads)
