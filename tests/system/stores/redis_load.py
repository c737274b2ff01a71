"""Writes to sessions while servers fail, and checks the stored messages."""

from __future__ import annotations

import asyncio

from conductor.errors import Conflict, Fenced, Rollback
from conductor.plugins.stores.redis import RedisStore
from conductor.stores.base import Claim, SessionKey


class Owner:
    """Owns a session and commits one message after the other; it repeats messages that a failover lost."""

    def __init__(self, store: RedisStore, key: SessionKey) -> None:
        self.key = key
        self.messages: list[bytes] = []
        self._store = store
        self._commits = 0

    async def talk(self, until: asyncio.Event) -> None:
        """Commit messages until the event is set."""
        claim = await self._store.claim(self.key)
        while not until.is_set():
            message = b"message %d" % len(self.messages)
            try:
                await self._append(claim, message)
            except (Conflict, Rollback, Fenced):
                claim = await self._repaired()
            else:
                self.messages.append(message)

    async def _repaired(self) -> Claim:
        claim = await self._store.claim(self.key)
        log = list(claim.commits)
        assert log == self.messages[: len(log)], "something was lost in the middle, or is there twice"
        for message in self.messages[len(log) :]:
            await self._append(claim, message)
        return claim

    async def _append(self, claim: Claim, message: bytes) -> None:
        self._commits += 1
        await self._store.append(claim, f"commit-{self._commits}", message)


class Load:
    """Ten owners at once."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self.owners = [Owner(store, SessionKey("subject", f"load-{number}")) for number in range(10)]
        self._over = asyncio.Event()
        self._tasks = [asyncio.create_task(owner.talk(self._over)) for owner in self.owners]

    async def goes_on(self, owners: list[Owner] | None = None) -> None:
        """Wait until all owners, or these, have committed five more messages."""
        owners = self.owners if owners is None else owners
        goals = {owner: len(owner.messages) + 5 for owner in owners}
        while any(len(owner.messages) < number for owner, number in goals.items()):
            failed = [task for task in self._tasks if task.done()]
            if failed:
                failed[0].result()
            await asyncio.sleep(0)

    async def end(self) -> None:
        """Stop, and check that each acknowledged message is stored once and in order."""
        self._over.set()
        await asyncio.gather(*self._tasks)
        for owner in self.owners:
            claim = await self._store.claim(owner.key)
            assert list(claim.commits) == owner.messages
