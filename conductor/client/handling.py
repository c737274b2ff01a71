"""Handling what the server sends: one event after the other, and ahead of that what cannot wait."""

from __future__ import annotations

import asyncio
import logging

from conductor.client.approvals import Approvals
from conductor.client.calls import SPEAK, Calls
from conductor.client.frames import Received, state_of
from conductor.client.handled import Handled
from conductor.client.listeners import Listeners
from conductor.client.outbox import Outbox
from conductor.client.tasks import where
from conductor.client.turns import Turns
from conductor.events.server import (
    ApprovalRequest,
    ApprovalResolved,
    EventAck,
    SessionPing,
    SessionStarted,
    SpeechPartial,
    ToolCallEvent,
    ToolCancel,
    is_ui_call,
)

log = logging.getLogger(__name__)


_PASSING = (SpeechPartial, SessionPing, SessionStarted, EventAck)
"""What no replay brings again: it says nothing of how far the client has come."""


class Handling:
    """Gives each event to whom it concerns.

    ``state`` is what ``convo.setState`` said last; ``answering`` are the calls that are answered beside the
    events, without ``serial``; ``handled`` tells how far the client has come.
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
        self.handled = Handled()
        self._turns = turns
        self._outbox = outbox
        self._listeners = listeners
        self._calls = calls
        self._approvals = approvals
        self._serial = serial
        self._occupied = False

    def notice(self, received: Received) -> None:
        """Take what cannot wait until the events before it were handled; called as soon as it is read."""
        match received.event:
            case ToolCallEvent() as call:
                self._calls.arrived(call)
            case ToolCancel() as cancel:
                self._calls.cancel(cancel)
            case ApprovalRequest() as request:
                self._approvals.arrived(request, received.connection)
                if self._occupied:
                    self._approvals.ask()
            case ApprovalResolved() as resolved:
                self._approvals.resolved(resolved)
            case EventAck() as ack:
                self._outbox.acknowledge(ack.event_ids)

    async def run(self, inbox: asyncio.Queue[Received]) -> None:
        """Handle the events in their order, as long as the client lives."""
        while True:
            received = await inbox.get()
            self.handled.begin(received.id, counts=not isinstance(received.event, _PASSING))
            goes_on = False
            try:
                goes_on = await self._handle(received)
            except Exception as error:
                log.error("an event could not be handled: %s", where(error))
            if not goes_on:
                self.handled.end(received.id)

    async def _handle(self, received: Received) -> bool:
        """Handle one event; True if it is a speech that goes on beside the next ones."""
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
        self._turns.settle(event, received.connection)
        return goes_on

    async def _take_call(self, call: ToolCallEvent, received: Received) -> bool:
        """Answer a call before the next event is handled, or in a task beside it; True of such a speech.

        (A client that comes back names the tools that are running still, but no speech.)
        """
        answering = self._calls.answer(call, received.number)
        brief = is_ui_call(call.name) and call.name != SPEAK
        if brief:
            await answering
        elif self._serial:
            self._occupied = True
            self._approvals.ask()  # questions do not wait behind a tool or a speech
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
