"""The operator's view of stored sessions: list, show, export and delete."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec

from conductor.conversation.ledger import replay
from conductor.conversation.playback import Moment, moments, plain_state
from conductor.conversation.state import Conversation
from conductor.errors import StoreUnavailable
from conductor.stores.base import SessionKey, SessionLog, Stored

# Keys in one page: a page of Redis costs a scan of all names.
_PAGE = 10_000


class SessionInfo(msgspec.Struct, frozen=True):
    """A session in a list. ``updated`` is epoch seconds, ``size`` bytes of stored commits.

    ``owned``: a claim is not released; its process may have died. ``calls`` are open, ``outbound`` events
    not acknowledged.
    """

    subject: str
    session_id: str
    updated: float
    epoch: int
    revision: int
    owned: bool
    messages: int
    calls: int
    outbound: int
    size: int


class StoredSessions:
    """Lists, shows, exports and deletes sessions of an open store that a server may use at the same time.

    Only a deletion fences an owner. All methods raise `StoreUnavailable`.
    """

    def __init__(self, store: SessionLog) -> None:
        self._store = store

    async def infos(
        self, subject: str | None = None, *, after: SessionKey | None = None, limit: int = 100
    ) -> list[SessionInfo]:
        """Describe all sessions or those of a subject, after ``after``; an unreadable one has no messages."""
        infos: list[SessionInfo] = []
        async for key, stored in self._all(subject, after, min(limit, _PAGE)):
            if len(infos) == limit:
                break
            try:
                state = _state(stored)
            except StoreUnavailable:
                state = Conversation()
            infos.append(_info(key, stored, state))
        return infos

    async def subjects(self, session_id: str) -> list[str]:
        """List the subjects with a session of this id."""
        keys = await self._store.keys(None, session_id, None, sys.maxsize)
        return [key.subject for key in keys if await self._store.read(key) is not None]

    async def show(self, key: SessionKey) -> dict[str, Any] | None:
        """Give a session as JSON values; None without such a session."""
        stored = await self._store.read(key)
        return None if stored is None else _document(key, stored)

    async def moments(self, key: SessionKey) -> Iterator[Moment] | None:
        """Step through a session's records since the last snapshot; None if there is no session."""
        stored = await self._store.read(key)
        return None if stored is None else moments(stored.commits(), stored.meta.revision)

    async def export(self, subject: str | None = None) -> AsyncIterator[dict[str, Any]]:
        """Give all sessions or those of a subject, in the form of `show`."""
        async for key, stored in self._all(subject, None, _PAGE):
            yield _document(key, stored)

    async def delete(self, subject: str, session_id: str | None = None) -> int:
        """Delete a session or all sessions of a subject, and fence the owners; return their number."""
        return await self._store.delete(subject, session_id)

    async def _all(
        self, subject: str | None, after: SessionKey | None, page: int
    ) -> AsyncIterator[tuple[SessionKey, Stored]]:
        # Pages start after the last key, so that no session comes twice.
        while keys := await self._store.keys(subject, None, after, page):
            for after in keys:
                stored = await self._store.read(after)
                if stored is not None:  # else it was deleted after the listing
                    yield after, stored


def _state(stored: Stored) -> Conversation:
    return replay(stored.commits(), stored.meta.revision)


def _info(key: SessionKey, stored: Stored, state: Conversation) -> SessionInfo:
    meta = stored.meta
    return SessionInfo(
        key.subject,
        key.session_id,
        meta.updated,
        meta.epoch,
        meta.revision,
        bool(meta.token),
        len(state.log),
        sum(call.is_open for call in state.calls),
        len(state.outbound),
        sum(map(len, stored.by_revision.values())),
    )


def _document(key: SessionKey, stored: Stored) -> dict[str, Any]:
    state = _state(stored)
    return {**msgspec.to_builtins(_info(key, stored, state)), "state": plain_state(state)}
