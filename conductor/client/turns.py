"""Assign events to turns by their order, because no event names its turn, and end turns."""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from conductor.client.errors import ClientError, WaitTimeout
from conductor.client.events import Event, arguments_of, state_of
from conductor.events.client import ToolResultEvent
from conductor.events.server import (
    ApprovalRequest,
    ApprovalResolved,
    ErrorEvent,
    EventAck,
    SpeechFinal,
    SpeechPartial,
    ToolCallEvent,
    is_ui_call,
)

E = TypeVar("E", bound=msgspec.Struct)
# Events kept of one turn.
MAX_EVENTS = 10_000

Ending: TypeAlias = Literal["idle", "followed", "lost"]
"""How a turn ended: ``idle`` by that state, ``followed`` by the next turn without an ``idle``, ``lost``
because the transcript was not processed, usually after a lost connection."""


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
    ``interrupted``: this client interrupted the turn.
    """

    transcript: str
    ending: Ending
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


class Turn:
    """One transcript and its events. ``await turn`` waits for its end, at most ``turn_s`` seconds."""

    def __init__(self, text: str, event_id: str, connection: int, turn_s: float) -> None:
        self.text = text
        self.event_id = event_id
        self.connection = connection
        self.interrupted = False
        # The server's progress with the transcript; set by `Turns`.
        self.stage: Literal["waiting", "running", "refused"] = "waiting"
        # Whether the outbox keeps the transcript for the next connection.
        self.is_kept = False
        # Whether the server confirmed the transcript by ``event.ack``: it will be processed.
        self.is_recorded = False
        self._open_requests: set[str] = set()
        self._turn_s = turn_s
        self._events: list[Event] = []
        self._answers: dict[str, ToolResultEvent] = {}
        self._watchers: list[tuple[Callable[[Event], bool], asyncio.Future[Event | None]]] = []
        self._ended = asyncio.Event()
        self._outcome: TurnResult | ClientError | None = None

    @property
    def asking(self) -> bool:
        """Whether an approval request is open: the turn's ``idle`` is then for the answer by voice."""
        return bool(self._open_requests)

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
        limit = self._turn_s if timeout is None else timeout
        try:
            async with asyncio.timeout(limit):
                await self._ended.wait()
        except TimeoutError:
            raise WaitTimeout(f"The turn did not end within {limit:g} s.") from None
        if isinstance(self._outcome, TurnResult):
            return self._outcome
        raise self._outcome or ClientError("The turn was abandoned.")

    async def until(
        self, kind: type[E], timeout: float, matches: Callable[[E], bool] = lambda _event: True
    ) -> E:
        """Wait for the turn's first event of class ``kind`` that ``matches``.

        Raises `WaitTimeout`, and `ClientError` if the turn ended without such an event.
        """

        def fits(event: Event) -> bool:
            return isinstance(event, kind) and matches(event)

        event: Event | None = next(filter(fits, self._events), None)
        if event is None and not self.is_done:
            future: asyncio.Future[Event | None] = asyncio.get_running_loop().create_future()
            self._watchers.append((fits, future))
            try:
                async with asyncio.timeout(timeout):
                    event = await future
            except TimeoutError:
                raise WaitTimeout(f"No {kind.__name__} within {timeout:g} s.") from None
        if not isinstance(event, kind):
            raise ClientError(f"The turn ended without a {kind.__name__}.")
        return event

    def note(self, event: Event) -> None:
        """Record an event of the turn."""
        if isinstance(event, ApprovalRequest):
            self._open_requests.add(event.approval_id)
        elif isinstance(event, ApprovalResolved) and event.outcome != "refused":
            self._open_requests.discard(event.approval_id)
        elif isinstance(event, SpeechFinal) or _fails_turn(event):
            # After a reconnect a request's outcome may follow the end of the turn.
            self._open_requests.clear()
        if len(self._events) < MAX_EVENTS:
            self._events.append(event)
        for fits, future in self._watchers:
            if not future.done() and fits(event):
                future.set_result(event)
        self._watchers = [watcher for watcher in self._watchers if not watcher[1].done()]

    def add_result(self, result: ToolResultEvent) -> None:
        """Record a result of the device."""
        self._answers[result.call_id] = result

    def end(self, outcome: Ending | ClientError) -> None:
        """End the turn; the first end counts."""
        if self.is_done:
            return
        self._outcome = outcome if isinstance(outcome, ClientError) else self._result(outcome)
        self._ended.set()
        for _, future in self._watchers:
            if not future.done():
                future.set_result(None)

    def _result(self, ending: Ending) -> TurnResult:
        events = self._events
        return TurnResult(
            transcript=self.text,
            ending=ending,
            interrupted=self.interrupted,
            finals=tuple(event.text for event in events if isinstance(event, SpeechFinal)),
            speeches=tuple(_texts(events, "tts.speak")),
            partials=tuple(event.text for event in events if isinstance(event, SpeechPartial)),
            calls=tuple(_runs(events, self._answers)),
            errors=tuple(event for event in events if isinstance(event, ErrorEvent)),
            events=tuple(events),
        )


