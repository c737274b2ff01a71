"""The operator's operations on stored sessions: list, show, export and delete."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol

import msgspec

from conductor.stores.base import SessionKey, SessionState


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


class SessionAdmin(Protocol):
    """Works without claims, so only a deletion fences an owner. All raise `StoreUnavailable`."""

    async def sessions(
        self, subject: str | None = None, *, after: SessionKey | None = None, limit: int = 100
    ) -> list[SessionInfo]:
        """List sessions by subject and id, all or a subject's, starting behind ``after``."""
        ...

    async def subjects(self, session_id: str) -> list[str]:
        """List the subjects that have a session with this id."""
        ...

    async def show(self, key: SessionKey) -> dict[str, Any] | None:
        """Give all that is stored of a session as JSON values; None if there is none."""
        ...

    def export(self, subject: str | None = None) -> AsyncIterator[dict[str, Any]]:
        """Give all sessions, or a subject's, each consistent in itself, in the form of `show`."""
        ...

    async def delete(self, key: SessionKey) -> bool:
        """Delete a session and fence its owner; False if there was none."""
        ...

    async def delete_subject(self, subject: str) -> int:
        """Delete all sessions of a subject; return their number."""
        ...


def dump(info: SessionInfo, state: SessionState) -> dict[str, Any]:
    """Make JSON values of a session: the fields of its info and state, and the log with positions."""
    whole = {
        "info": info,
        "log": state.log,
        "call_records": list(state.calls.values()),
        "outbound_records": list(state.outbound.values()),
        "seen": list(state.seen),
        "fields": state.fields,
    }
    plain = msgspec.json.decode(msgspec.json.encode(whole))
    log = [{"position": position, **one} for position, one in enumerate(plain["log"], state.log_start)]
    return {**plain.pop("info"), **plain, "log_start": state.log_start, "log": log}
