"""The operator's view of a Redis store: sessions are found by SCAN, which holds nobody up."""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator, Iterable
from typing import Any

from conductor.errors import StoreUnavailable
from conductor.stores.admin import SessionInfo, dump
from conductor.stores.base import SessionKey
from conductor.stores.redis import RedisStore
from conductor.stores.redis_records import (
    DELETE,
    LOOK,
    READ,
    STRANGE,
    Reply,
    index_name,
    key_names,
    meta_pattern,
    read,
    session_of,
    text,
)

_PAGE = 100
_EXPORTED = 10_000
"""Names that are read at once where all sessions are wanted, so that few looks are needed."""


class RedisAdmin:
    """Lists, shows, exports and deletes what a store keeps.

    A page of the list costs one look at the names of all keys, at some 100,000 sessions a second.
    """

    def __init__(self, store: RedisStore) -> None:
        self._store = store

    async def sessions(
        self, subject: str | None = None, *, after: SessionKey | None = None, limit: int = _PAGE
    ) -> list[SessionInfo]:
        """List sessions by subject and id, all or a subject's. Raises `StoreUnavailable`."""
        found: list[SessionInfo] = []
        while len(found) < limit:
            page = await self._page(subject, after, limit)
            for key in page:
                reply = await self._look(key)
                if reply is not None and len(found) < limit:  # it may have expired or been deleted
                    found.append(_info(key, reply))
            if len(page) < limit:
                break
            after = page[-1]
        return found

    async def subjects(self, session_id: str) -> list[str]:
        """Name those who have a session with this id. Raises `StoreUnavailable`."""
        found: set[tuple[str, str]] = set()
        async for names in self._store.client.scan(meta_pattern(self._store.prefix, session_id=session_id)):
            found |= _after(names, None)
        keys = [SessionKey(*pair) for pair in sorted(found)]
        return [key.subject for key in keys if await self._look(key) is not None]

    async def show(self, key: SessionKey) -> dict[str, Any] | None:
        """Give all that is kept of a session, as JSON can hold it. Raises `StoreUnavailable`."""
        reply = await self._store.client.read(READ, key_names(self._store.prefix, key))
        if reply is None:
            return None
        kept = read(reply)
        return dump(_info(key, reply[-1] if isinstance(reply, list) else None), kept.state)

    async def export(self, subject: str | None = None) -> AsyncIterator[dict[str, Any]]:
        """Give all sessions, or a subject's. Raises `StoreUnavailable`."""
        after: SessionKey | None = None
        while page := await self._page(subject, after, _EXPORTED):
            for after in page:
                session = await self.show(after)
                if session is not None:
                    yield session

    async def delete(self, key: SessionKey) -> bool:
        """Delete a session; its owner is fenced. Raises `StoreUnavailable`."""
        store = self._store
        deleted = await store.client.write(DELETE, key_names(store.prefix, key), (store.ttl_ms,)) == 1
        index = index_name(store.prefix, key.subject)
        await store.client.query(index, "ZREM", index, key.session_id)
        return deleted

    async def delete_subject(self, subject: str) -> int:
        """Delete all sessions of a subject. Raises `StoreUnavailable`."""
        deleted = 0
        after: SessionKey | None = None
        while page := await self._page(subject, after, _EXPORTED):
            for after in page:
                deleted += await self.delete(after)
        return deleted

    async def _page(self, subject: str | None, after: SessionKey | None, limit: int) -> list[SessionKey]:
        """Find the next session names; what is in memory is bounded, however many there are."""
        found: set[tuple[str, str]] = set()
        async for names in self._store.client.scan(meta_pattern(self._store.prefix, subject)):
            found |= _after(names, after)
            if len(found) > 10 * limit:
                found = set(heapq.nsmallest(limit, found))
        return [SessionKey(*each) for each in heapq.nsmallest(limit, found)]

    async def _look(self, key: SessionKey) -> Reply:
        """Describe a session; None where there is none, or what is left of a deleted one."""
        return await self._store.client.read(LOOK, key_names(self._store.prefix, key))


def _after(names: Iterable[Reply], after: SessionKey | None) -> set[tuple[str, str]]:
    keys = {session_of(text(name)) for name in names}
    pairs = {(key.subject, key.session_id) for key in keys if key is not None}
    return pairs if after is None else {pair for pair in pairs if pair > (after.subject, after.session_id)}


def _info(key: SessionKey, reply: Reply) -> SessionInfo:
    figures = [each for each in reply if isinstance(each, int)] if isinstance(reply, list) else []
    if len(figures) != 8:
        raise StoreUnavailable(STRANGE)
    updated, epoch, revision, owned, messages, calls, outbound, size = figures
    return SessionInfo(
        key.subject,
        key.session_id,
        float(updated),
        epoch,
        revision,
        bool(owned),
        messages,
        calls,
        outbound,
        size,
    )
