"""Commit, then send: the one place where a session's state changes and its events leave."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import structlog

from conductor.conversation.delivery import Delivery, Outgoing
from conductor.conversation.reappend import is_earlier, missing
from conductor.conversation.tasks import Tasks
from conductor.errors import Conflict, Fenced, Rollback, StoreError
from conductor.events.envelope import IdSource
from conductor.events.server import ServerEvent
from conductor.stores.base import AckOutbound, Claim, Operation, PutOutbound, SessionStore, SetField

log = structlog.get_logger(__name__)

_commit_ids = IdSource("commit")


class Ledger:
    """A session's claim, and its state as of the last commit.

    ``state`` mirrors the store; the outbound events are the outbox's. ``on_lost`` is called once, when the
    session turns out to be another claim's, or to be other in the store than here, or gone from it
    (``stale``, its argument, is True in the latter two cases): nothing more is recorded or sent then.
    """

    def __init__(
        self,
        store: SessionStore,
        claim: Claim,
        delivery: Delivery,
        tasks: Tasks,
        on_lost: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self.key = claim.key
        self.state = claim.state
        self.epoch = claim.epoch
        self.durable = store.suspends
        self.lost = False
        self._store = store
        self._claim = claim
        self._delivery = delivery
        self._tasks = tasks
        self._on_lost = on_lost
        self._behind = False
        self._lock = asyncio.Lock()
        self._memos: dict[str, Callable[[], str]] = {}
        self._changed: set[str] = set()

    def keep(self, name: str, memo: Callable[[], str]) -> None:
        """Let a field of the session hold what ``memo`` gives, whenever it was said to have changed."""
        self._memos[name] = memo

    def changed(self, name: str) -> None:
        """Note that a memo has changed: the next commit takes it along."""
        if self.durable:
            self._changed.add(name)

    async def commit(
        self,
        operations: Sequence[Operation],
        events: Sequence[ServerEvent] = (),
        turn_id: str = "",
        *,
        memos: Mapping[str, Callable[[], str]] | None = None,
        then: Callable[[], None] | None = None,
    ) -> None:
        """Record the operations and the durable ones of the events, then send the events.

        ``memos`` are fields that change with this very commit, read when its turn has come; ``then`` is
        called when it is recorded, before any other commit is made ready. Commits of one session follow each
        other, so that events leave in the order of their commits. Raises `StoreError`; then nothing was
        recorded, as far as is known, and nothing is sent.
        """
        outgoing = self._delivery.make_ready(events, turn_id)
        commit = self._commit(operations, outgoing, memos if self.durable else None, then)
        if not self.durable:
            await commit
            return
        # Whoever gives up waiting does not undo what the store does: the mirror has to follow it.
        await self._finished(commit)

    async def flush(self) -> None:
        """Record what has changed beside the log: memos, and events that were acknowledged."""
        if self._changed or (self.durable and self._delivery.outbox.gone):
            await self.commit([])

    async def try_flush(self) -> None:
        """Flush; where the store is away, a later commit takes it along."""
        try:
            await self.flush()
        except StoreError as error:
            log.debug("not flushed", session=self.key.session_id, error=type(error).__name__)

    async def verify(self) -> bool:
        """Tell whether the session is still this claim's, and as it is here. Raises `StoreError`."""
        if not self.durable:
            return True
        try:
            await self._finished(self._verify())
        except Fenced:
            return False
        return True

    async def _finished(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._tasks.spawn(work)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if self.lost and task.cancelled():
                # The session is closed, not whoever waits for it.
                raise Fenced("Another claim owns this session.") from None
            task.add_done_callback(_hear)
            raise

    async def _verify(self) -> None:
        async with self._lock:
            await self._record([])

    async def _commit(
        self,
        operations: Sequence[Operation],
        outgoing: Sequence[Outgoing],
        memos: Mapping[str, Callable[[], str]] | None,
        then: Callable[[], None] | None,
    ) -> None:
        async with self._lock:
            gone = self._delivery.outbox.take_gone()
            changed, self._changed = self._changed, set()
            fields = {name: self._memos[name] for name in changed} | dict(memos or {})
            kept: list[Operation] = [*operations]
            kept += [SetField(name, memo()) for name, memo in fields.items()]
            recorded: list[Operation] = [*kept, *(AckOutbound(event_id) for event_id in gone)]
            recorded += [PutOutbound(one.record) for one in outgoing if one.record is not None]
            if recorded:
                try:
                    await self._record(recorded)
                except StoreError:
                    self._delivery.outbox.give_back(gone)
                    self._changed |= changed
                    raise
            for operation in kept:
                self.state.apply(operation)
            if then is not None:
                then()
            self._delivery.send(outgoing)

    async def _record(self, operations: Sequence[Operation]) -> None:
        """Write to the store. A claim that does not hold any more, for whatever reason, raises `Fenced`."""
        if self.lost:
            raise Fenced("Another claim owns this session.")
        try:
            try:
                await self._write(operations)
            except Rollback:
                log.warning("session store lost commits", session=self.key.session_id)
                self._behind = True
                await self._write(operations)
        except (Conflict, Rollback) as error:
            # A commit that was thought to have failed was recorded, or somebody else's was. What it led to
            # is in the store only.
            log.warning("session is other in the store", session=self.key.session_id)
            self._lose(stale=True)
            raise Fenced("The session has to be taken from the store again.") from error
        except Fenced as error:
            self._lose(stale=error.gone)
            raise

    async def _write(self, operations: Sequence[Operation]) -> None:
        if self._behind:
            await self._bring_back()
            self._behind = False
        await self._store.commit(self._claim, _commit_ids(), operations)

    async def _bring_back(self) -> None:
        """Write again, from memory, what the store has lost."""
        self._claim = claim = await self._store.claim(self.key)
        if not is_earlier(claim.state, self.state):
            raise Conflict("Another claim came between.")
        again = missing(claim.state, self.state, self._delivery.outbox.records())
        await self._store.commit(claim, _commit_ids(), again)

    def _lose(self, *, stale: bool) -> None:
        if not self.lost:
            self.lost = True
            self._on_lost(stale)

    async def release(self) -> None:
        """Let go of the session in the store, with all that is to be kept of it. Raises `StoreError`."""
        try:
            if not self.lost:
                await self.flush()
        except Fenced:
            pass
        await self._store.release(self._claim)

    async def settled(self, seconds: float) -> None:
        """Wait until what is being recorded is recorded, so long at most."""
        try:
            async with asyncio.timeout(seconds), self._lock:
                pass
        except TimeoutError:
            log.warning("a commit takes long", session=self.key.session_id)


def _hear(task: asyncio.Task[None]) -> None:
    """Know what came of work that nobody waits for any more: whoever comes next finds out."""
    if not task.cancelled() and task.exception() is not None:
        log.debug("not recorded", error=type(task.exception()).__name__)
