"""What tools may store: fields of a session, and fields of a person across sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from conductor.conversation.commit import Committer
from conductor.conversation.subject_record import SubjectRecords
from conductor.stores.base import SetField

# Prefix of the tools' fields, so that no tool can overwrite another field.
PREFIX = "tool:"


class Fields:
    """The `SessionFields` of one session."""

    def __init__(self, committer: Committer) -> None:
        self._committer = committer
        self._lock = asyncio.Lock()

    def get(self, name: str) -> str | None:
        """Read a field."""
        return self._committer.state.fields.get(PREFIX + name)

    async def update(self, name: str, change: Callable[[str | None], str]) -> None:
        """Replace a field by what ``change`` returns. Raises `StoreError`, and what ``change`` raises."""
        async with self._lock:
            await self._committer.commit([SetField(PREFIX + name, change(self.get(name)))])


class PersonFields:
    """The `SessionFields` of a subject's record: what tools keep of a person across sessions."""

    def __init__(self, records: SubjectRecords, subject: str) -> None:
        self._records = records
        self._subject = subject

    def get(self, name: str) -> str | None:
        """Read a field, as of the last load or update in this process."""
        return self._records.get(self._subject, PREFIX + name) or None

    async def update(self, name: str, change: Callable[[str | None], str]) -> None:
        """Replace a field by what ``change`` returns. Raises `StoreError`, and what ``change`` raises."""
        await self._records.update(self._subject, PREFIX + name, lambda text: change(text or None))
