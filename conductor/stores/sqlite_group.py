"""One group of a SQLite store's work: what goes into a single transaction, and what came of each part."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from conductor.errors import StoreError
from conductor.stores.base import LASTING, Claim, Operation, SessionKey, SessionState
from conductor.stores.sqlite_rows import HEAD, Head, Proposal, commit, delete_sessions, load

_SCANNED = 1000
_DELETED = 16
"""A step of a sweep looks at so many sessions and deletes so many: nobody waits for it for long."""


@dataclass(frozen=True, slots=True)
class TakeOver:
    """Claim a session; gives a `Claim`."""

    key: SessionKey


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit operations; gives the session's new revision."""

    claim: Claim
    commit_id: str
    operations: Sequence[Operation]

    @property
    def key(self) -> SessionKey:
        """Whose session it is."""
        return self.claim.key


@dataclass(frozen=True, slots=True)
class LetGo:
    """End a claim, if it is the session's; gives None. What was kept stays."""

    key: SessionKey
    token: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a subject's session, or all of them; gives how many there were."""

    subject: str
    session_id: str | None
    key: None = None


@dataclass(slots=True)
class Sweep:
    """Delete expired sessions, a step at a time; gives how many so far. ``after`` is None at the end."""

    after: int | None = 0
    deleted: int = 0
    key: None = None


Work: TypeAlias = TakeOver | Commit | LetGo | Delete | Sweep
"""What shares a transaction has a ``key``, different from the others'; the rest runs alone."""

Outcome: TypeAlias = Claim | int | StoreError | None


def run(connection: sqlite3.Connection, group: Sequence[Work], now: float, ttl: float) -> list[Outcome]:
    """Do a group's work inside the caller's transaction; the outcomes are in the group's order.

    ``now`` is epoch seconds; sessions not written to for ``ttl`` seconds are as good as gone, but for
    lasting ones. Raises `sqlite3.Error` and `StoreUnavailable`; then all has to be rolled back.
    """
    outcomes: list[Outcome] = [None] * len(group)
    commits: list[tuple[int, Proposal]] = []
    for index, work in enumerate(group):
        match work:
            case Commit(claim, commit_id, operations):
                proposal = Proposal(_row(claim.token), claim.token, claim.revision, commit_id, operations)
                commits.append((index, proposal))
            case TakeOver(key):
                outcomes[index] = _take_over(connection, key, now, ttl)
            case LetGo(_, token) if token:
                connection.execute("UPDATE session SET token='' WHERE id=? AND token=?", (_row(token), token))
            case Delete(subject, session_id):
                outcomes[index] = _delete(connection, subject, session_id)
            case Sweep():
                outcomes[index] = _sweep(connection, work, now - ttl)
    if commits:
        done = commit(connection, [proposal for _, proposal in commits], now)
        for (index, _), outcome in zip(commits, done, strict=True):
            outcomes[index] = outcome
    return outcomes


def _row(token: str) -> int:
    """Find the row that a token was made for: it is looked up by number then. -1 for a made-up token."""
    number, _, rest = token.partition(".")
    return int(number) if rest and number.isdecimal() else -1


def _take_over(connection: sqlite3.Connection, key: SessionKey, now: float, ttl: float) -> Claim:
    found = connection.execute(
        f"SELECT {HEAD}, updated FROM session WHERE subject=? AND session_id=?", (key.subject, key.session_id)
    ).fetchone()
    if found is not None and found[-1] < now - ttl and not key.lasting:
        delete_sessions(connection, [found[0]])
        found = None
    if found is None:
        state = SessionState()
        row = connection.execute(
            "INSERT INTO session VALUES(NULL, ?, ?, '', 0, 0, '', 0, 0, 0, 0, ?)",
            (key.subject, key.session_id, now),
        ).lastrowid
        assert row is not None
        head = Head(row, "", 0, 0, "", 0, 0, 0, 0)
    else:
        head = Head(*found[:-1])
        state = load(connection, head)
    token = f"{head.id}.{secrets.token_hex(16)}"
    connection.execute(
        "UPDATE session SET token=?, epoch=?, updated=? WHERE id=?", (token, head.epoch + 1, now, head.id)
    )
    return Claim(key, token, head.epoch + 1, head.revision, state)


def _delete(connection: sqlite3.Connection, subject: str, session_id: str | None) -> int:
    rows = connection.execute(
        "SELECT id FROM session WHERE subject=?1 AND (?2 IS NULL OR session_id=?2)", (subject, session_id)
    ).fetchall()
    delete_sessions(connection, [row for (row,) in rows])
    return len(rows)


def _sweep(connection: sqlite3.Connection, sweep: Sweep, before: float) -> int:
    (last,) = connection.execute(
        "SELECT max(id) FROM (SELECT id FROM session WHERE id>? ORDER BY id LIMIT ?)", (sweep.after, _SCANNED)
    ).fetchone()
    rows = connection.execute(
        "SELECT id FROM session WHERE id>? AND id<=? AND updated<? AND substr(session_id, 1, 1)<>?"
        " ORDER BY id LIMIT ?",
        (sweep.after, last, before, LASTING, _DELETED),
    ).fetchall()
    expired = [row for (row,) in rows]
    delete_sessions(connection, expired)
    sweep.after = expired[-1] if len(expired) == _DELETED else last
    sweep.deleted += len(expired)
    return sweep.deleted
