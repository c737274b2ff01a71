"""The records of people, and the fields of tools."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping

from conductor.clock import epoch_ms
from conductor.conversation.records import Commit, FieldSet, Record, encode
from conductor.conversation.replay import SNAPSHOT_BYTES, SNAPSHOT_COMMITS, replay
from conductor.conversation.state import Conversation
from conductor.errors import Conflict, Fenced, StoreUnavailable
from conductor.stores.base import SessionKey, SessionLog

# Prefix of the tools' fields, so that no tool can overwrite another field.
PREFIX = "tool:"
# The reserved session id of a subject's record; no client may use a "$".
RECORD_ID = "$grants"
# Attempts to write a record that other processes write, too.
_ATTEMPTS = 5


class SubjectRecords:
    """Reads and writes the subjects' records with an id, which begins with a "$"."""

    def __init__(self, store: SessionLog, record_id: str = RECORD_ID) -> None:
        self._store = store
        self._record_id = record_id
        self._fields: dict[str, Mapping[str, str]] = {}
        self._watchers: list[Callable[[str], None]] = []
        self._lock = asyncio.Lock()

    def watch(self, changed: Callable[[str], None]) -> None:
        """Call ``changed`` with each subject whose record was read or written here, and differs."""
        self._watchers.append(changed)

    def _keep(self, subject: str, fields: Mapping[str, str]) -> None:
        if fields != self._fields.get(subject):
            self._fields[subject] = fields
            for changed in self._watchers:
                changed(subject)

    def get(self, subject: str, name: str) -> str:
        """Return a field as last read or written here; empty if it is not set, or before `load`."""
        return self._fields.get(subject, {}).get(name, "")

    @property
    def subjects(self) -> Collection[str]:
        """Name the subjects whose records were read."""
        return self._fields.keys()

    def forget(self, subject: str) -> None:
        """Free what was read of a subject who has left."""
        self._fields.pop(subject, None)

    async def load(self, subject: str) -> None:
        """Read a subject's record. Raises `StoreUnavailable`."""
        stored = await self._store.read(SessionKey(subject, self._record_id))
        fields = {} if stored is None else replay(stored.commits(), stored.meta.revision).fields
        self._keep(subject, fields)

    async def update(self, subject: str, name: str, change: Callable[[str], str]) -> None:
        """Replace a field by the result of ``change``; an empty text deletes it.

        ``change`` is called again if another process has written. Raises `StoreError`, and errors of
        ``change``.
        """
        async with self._lock:
            for attempt in range(1, _ATTEMPTS + 1):
                # The last claim wins: a writer with an earlier one is fenced, and tries again.
                claim = await self._store.claim(SessionKey(subject, self._record_id))
                state = replay(claim.commits, claim.revision)
                value = change(state.fields.get(name, ""))
                size = sum(len(data) for data in claim.commits[1:])
                snapshot = len(claim.commits) >= SNAPSHOT_COMMITS or size >= SNAPSHOT_BYTES
                commit = Commit(
                    claim=claim.token,
                    at=epoch_ms(),
                    records=(FieldSet(name, value),),
                    state=state if snapshot else None,
                )
                try:
                    await self._store.append(claim, claim.token, encode(commit), snapshot=snapshot)
                except (Fenced, Conflict):
                    if attempt == _ATTEMPTS:
                        raise StoreUnavailable("other processes keep writing this person's record") from None
                    continue
                self._keep(subject, {**state.fields, name: value})
                return


class Fields:
    """The `SessionFields` of one session; ``decide`` commits a decision."""

    def __init__(
        self, state: Conversation, decide: Callable[[Callable[[], list[Record]]], Awaitable[object]]
    ) -> None:
        self._state = state
        self._decide = decide

    def get(self, name: str) -> str | None:
        """Read a field."""
        return self._state.fields.get(PREFIX + name)

    async def refresh(self) -> None:
        """Do nothing: this process owns the session."""

    async def update(self, name: str, change: Callable[[str | None], str]) -> None:
        """Replace a field by the result of ``change``. Raises `StoreError`, and errors of ``change``."""
        await self._decide(lambda: [FieldSet(PREFIX + name, change(self.get(name)))])


class PersonFields:
    """The `SessionFields` of a subject's record, which tools keep across the person's sessions."""

    def __init__(self, records: SubjectRecords, subject: str) -> None:
        self._records = records
        self._subject = subject

    def get(self, name: str) -> str | None:
        """Read a field, as of the last load or update in this process."""
        return self._records.get(self._subject, PREFIX + name) or None

    async def refresh(self) -> None:
        """Read the record again. Raises `StoreUnavailable`."""
        await self._records.load(self._subject)

    async def update(self, name: str, change: Callable[[str | None], str]) -> None:
        """Replace a field by the result of ``change``. Raises `StoreError`, and errors of ``change``."""
        await self._records.update(self._subject, PREFIX + name, lambda text: change(text or None))
