"""Dispatch the server's events: in order, except for those that must not wait for earlier ones."""

from __future__ import annotations

import asyncio
import logging

from conductor.client.approvals import Approvals
from conductor.client.calls import SPEAK, Calls
from conductor.client.events import Listeners, Received, ReplayCursor, state_of
from conductor.client.outbox import Outbox
from conductor.client.tasks import where
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


# Events that no replay repeats: they do not advance the `ReplayCursor`.
_PASSING = (SpeechPartial, SessionPing, SessionStarted, EventAck, Diagnostic)


class EventDispatcher:
    """Gives each event to the turns, listeners, calls and approvals.

    ``state`` is the last ``convo.setState``; ``answering`` are the tasks of calls that run beside the events,
    without ``serial``; ``handled`` is the position for a resume.
    """

    def __init__(
        self,
        turns: Turns,
        outbox: Outbox,
        listeners: Listeners,
        calls: Calls,
        approvals: Approvals,
        *,
        serial: bool,
    ) -> None:
        self.state: str | None = None
        self.answering: set[asyncio.Task[None]] = set()
        self.handled = ReplayCursor()
        self._turns = turns
        self._outbox = outbox
        self._listeners = listeners
        self._calls = calls
        self._approvals = approvals
        self._serial = serial
        self._occupied = False

    def notice(self, received: Received) -> None:
        """Process what must not wait for the events before it; called as soon as an event is read."""
        match received.event:
            case ToolCallEvent() as call:
                self._calls.arrived(call)
            case ToolCancel() as cancel:
                self._calls.cancel(cancel)
            case ApprovalRequest() as request:
                self._approvals.arrived(request, received.connection)
                # `run` waits for a tool or a speech, and would come to this request only afterwards.
                if self._occupied:
                    self._approvals.ask()
            case ApprovalResolved() as resolved:
                self._approvals.resolved(resolved)
            case ErrorEvent() as error:
                self._approvals.failed(error)
            case EventAck() as ack:
                self._outbox.acknowledge(ack.event_ids)
            case Diagnostic() as diagnostic:
                log.warning("diagnostic %s: %s", diagnostic.code, diagnostic.message)

    async def run(self, inbox: asyncio.Queue[Received]) -> None:
        """Handle the events in order, until cancelled."""
        while True:
            received = await inbox.get()
            # A position that is ahead of what was handled loses events on a resume; one behind repeats some.
            self.handled.begin(received.id, counts=not isinstance(received.event, _PASSING))
            goes_on = False
            try:
                goes_on = await self._handle(received)
            except Exception as error:
                log.error("an event could not be handled: %s", where(error))
            # Also after a failure: a resume would replay the event, and it would fail again.
            if not goes_on:
                self.handled.end(received.id)

    async def _handle(self, received: Received) -> bool:
        event = received.event
        self.state = state_of(event) or self.state
        for event_id in self._turns.note(event):
            self._outbox.confirm(event_id)
        await self._listeners.publish(event)
        goes_on = False
        if isinstance(event, ApprovalRequest):
            self._approvals.ask()
        elif isinstance(event, ToolCallEvent):
            goes_on = await self._take_call(event, received)
        # After the handlers: a turn ends when its last call has run, and not when its ``idle`` was read.
        self._turns.settle(event, received.connection)
        return goes_on

    async def _take_call(self, call: ToolCallEvent, received: Received) -> bool:
        # Returns True for a speech that goes on in a task: `ReplayCursor` must wait for its end, since a
        # client that reconnects names its pending tools but not its speech.
        answering = self._calls.answer(call, received.number)
        brief = is_ui_call(call.name) and call.name != SPEAK
        if brief:
            await answering
        elif self._serial and not (call.name == SPEAK and self._calls.queues_speeches):
            self._occupied = True
            self._approvals.ask()  # approval requests do not wait behind a tool or a speech
            try:
                await answering
            finally:
                self._occupied = False
        else:
            task = asyncio.create_task(answering)
            self.answering.add(task)
            task.add_done_callback(self.answering.discard)
            if call.name == SPEAK:
                task.add_done_callback(lambda _: self.handled.end(received.id))
                return True
        return False
