"""Assign events to turns by their order, and end turns by ``turn.ended`` or by their order."""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from conductor.client.connection import ClientError, Event, WaitTimeout, arguments_of, state_of
from conductor.events import server
from conductor.events.client import ToolResultEvent
from conductor.events.server import is_ui_call

_MAX_EVENTS = 10_000
"""Events kept of one turn."""

Ending: TypeAlias = Literal["idle", "followed", "lost"]
"""How a turn ended: ``idle`` in order, ``followed`` because a later transcript replaced it, ``lost`` because
the transcript was not processed, usually after a lost connection."""


@dataclass(slots=True)
class CalledTool:
    """One tool call of the device; ``result`` or ``error`` is set after its answer."""

    call_id: str
    name: str
    arguments: str
    result: str | None = None
    error: str | None = None


@dataclass(slots=True)
class TurnResult:
    """The events that followed one transcript, in order.

    ``finals`` are the final texts, ``text`` is the last of them. ``speeches`` are the texts for the voice.
    ``interrupted``: this client interrupted the turn. ``reason`` is the server's, None from a server without
    the capability ``turns``.
    """

    transcript: str
    ending: Ending = "lost"
    reason: server.EndReason | None = None
    interrupted: bool = False
    finals: list[str] = field(default_factory=list)
    speeches: list[str] = field(default_factory=list)
    partials: list[str] = field(default_factory=list)
    calls: list[CalledTool] = field(default_factory=list)
    errors: list[server.ErrorEvent] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The answer: the last final text; empty if there is none."""
        return self.finals[-1] if self.finals else ""

    @property
    def ok(self) -> bool:
        """Whether there is an answer and no error."""
        return bool(self.finals) and not self.errors


class Turn:
    """One transcript and its events. ``await turn`` waits for its end, at most ``turn_s`` seconds.

    ``stage`` is the server's progress with the transcript: ``waiting``, ``running`` after its return in
    ``convo.appendMessage``, or ``refused``. ``is_recorded`` tells that the server will process it.
    ``requests`` are open approvals.
    """

    def __init__(self, text: str, event_id: str, turn_s: float) -> None:
        self.text, self.event_id, self.turn_s = text, event_id, turn_s
        self.stage: Literal["waiting", "running", "refused"] = "waiting"
        self.is_recorded = False
        self.requests: set[str] = set()
        self.result = TurnResult(text)
        self._end: asyncio.Future[TurnResult] = asyncio.get_running_loop().create_future()

    @property
    def is_done(self) -> bool:
        """Whether the turn has ended."""
        return self._end.done()

    def __await__(self) -> Generator[Any, None, TurnResult]:
        return self.wait().__await__()

    async def wait(self, timeout: float | None = None) -> TurnResult:
        """Wait for the end, at most ``timeout`` seconds (None: ``ClientLimits.turn_s``).

        Raises `WaitTimeout`, and `ConnectionLost` when the client is closed. A lost connection does not end
        a turn: the session continues after a reconnect.
        """
        limit = self.turn_s if timeout is None else timeout
        try:
            async with asyncio.timeout(limit):
                return await asyncio.shield(self._end)
        except TimeoutError:
            raise WaitTimeout(f"The turn did not end within {limit:g} s.") from None

    def note(self, event: Event) -> None:
        """Record an event of the turn."""
        result = self.result
        if len(result.events) >= _MAX_EVENTS:
            return
        result.events.append(event)
        match event:
            case server.SpeechPartial(text):
                result.partials.append(text)
            case server.SpeechFinal(text):
                result.finals.append(text)
                self.requests.clear()  # after a reconnect a request's outcome may follow the answer
            case server.ErrorEvent():
                result.errors.append(event)
                self.requests.clear()
            case server.ApprovalRequest():
                self.requests.add(event.approval_id)
            case server.ApprovalResolved() if event.outcome != "refused":
                self.requests.discard(event.approval_id)
            case server.ToolCallEvent(name="tts.speak"):
                result.speeches.append(str((arguments_of(event) or {}).get("text", "")))
            case server.ToolCallEvent(call_id, name, arguments) if not is_ui_call(name):
                result.calls.append(CalledTool(call_id, name, arguments))

    def end(self, outcome: Ending | ClientError) -> None:
        """End the turn."""
        if isinstance(outcome, ClientError):
            self._end.set_exception(outcome)
            self._end.exception()  # mark it as read
        else:
            self.result.ending = outcome
            self._end.set_result(self.result)


class Turns:
    """The open turns, oldest first.

    ``are_named``: the server has the capability ``turns``, and only its ``turn.ended`` ends a turn that was
    not refused. Else the next ``idle`` ends the running turns.
    """

    def __init__(self) -> None:
        self.open: list[Turn] = []
        self.are_named = False
        self._thinking = False

    def is_open(self, event_id: str | None) -> bool:
        """Whether the turn of a transcript has not ended."""
        return bool(self._of(event_id))

    def are_busy(self, state: str | None) -> bool:
        """Whether a turn does not wait for words; one that runs in the state ``idle`` has asked by voice."""
        return any(turn.stage != "running" or turn.requests or state != "idle" for turn in self.open)

    def mark_interrupted(self) -> None:
        """Mark the open turns as interrupted by this client."""
        for turn in self.open:
            turn.result.interrupted = True

    def mark_recorded(self, event_ids: Collection[str]) -> None:
        """Mark transcripts that the server will process."""
        for turn in self.open:
            turn.is_recorded |= turn.event_id in event_ids

    def lose(self, is_lost: Callable[[Turn], bool]) -> None:
        """End turns that the server will not process."""
        for turn in self.open[:]:
            if is_lost(turn):
                self._end(turn, "lost")

    def close(self, error: ClientError) -> None:
        """End all turns with an error."""
        for turn in self.open:
            turn.end(error)
        self.open.clear()

    def add_result(self, result: ToolResultEvent) -> None:
        """Record a result of the device."""
        for call in (call for turn in self.open for call in turn.result.calls):
            if call.call_id == result.call_id:
                call.result, call.error = result.result, result.error

    def note(self, event: Event) -> None:
        """Record an event with its turn, before it is handled."""
        if isinstance(event, server.EventAck):  # has no turn
            return
        if isinstance(event, server.TurnEnded):
            turns = self._of(event.event_id)
        elif isinstance(event, server.ErrorEvent):
            turns = self._of(event.event_id) or self._running
            if not turns and event.event_id is None and event.call_id is None:
                turns = self.open[:1]
            for turn in turns:
                turn.stage = "refused" if turn.stage == "waiting" else turn.stage
        else:
            if is_thinking := state_of(event) == "thinking":
                self._thinking = True
            if isinstance(event, server.ToolCallEvent) and event.name == "convo.appendMessage":
                self._begin(arguments_of(event) or {})
            turns = self._running or self.open[:is_thinking]
        for turn in turns:
            turn.note(event)

    def settle(self, event: Event) -> None:
        """End the turns that an event ends, after its handlers."""
        if isinstance(event, server.TurnEnded):
            for turn in self._of(event.event_id):
                turn.result.reason = event.reason
                is_replaced = event.reason == "interrupted" and not turn.result.interrupted
                self._end(turn, "followed" if is_replaced else "idle")
        if state_of(event) == "idle":
            self._thinking = False
            for turn in self.open[:]:
                # A turn with a request continues after the answer by voice, for which this idle is.
                is_over = turn.stage == "running" and not self.are_named and not turn.requests
                if turn.stage == "refused" or is_over:
                    self._end(turn, "idle")

    @property
    def _running(self) -> list[Turn]:
        """The running turns: a transcript that answers a question runs in the turn that asked."""
        return [turn for turn in self.open if turn.stage == "running"]

    def _of(self, event_id: str | None) -> list[Turn]:
        return [turn for turn in self.open if turn.event_id == event_id]

    def _begin(self, message: dict[str, Any]) -> None:
        waiting = [turn for turn in self.open if turn.stage == "waiting"]
        if message.get("role") != "user" or message.get("isPartial") or not waiting:
            return
        text = _plain(str(message.get("text", "")))
        same = next((turn for turn in waiting if _plain(turn.text) == text), None)
        # A server may rewrite the text. Without a ``thinking`` before it, it may be a replay.
        turn = waiting[0] if same is None and self._thinking else same
        if turn is not None:
            for running in () if self.are_named else self._running:
                self._end(running, "followed")
            turn.stage = "running"
            self._thinking = False

    def _end(self, turn: Turn, ending: Ending) -> None:
        self.open.remove(turn)
        turn.end(ending)


def _plain(text: str) -> str:
    # Servers may normalise text and white space.
    return " ".join(unicodedata.normalize("NFC", text).split())
