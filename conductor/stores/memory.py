"""The session store in memory, of one process: a session ends when its claim is released."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from conductor.events.envelope import IdGenerator
from conductor.settings import Settings
from conductor.stores.base import MAX_SESSIONS, Claim, Operation, SessionKey, SessionState, too_many
from conductor.stores.records import SNAPSHOT_COMMITS, Meta, check


@dataclass(slots=True)
class _Row:
    meta: Meta = field(default_factory=lambda: Meta("", 0, 0, ""))
    state: SessionState = field(default_factory=SessionState)


class MemoryStore:
    """Keeps sessions in a dictionary, at most ``max_sessions`` of a subject."""

    is_async = False

    def __init__(self, *, max_sessions: int = MAX_SESSIONS) -> None:
        self._rows: dict[SessionKey, _Row] = {}
        self._max_sessions = max_sessions
        self._counts: Counter[str] = Counter()
        self._tokens = IdGenerator("claim")

    async def open(self) -> None:
        """Do nothing."""

    async def claim(self, key: SessionKey) -> Claim:
        row = self._rows.get(key)
        if row is None:
            if key.counted and self._counts[key.subject] >= self._max_sessions:
                raise too_many(self._max_sessions)
            row = self._rows[key] = _Row()
            self._counts[key.subject] += key.counted
        meta = row.meta
        meta.token = self._tokens()
        meta.epoch += 1
        # A copy: a commit advances the store's state and the claim's.
        return Claim(key, meta.token, meta.epoch, meta.revision, row.state.copy())

    async def commit(self, claim: Claim, commit_id: str, operations: Sequence[Operation]) -> None:
        row = self._rows.get(claim.key) or _Row()  # released sessions are deleted
        meta = row.meta
        if check(claim, commit_id, claim.state.duplicate(operations), meta):
            meta.revision += 1
            meta.commit_id = commit_id
            if claim.commits >= SNAPSHOT_COMMITS:  # set by `with_state`
                row.state, claim.commits = claim.state.copy(), 0
            row.state.advance(operations, meta.token, meta.revision)
        if claim.revision < meta.revision:
            claim.revision = meta.revision
            claim.state.advance(operations, claim.token, claim.revision)

    async def release(self, claim: Claim) -> None:
        """Delete the session."""
        row = self._rows.get(claim.key)
        # A late release must not delete the new owner's session.
        if row is not None and row.meta.token == claim.token:
            del self._rows[claim.key]
            self._counts[claim.key.subject] -= claim.key.counted

    async def aclose(self) -> None:
        """Do nothing."""

    def __len__(self) -> int:
        """Count the sessions."""
        return len(self._rows)


def from_settings(settings: Settings) -> MemoryStore:
    """Make the store."""
    return MemoryStore(max_sessions=settings.max_kept_sessions_per_subject)
