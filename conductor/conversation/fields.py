"""Named texts that outlive a turn: fields of a session, and of a subject across its sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from conductor.conversation.commit import Committer
from conductor.errors import Conflict, Fenced, StoreUnavailable
from conductor.events.envelope import IdGenerator
from conductor.stores.base import SessionKey, SessionStore, SetField

# Prefix of the tools' fields, so that no tool can overwrite another field.
PREFIX = "tool:"
# The reserved session id of a subject's record; no client may use a "$".
RECORD_ID = "$grants"
# Attempts to write a record that other processes write, too.
_ATTEMPTS = 5

_commit_ids = IdGenerator("record")


class SubjectRecords:
    """Reads and writes the subjects' records."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self._fields: dict[str, Mapping[str, str]] = {}
        self._lock = asyncio.Lock()

    def get(self, subject: str, name: str) -> str:
        """Return a field as last read or written here; empty if it is not set, or before `load`."""
        return self._fields.get(subject, {}).get(name, "")

    async def load(self, subject: str) -> None:
        """Read a subject's record. Raises `StoreUnavailable`."""
        claim = await self._store.claim(SessionKey(subject, RECORD_ID))
        self._fields[subject] = claim.state.fields

    async def update(self, subject: str, name: str, change: Callable[[str], str]) -> None:
        """Replace a field by the result of ``change``; an empty text deletes it.

        ``change`` is called again if another process has written. Raises `StoreError`, and errors of
        ``change``.
        """
        async with self._lock:
            for attempt in range(1, _ATTEMPTS + 1):
                # The last claim wins: a writer with an earlier one is fenced, and tries again.
                claim = await self._store.claim(SessionKey(subject, RECORD_ID))
                text = change(claim.state.fields.get(name, ""))
                try:
                    await self._store.commit(claim, _commit_ids(), [SetField(name, text)])
                except (Fenced, Conflict):
                    if attempt == _ATTEMPTS:
                        raise StoreUnavailable("other processes keep writing this person's record") from None
                    continue
                self._fields[subject] = claim.state.fields
                return


class Fields:
    """The `SessionFields` of one session."""

    def __init__(self, committer: Committer) -> None:
        self._committer = committer
        self._lock = asyncio.Lock()

    def get(self, name: str) -> str | None:
        """Read a field."""
        return self._committer.state.fields.get(PREFIX + name)

    async def update(self, name: str, change: Callable[[str | None], str]) -> None:
        """Replace a field by the result of ``change``. Raises `StoreError`, and errors of ``change``."""
        async with self._lock:
            await self._committer.commit([SetField(PREFIX + name, change(self.get(name)))])


class PersonFields:
    """The `SessionFields` of a subject's record, which tools keep across the person's sessions."""

    def __init__(self, records: SubjectRecords, subject: str) -> None:
        self._records = records
        self._subject = subject

    def get(self, name: str) -> str | None:
        """Read a field, as of the last load or update in this process."""
        return self._records.get(self._subject, PREFIX + name) or None

    async def update(self, name: str, change: Callable[[str | None], str]) -> None:
        """Replace a field by the result of ``change``. Raises `StoreError`, and errors of ``change``."""
        await self._records.update(self._subject, PREFIX + name, lambda text: change(text or None))
