"""Dispatch the server's events, in order except where an event must not wait."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

from conductor.client.approvals import Approvals
from conductor.client.calls import SPEAK, Calls
from conductor.client.errors import describe_error
from conductor.client.events import Listeners, Received, ReplayCursor, state_of
from conductor.client.outbox import Outbox
from conductor.client.turns import Turns
from conductor.events.server import (
    ApprovalRequest,
    ApprovalResolved,
    Diagnostic,
    ErrorEvent,
    EventAck,
    SessionPing,
    SessionStarted,
    SpeechPartial,
    ToolCallEvent,
    ToolCancel,
    is_ui_call,
)

log = logging.getLogger(__name__)

# These events are not replayed, so they do not advance the `ReplayCursor`.
_NOT_REPLAYED = (SpeechPartial, SessionPing, SessionStarted, EventAck, Diagnostic)


@dataclass(slots=True)
class EventDispatcher:
    """Gives each event to the turns, listeners, calls and approvals.

    ``state`` is the last ``convo.setState``. ``running`` holds the tasks of concurrent calls (``serial``
    False). ``cursor`` is the position for a resume.
    """

    turns: Turns
    outbox: Outbox
    listeners: Listeners
    calls: Calls
    approvals: Approvals
    serial: bool
    state: str | None = None
    running: set[asyncio.Task[None]] = field(default_factory=set)
    cursor: ReplayCursor = field(default_factory=ReplayCursor)
    _is_blocked: bool = False

    def notice(self, received: Received) -> None:
        """Process the urgent part of an event; called as soon as it is read."""
        match received.event:
            case ToolCallEvent() as call:
                self.calls.record(call)
            case ToolCancel() as cancel:
                self.calls.cancel(cancel)
            case ApprovalRequest() as request:
                self.approvals.record(request, received.connection)
                # `run` waits for a tool or a speech, and would reach this request too late.
                if self._is_blocked:
                    self.approvals.ask()
            case ApprovalResolved() as resolved:
                self.approvals.resolve(resolved)
            case ErrorEvent() as error:
                self.approvals.retry(error)
            case EventAck() as ack:
                self.outbox.acknowledge(ack.event_ids)
            case Diagnostic() as diagnostic:
                log.warning("diagnostic %s: %s", diagnostic.code, diagnostic.message)

    async def run(self, inbox: asyncio.Queue[Received]) -> None:
        """Handle the events in order, until cancelled."""
        while True:
            received = await inbox.get()
            # Too high a position loses events on a resume; too low a position repeats some.
            self.cursor.begin(received.id, counts=not isinstance(received.event, _NOT_REPLAYED))
            is_open = False
            try:
                is_open = await self._handle(received)
            except Exception as error:
                log.error("event handler failed: %s", describe_error(error))
            # Also after a failure: a replayed event would fail again.
            if not is_open:
                self.cursor.end(received.id)

    async def _handle(self, received: Received) -> bool:
        event = received.event
        self.state = state_of(event) or self.state
        for event_id in self.turns.note(event):
            self.outbox.confirm(event_id)
        await self.listeners.publish(event)
        is_open = False
        if isinstance(event, ApprovalRequest):
            self.approvals.ask()
        elif isinstance(event, ToolCallEvent):
            is_open = await self._take_call(event, received)
        # After the handlers: a turn ends when its last call has run, not when its ``idle`` is read.
        self.turns.settle(event, received.connection)
        return is_open

    async def _take_call(self, call: ToolCallEvent, received: Received) -> bool:
        # Returns True for a speech that continues in a task: `ReplayCursor` waits for its end, because a
        # resume lists pending tools but not speeches.
        running = self.calls.answer(call, received.number)
        brief = is_ui_call(call.name) and call.name != SPEAK
        if brief:
            await running
        elif self.serial and not (call.name == SPEAK and self.calls.queues_speeches):
            self._is_blocked = True
            self.approvals.ask()  # approval requests do not wait for a tool or a speech
            try:
                await running
            finally:
                self._is_blocked = False
        else:
            task = asyncio.create_task(running)
            self.running.add(task)
            task.add_done_callback(self.running.discard)
            if call.name == SPEAK:
                task.add_done_callback(lambda _: self.cursor.end(received.id))
                return True
        return False
