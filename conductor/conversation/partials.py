"""The live text of a reply: the first words at once, then no more often than an interval."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Reply:
    """A reply while it arrives."""

    def __init__(self) -> None:
        self._parts: list[str] = []

    def add(self, text: str) -> None:
        """Add what has just arrived."""
        self._parts.append(text)

    @property
    def text(self) -> str:
        """The text so far."""
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""


class Partials:
    """Shows a growing reply. Cumulative text makes leaving out steps lossless.

    ``send`` gets the text so far; ``interval`` is in seconds.
    """

    def __init__(self, send: Callable[[str], None], interval: float) -> None:
        self._send = send
        self._interval = interval
        self._timer: asyncio.TimerHandle | None = None
        self._next = 0.0
        self._reply: Reply | None = None

    def show(self, reply: Reply) -> None:
        """Show a reply that has grown: now, or when the interval is over."""
        self._reply = reply
        if self._timer is not None:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        if now >= self._next:
            self._flush()
        else:
            self._timer = loop.call_at(self._next, self._flush)

    def stop(self) -> None:
        """Show nothing more of this reply; the next one begins at once."""
        self._reply = None
        self._next = 0.0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _flush(self) -> None:
        self._timer = None
        text = self._reply.text.lstrip() if self._reply is not None else ""
        if text:
            self._next = asyncio.get_running_loop().time() + self._interval
            self._send(text)
