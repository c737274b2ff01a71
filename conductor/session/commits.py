"""The commits of a session: its state under a claim, in the store before anything of it is applied or sent.

The pure modules decide. A decision is made about the state as of now, and its records are in the store before
any of them is applied or sent. A commit that failed may be recorded: until the store tells, nothing else is
decided.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from itertools import count
from typing import Any, Protocol

import structlog
from msgspec.structs import replace

from conductor.conversation import records as r
from conductor.conversation.apply import advance
from conductor.conversation.consent import Response
from conductor.conversation.replay import SNAPSHOT_BYTES, SNAPSHOT_COMMITS, replay
from conductor.conversation.state import Turn
from conductor.conversation.steps import Step, next_step
from conductor.conversation.turns import ended
from conductor.conversation.view import View
from conductor.errors import Conflict, Fenced, Rollback, StoreError
from conductor.images import NONE_TAKEN, Taken
from conductor.session.images import Images
from conductor.session.outbox import Outbox
from conductor.session.services import SessionObserver
from conductor.stores.base import Claim, SessionLog

log = structlog.get_logger(__name__)


class Owner(Protocol):
    """The session whose commits these are."""

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task of the session."""

    def advanced(self, commit: r.Commit, former: Turn | None) -> None:
        """Act on a commit that was applied and sent; ``former`` is the turn before it."""

    def changed(self) -> None:
        """Look at the state again."""

    def fenced(self, error: Fenced) -> None:
        """Stop everything: another process owns the session."""

    def rolled_back(self) -> None:
        """Learn that the store has lost commits; this session has written its own again."""

    def store_failed(self, error: StoreError, *, gives_up: bool) -> None:
        """Report to the client that the store is away; the running turn ends if it ``gives_up``."""


