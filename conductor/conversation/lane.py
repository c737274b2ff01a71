"""The calls that a client handles one after the other: only the first of them has a running clock."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from conductor.bounds import STILL_S
from conductor.conversation.transport import Frame
from conductor.stores.base import OutboundRecord

_UNREAD_S = 1.0
"""What came while the process stood still is still to be read."""


@dataclass(slots=True, eq=False)
class Entry:
    """An unacknowledged event. ``limit`` is its time limit in seconds once it is at the lane's head."""

    record: OutboundRecord
    limit: float
    frame: Frame = field(init=False)
    replayed: bool = False

    def __post_init__(self) -> None:
        self.frame = Frame(bytes(self.record.frame))


class Lane:
    """Entries in order. ``on_expired`` is given the first of them when its time is over; it has it leave.

    A clock that goes off far too late belongs to a process that stood still, and has heard nothing of what
    was said to it meanwhile: it goes on for as long as it was late.
    """

    def __init__(self, on_expired: Callable[[Entry], None]) -> None:
        self._on_expired = on_expired
        self._entries: OrderedDict[str, Entry] = OrderedDict()
        self._head: Entry | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._quiet: asyncio.Event | None = None  # made for who waits for it: it is large

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, event_id: str) -> bool:
        return event_id in self._entries

    @property
    def entries(self) -> list[Entry]:
        """The entries, in order."""
        return list(self._entries.values())

    @property
    def ticking(self) -> bool:
        """Whether a clock is running."""
        return self._timer is not None

    async def quiet(self) -> None:
        """Wait until there is no entry."""
        while self._entries:
            if self._quiet is None:
                self._quiet = asyncio.Event()
            await self._quiet.wait()

    def join(self, entry: Entry) -> None:
        """Add an entry at the end, unless it is there."""
        if entry.record.event_id not in self._entries:
            self._entries[entry.record.event_id] = entry
            self.watch()

    def leave(self, entry: Entry) -> None:
        """Take an entry out, if it is there."""
        self._entries.pop(entry.record.event_id, None)
        if self._head is entry:
            self.watch()

    def retain(self, keeps: Callable[[str], bool]) -> None:
        """Take out all but some, by their event ids; the first one's clock goes on until `watch`."""
        self._entries = OrderedDict((key, one) for key, one in self._entries.items() if keeps(key))

    def clear(self) -> None:
        """Take all out."""
        self._entries.clear()
        self.watch()

    def watch(self) -> None:
        """Let the clock run for whichever entry is the first now."""
        head = next(iter(self._entries.values()), None)
        if head is self._head:
            return
        self._head = head
        self._stop()
        if head is not None:
            self._start(head, head.limit)
        elif self._quiet is not None:
            self._quiet.set()
            self._quiet = None

    def restart(self, entry: Entry) -> None:
        """Let an entry's time begin anew, if it is the first."""
        if self._head is entry and self._timer is not None:
            self._stop()
            self._start(entry, entry.limit)

    def postpone(self, seconds: float) -> None:
        """Give the first entry so much more time, its limit at most, and enough to read what has come."""
        if self._head is not None and self._timer is not None:
            left = self._due - asyncio.get_running_loop().time()
            self._stop()
            self._start(self._head, max(_UNREAD_S, left + min(seconds, self._head.limit)))

    def _start(self, entry: Entry, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._due = loop.time() + seconds  # uvloop's handles cannot always tell
        self._timer = loop.call_later(seconds, self._expire, entry)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self, entry: Entry) -> None:
        late = asyncio.get_running_loop().time() - self._due
        if late > STILL_S:
            self._start(entry, max(_UNREAD_S, min(late, entry.limit)))
            return
        self._timer = None
        self._on_expired(entry)
