"""A session as the engines store it: the encoded commits from the last snapshot on."""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from uuid import uuid4

import msgspec
import structlog

from conductor.errors import Conflict, Duplicate, Fenced, Rollback, StoreUnavailable
from conductor.stores.base import Claim, Operation, SessionKey, SessionState

log = structlog.get_logger(__name__)

# Commits, and their bytes, after which the next commit writes a snapshot: a claim replays at most these.
SNAPSHOT_COMMITS = 64
SNAPSHOT_BYTES = 256 * 1024


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """An encoded commit; ``by`` is the token of its claim.

    A snapshot has the ``state`` before the commit and replaces all earlier records.
    """

    by: str
    operations: Sequence[Operation]
    state: SessionState | None = None


@dataclass(slots=True)
class Meta:
    """The fields of a stored session. ``token`` is empty without a claim; ``updated`` is epoch seconds."""

    token: str
    epoch: int
    revision: int
    commit_id: str
    updated: float = 0.0


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored session; ``records`` maps revisions to encoded commits."""

    meta: Meta
    records: dict[int, bytes]

    def state(self) -> SessionState:
        """Replay the records. Raises `StoreUnavailable` for unreadable or missing records."""
        state, last = SessionState(), 0
        try:
            for revision, data in sorted(self.records.items()):
                record = _decode(data)
                if record.state is not None:
                    state = record.state
                elif revision != last + 1:
                    break  # a gap: later records are useless
                state.advance(record.operations, record.by, revision)
                last = revision
        except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, TypeError) as error:
            raise StoreUnavailable("The store has a record that this version cannot read.") from error
        if last != self.meta.revision:
            raise StoreUnavailable("The store has lost a part of a conversation.")
        for event_id, event in state.outbound.items():  # copies release the larger buffer
            state.outbound[event_id] = msgspec.structs.replace(event, frame=event.frame.copy())
        return state

    def claim(self, key: SessionKey) -> Claim:
        """Make the claim of ``meta``. Raises `StoreUnavailable`, as `state` does."""
        meta, state = self.meta, self.state()
        sizes = [len(data) for _, data in sorted(self.records.items())]
        return Claim(key, meta.token, meta.epoch, meta.revision, state, len(sizes), sum(sizes[1:]))


class Draft:
    """An encoded commit. ``data`` is empty for a duplicate; the engine then only checks the claim.

    ``snapshot``: the record replaces all earlier records.
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
        # Without the snapshot: a long history would write one with each commit.
        claim.size = 0 if self.snapshot else claim.size + len(self.data)

    def settle(self, meta: Meta | None) -> None:
        """Raise the reason why the engine did not append the record, or accept an earlier append."""
        if check(self.claim, self.commit_id, self.duplicate, meta):
            raise StoreUnavailable("The session store refuses the commit.")
        if meta is not None and meta.revision > self.claim.revision:
            self.accept()


def check(claim: Claim, commit_id: str, duplicate: str | None, meta: Meta | None) -> bool:
    """Whether to append a commit: not if it is the session's last one.

    Raises `Fenced`, `Rollback`, `Conflict` and `Duplicate`.
    """
    if meta is None:
        raise Rollback("The store has lost this session.")
    if not meta.token:
        raise Fenced("This session was deleted or released.", gone=True)
    if meta.token != claim.token:
        raise Fenced("Another claim owns this session.")
    # A retry after a lost reply. Checked before the revision, which the first try has advanced.
    if meta.commit_id == commit_id:
        return False
    # A failover lost acknowledged commits.
    if meta.revision < claim.revision:
        raise Rollback(f"The session is back at revision {meta.revision}; it was at {claim.revision}.")
    if meta.revision > claim.revision:
        raise Conflict(f"The session is at revision {meta.revision}, not {claim.revision}.")
    if duplicate is not None:
        raise Duplicate(f"{duplicate} was recorded before.")
    return True


def with_state(claim: Claim, state: SessionState) -> Claim:
    """Continue from ``state``: the claim's first commit writes a snapshot of it."""
    return replace(claim, state=state, commits=SNAPSHOT_COMMITS)


def new_token() -> str:
    """Make a claim's token. A failover could issue a counter's number twice."""
    return f"{platform.node() or 'node'}-{os.getpid()}:{uuid4().hex}"


async def sweep_regularly(sweep: Callable[[], Awaitable[int]], seconds: float) -> None:
    """Delete expired sessions for ever, with pauses in between."""
    while True:
        await asyncio.sleep(seconds)
        try:
            await sweep()
        except StoreUnavailable:
            log.warning("expired sessions not deleted; will retry")


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Record).decode


def encode(record: Record) -> bytes:
    """Encode a record. Lone surrogates become ``?``."""
    try:
        return _encode(record)
    except UnicodeEncodeError:
        return _encode(_cleaned(msgspec.to_builtins(record, builtin_types=(msgspec.Raw,))))


def _cleaned(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list | tuple):
        return [_cleaned(item) for item in value]
    if isinstance(value, dict):
        return {_cleaned(key): _cleaned(item) for key, item in value.items()}
    return value
