"""Assign events to turns by their order, and end turns by ``turn.ended`` or by their order."""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Literal, TypeAlias

from conductor.client.calls import ToolRun
from conductor.client.connection import ClientError, ReceivedEvent, WaitTimeout, arguments_of, state_of
from conductor.events import server

Ending: TypeAlias = Literal["idle", "followed", "lost"]
"""How a turn ended: ``idle`` in order, ``followed`` because a later transcript replaced it, ``lost`` because
the transcript was not processed, usually after a lost connection."""

Stage: TypeAlias = Literal["waiting", "recorded", "running", "refused"]
"""The server's progress with a transcript; ``running`` after its return in ``convo.appendMessage``."""


@dataclass(slots=True, eq=False)
class Turn:
    """One transcript, and the events that followed it. ``await turn`` waits for its end, at most ``limit_s``.

    ``finals`` are the final texts, ``speeches`` the texts for the voice, ``calls`` the calls of the device's
    tools, ``requests`` the open approvals. ``interrupted``: this client interrupted the turn. ``reason`` is
    the server's, None from a server without the capability ``turns``.
    """

    transcript: str
    event_id: str
    limit_s: float
    stage: Stage = "waiting"
    ending: Ending | None = None
    reason: server.EndReason | None = None
    interrupted: bool = False
    finals: list[str] = field(default_factory=list)
    speeches: list[str] = field(default_factory=list)
    partials: list[str] = field(default_factory=list)
    calls: list[ToolRun] = field(default_factory=list)
    errors: list[server.ErrorEvent] = field(default_factory=list)
    events: list[ReceivedEvent] = field(default_factory=list)
    requests: set[str] = field(default_factory=set)
    end: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def text(self) -> str:
        """The answer: the last final text, or an empty one."""
        return self.finals[-1] if self.finals else ""

    @property
    def ok(self) -> bool:
        """Whether there is an answer and no error."""
        return bool(self.finals) and not self.errors

    @property
    def is_done(self) -> bool:
        """Whether the turn has ended."""
        return self.end.done()

    def __await__(self) -> Generator[Any, None, Turn]:
        return self.wait().__await__()

    async def wait(self, timeout: float | None = None) -> Turn:
        """Wait for the end, at most ``timeout`` seconds (None: ``ClientLimits.turn_s``); return the turn.

        Raises `WaitTimeout`, and `ConnectionLost` when the client is closed. A lost connection does not end
        a turn: the session continues after a reconnect.
        """
        limit = self.limit_s if timeout is None else timeout
        try:
            async with asyncio.timeout(limit):
                await asyncio.shield(self.end)
        except TimeoutError:
            raise WaitTimeout(f"The turn did not end within {limit:g} s.") from None
        return self

    def note(self, event: ReceivedEvent, run: ToolRun | None) -> None:
        """Record an event of the turn; ``run`` is the tool call that it starts."""
        self.events.append(event)
        match event:
            case server.SpeechPartial(text):
                self.partials.append(text)
            case server.SpeechFinal(text):
                self.finals.append(text)
                self.requests.clear()  # after a reconnect a request's outcome may follow the answer
            case server.ErrorEvent():
                self.errors.append(event)
                self.requests.clear()
                self.stage = self.stage if self.stage == "running" else "refused"
            case server.ApprovalRequest():
                self.requests.add(event.approval_id)
            case server.ApprovalResolved() if event.outcome != "refused":
                self.requests.discard(event.approval_id)
            case server.ToolCallEvent(name="tts.speak"):
                self.speeches.append(str((arguments_of(event) or {}).get("text", "")))
            case server.ToolCallEvent() if run is not None:
                self.calls.append(run)
            case server.TurnEndedEvent():
                self.reason = event.reason