def _texts(events: Iterable[Event], name: str) -> Iterable[str]:
    for event in events:
        if isinstance(event, ToolCallEvent) and event.name == name:
            yield str(arguments_of(event).get("text", ""))


def _runs(events: Iterable[Event], answers: Mapping[str, ToolResultEvent]) -> Iterable[CalledTool]:
    for event in events:
        if isinstance(event, ToolCallEvent) and not is_ui_call(event.name):
            answer = answers.get(event.call_id) or ToolResultEvent(event.call_id)
            yield CalledTool(event.call_id, event.name, event.arguments, answer.result, answer.error)


class Turns:
    """The open turns, oldest first.

    A turn is *running* after its transcript has returned in ``convo.appendMessage``, and *refused* after an
    error names it. An earlier ``idle`` belongs to another turn, or follows a resume.
    """

    def __init__(self) -> None:
        self._open: list[Turn] = []
        self._thinking = False

    @property
    def running(self) -> bool:
        """Whether a turn is running."""
        return bool(self._open)

    def add(self, turn: Turn) -> None:
        """Add a turn, before its transcript is sent."""
        self._open.append(turn)

    def remove(self, turn: Turn) -> None:
        """Remove a turn whose transcript could not be sent."""
        self._open.remove(turn)

    def mark_interrupted(self) -> None:
        """Mark the open turns as interrupted by this client."""
        for turn in self._open:
            turn.interrupted = True

    def add_result(self, result: ToolResultEvent) -> None:
        """Record a result of the device."""
        for turn in self._open:
            turn.add_result(result)

    def note(self, event: Event) -> Sequence[str]:
        """Record an event with its turn, before it is handled.

        Returns the ids of the transcripts that the event confirms.
        """
        confirmed: list[str] = []
        if isinstance(event, EventAck):  # has no turn
            return confirmed
        if isinstance(event, ErrorEvent):
            turn = self._about(event)
            if turn is not None and turn.event_id == event.event_id:
                confirmed.append(turn.event_id)
        else:
            started = self._accept(event)
            if started is not None:
                confirmed.append(started.event_id)
            turn = self._current()
            if turn is None and self._open and state_of(event) == "thinking":
                turn = self._open[0]
        if turn is not None:
            turn.note(event)
        return confirmed

    def forget_recorded(self) -> None:
        """Mark no transcript as recorded, because the session is a new one."""
        for turn in self._open:
            turn.is_recorded = False

    def settle(self, event: Event, connection: int) -> None:
        """End the turns that an event ends, after its handlers."""
        if state_of(event) != "idle":
            return
        self._thinking = False
        has_passed = False
        for turn in reversed(list(self._open)):  # the newest first
            if turn.asking:
                has_passed = True
            elif turn.stage != "waiting":
                self._end(turn, "idle")
                has_passed = has_passed or turn.stage == "running"
            elif has_passed or (turn.connection < connection and not (turn.is_kept or turn.is_recorded)):
                # The server processes transcripts in order, so a transcript older than a processed one is
                # lost. A resume without a running turn sends ``idle``: a transcript of an earlier connection
                # is then lost, unless the outbox keeps it or the server recorded it.
                self._end(turn, "lost")

    def close(self, error: ClientError) -> None:
        """End all turns with an error."""
        for turn in self._open:
            turn.end(error)
        self._open.clear()

    def _current(self) -> Turn | None:
        return next((turn for turn in self._open if turn.stage == "running"), None)

    def _accept(self, event: Event) -> Turn | None:
        if state_of(event) == "thinking":
            self._thinking = True
        if not isinstance(event, ToolCallEvent) or event.name != "convo.appendMessage":
            return None
        arguments = arguments_of(event)
        if arguments.get("role") != "user" or arguments.get("isPartial"):
            return None
        waiting = [turn for turn in self._open if turn.stage == "waiting"]
        text = _plain(str(arguments.get("text", "")))
        started = next((turn for turn in waiting if _plain(turn.text) == text), None)
        # A server may rewrite the text. Without a ``thinking`` before it, it may be a replay.
        if started is None and waiting and self._thinking:
            started = waiting[0]
        if started is None:
            return None
        running = self._current()
        if running is not None:
            self._end(running, "followed")
        started.stage = "running"
        self._thinking = False
        return started

    def _about(self, error: ErrorEvent) -> Turn | None:
        turn = next((turn for turn in self._open if turn.event_id == error.event_id), None)
        if turn is None:
            turn = self._current()
        if turn is None and _fails_turn(error):
            turn = next(iter(self._open), None)
        if turn is not None and turn.stage == "waiting":
            turn.stage = "refused"
        return turn

    def _end(self, turn: Turn, ending: Ending) -> None:
        self._open.remove(turn)
        turn.end(ending)


def _fails_turn(event: Event) -> bool:
    return isinstance(event, ErrorEvent) and event.event_id is None and event.call_id is None


def _plain(text: str) -> str:
    # Servers may normalise text and white space.
    return " ".join(unicodedata.normalize("NFC", text).split())
