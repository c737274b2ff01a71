"""The connection as a session sees it, and the unacknowledged events with the facts about each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import msgspec

from conductor.conversation.state import Event
from conductor.conversation.view import View
from conductor.events.server import ConversationState


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


UI_CALLS = ("state", "message", "speak")


# -- unacknowledged events


@dataclass(slots=True, eq=False)
class Entry:
    """An unacknowledged event.

    ``is_sent``: to any connection. ``replayed``: sent before the present connection. A speech and the state
    just before it (``speaking``) refer to each other: they are replayed together.
    """

    event: Event
    limit_ms: int
    frame: Frame
    is_sent: bool = False
    replayed: bool = False
    state: Entry | None = None
    speech: Entry | None = None


class Entries:
    """The events by id and by call; ``acked`` are the ids for the next commit.

    Calls without an answer are in a line. The backlog waits for the end of a speech.
    """

    def __init__(self, view: View) -> None:
        self.acked: list[str] = []
        self._view = view
        self._limits = view.rules.limits
        self._entries: dict[str, Entry] = {}
        self._by_call: dict[str, Entry] = {}
        self._line: dict[str, Entry] = {}
        self._backlog: list[Entry | Frame] = []
        self._speaking: Entry | None = None
        self._last_state: Event | None = None

    @property
    def speaking(self) -> bool:
        """Whether a speech is being played."""
        return self._speaking is not None

    @property
    def outstanding(self) -> bool:
        """Whether the client owes an answer, or events are held."""
        return bool(self._line or self._backlog)

    @property
    def replayed_speeches(self) -> list[str]:
        """The speeches of a replay, in their order."""
        speeches = (entry for entry in self._entries.values() if entry.event.kind == "speak")
        return [entry.event.call_id for entry in speeches if not self._is_stale(entry)]

    @property
    def unconfirmed(self) -> bool:
        """Whether the client may have handled UI calls that are about to be replayed."""
        return any(entry.is_sent and entry.event.kind in UI_CALLS for entry in self._entries.values())

    @property
    def last_state(self) -> ConversationState:
        """The last state that was shown, or is held."""
        if self._last_state is None:
            return "thinking"
        arguments = msgspec.json.decode(self._last_state.payload)["arguments"]
        state: ConversationState = msgspec.json.decode(arguments)["state"]
        return state

    def was_sent(self, call_id: str) -> bool:
        """Tell whether a call was ever written to a socket: one that is not outstanding was."""
        entry = self._by_call.get(call_id)
        return entry is None or entry.frame.is_written

    def is_ui_call(self, call_id: str) -> bool:
        """Tell whether it is an unanswered UI call."""
        entry = self._by_call.get(call_id)
        return entry is not None and entry.event.kind in UI_CALLS

    def is_outstanding(self, call_id: str) -> bool:
        """Tell whether a call has not been answered."""
        return call_id in self._by_call

    def has_had(self, event_id: str) -> bool:
        """Tell whether an event was written or acknowledged."""
        entry = self._entries.get(event_id)
        return entry.frame.is_written if entry is not None else event_id in self.acked

    def _is_stale(self, entry: Entry) -> bool:
        return self._view.now() - entry.event.at >= self._limits.stale_speech * 1000


def place_of(event_id: str) -> tuple[str, tuple[int, ...]]:
    """Read the claim and the place among its events from an event's id."""
    claim, _, numbers = event_id.rpartition("_")
    try:
        return claim, tuple(int(number, 16) for number in numbers.split("."))
    except ValueError:
        return "", ()
