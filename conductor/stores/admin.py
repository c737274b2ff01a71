"""The operator's operations on stored sessions: list, show, export and delete."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from typing import Any, Protocol

import msgspec

from conductor.errors import StoreUnavailable
from conductor.stores.base import SessionKey, SessionState
from conductor.stores.records import Stored

# Keys in one page: a page of Redis costs a scan of all names.
_PAGE = 10_000


class SessionInfo(msgspec.Struct, frozen=True):
    """A session in a list. ``updated`` is epoch seconds, ``size`` bytes of stored text.

    ``owned``: a claim is not released; its process may have died.
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


class StoredSessions(Protocol):
    """The operator's operations of a store. They make no claims; only a deletion fences an owner."""

    async def keys(
        self, subject: str | None, session_id: str | None, after: SessionKey | None, limit: int
    ) -> list[SessionKey]:
        """List sessions by subject and id, after ``after``; None matches all."""

    async def read(self, key: SessionKey) -> Stored | None:
        """Read a session; None if there is none."""

    async def delete(self, subject: str, session_id: str | None = None) -> int:
        """Delete a session or all sessions of a subject, and fence the owners; return their number."""

    async def warnings(self) -> list[str]:
        """List the properties of the open store that may lose sessions."""


class SessionAdmin:
    """Lists, shows, exports and deletes sessions of an open store that a server may use at the same time.

    All methods raise `StoreUnavailable`.
    """

    def __init__(self, store: StoredSessions) -> None:
        self._store = store

    async def sessions(
        self, subject: str | None = None, *, after: SessionKey | None = None, limit: int = 100
    ) -> list[SessionInfo]:
        """List all sessions or those of a subject, after ``after``."""
        infos: list[SessionInfo] = []
        async for key, stored in self._all(subject, after, min(limit, _PAGE)):
            if len(infos) == limit:
                break
            try:
                infos.append(_info(key, stored, stored.state()))
            except StoreUnavailable:  # unreadable, but it can be deleted
                infos.append(_info(key, stored, SessionState()))
        return infos

    async def subjects(self, session_id: str) -> list[str]:
        """List the subjects with a session of this id."""
        keys = await self._store.keys(None, session_id, None, sys.maxsize)
        return [key.subject for key in keys if await self._store.read(key) is not None]

    async def show(self, key: SessionKey) -> dict[str, Any] | None:
        """Give a session as JSON values; None if there is none."""
        stored = await self._store.read(key)
        return None if stored is None else dump(key, stored)

    async def export(self, subject: str | None = None) -> AsyncIterator[dict[str, Any]]:
        """Give all sessions or those of a subject, in the form of `show`."""
        async for key, stored in self._all(subject, None, _PAGE):
            yield dump(key, stored)

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


def _info(key: SessionKey, stored: Stored, state: SessionState) -> SessionInfo:
    meta = stored.meta
    return SessionInfo(
        key.subject,
        key.session_id,
        meta.updated,
        meta.epoch,
        meta.revision,
        bool(meta.token),
        len(state.log),
        len(state.calls),
        len(state.outbound),
        sum(map(len, stored.records.values())),
    )


def dump(key: SessionKey, stored: Stored) -> dict[str, Any]:
    """Give a session as JSON values: its info, its state, and the log with positions."""
    state = stored.state()
    document = {
        "info": _info(key, stored, state),
        "log": state.log,
        "call_records": list(state.calls.values()),
        "outbound_records": list(state.outbound.values()),
        "seen": list(state.seen),
        "fields": state.fields,
    }
    # Encoded and decoded: messages are structs, frames raw bytes.
    plain = msgspec.json.decode(msgspec.json.encode(document))
    log = [{"position": index, **entry} for index, entry in enumerate(plain["log"], state.log_start)]
    return {**plain.pop("info"), **plain, "log_start": state.log_start, "log": log}