class Turns:
    """The open turns, oldest first. ``discard`` drops a transcript: it need not be sent again.

    ``are_named``: the server has the capability ``turns``, and only its ``turn.ended`` ends a turn that was
    not refused. Else the next ``idle`` ends the running turns.
    """

    def __init__(self, discard: Callable[[str], None]) -> None:
        self.open: list[Turn] = []
        self.are_named = False
        self._discard = discard
        self._thinking = False

    def of(self, *event_ids: str | None) -> list[Turn]:
        """List the open turns of transcripts."""
        return [turn for turn in self.open if turn.event_id in event_ids]

    def at(self, *stages: Stage) -> list[Turn]:
        """List the open turns at these stages."""
        return [turn for turn in self.open if turn.stage in stages]

    def are_busy(self, state: str | None) -> bool:
        """Whether a turn does not wait for words; one that runs in the state ``idle`` has asked by voice."""
        return any(turn.stage != "running" or turn.requests or state != "idle" for turn in self.open)

    def end(self, turns: Sequence[Turn], ending: Ending | ClientError) -> None:
        """End open turns, with a result or an error."""
        for turn in turns:
            self.open.remove(turn)
            self._discard(turn.event_id)
            if isinstance(ending, ClientError):
                turn.end.set_exception(ending)
                turn.end.exception()  # mark it as read
            else:
                turn.ending = ending
                turn.end.set_result(None)

    def note(self, event: ReceivedEvent, run: ToolRun | None = None) -> None:
        """Record an event with its turn, before it is handled; ``run`` is the tool call that it starts."""
        is_thinking = state_of(event) == "thinking"
        self._thinking |= is_thinking
        if isinstance(event, server.ToolCallEvent) and event.name == "convo.appendMessage":
            self._begin(arguments_of(event) or {})
        turns = self.at("running") or self.open[:is_thinking]
        match event:
            case server.EventAck():
                turns = []
            case server.TurnEndedEvent(event_id=event_id):
                turns = self.of(event_id)
            case server.ErrorEvent(event_id=event_id, call_id=call_id):
                is_general = event_id is None and call_id is None
                turns = self.of(event_id) or turns or self.open[:is_general]
        for turn in turns:
            turn.note(event, run)

    def settle(self, event: ReceivedEvent) -> None:
        """End the turns that an event ends, after its handlers."""
        if isinstance(event, server.TurnEndedEvent):
            for turn in self.of(event.event_id):
                is_replaced = event.reason == "interrupted" and not turn.interrupted
                self.end([turn], "followed" if is_replaced else "idle")
        elif state_of(event) == "idle":
            self._thinking = False
            # A turn with a request continues after the answer by voice, for which this idle is.
            running = [] if self.are_named else [t for t in self.at("running") if not t.requests]
            self.end(running + self.at("refused"), "idle")

    def _begin(self, message: dict[str, Any]) -> None:
        waiting = self.at("waiting", "recorded")
        if message.get("role") != "user" or message.get("isPartial"):
            return
        text = _plain(str(message.get("text", "")))
        same = next((turn for turn in waiting if _plain(turn.transcript) == text), None)
        # A server may rewrite the text. Without a ``thinking`` before it, it may be a replay.
        begun = [same] if same is not None else _halves(waiting, text)
        is_known = bool(begun)
        if not begun and self._thinking:
            begun = waiting[:1]
        if not begun:
            return
        if not self.are_named:
            self.end(waiting[: waiting.index(begun[0])], "lost")  # the server skipped them
            self.end(self.at("running"), "followed")
        for turn in begun:
            turn.stage = "running"
            if is_known and self._thinking:  # a replay may have the same words
                self._discard(turn.event_id)
        self._thinking = False


def _halves(turns: Sequence[Turn], text: str) -> list[Turn]:
    """Find the turns in a row whose transcripts are together a text: the halves of one sentence."""
    for first, end in combinations(range(len(turns) + 1), 2):
        if " ".join(_plain(turn.transcript) for turn in turns[first:end]) == text:
            return list(turns[first:end])
    return []


def _plain(text: str) -> str:
    # Servers may normalise text and white space.
    return " ".join(unicodedata.normalize("NFC", text).split())
