"""Sessions as the engines keep them: a list of encoded commits, from the last snapshot on."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import uuid4

import msgspec

from conductor.errors import Conflict, Duplicate, Fenced, Rollback, StoreUnavailable
from conductor.stores.base import Claim, Operation, SessionKey, SessionState

# Commits, and their bytes, after which the next commit writes a snapshot: a claim replays no more than these.
SNAPSHOT_COMMITS = 64
SNAPSHOT_BYTES = 256 * 1024


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """A commit as it is stored; ``by`` is the token of its claim.

    ``state`` is the session before it, in a snapshot: then the records before this one do not count.
    """

    by: str
    operations: Sequence[Operation]
    state: SessionState | None = None


@dataclass(slots=True)
class Meta:
    """What is stored of a session beside its records. ``token`` is empty if no claim owns it.

    ``updated`` is epoch seconds, for people and for expiry.
    """

    token: str
    epoch: int
    revision: int
    commit_id: str
    updated: float = 0.0


@dataclass(frozen=True, slots=True)
class Stored:
    """A session as stored; ``records`` by their revisions."""

    meta: Meta
    records: dict[int, bytes]

    def state(self) -> SessionState:
        """Replay the records. Raises `StoreUnavailable` for what cannot be read, or is incomplete."""
        state, last = SessionState(), 0
        try:
            for revision, data in sorted(self.records.items()):
                record = _decode(data)
                if record.state is not None:
                    state = record.state
                # A gap: what comes after it rests on something that is lost.
                elif revision != last + 1:
                    break
                state.advance(record.operations, record.by, revision)
                last = revision
        except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, TypeError) as error:
            raise StoreUnavailable("The store holds something that this version cannot read.") from error
        if last != self.meta.revision:
            raise StoreUnavailable("The store has lost a part of a conversation.")
        for event_id, event in state.outbound.items():  # a copy, so that no larger buffer stays alive
            state.outbound[event_id] = msgspec.structs.replace(event, frame=event.frame.copy())
        return state

    def claim(self, key: SessionKey) -> Claim:
        """Make the claim that ``meta`` tells of. Raises `StoreUnavailable`, as `state` does."""
        meta, state = self.meta, self.state()
        sizes = [len(data) for _, data in sorted(self.records.items())]
        return Claim(key, meta.token, meta.epoch, meta.revision, state, len(sizes), sum(sizes[1:]))


class Draft:
    """A commit, encoded.

    ``data`` is empty for a duplicate: the engine then only checks the claim. ``snapshot``: the record
    replaces all before it.
    """

    def __init__(self, claim: Claim, commit_id: str, operations: Sequence[Operation]) -> None:
        self.claim = claim
        self.commit_id = commit_id
        self.duplicate = claim.state.duplicate(operations)
        self.snapshot = claim.commits >= SNAPSHOT_COMMITS or claim.size >= SNAPSHOT_BYTES
        self._operations = operations
        state = claim.state if self.snapshot else None
        self.data = b"" if self.duplicate is not None else encode(Record(claim.token, operations, state))

    def accept(self) -> None:
        """Advance the claim: the engine has appended the record."""
        claim = self.claim
        claim.revision += 1
        claim.state.advance(self._operations, claim.token, claim.revision)
        claim.commits = 1 if self.snapshot else claim.commits + 1
        # The snapshot itself does not count, or a long history would write one at each commit.
        claim.size = 0 if self.snapshot else claim.size + len(self.data)

    def settle(self, found: Meta | None) -> None:
        """Raise why the engine, which found ``found``, did not append the record; or it did so before."""
        if check(self.claim, self.commit_id, self.duplicate, found):
            raise StoreUnavailable("The session store could not take this.")
        if found is not None and found.revision > self.claim.revision:
            self.accept()


def check(claim: Claim, commit_id: str, duplicate: str | None, found: Meta | None) -> bool:
    """Tell whether a commit is to be appended: not if it is the session's last one.

    Raises `Fenced`, `Rollback`, `Conflict` and `Duplicate`.
    """
    if found is None:
        raise Rollback("The store has lost this session.")
    if not found.token:
        raise Fenced("This session was deleted or released.", gone=True)
    if found.token != claim.token:
        raise Fenced("Another claim owns this session.")
    # A retry after a lost reply: before the revisions, which it has advanced (durability, "Invariants", 2).
    if found.commit_id == commit_id:
        return False
    # The store is behind its owner: a failover lost acknowledged writes (durability, "Faults").
    if found.revision < claim.revision:
        raise Rollback(f"The session is back at revision {found.revision}; it was at {claim.revision}.")
    if found.revision > claim.revision:
        raise Conflict(f"The session is at revision {found.revision}, not {claim.revision}.")
    if duplicate is not None:
        raise Duplicate(f"{duplicate} was recorded before.")
    return True


def with_state(claim: Claim, state: SessionState) -> Claim:
    """Go on from ``state``, whatever the store has: the claim's first commit writes a snapshot."""
    return replace(claim, state=state, commits=SNAPSHOT_COMMITS)


def new_token() -> str:
    """Make a claim's token: unique, never a counter, since a failover could issue a number twice."""
    return f"{platform.node() or 'node'}-{os.getpid()}:{uuid4().hex}"


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Record).decode


def encode(record: Record) -> bytes:
    """Encode a record. Lone surrogates, which no UTF-8 text holds, become ``?``."""
    try:
        return _encode(record)
    except UnicodeEncodeError:
        return _encode(_cleaned(msgspec.to_builtins(record, builtin_types=(msgspec.Raw,))))


def _cleaned(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list | tuple):
        return [_cleaned(each) for each in value]
    if isinstance(value, dict):
        return {_cleaned(key): _cleaned(each) for key, each in value.items()}
    return value
