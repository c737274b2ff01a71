"""A turn as the client sees it: what was said, and what came until the server said ``idle``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from conductor.client.errors import ClientError, WaitTimeout
from conductor.client.frames import Event, arguments_of
from conductor.events.client import ToolResultEvent
from conductor.events.server import (
    ApprovalRequest,
    ApprovalResolved,
    ErrorEvent,
    SpeechFinal,
    SpeechPartial,
    ToolCallEvent,
    is_ui_call,
)

E = TypeVar("E", bound=msgspec.Struct)
MAX_EVENTS = 10_000

Ending: TypeAlias = Literal["idle", "followed", "lost"]
"""How a turn ended: by its ``idle``; because the next one began at once, where the server leaves the idle
between out; or because the transcript was never taken up, lost with the connection as a rule."""


@dataclass(frozen=True, slots=True)
class CalledTool:
    """One tool that the device was asked for. ``result`` and ``error`` are what was answered, if it was."""

    call_id: str
    name: str
    arguments: str
    result: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class TurnResult:
    """All that came of one transcript, in the order in which it came.

    ``finals`` are the finished messages (words beside tool calls come first), ``text`` is the last of them.
    ``spoken`` are the texts that were given to the voice. ``interrupted`` says whether this client
    interrupted while the turn was open.
    """

    said: str
    ending: Ending
    interrupted: bool
    finals: tuple[str, ...]
    spoken: tuple[str, ...]
    partials: tuple[str, ...]
    calls: tuple[CalledTool, ...]
    errors: tuple[ErrorEvent, ...]
    events: tuple[Event, ...]

    @property
    def text(self) -> str:
        """The answer: the last final text, or nothing."""
        return self.finals[-1] if self.finals else ""

    @property
    def ok(self) -> bool:
        """Whether there was an answer and no error."""
        return bool(self.finals) and not self.errors


class Turn:
    """One transcript under way. ``await turn`` waits for its end, ``turn.wait(timeout)`` as long as told."""

    def __init__(self, text: str, event_id: str, connection: int, turn_s: float) -> None:
        self.text = text
        self.event_id = event_id
        self.connection = connection
        self.interrupted = False
        self.stage: Literal["waiting", "running", "refused"] = "waiting"
        """What the server has made of the transcript so far, as `Turns` sees it."""
        self.held = False
        """Whether the transcript is kept, to be sent again on the next connection, as the outbox sees it."""
        self.recorded = False
        """Whether the server has said that the transcript is recorded: it will be taken up."""
        self._asked: set[str] = set()
        self._resolved: set[str] = set()
        self._turn_s = turn_s
        self._events: list[Event] = []
        self._answers: dict[str, ToolResultEvent] = {}
        self._watchers: list[tuple[Callable[[Event], bool], asyncio.Future[Event | None]]] = []
        self._ended = asyncio.Event()
        self._outcome: TurnResult | ClientError | None = None

    @property
    def asking(self) -> bool:
        """Whether a question stands that this turn asked: an ``idle`` opens the microphone for its answer."""
        return not self._asked <= self._resolved

    @property
    def done(self) -> bool:
        """Whether the turn has ended."""
        return self._ended.is_set()

    def __await__(self) -> Generator[Any, None, TurnResult]:
        return self.wait().__await__()

    async def wait(self, timeout: float | None = None) -> TurnResult:
        """Wait for the end, at most ``timeout`` seconds (None: ``ClientLimits.turn_s``).

        Raises `WaitTimeout`, and `ConnectionLost` once the client was closed. A lost connection alone does
        not end a turn: the session lives on, and a reconnect brings the rest.
        """
        limit = self._turn_s if timeout is None else timeout
        try:
            async with asyncio.timeout(limit):
                await self._ended.wait()
        except TimeoutError:
            raise WaitTimeout(f"The turn did not end within {limit:g} s.") from None
        if isinstance(self._outcome, TurnResult):
            return self._outcome
        raise self._outcome or ClientError("The turn was left.")

    async def until(
        self, kind: type[E], timeout: float, where: Callable[[E], bool] = lambda _event: True
    ) -> E:
        """Give the turn's first event of a class, for which ``where`` holds, waiting for it if need be.

        Raises `WaitTimeout`, and `ClientError` if the turn ended without one.
        """

        def fits(event: Event) -> bool:
            return isinstance(event, kind) and where(event)

        found: Event | None = next(filter(fits, self._events), None)
        if found is None and not self.done:
            future: asyncio.Future[Event | None] = asyncio.get_running_loop().create_future()
            self._watchers.append((fits, future))
            try:
                async with asyncio.timeout(timeout):
                    found = await future
            except TimeoutError:
                raise WaitTimeout(f"No {kind.__name__} within {timeout:g} s.") from None
        if not isinstance(found, kind):
            raise ClientError(f"The turn ended without a {kind.__name__}.")
        return found

    def note(self, event: Event) -> None:
        """Record one of the turn's events."""
        if isinstance(event, ApprovalRequest):
            self._asked.add(event.approval_id)
        elif isinstance(event, ApprovalResolved) and event.outcome != "refused":
            self._resolved.add(event.approval_id)
        if len(self._events) < MAX_EVENTS:
            self._events.append(event)
        for fits, future in self._watchers:
            if not future.done() and fits(event):
                future.set_result(event)
        self._watchers = [watcher for watcher in self._watchers if not watcher[1].done()]

    def answered(self, result: ToolResultEvent) -> None:
        """Record what the device answered."""
        self._answers[result.call_id] = result

    def end(self, outcome: Ending | ClientError) -> None:
        """End the turn; the first end counts."""
        if self.done:
            return
        self._outcome = outcome if isinstance(outcome, ClientError) else self._result(outcome)
        self._ended.set()
        for _, future in self._watchers:
            if not future.done():
                future.set_result(None)

    def _result(self, ending: Ending) -> TurnResult:
        events = self._events
        return TurnResult(
            said=self.text,
            ending=ending,
            interrupted=self.interrupted,
            finals=tuple(event.text for event in events if isinstance(event, SpeechFinal)),
            spoken=tuple(_texts(events, "tts.speak")),
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
