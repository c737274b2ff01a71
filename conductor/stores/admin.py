"""What an operator may do with stored sessions: list, show, export and delete them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol

import msgspec

from conductor.stores.base import SessionKey, SessionState


class SessionInfo(msgspec.Struct, frozen=True):
    """A session from outside. ``updated`` is epoch seconds, ``size`` bytes of stored text.

    ``owned``: a claim was made and not released; its process need not be alive.
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
    """Looks at sessions without claiming them: nobody is fenced by it. All raise `StoreUnavailable`."""

    async def sessions(
        self, subject: str | None = None, *, after: SessionKey | None = None, limit: int = 100
    ) -> list[SessionInfo]:
        """List sessions by subject and id, all or a subject's; ``after`` ended the page before."""
        ...

    async def subjects(self, session_id: str) -> list[str]:
        """Name those who have a session with this id."""
        ...

    async def show(self, key: SessionKey) -> dict[str, Any] | None:
        """Give all that is kept of a session, as JSON can hold it; None if there is none."""
        ...

    def export(self, subject: str | None = None) -> AsyncIterator[dict[str, Any]]:
        """Give all sessions, or a subject's, each as `show` does and consistent in itself."""
        ...

    async def delete(self, key: SessionKey) -> bool:
        """Delete a session; its owner is fenced. Tells whether there was one."""
        ...

    async def delete_subject(self, subject: str) -> int:
        """Delete all sessions of a subject; returns how many there were."""
        ...


def dump(info: SessionInfo, state: SessionState) -> dict[str, Any]:
    """Write a session as JSON can hold it: the info's fields, and the state's, the log with positions."""
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
