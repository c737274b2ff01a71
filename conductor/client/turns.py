"""Assign events to turns by their order, and end turns by ``turn.ended`` or by their order."""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from conductor.client.connection import ClientError, Event, WaitTimeout, arguments_of, state_of
from conductor.events.client import ToolResultEvent
from conductor.events.server import (
    ApprovalRequest,
    ApprovalResolved,
    EndReason,
    ErrorEvent,
    EventAck,
    SpeechFinal,
    SpeechPartial,
    ToolCallEvent,
    TurnEnded,
)
from conductor.events.ui_calls import is_ui_call

_MAX_EVENTS = 10_000
"""Events kept of one turn."""

Ending: TypeAlias = Literal["idle", "followed", "lost"]
"""How a turn ended: ``idle`` in order, ``followed`` because a later transcript replaced it, ``lost`` because
the transcript was not processed, usually after a lost connection."""


@dataclass(frozen=True, slots=True)
class CalledTool:
    """One tool call of the device; ``result`` or ``error`` is set after its answer."""

    call_id: str
    name: str
    arguments: str
    result: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class TurnResult:
    """The events that followed one transcript, in order.

    ``finals`` are the final texts, ``text`` is the last of them. ``speeches`` are the texts for the voice.
    ``interrupted``: this client interrupted the turn. ``reason`` is the server's, None from a server without
    the capability ``turns``.
    """

    transcript: str
    ending: Ending
    reason: EndReason | None
    interrupted: bool
    finals: tuple[str, ...]
    speeches: tuple[str, ...]
    partials: tuple[str, ...]
    calls: tuple[CalledTool, ...]
    errors: tuple[ErrorEvent, ...]
    events: tuple[Event, ...]

    @property
    def text(self) -> str:
        """The answer: the last final text; empty if there is none."""
        return self.finals[-1] if self.finals else ""

    @property
    def ok(self) -> bool:
        """Whether there is an answer and no error."""
        return bool(self.finals) and not self.errors


@dataclass(slots=True, eq=False)
class Turn:
    """One transcript and its events. ``await turn`` waits for its end, at most ``turn_s`` seconds.

    ``connection`` is the number of the socket at its start. ``stage`` is the server's progress with the
    transcript, and ``is_recorded`` tells that the server will process it. ``requests`` are open approvals.
    """

    text: str
    event_id: str
    connection: int
    turn_s: float
    interrupted: bool = False
    reason: EndReason | None = None
    stage: Literal["waiting", "running", "refused"] = "waiting"
    is_recorded: bool = False
    requests: set[str] = field(default_factory=set)
    events: list[Event] = field(default_factory=list)
    answers: dict[str, ToolResultEvent] = field(default_factory=dict)
    _ended: asyncio.Event = field(default_factory=asyncio.Event)
    _outcome: TurnResult | ClientError | None = None

    @property
    def is_done(self) -> bool:
        """Whether the turn has ended."""
        return self._ended.is_set()

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
                await self._ended.wait()
        except TimeoutError:
            raise WaitTimeout(f"The turn did not end within {limit:g} s.") from None
        if isinstance(self._outcome, TurnResult):
            return self._outcome
        raise self._outcome or ClientError("The turn was abandoned.")

    def note(self, event: Event) -> None:
        """Record an event of the turn."""
        if isinstance(event, ApprovalRequest):
            self.requests.add(event.approval_id)
        elif isinstance(event, ApprovalResolved) and event.outcome != "refused":
            self.requests.discard(event.approval_id)
        elif isinstance(event, SpeechFinal) or _fails_turn(event):
            # After a reconnect a request's outcome may follow the end of the turn.
            self.requests.clear()
        if len(self.events) < _MAX_EVENTS:
            self.events.append(event)

    def end(self, outcome: Ending | ClientError) -> None:
        """End the turn; the first end counts."""
        if not self.is_done:
            self._outcome = outcome if isinstance(outcome, ClientError) else self._result(outcome)
            self._ended.set()

    def _result(self, ending: Ending) -> TurnResult:
        calls = [event for event in self.events if isinstance(event, ToolCallEvent)]
        tools = [call for call in calls if not is_ui_call(call.name)]
        answers = [self.answers.get(call.call_id) or ToolResultEvent(call.call_id) for call in tools]
        speeches = [arguments_of(call) or {} for call in calls if call.name == "tts.speak"]
        return TurnResult(
            transcript=self.text,
            ending=ending,
            reason=self.reason,
            interrupted=self.interrupted,
            finals=tuple(event.text for event in self.events if isinstance(event, SpeechFinal)),
            speeches=tuple(str(speech.get("text", "")) for speech in speeches),
            partials=tuple(event.text for event in self.events if isinstance(event, SpeechPartial)),
            calls=tuple(
                CalledTool(call.call_id, call.name, call.arguments, answer.result, answer.error)
                for call, answer in zip(tools, answers, strict=True)
            ),
            errors=tuple(event for event in self.events if isinstance(event, ErrorEvent)),
            events=tuple(self.events),
        )


