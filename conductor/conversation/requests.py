"""Calls that programs of the person make, each in a turn of its own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from conductor.conversation.history import lost_result
from conductor.conversation.receive import ended, turn_started
from conductor.conversation.records import Record
from conductor.events.envelope import new_call_id
from conductor.messages import ToolCall, ToolResult
from conductor.tools.base import failed

if TYPE_CHECKING:
    from conductor.conversation.session import Session

# Calls that wait for their turn.
MAX_REQUESTS = 16


class Requests:
    """The programs' calls that wait for a turn, and the one whose turn runs."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._waiting: list[tuple[ToolCall, asyncio.Future[ToolResult]]] = []
        self._running: tuple[str, ToolCall, asyncio.Future[ToolResult]] | None = None

    async def make(self, name: str, arguments: str) -> ToolResult:
        """Make a call after the running turn; ``arguments`` is JSON.

        It passes the same rules and questions as a call of the model. Cancelling stops it. It is refused if
        too many wait, or the server is about to stop.
        """
        session, call = self._session, ToolCall(new_call_id(), name, arguments)
        if session.view.draining or session.is_closed or len(self._waiting) >= MAX_REQUESTS:
            refused = failed("rate_limited", "Too many calls wait, or the server stops. Nothing was run.")
            return session.tools.executor.to_result(call.call_id, refused)
        answer: asyncio.Future[ToolResult] = asyncio.get_running_loop().create_future()
        self._waiting.append((call, answer))
        session.view.request_waits = True
        session.changed()
        try:
            return await answer
        finally:
            self._waiting = [waiting for waiting in self._waiting if waiting[0] is not call]
            session.view.request_waits = bool(self._waiting)
            if not answer.done() or answer.cancelled():
                session.spawn(self._stop(call))

    async def start(self, turn_id: str) -> None:
        """Record the start of the turn about the first call."""
        session = self._session

        def decision() -> list[Record]:
            if session.state.turn is not None or not self._waiting:
                return []
            call, answer = self._waiting[0]
            self._running = (turn_id, call, answer)
            session.view.request = (turn_id, 0, 0)
            return [turn_started(session.view, turn_id, "request", tool=call.name)]

        await session.insist(decision)
        if self._running is not None:
            self._waiting = [waiting for waiting in self._waiting if waiting[0] is not self._running[1]]
            session.view.request_waits = bool(self._waiting)

    def call_of(self, turn_id: str) -> ToolCall | None:
        """Return the call that a turn is about."""
        return self._running[1] if self._running is not None and self._running[0] == turn_id else None

    def answer(self, turn_id: str) -> None:
        """Answer the program whose turn has ended."""
        if self._running is None or self._running[0] != turn_id:
            return
        (_, call, answer), self._running = self._running, None
        log = reversed(self._session.state.log)
        results = (entry for entry in log if isinstance(entry, ToolResult) and entry.call_id == call.call_id)
        if not answer.done():
            answer.set_result(next(results, None) or lost_result(call.call_id))

    def close(self) -> None:
        """Answer the programs that still wait."""
        calls = [*self._waiting, self._running[1:]] if self._running is not None else self._waiting
        for call, answer in calls:
            if not answer.done():
                answer.set_result(lost_result(call.call_id))

    async def _stop(self, call: ToolCall) -> None:
        session = self._session

        def decision() -> list[Record]:
            turn = session.state.turn
            if turn is None or self.call_of(turn.id) is not call:
                return []
            return [ended(session.view, "interrupted")]

        await session.insist(decision)
