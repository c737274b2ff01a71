"""The session store of a single process: sessions live as long as it does, and no longer than their grace."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from conductor.errors import Conflict, Duplicate, Fenced
from conductor.events.envelope import IdSource
from conductor.settings import Settings
from conductor.stores.base import Claim, Operation, SessionKey, SessionState


@dataclass(slots=True)
class _Row:
    token: str = ""
    epoch: int = 0
    revision: int = 0
    commit_id: str = ""
    state: SessionState = field(default_factory=SessionState)


class MemoryStore:
    """Keeps sessions in a dictionary. Messages are immutable and shared with the claimant, not copied."""

    suspends = False

    def __init__(self) -> None:
        self._rows: dict[SessionKey, _Row] = {}
        self._tokens = IdSource("claim")

    async def open(self) -> None:
        """There is nothing to open."""

    async def claim(self, key: SessionKey) -> Claim:
        """Take a session over, making it if there is none."""
        row = self._rows.setdefault(key, _Row())
        row.token = self._tokens()
        row.epoch += 1
        return Claim(key, row.token, row.epoch, row.revision, _copy(row.state))

    async def commit(self, claim: Claim, commit_id: str, operations: Sequence[Operation]) -> None:
        """Check all operations, then apply all of them, or none."""
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
        """Forget the session: its grace is over, and memory promises no more than that."""
        row = self._rows.get(claim.key)
        if row is not None and row.token == claim.token:
            del self._rows[claim.key]

    async def aclose(self) -> None:
        """Nothing to let go of."""

    def __len__(self) -> int:
        """Count the sessions kept."""
        return len(self._rows)


def from_settings(_: Settings) -> MemoryStore:
    """Make the store; nothing about it can be set."""
    return MemoryStore()


def _copy(state: SessionState) -> SessionState:
    return SessionState(
        copy.copy(state.log),
        state.log_start,
        dict(state.calls),
        OrderedDict(state.seen),
        OrderedDict(state.outbound),
        dict(state.fields),
    )
