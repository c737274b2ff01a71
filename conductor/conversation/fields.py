"""Small texts that tools keep with the session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from conductor.conversation.ledger import Ledger
from conductor.stores.base import SetField

PREFIX = "tool:"
"""Stands before their names, so that no tool reaches what the session itself keeps."""


class Fields:
    """The `SessionFields` of one session."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lock = asyncio.Lock()

    def get(self, name: str) -> str | None:
        """Read a field."""
        return self._ledger.state.fields.get(PREFIX + name)

    async def update(self, name: str, change: Callable[[str | None], str]) -> None:
        """Replace a field by what ``change`` makes of it. Raises `StoreError`, and whatever it does."""
        async with self._lock:
            await self._ledger.commit([SetField(PREFIX + name, change(self.get(name)))])
