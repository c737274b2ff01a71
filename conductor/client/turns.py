"""Which turn an event belongs to, and which turns it ends: no event says so, the order does."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from conductor.client.errors import ClientError
from conductor.client.frames import Event, arguments_of, state_of
from conductor.client.turn import Ending, Turn
from conductor.events.client import ToolResultEvent
from conductor.events.server import ErrorEvent, EventAck, ToolCallEvent


class Turns:
    """The turns under way, oldest first.

    A turn is *running* from when its transcript comes back by ``convo.appendMessage``, and *refused* when an
    error names it instead. Before that an ``idle`` is not its own: it ends an earlier turn, or is the fresh
    one after a resume.
    """

    def __init__(self) -> None:
        self._open: list[Turn] = []
        self._thinking = False

    @property
    def running(self) -> bool:
        """Whether a turn is under way."""
        return bool(self._open)

    def add(self, turn: Turn) -> None:
        """Begin to follow a turn; before its transcript is sent."""
        self._open.append(turn)

    def remove(self, turn: Turn) -> None:
        """Forget a turn whose transcript could not be sent."""
        self._open.remove(turn)

    def interrupted(self) -> None:
        """Note that this client interrupted."""
        for turn in self._open:
            turn.interrupted = True

    def answered(self, result: ToolResultEvent) -> None:
        """Note what the device answered."""
        for turn in self._open:
            turn.answered(result)

    def note(self, event: Event) -> Sequence[str]:
        """Give an event to the turn that it belongs to, before anything is done about it.

        Returns the ids of the transcripts that it answers, so that the server is known to have taken them.
        """
        answered: list[str] = []
        if isinstance(event, EventAck):  # about what was sent, in whatever turn
            return answered
        if isinstance(event, ErrorEvent):
            turn = self._about(event)
            if turn is not None and turn.event_id == event.event_id:
                answered.append(turn.event_id)
        else:
            begun = self._accept(event)
            if begun is not None:
                answered.append(begun.event_id)
            turn = self._current()
            if turn is None and self._open and state_of(event) == "thinking":
                turn = self._open[0]
        if turn is not None:
            turn.note(event)
        return answered

    def forgotten(self) -> None:
        """Note that the session is a new one now: what the server had recorded is gone."""
        for turn in self._open:
            turn.recorded = False

    def settle(self, event: Event, connection: int) -> None:
        """End the turns that an event ends, after all was done about it."""
        if state_of(event) != "idle":
            return
        self._thinking = False
        passed = False
        for turn in reversed(list(self._open)):  # the newest first
            if turn.asking:
                passed = True
            elif turn.stage != "waiting":
                self._end(turn, "idle")
                passed = passed or turn.stage == "running"
            elif passed or (turn.connection < connection and not (turn.held or turn.recorded)):
                # Transcripts are taken up in order, so one that was passed over will not be. And "a resume
                # with no turn running sends a fresh idle": the transcript went with its socket, unless it
                # is sent again, or was recorded and waits for its turn.
                self._end(turn, "lost")

    def close(self, error: ClientError) -> None:
        """End all turns by an error: the client is closed."""
        for turn in self._open:
            turn.end(error)
        self._open.clear()

    def _current(self) -> Turn | None:
        return next((turn for turn in self._open if turn.stage == "running"), None)

    def _accept(self, event: Event) -> Turn | None:
        """Give the turn that an event begins, if it begins one."""
        if state_of(event) == "thinking":
            self._thinking = True
        if not isinstance(event, ToolCallEvent) or event.name != "convo.appendMessage":
            return None
        arguments = arguments_of(event)
        if arguments.get("role") != "user" or arguments.get("isPartial"):
            return None
        waiting = [turn for turn in self._open if turn.stage == "waiting"]
        text = _plain(str(arguments.get("text", "")))
        begun = next((turn for turn in waiting if _plain(turn.text) == text), None)
        # A server may have rewritten the text. After `thinking` it is a new turn's all the same; without, it
        # may be the replay of an older turn's.
        if begun is None and waiting and self._thinking:
            begun = waiting[0]
        if begun is None:
            return None
        before = self._current()
        if before is not None:
            self._end(before, "followed")
        begun.stage = "running"
        self._thinking = False
        return begun

    def _about(self, error: ErrorEvent) -> Turn | None:
        """Find the turn that an error is about; one that it refuses changes its stage."""
        turn = next((turn for turn in self._open if turn.event_id == error.event_id), None)
        if turn is None:
            turn = self._current()
        if turn is None and error.event_id is None and error.call_id is None:
            turn = next(iter(self._open), None)
        if turn is not None and turn.stage == "waiting":
            turn.stage = "refused"
        return turn

    def _end(self, turn: Turn, ending: Ending) -> None:
        self._open.remove(turn)
        turn.end(ending)


def _plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).split())
