"""The connection as a session sees it, and an event on its way to the client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from conductor.conversation.state import Event


@dataclass(slots=True, eq=False)
class Frame:
    """An encoded event for a client.

    ``partial``: a later partial may replace it in the queue. ``is_written``: it was handed to the socket.
    ``withdrawn`` frames are not sent.
    """

    data: bytes
    partial: bool = False
    is_written: bool = False
    withdrawn: bool = False


class Transport(Protocol):
    """A connection to one client, through a proxy if it ``is_forwarded``.

    Its client may have the capabilities ``resume`` and ``segments``.
    """

    resumes: bool
    segments: bool
    is_forwarded: bool

    def send(self, frame: Frame) -> None:
        """Queue a frame without waiting. A full queue closes the connection, not the session."""

    def drop_partials(self) -> None:
        """Drop the queued partials."""

    def suspend(self) -> None:
        """Drop the queued frames: another connection serves the session."""

    def close(self, code: int, reason: str) -> None:
        """Start closing the connection."""

    def ownership_lost(self, *, stale: bool) -> None:
        """Unbind from the session; if its state is only ``stale``, bind to it again."""


@dataclass(slots=True, eq=False, kw_only=True)
class Entry:
    """An unacknowledged event.

    ``is_sent``: to any connection. ``replayed``: sent before the present connection. ``is_extended``: it got
    more time after a suspension. A speech and the state just before it (``speaking``) are ``partner`` of each
    other: they are replayed together.
    """

    event: Event
    limit_ms: int
    frame: Frame
    is_sent: bool = False
    replayed: bool = False
    partner: Entry | None = None
    is_extended: bool = False

    @property
    def is_written(self) -> bool:
        """Whether it was handed to a socket."""
        return self.frame.is_written