class Commits:
    """Commits decisions about a session's state, one at a time.

    ``preface`` are the records that precede the first decision's. The commit in doubt
    failed and may be recorded. After a failure of the store an insistent decision waits for ``retry_s``.
    """

    def __init__(
        self,
        store: SessionLog,
        claim: Claim,
        view: View,
        outbox: Outbox,
        *,
        images: Images,
        observer: SessionObserver,
        owner: Owner,
        retry_s: float,
        preface: Sequence[r.Record] = (),
    ) -> None:
        self.durable = store.durable
        self._store = store
        self._claim = claim
        self._state = view.state
        self._view = view
        self._outbox = outbox
        self._images = images
        self._observer = observer
        self._owner = owner
        self._retry_s = retry_s
        self._preface = tuple(preface)
        self._lock = asyncio.Lock()
        self._decisions: set[asyncio.Task[Response]] = set()
        self._doubtful: r.Commit | None = None
        self._is_lost = False
        self._is_behind = False
        self._commits = len(claim.commits)
        self._bytes = sum(len(data) for data in claim.commits[1:])
        claim.commits = ()  # they are in the state

    @property
    def has_begun(self) -> bool:
        """Whether the first commit of this process, with its claim, is recorded."""
        return not self._preface

    @property
    def is_deciding(self) -> bool:
        """Whether a decision is under way."""
        return bool(self._decisions)

    def is_before(self, claim: Claim) -> bool:
        """Return whether a claim is the one after this one."""
        return claim.epoch == self._claim.epoch + 1

    # -- decisions

    async def decide(
        self, decision: Callable[[], Response], *, taken: Taken = NONE_TAKEN, proves: bool = False
    ) -> Response:
        """Commit a decision about the state as of now; the state does not change in between.

        ``taken`` has the images of its records. ``proves``: without records an empty commit is made, which
        the store refuses to all but the owner. Raises `StoreError`. A cancelled caller does not cancel the
        commit.
        """
        if not self.durable:
            return await self._decide(decision, taken, proves)
        task = self._owner.spawn(self._decide(decision, taken, proves))
        self._decisions.add(task)
        task.add_done_callback(self._decisions.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if self._is_lost and task.cancelled():
                raise _lost() from None  # the session's end cancelled the commit, not the caller
            task.add_done_callback(_retrieve)
            raise
        finally:
            del task  # its error has this frame, and the frame the task: a cycle

    async def _decide(self, decision: Callable[[], Response], taken: Taken, proves: bool) -> Response:
        outbox = self._outbox
        async with self._lock:
            if self._is_lost:
                raise _lost()
            outbox.deciding = self.durable
            try:
                if self._doubtful is not None:
                    await self._settle()
                response = decision()
                if isinstance(response, list) and (response or self._preface or proves):
                    with self._images.holding(taken):
                        await self._record([*self._preface, *response])
                    self._preface = ()
            except Fenced as error:
                self.lose(error)
                raise
            finally:
                if self.durable:
                    outbox.deciding = self._doubtful is not None
                    outbox.settle()
        self._owner.changed()
        return response

    async def insist(
        self,
        decision: Callable[[], Response],
        *,
        taken: Taken = NONE_TAKEN,
        report_at: int = 1,
        gives_up: bool = False,
    ) -> bool:
        """Commit a decision, however long the store is away; False if another process owns the session.

        A connected client is told once, from the failure ``report_at`` on, counted from 1; ``gives_up``: the
        running turn then ends without an answer, unless the decision was recorded after all.
        """
        turn = self._state.turn
        is_reported = False
        for failure in count(1):
            try:
                await self.decide(decision, taken=taken)
            except Fenced:
                return False
            except StoreError as error:
                if failure >= report_at and not is_reported and self._outbox.transport is not None:
                    is_reported, gives_up = True, gives_up and turn is not None
                    self._owner.store_failed(error, gives_up=gives_up)
                    if gives_up and turn is not None:
                        decision = partial(self._give_up, turn.id, decision)
                await asyncio.sleep(self._retry_s)
            else:
                return True
        raise AssertionError("the loop has no end")

    async def take(self, step: Step, records: Callable[[], list[r.Record]], *, gives_up: bool = True) -> None:
        """Commit the records of a step's work, unless another step has taken its place."""
        await self.insist(lambda: records() if next_step(self._view) == step else [], gives_up=gives_up)

    def _give_up(self, turn_id: str, decision: Callable[[], Response]) -> list[r.Record]:
        state = self._state
        if state.turn is None or state.turn.id != turn_id or not decision():
            return []
        return [ended(self._view, "failed", follow=True)]

    async def verify(self) -> bool:
        """Return whether this process still owns the session, by an empty commit. Raises `StoreError`."""
        try:
            if self.durable:
                await self.decide(list, proves=True)
        except Fenced:
            return False
        return True

    async def flush(self) -> None:
        """Record the acknowledged events; if the store is away, a later commit does."""
        if self._outbox.acked and self.durable:
            try:
                async with self._lock:
                    if self._doubtful is None:
                        await self._record([])
            except StoreError:
                log.debug("not flushed", session=self._claim.key.session_id)

    def lose(self, error: Fenced) -> None:
        """Record and send nothing more: another process owns the session."""
        if not self._is_lost:
            self._is_lost = True
            self._owner.fenced(error)

    async def release(self) -> None:
        """Give up the claim. Raises `StoreError`."""
        await self._store.release(self._claim)

    # -- commits

    async def _record(self, records: Sequence[r.Record]) -> None:
        outbox = self._outbox
        acked, outbox.acked = outbox.acked, []
        commit = self._commit(self._view.now(), tuple(records), tuple(acked))
        if self.durable:
            outbox.withhold(key for key, _ in r.answers(records))
        assert self._doubtful is None
        self._doubtful = commit
        try:
            await self._append(commit, "commit")
        except StoreError:
            outbox.acked[:0] = acked
            raise
        self._doubtful = None
        self._apply(commit)

    def _commit(self, at: int, records: tuple[r.Record, ...] = (), acked: tuple[str, ...] = ()) -> r.Commit:
        token = self._claim.token
        return r.Commit(
            claim="" if self._state.claim == token else token, at=at, records=records, acked=acked
        )

    async def _settle(self) -> bool:
        """Find out about the commit in doubt, and apply it if it is recorded; False without one.

        Else an empty commit takes its place. Raises `StoreError` while the store does not tell.
        """
        commit = self._doubtful
        if commit is None:
            return False
        filler = self._commit(commit.at)
        try:
            await self._append(filler, "filler")
            commit = filler
        except Conflict as conflict:
            # Only this claim writes under its token: the one commit too many is the doubtful one.
            if conflict.revision != self._claim.revision + 1:
                raise Fenced("The session has to be loaded from the store again.", gone=True) from conflict
            self._claim.revision += 1
            self._count(r.encode(commit), snapshot=False)
        self._doubtful = None
        self._apply(commit)
        if self._state.claim == self._claim.token:
            self._preface = ()  # it was in that commit
        return True

    async def _append(self, commit: r.Commit, kind: str) -> None:
        try:
            await self._write(commit, kind)
        except Rollback:
            log.warning("session store lost commits", session=self._claim.key.session_id)
            self._is_behind = True
            await self._write(commit, kind)
            self._owner.rolled_back()

    async def _write(self, commit: r.Commit, kind: str) -> None:
        again = False
        if self._is_behind:
            # A failover lost the log's last commits: the state, which has them, is written again.
            claim = await self._store.claim(self._claim.key)
            if not self._state.continues(replay(claim.commits, claim.revision)):
                raise Fenced("Another claim came between.", gone=True)
            self._claim, self._commits, self._is_behind = claim, SNAPSHOT_COMMITS, False
            again = True
        snapshot = self._commits >= SNAPSHOT_COMMITS or self._bytes >= SNAPSHOT_BYTES
        data = r.encode(replace(commit, state=self._state) if snapshot else commit)
        # A repetition has the same id: the store then records nothing.
        commit_id = f"{self._claim.token}/{self._claim.revision}/{kind}"
        attachments = self._images.attachments(commit.records, again=again)
        await self._store.append(self._claim, commit_id, data, snapshot=snapshot, attachments=attachments)
        self._count(data, snapshot=snapshot)

    def _count(self, data: bytes, *, snapshot: bool) -> None:
        self._commits = 1 if snapshot else self._commits + 1
        # The snapshot itself does not count, or a long history would have one in each commit.
        self._bytes = 0 if snapshot else self._bytes + len(data)

    def _apply(self, commit: r.Commit) -> None:
        """Apply a recorded commit: change the state, send its events, wake who waits."""
        former = self._state.turn
        self._observer.applying(commit)
        events = advance(self._state, commit)
        self._outbox.deciding = False
        self._outbox.put(events, self._state.outbound)
        self._owner.advanced(commit, former)
        self._observer.applied()


def _lost() -> Fenced:
    return Fenced("Another process owns the session.")


def _retrieve(task: asyncio.Task[Response]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.debug("not recorded", error=type(task.exception()).__name__)
