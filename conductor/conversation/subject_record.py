"""What is kept of a subject across its sessions, as named texts in one record of the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from conductor.errors import Conflict, Fenced, StoreUnavailable
from conductor.events.envelope import IdGenerator
from conductor.stores.base import SessionKey, SessionStore, SetField

# The reserved session id of a subject's record; no client may use a "$".
RECORD_ID = "$grants"
# Tries to write a record against other processes that write the same one.
_ATTEMPTS = 5

_commit_ids = IdGenerator("record")


class SubjectRecords:
    """Reads and writes the subjects' records."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self._fields: dict[str, Mapping[str, str]] = {}
        self._lock = asyncio.Lock()

    def get(self, subject: str, name: str) -> str:
        """Return a field as it was last read or written here; empty if it is not set, or before `load`."""
        return self._fields.get(subject, {}).get(name, "")

    async def load(self, subject: str) -> None:
        """Read a subject's record. Raises `StoreUnavailable`."""
        claim = await self._store.claim(SessionKey(subject, RECORD_ID))
        self._fields[subject] = claim.state.fields

    async def update(self, subject: str, name: str, change: Callable[[str], str]) -> None:
        """Replace a field by what ``change`` makes of it; an empty text deletes it.

        ``change`` may be called again, with what another process wrote. Raises `StoreError`, and what
        ``change`` raises.
        """
        async with self._lock:
            for attempt in range(1, _ATTEMPTS + 1):
                # The last claim wins: who wrote in between is fenced, and tries again.
                claim = await self._store.claim(SessionKey(subject, RECORD_ID))
                text = change(claim.state.fields.get(name, ""))
                try:
                    await self._store.commit(claim, _commit_ids(), [SetField(name, text)])
                except (Fenced, Conflict):
                    if attempt == _ATTEMPTS:
                        raise StoreUnavailable("others keep writing this person's record") from None
                    continue
                self._fields[subject] = claim.state.fields
                return
