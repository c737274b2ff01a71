"""Who hears of events: callbacks by type, and iterators over everything."""

from __future__ import annotations

import asyncio
import inspect
import logging
import weakref
from collections.abc import AsyncIterator, Callable
from typing import Any, ClassVar, Protocol, TypeAlias

from conductor.client.frames import Event, wire_type
from conductor.client.tasks import finish, where

log = logging.getLogger(__name__)

Callback: TypeAlias = Callable[[Any], Any]
"""Takes an event; may be async, and the next event waits for it then."""


class Typed(Protocol):
    """A class of events, or of news about the connection; ``TYPE`` is its name."""

    TYPE: ClassVar[str]


class EventStream(AsyncIterator[Event]):
    """All events from when it was made, until the client closes.

    It holds at most ``limit`` events: with a reader that is too slow the oldest are lost, and ``missed``
    counts them.
    """

    def __init__(self, limit: int) -> None:
        self.missed = 0
        self._limit = limit
        self._queue: asyncio.Queue[Event | None] = asyncio.Queue()

    def put(self, event: Event | None) -> None:
        """Add an event, or the end."""
        if self._queue.qsize() >= self._limit:
            self._queue.get_nowait()
            self.missed += 1
        self._queue.put_nowait(event)

    async def __anext__(self) -> Event:
        event = await self._queue.get()
        if event is None:
            self._queue.put_nowait(None)  # for the next who asks
            raise StopAsyncIteration
        return event


class Listeners:
    """The callbacks and the streams of one client."""

    def __init__(self, callback_s: float) -> None:
        self._callback_s = callback_s
        self._callbacks: dict[str, list[Callback]] = {}
        self._streams: weakref.WeakSet[EventStream] = weakref.WeakSet()
        self._closed = False

    def on(self, kind: str, callback: Callback) -> None:
        """Call back for every event of a type; ``*`` stands for all types."""
        self._callbacks.setdefault(kind, []).append(callback)

    def stream(self, limit: int) -> EventStream:
        """Make a stream of the events to come."""
        stream = EventStream(limit)
        self._streams.add(stream)
        if self._closed:
            stream.put(None)
        return stream

    async def publish(self, event: Event) -> None:
        """Tell everybody about an event. A callback that fails is logged and harms nobody else."""
        for stream in self._streams:
            stream.put(event)
        await self._call_all(wire_type(event), event)
        await self._call_all("*", event)

    async def tell(self, news: Typed) -> None:
        """Tell those who asked for just this type of news."""
        await self._call_all(news.TYPE, news)

    def close(self) -> None:
        """End the streams."""
        self._closed = True
        for stream in self._streams:
            stream.put(None)

    async def _call_all(self, kind: str, event: object) -> None:
        for callback in self._callbacks.get(kind, ()):
            await finish(asyncio.create_task(self._call(kind, callback, event)))

    async def _call(self, kind: str, callback: Callback, event: object) -> None:
        """Run one callback; the top of its task."""
        try:
            async with asyncio.timeout(self._callback_s):
                value = callback(event)
                if inspect.isawaitable(value):
                    await value
        except Exception as error:
            log.warning("callback for %s failed: %s", kind, where(error))
