"""Taint that travels with stored text: a field that was written under taint is untrusted where it is read."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from conductor.tools.base import SessionFields

# The field that names the untrusted fields of a session or a person.
FIELD = "untrusted"


class TrackedFields:
    """The `SessionFields` of one call of a tool that keeps no marks itself.

    ``tainted``: third parties may have steered the call. ``is_untrusted``: the call has read what such a call
    stored. A field stays untrusted until it is empty.
    """

    def __init__(self, fields: SessionFields, *, tainted: bool) -> None:
        self._fields = fields
        self._tainted = tainted
        self.is_untrusted = False

    def get(self, name: str) -> str | None:
        """Read a field."""
        self._note(name)
        return self._fields.get(name)

    async def refresh(self) -> None:
        """Read what other processes have written. Raises `StoreError`."""
        await self._fields.refresh()

    async def update(self, name: str, change: Callable[[str | None], str]) -> None:
        """Replace a field by the result of ``change``. Raises `StoreError`, and errors of ``change``."""
        if self._tainted:  # before the text: a process may end in between
            await self._mark({name}, set())
        await self._fields.update(name, change)
        self._note(name)
        if name in self._marks() and not self._fields.get(name):
            await self._mark(set(), {name})

    def _note(self, name: str) -> None:
        self.is_untrusted = self.is_untrusted or name in self._marks()

    def _marks(self) -> set[str]:
        return _read(self._fields.get(FIELD))

    async def _mark(self, more: set[str], less: set[str]) -> None:
        def change(text: str | None) -> str:
            names = (_read(text) | more) - less
            return msgspec.json.encode(sorted(names)).decode() if names else ""

        await self._fields.update(FIELD, change)


def _read(text: str | None) -> set[str]:
    return msgspec.json.decode(text, type=set[str]) if text else set()
