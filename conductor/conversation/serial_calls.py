"""The queue of calls that a client handles one at a time: only the first one's time limit runs."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from conductor.conversation.transport import Frame
from conductor.rate_limit import STILL_S
from conductor.stores.base import OutboundRecord

# Minimum seconds after a suspension of the process: answers that arrived in that time must first be read.
_UNREAD_S = 1.0


@dataclass(slots=True, eq=False)
class UnackedEvent:
    """An unacknowledged event. ``limit`` is its time limit in seconds, once it is first in the queue.

    A speech and the ``speaking`` state before it refer to each other: they are replayed together.
    """

    record: OutboundRecord
    limit: float
    frame: Frame = field(init=False)
    replayed: bool = False
    state: UnackedEvent | None = None
    speech: UnackedEvent | None = None

    def __post_init__(self) -> None:
        self.frame = Frame(bytes(self.record.frame))


class SerialCallQueue:
    """Calls in order. ``on_expired`` gets the first one when it times out, and must remove it.

    A timer that fires far too late shows that the process was suspended and has not read the events that
    arrived in that time. The call's time is extended by the delay.
    """

    def __init__(self, on_expired: Callable[[UnackedEvent], None]) -> None:
        self._on_expired = on_expired
        self._entries: OrderedDict[str, UnackedEvent] = OrderedDict()
        self._head: UnackedEvent | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._quiet: asyncio.Event | None = None  # made on demand: an Event is large

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, event_id: str) -> bool:
        return event_id in self._entries

    @property
    def entries(self) -> list[UnackedEvent]:
        return list(self._entries.values())

    async def quiet(self) -> None:
        """Wait until the queue is empty."""
        while self._entries:
            if self._quiet is None:
                self._quiet = asyncio.Event()
            await self._quiet.wait()

    def join(self, entry: UnackedEvent) -> None:
        """Append an entry, unless it is queued."""
        if entry.record.event_id not in self._entries:
            self._entries[entry.record.event_id] = entry
            self.watch()

    def leave(self, entry: UnackedEvent) -> None:
        """Remove an entry, if it is queued."""
        self._entries.pop(entry.record.event_id, None)
        if self._head is entry:
            self.watch()

    def retain(self, keeps: Callable[[str], bool]) -> None:
        """Keep only some entries, by event id; the first one's timer runs until `watch`."""
        self._entries = OrderedDict((key, entry) for key, entry in self._entries.items() if keeps(key))

    def clear(self) -> None:
        """Remove all entries."""
        self._entries.clear()
        self.watch()

    def watch(self) -> None:
        """Start the timer of the entry that is first now."""
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

    def restart(self, entry: UnackedEvent) -> None:
        """Restart an entry's time limit, if it is the first."""
        if self._head is entry and self._timer is not None:
            self._stop()
            self._start(entry, entry.limit)

    def postpone(self, seconds: float) -> None:
        """Extend the first entry's time by ``seconds``, but at most by its limit."""
        if self._head is not None and self._timer is not None:
            remaining = self._due - asyncio.get_running_loop().time()
            self._stop()
            self._start(self._head, max(_UNREAD_S, remaining + min(seconds, self._head.limit)))

    def _start(self, entry: UnackedEvent, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._due = loop.time() + seconds  # uvloop's handles do not tell when they are due
        self._timer = loop.call_later(seconds, self._expire, entry)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self, entry: UnackedEvent) -> None:
        late = asyncio.get_running_loop().time() - self._due
        if late > STILL_S:
            self._start(entry, max(_UNREAD_S, min(late, entry.limit)))
            return
        self._timer = None
        self._on_expired(entry)
