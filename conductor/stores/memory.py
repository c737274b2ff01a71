"""The session store of a single process: a session lives until its grace is over."""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from conductor.errors import Conflict, Duplicate, Fenced
from conductor.events.envelope import IdGenerator
from conductor.settings import Settings
from conductor.stores.base import KEPT, Claim, Operation, SessionKey, SessionState, too_many


@dataclass(slots=True)
class _Row:
    token: str = ""
    epoch: int = 0
    revision: int = 0
    commit_id: str = ""
    state: SessionState = field(default_factory=SessionState)


class MemoryStore:
    """Keeps sessions in a dictionary, at most ``kept`` of a subject.

    Messages are immutable and shared with the claimant, not copied.
    """

    is_async = False

    def __init__(self, *, kept: int = KEPT) -> None:
        self._rows: dict[SessionKey, _Row] = {}
        self._kept = kept
        self._counts: Counter[str] = Counter()
        self._tokens = IdGenerator("claim")

    async def open(self) -> None:
        """Do nothing."""

    async def claim(self, key: SessionKey) -> Claim:
        """Claim a session, creating it if there is none."""
        row = self._rows.get(key)
        if row is None:
            if key.counted and self._counts[key.subject] >= self._kept:
                raise too_many(self._kept)
            row = self._rows[key] = _Row()
            self._counts[key.subject] += key.counted
        row.token = self._tokens()
        row.epoch += 1
        return Claim(key, row.token, row.epoch, row.revision, _copy(row.state))

    async def commit(self, claim: Claim, commit_id: str, operations: Sequence[Operation]) -> None:
        """Check all operations, then apply all or none."""
        row = self._rows.get(claim.key)
        if row is None or row.token != claim.token:
            raise Fenced("Another claim owns this session.")
        if row.commit_id == commit_id:
            claim.revision = row.revision
            return
        if row.revision != claim.revision:
            raise Conflict(f"The session is at revision {row.revision}, not {claim.revision}.")
        known = row.state.duplicate(operations)
        if known is not None:
            raise Duplicate(f"{known} was recorded before.")
        for operation in operations:
            row.state.apply(operation)
        row.revision += 1
        row.commit_id = commit_id
        claim.revision = row.revision

    async def release(self, claim: Claim) -> None:
        """Delete the session: its grace is over, and memory keeps nothing longer."""
        row = self._rows.get(claim.key)
        if row is not None and row.token == claim.token:
            del self._rows[claim.key]
            self._counts[claim.key.subject] -= claim.key.counted

    async def aclose(self) -> None:
        """Do nothing."""

    def __len__(self) -> int:
        """Count the sessions."""
        return len(self._rows)


def from_settings(settings: Settings) -> MemoryStore:
    """Make the store."""
    return MemoryStore(kept=settings.max_kept_sessions_per_subject)


def _copy(state: SessionState) -> SessionState:
    return SessionState(
        copy.copy(state.log),
        state.log_start,
        dict(state.calls),
        OrderedDict(state.seen),
        OrderedDict(state.outbound),
        dict(state.fields),
    )
