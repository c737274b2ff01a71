"""A session's claim on its log: commits in order, snapshots, and repair of a log that lost commits."""

from __future__ import annotations

from collections.abc import Sequence

import structlog
from msgspec import MsgspecError
from msgspec.structs import replace

from conductor.conversation.apply import advance
from conductor.conversation.records import Commit, decode, encode
from conductor.conversation.state import Conversation
from conductor.errors import Conflict, Fenced, Rollback, StoreUnavailable
from conductor.stores.base import Claim, SessionLog

log = structlog.get_logger(__name__)

# Commits, and their bytes, after which the next commit has a snapshot: a claim replays no more than these.
SNAPSHOT_COMMITS = 64
SNAPSHOT_BYTES = 256 * 1024


def replay(commits: Sequence[bytes], revision: int | None = None) -> Conversation:
    """Make the state of commits, which end at ``revision``.

    Raises `StoreUnavailable` if the first ones are missing, or this version cannot read them.
    """
    state = Conversation()
    for commit in read_commits(commits, revision):
        if commit.state is not None:
            state = commit.state
        advance(state, commit)
    return state


def read_commits(commits: Sequence[bytes], revision: int | None = None) -> list[Commit]:
    """Decode commits. Raises `StoreUnavailable`, as `replay` does."""
    try:
        decoded = [decode(data) for data in commits]
    except (MsgspecError, UnicodeDecodeError, TypeError) as error:
        raise StoreUnavailable("The store holds commits that this version cannot read.") from error
    if decoded and decoded[0].state is None and revision not in (None, len(decoded)):
        raise StoreUnavailable("The store has lost a part of a conversation.")
    return decoded


class Ledger:
    """Appends the commits of one claim; ``state`` is the conversation as of the last one."""

    def __init__(self, store: SessionLog, claim: Claim, state: Conversation) -> None:
        self.durable = store.durable
        self.key = claim.key
        self._store = store
        self._claim = claim
        self._state = state
        self._commits = len(claim.commits)
        self._bytes = sum(len(data) for data in claim.commits[1:])
        claim.commits = ()  # they are in the state
        self._is_behind = False
        self.token = claim.token
        self.doubtful: Commit | None = None

    @property
    def epoch(self) -> int:
        """How often the session was claimed."""
        return self._claim.epoch

    async def commit(self, commit: Commit) -> None:
        """Append a commit. Raises `StoreError`; after `StoreUnavailable` it is in doubt until `settle`."""
        assert self.doubtful is None
        self.doubtful = commit
        await self._append(commit, "commit")
        self.doubtful = None

    async def settle(self) -> Commit:
        """Find out about the commit in doubt: returns it if it is recorded, else an empty one in its place.

        Raises `StoreError` while the store does not tell.
        """
        doubtful = self.doubtful
        assert doubtful is not None
        filler = Commit(self.token, doubtful.at)
        try:
            await self._append(filler, "filler")
        except Conflict as conflict:
            # Only this claim writes under its token: the one commit too many is the doubtful one.
            if conflict.revision != self._claim.revision + 1:
                raise Fenced("The session has to be loaded from the store again.", gone=True) from conflict
            self._claim.revision += 1
            self._count(encode(doubtful), snapshot=False)
            self.doubtful = None
            return doubtful
        self.doubtful = None
        return filler

    async def release(self) -> None:
        """Release the claim. Raises `StoreError`."""
        await self._store.release(self._claim)

    async def _append(self, commit: Commit, kind: str) -> None:
        try:
            await self._write(commit, kind)
        except Rollback:
            log.warning("session store lost commits", session=self.key.session_id)
            self._is_behind = True
            await self._write(commit, kind)

    async def _write(self, commit: Commit, kind: str) -> None:
        if self._is_behind:
            # A failover lost the log's last commits: the state, which has them, is written again.
            claim = await self._store.claim(self.key)
            if not self._state.continues(replay(claim.commits, claim.revision)):
                raise Fenced("Another claim came between.", gone=True)
            self._claim, self._commits, self._is_behind = claim, SNAPSHOT_COMMITS, False
            self.token = claim.token
        snapshot = self._commits >= SNAPSHOT_COMMITS or self._bytes >= SNAPSHOT_BYTES
        data = encode(replace(commit, state=self._state) if snapshot else commit)
        # A repetition has the same id: the store then records nothing.
        commit_id = f"{self.token}/{self._claim.revision}/{kind}"
        await self._store.append(self._claim, commit_id, data, snapshot=snapshot)
        self._count(data, snapshot=snapshot)

    def _count(self, data: bytes, *, snapshot: bool) -> None:
        self._commits = 1 if snapshot else self._commits + 1
        # The snapshot itself does not count, or a long history would have one in each commit.
        self._bytes = 0 if snapshot else self._bytes + len(data)
