"""Commit, then send: the one place where a session's state changes and its events leave."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from conductor.conversation.delivery import Delivery, Outgoing
from conductor.conversation.tasks import Tasks
from conductor.errors import StoreError
from conductor.events.envelope import IdSource
from conductor.events.server import ServerEvent
from conductor.stores.base import AckOutbound, Claim, Operation, PutOutbound, SessionStore

_commit_ids = IdSource("commit")


class Ledger:
    """A session's claim, and its state as of the last commit.

    ``state`` mirrors the store; the outbound events are the outbox's.
    """

    def __init__(self, store: SessionStore, claim: Claim, delivery: Delivery, tasks: Tasks) -> None:
        self.key = claim.key
        self.state = claim.state
        self._store = store
        self._claim = claim
        self._delivery = delivery
        self._tasks = tasks
        self._lock = asyncio.Lock()

    async def commit(
        self, operations: Sequence[Operation], events: Sequence[ServerEvent] = (), turn_id: str = ""
    ) -> None:
        """Record the operations and the durable ones of the events, then send the events.

        Commits of one session follow each other, so that events leave in the order of their commits.
        Raises `StoreError`; then nothing was recorded and nothing is sent.
        """
        outgoing = self._delivery.make_ready(events, turn_id)
        commit = self._commit(operations, outgoing)
        if not self._store.suspends:
            await commit
            return
        # Whoever gives up waiting does not undo what the store does: the mirror has to follow it.
        await asyncio.shield(self._tasks.spawn(commit))

    async def _commit(self, operations: Sequence[Operation], outgoing: Sequence[Outgoing]) -> None:
        async with self._lock:
            gone = self._delivery.outbox.take_gone()
            recorded: list[Operation] = [*operations, *(AckOutbound(event_id) for event_id in gone)]
            recorded += [PutOutbound(one.record) for one in outgoing if one.record is not None]
            if recorded:
                try:
                    await self._store.commit(self._claim, _commit_ids(), recorded)
                except StoreError:
                    self._delivery.outbox.give_back(gone)
                    raise
            for operation in operations:
                self.state.apply(operation)
            self._delivery.send(outgoing)

    async def release(self) -> None:
        """Let go of the session in the store."""
        await self._store.release(self._claim)
