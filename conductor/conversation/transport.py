"""The connection as a session sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


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
    """A connection to one client; its client may have the capabilities ``resume`` and ``segments``."""

    resumes: bool
    segments: bool

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