class Turns:
    """The open turns, oldest first.

    A turn is *running* after its transcript has returned in ``convo.appendMessage``, and *refused* after an
    error names it. An earlier ``idle`` belongs to another turn, or follows a resume. ``are_named``: the
    server has the capability ``turns``, and only its ``turn.ended`` ends a turn that was not refused.
    """

    def __init__(self) -> None:
        self.open: list[Turn] = []
        self.are_named = False
        self._thinking = False

    def is_open(self, event_id: str) -> bool:
        """Whether the turn of a transcript has not ended."""
        return bool(self._of(event_id))

    def are_busy(self, state: str | None) -> bool:
        """Whether a turn does not wait for words; one that runs in the state ``idle`` has asked by voice."""
        return any(turn.stage != "running" or turn.requests or state != "idle" for turn in self.open)

    def mark_interrupted(self) -> None:
        """Mark the open turns as interrupted by this client."""
        for turn in self.open:
            turn.interrupted = True

    def mark_recorded(self, event_ids: Collection[str]) -> None:
        """Mark transcripts that the server will process."""
        for turn in self.open:
            turn.is_recorded = turn.is_recorded or turn.event_id in event_ids

    def forget_recorded(self) -> None:
        """End the turns of transcripts that the server had: the session is a new one."""
        for turn in self.open[:]:
            if turn.is_recorded or turn.stage == "running":
                self._end(turn, "lost")

    def expire(self, is_kept: Callable[[str], bool]) -> None:
        """End the turns of transcripts that the server does not have and that will not be sent again."""
        for turn in self.open[:]:
            if turn.stage == "waiting" and not (turn.is_recorded or is_kept(turn.event_id)):
                self._end(turn, "lost")

    def add_result(self, result: ToolResultEvent) -> None:
        """Record a result of the device."""
        for turn in self.open:
            turn.answers[result.call_id] = result

    def note(self, event: Event) -> Turn | None:
        """Record an event with its turn, before it is handled. Return a turn whose transcript it answers."""
        if isinstance(event, EventAck):  # has no turn
            return None
        target = None
        if isinstance(event, ErrorEvent):
            turns = self._about(event)
            target = next((turn for turn in turns if turn.event_id == event.event_id), None)
        elif isinstance(event, TurnEnded):
            turns = self._of(event.event_id)
        else:
            target = self._accept(event)
            turns = self._running
            if not turns and state_of(event) == "thinking":
                turns = self.open[:1]
        for turn in turns:
            turn.note(event)
        return target

    def settle(self, event: Event, connection: int, is_kept: Callable[[str], bool]) -> None:
        """End the turns that an event of a connection ends, after its handlers.

        ``is_kept`` tells whether a transcript will be sent again.
        """
        if isinstance(event, TurnEnded):
            for turn in self._of(event.event_id):
                turn.reason = event.reason
                is_replaced = event.reason == "interrupted" and not turn.interrupted
                self._end(turn, "followed" if is_replaced else "idle")
        if state_of(event) != "idle":
            return
        self._thinking = False
        has_passed = False
        for turn in self.open[::-1]:  # the newest first
            is_expected = turn.is_recorded or is_kept(turn.event_id)
            if self.are_named and turn.stage != "refused":
                continue
            if turn.requests:  # its idle is for the answer by voice
                has_passed = True
            elif turn.stage != "waiting":
                self._end(turn, "idle")
                has_passed = has_passed or turn.stage == "running"
            elif has_passed or (turn.connection < connection and not is_expected):
                # The server processes transcripts in order, so a transcript older than a processed one is
                # lost. A resume without a running turn sends ``idle``: a transcript of an earlier connection
                # is then lost, unless it will be sent again or the server recorded it.
                self._end(turn, "lost")

    def close(self, error: ClientError) -> None:
        """End all turns with an error."""
        for turn in self.open:
            turn.end(error)
        self.open.clear()

    @property
    def _running(self) -> list[Turn]:
        """The running turns: a transcript that answers a question runs in the turn that asked."""
        return [turn for turn in self.open if turn.stage == "running"]

    def _of(self, event_id: str | None) -> list[Turn]:
        return [turn for turn in self.open if turn.event_id == event_id]

    def _accept(self, event: Event) -> Turn | None:
        if state_of(event) == "thinking":
            self._thinking = True
        if not isinstance(event, ToolCallEvent) or event.name != "convo.appendMessage":
            return None
        arguments = arguments_of(event) or {}
        if arguments.get("role") != "user" or arguments.get("isPartial"):
            return None
        waiting = [turn for turn in self.open if turn.stage == "waiting"]
        text = _plain(str(arguments.get("text", "")))
        turn = next((turn for turn in waiting if _plain(turn.text) == text), None)
        # A server may rewrite the text. Without a ``thinking`` before it, it may be a replay.
        if turn is None and waiting and self._thinking:
            turn = waiting[0]
        if turn is not None:
            for running in () if self.are_named else self._running:
                self._end(running, "followed")
            turn.stage = "running"
            self._thinking = False
        return turn

    def _about(self, error: ErrorEvent) -> list[Turn]:
        turns = self._of(error.event_id) or self._running
        if not turns and _fails_turn(error):
            turns = self.open[:1]
        for turn in turns:
            turn.stage = "refused" if turn.stage == "waiting" else turn.stage
        return turns

    def _end(self, turn: Turn, ending: Ending) -> None:
        self.open.remove(turn)
        turn.end(ending)


def _fails_turn(event: Event) -> bool:
    return isinstance(event, ErrorEvent) and event.event_id is None and event.call_id is None


def _plain(text: str) -> str:
    # Servers may normalise text and white space.
    return " ".join(unicodedata.normalize("NFC", text).split())
