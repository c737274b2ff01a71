"""The operator's operations on stored sessions: list, show, export and delete."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from typing import Any, Protocol

import msgspec

from conductor.errors import StoreUnavailable
from conductor.stores.base import SessionKey, SessionState
from conductor.stores.records import Stored

# Sessions found at a time; where a look costs a scan of all names, few are needed.
_PAGE = 10_000


class SessionInfo(msgspec.Struct, frozen=True):
    """A session's row in a list. ``updated`` is epoch seconds, ``size`` bytes of stored text.

    ``owned``: a claim was made and not released; its process may be dead.
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
    """What a store lets an operator do, without claims: only a deletion fences an owner."""

    async def keys(
        self, subject: str | None, session_id: str | None, after: SessionKey | None, limit: int
    ) -> list[SessionKey]:
        """List sessions by subject and id, all or those that match, starting behind ``after``."""
        ...

    async def read(self, key: SessionKey) -> Stored | None:
        """Read a session; None if there is none."""
        ...

    async def delete(self, subject: str, session_id: str | None = None) -> int:
        """Delete a session, or all of a subject's, and fence the owners; return their number."""
        ...

    async def warnings(self) -> list[str]:
        """Say what about the open store may lose sessions, a clause each."""
        ...


class SessionAdmin:
    """Lists, shows, exports and deletes sessions, in any open store that outlives its process.

    All raise `StoreUnavailable`. A server may use the same store at the same time.
    """

    def __init__(self, store: StoredSessions) -> None:
        self._store = store

    async def sessions(
        self, subject: str | None = None, *, after: SessionKey | None = None, limit: int = 100
    ) -> list[SessionInfo]:
        """List sessions by subject and id, all or a subject's, starting behind ``after``."""
        found: list[SessionInfo] = []
        async for key, stored in self._all(subject, after, min(limit, _PAGE)):
            if len(found) == limit:
                break
            try:
                found.append(_info(key, stored, stored.state()))
            except StoreUnavailable:  # it can still be deleted
                found.append(_info(key, stored, SessionState()))
        return found

    async def subjects(self, session_id: str) -> list[str]:
        """List the subjects that have a session with this id."""
        keys = await self._store.keys(None, session_id, None, sys.maxsize)
        return [key.subject for key in keys if await self._store.read(key) is not None]

    async def show(self, key: SessionKey) -> dict[str, Any] | None:
        """Give all that is stored of a session as JSON values; None if there is none."""
        stored = await self._store.read(key)
        return None if stored is None else dump(key, stored)

    async def export(self, subject: str | None = None) -> AsyncIterator[dict[str, Any]]:
        """Give all sessions, or a subject's, each consistent in itself, in the form of `show`."""
        async for key, stored in self._all(subject, None, _PAGE):
            yield dump(key, stored)

    async def delete(self, key: SessionKey) -> bool:
        """Delete a session and fence its owner; False if there was none."""
        return await self._store.delete(key.subject, key.session_id) > 0

    async def delete_subject(self, subject: str) -> int:
        """Delete all sessions of a subject; return their number."""
        return await self._store.delete(subject)

    async def _all(
        self, subject: str | None, after: SessionKey | None, page: int
    ) -> AsyncIterator[tuple[SessionKey, Stored]]:
        # By pages behind the last key: sessions may come and go, and none is given twice.
        while keys := await self._store.keys(subject, None, after, page):
            for after in keys:
                stored = await self._store.read(after)
                if stored is not None:  # else it has expired or been deleted since it was listed
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
    """Make JSON values of a session: the fields of its info and state, and the log with positions."""
    state = stored.state()
    whole = {
        "info": _info(key, stored, state),
        "log": state.log,
        "call_records": list(state.calls.values()),
        "outbound_records": list(state.outbound.values()),
        "seen": list(state.seen),
        "fields": state.fields,
    }
    # Through JSON: messages and frames are structs and raw bytes.
    plain = msgspec.json.decode(msgspec.json.encode(whole))
    log = [{"position": position, **one} for position, one in enumerate(plain["log"], state.log_start)]
    return {**plain.pop("info"), **plain, "log_start": state.log_start, "log": log}
