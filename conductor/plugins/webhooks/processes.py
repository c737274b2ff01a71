"""Which processes serve sessions, as they show in the store: no clock, host name or process id tells it."""

from __future__ import annotations

import msgspec

from conductor.session.fields import SubjectRecords
from conductor.stores.base import NEVER_EXPIRES, SessionLog

# Looks at which the count of a process stands still: then it is gone, and then it is forgotten.
GONE, FORGOTTEN = 3, 30
# Subject and field of the counts.
_SUBJECT, PROCESSES = f"{NEVER_EXPIRES}webhooks", "processes"


class Processes:
    """The processes of a store: each counts up at every look, and one whose count stands still is gone.

    Looks are counted, not seconds: processes that were suspended together are not gone for one another.
    ``counts`` come from the last look.
    """

    def __init__(self, store: SessionLog, process: str) -> None:
        self._records = SubjectRecords(store)
        self._own = process
        self._looks = 0
        self.counts: dict[str, int] = {}
        # Process -> its count, and the look that saw it first.
        self._seen: dict[str, tuple[int, int]] = {}

    async def look(self) -> None:
        """Show this process, and read the others. Raises `StoreError`."""
        self._looks += 1

        def count(text: str) -> str:
            counts = msgspec.json.decode(text, type=dict[str, int]) if text else {}
            self.counts = {
                name: count for name, count in counts.items() if self._stands(name, count) < FORGOTTEN
            }
            self.counts[self._own] = self.counts.get(self._own, 0) + 1
            return msgspec.json.encode(self.counts).decode()

        await self._records.update(_SUBJECT, PROCESSES, count)
        self._seen = {name: seen for name, seen in self._seen.items() if name in self.counts or not seen[0]}

    def is_gone(self, process: str) -> bool:
        """Return whether a process has stood still, or was not there, for several looks."""
        return process != self._own and self._stands(process, self.counts.get(process, 0)) >= GONE

    def _stands(self, process: str, count: int) -> int:
        former, first = self._seen.get(process, (-1, 0))
        if count != former:
            first = self._looks
            self._seen[process] = count, first
        return self._looks - first
