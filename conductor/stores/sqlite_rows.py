"""What claims and commits read from and write to the SQLite file, for many sessions at once.

What a commit means is `SessionState`'s to say: it runs on the few rows that the commit names, and the
difference is written.
"""

from __future__ import annotations

import sqlite3
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from conductor.errors import Conflict, Duplicate, Fenced, Rollback, StoreError, StoreUnavailable
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
)
from conductor.stores.encoding import (
    clean,
    decode_call,
    decode_entry,
    decode_outbound,
    encode_call,
    encode_entry,
    encode_outbound,
)
from conductor.stores.sqlite_schema import PARTS
from conductor.stores.sqlite_statements import Row, chunks, delete, put, select

_SEEN_SLACK = 64
"""Forgotten inbound ids are deleted so many at a time."""

HEAD = "id, token, epoch, revision, commit_id, log_start, log_end, placed, remembered"


@dataclass(slots=True)
class Head:
    """A session's row of the table ``session``."""

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
    """A commit as it was asked for: ``head`` is the id of the session's row."""

    head: int
    token: str
    revision: int
    commit_id: str
    operations: Sequence[Operation]


@dataclass(slots=True)
class _Named:
    """The rows that a commit names. ``low`` is the first position amended, or the log's end."""

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
    """Rows to write. Rows are deleted first: what is put again after that has a new place."""

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
    """Check and apply commits to different sessions; returns each one's new revision, or why it was refused.

    Runs inside the caller's transaction. Raises `sqlite3.Error`; then all have to be rolled back.
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
    """Answer a commit from the session's row alone, if that is possible."""
    if head is None or not proposal.token or head.token != proposal.token:
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
    """Apply a commit to the part of the state that it names, and note the difference in ``writes``."""
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
    log_start = max(head.log_start, names.trim)
    writes.heads.append(
        (head.id, revision, proposal.commit_id, log_start, state.log_end, place, remembered, now)
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
    """Note the new ids, of which there may be more than are kept; returns the place of the last one."""
    remembered = head.remembered + len(names.remembers)
    first = remembered - len(state.seen) + 1
    writes.seen += [(head.id, event_id, place) for place, event_id in enumerate(state.seen, first)]
    if remembered // _SEEN_SLACK > head.remembered // _SEEN_SLACK and remembered > MAX_SEEN:
        writes.seen_before.append((head.id, remembered - MAX_SEEN))
    return remembered


def load(connection: sqlite3.Connection, head: Head) -> SessionState:
    """Read all that is kept of a session. Raises `StoreUnavailable` for what cannot be read."""
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
