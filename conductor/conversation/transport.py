"""What a session needs of the thing that carries its frames to a client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(slots=True, eq=False)
class Frame:
    """Bytes on their way to a client.

    ``partial``: a later partial may take this one's place. ``written`` is set when the socket has it.
    ``withdrawn`` frames are skipped.
    """

    data: bytes
    partial: bool = False
    written: bool = False
    withdrawn: bool = False


class Transport(Protocol):
    """A connection to one client. ``resumes``: its client has the capability ``resume``."""

    resumes: bool

    def send(self, frame: Frame) -> None:
        """Queue a frame; never waits. A queue that is full closes the connection, not the session."""
        ...

    def drop_partials(self) -> None:
        """Forget the partials that were not written yet."""
        ...

    def park(self) -> None:
        """Forget what was not written yet: another connection serves the session now."""
        ...

    def close(self, code: int, reason: str) -> None:
        """Begin to close the connection."""
        ...

    def lose(self, *, stale: bool) -> None:
        """Know the session no more; where it is only ``stale``, bind to it anew."""
        ...
