"""The one timer of a session: it runs until the next deadline."""

from __future__ import annotations

import asyncio
from functools import cached_property
from typing import TYPE_CHECKING

from conductor.conversation.steps import deadline, due
from conductor.session.reminders import Reminders, may_have_reminders

if TYPE_CHECKING:  # its parts are below it
    from conductor.session.session import Session


class Timer:
    """Runs until the earliest deadline of the conversation, the outbox and the reminders."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._handle: asyncio.TimerHandle | None = None
        self._at: int | None = None
        self._look_at: int | None = None
        self._is_expiring = False

    @cached_property
    def _reminders(self) -> Reminders:
        return Reminders(self._session)  # made when it is needed: most sessions have none

    def move(self) -> None:
        """Follow the deadlines after a change."""
        session = self._session
        rests = session.loop is None and session.state.turn is None and not session.view.live.stop.closing
        self._look_at = self._reminders.look() if rests and may_have_reminders(session) else None
        if (at := deadline(session.view, session.outbox.deadline, self._look_at)) is not None:
            self.wake_at(at)

    def wake_at(self, at: int) -> None:
        """Run until this time, or an earlier one that was set before."""
        session = self._session
        if session.is_closed or self._is_expiring or (self._at is not None and at >= self._at):
            return
        self.stop()
        self._at = at
        seconds = max(0.001, (at - session.view.now()) / 1000)
        self._handle = asyncio.get_running_loop().call_later(seconds, self._tick)

    def stop(self) -> None:
        """Stop the timer."""
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._at = None

    def _tick(self) -> None:
        session = self._session
        self._handle = self._at = None
        at = deadline(session.view, session.outbox.deadline, self._look_at)
        if at is None or at > session.view.now():  # it has moved since the timer was set
            session.changed()
        else:
            self._is_expiring = True
            session.spawn(self._expire())

    async def _expire(self) -> None:
        session = self._session
        try:
            session.outbox.tick()
            await session.commits.insist(lambda: due(session.view))
        finally:
            self._is_expiring = False
        session.changed()
