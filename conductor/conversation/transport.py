"""The connection as a session sees it, and the frames and entries that it carries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import msgspec

from conductor.conversation.state import Event
from conductor.events.server import ConversationState
from conductor.settings import Limits

UI_CALLS = ("state", "message", "speak")


@dataclass(slots=True, eq=False)
class Frame:
    """An encoded event for a client.

    ``partial``: a later partial may replace it in the queue. ``written``: it was handed to the socket.
    ``withdrawn`` frames are not sent.
    """

    data: bytes
    partial: bool = False
    written: bool = False
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


@dataclass(slots=True, eq=False)
class Entry:
    """An unacknowledged event.

    ``sent``: to any connection. ``replayed``: sent before the present connection. A speech and the state sent
    just before it (``speaking``) refer to each other: they are replayed together.
    """

    event: Event
    limit_ms: int
    frame: Frame
    sent: bool = False
    replayed: bool = False
    state: Entry | None = None
    speech: Entry | None = None


def limit_ms(event: Event, limits: Limits) -> int:
    """Give the milliseconds within which the client must answer an event."""
    if event.kind == "call":
        return event.limit_ms
    if event.kind == "speak":
        characters = len(msgspec.json.decode(event.payload)["arguments"])
        return round((limits.speech_timeout + characters * limits.speech_seconds_per_char) * 1000)
    return round(limits.ui_timeout * 1000)


def shown_state(event: Event) -> ConversationState:
    """Read the state that an event of the kind ``state`` shows."""
    arguments = msgspec.json.decode(event.payload)["arguments"]
    state: ConversationState = msgspec.json.decode(arguments)["state"]
    return state


def place_of(event_id: str) -> tuple[str, tuple[int, ...]]:
    """Read the claim and the place among its events from an event's id."""
    claim, _, place = event_id.rpartition("_")
    try:
        return claim, tuple(int(number, 16) for number in place.split("."))
    except ValueError:
        return "", ()
