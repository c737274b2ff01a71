"""Calls that wait for a device's result: call id -> Future."""

from __future__ import annotations

import asyncio

from conductor.tools.base import ToolOutcome


class PendingCalls:
    """The pending calls of one session.

    The Future only wakes the waiter: the result is committed before it is set.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[ToolOutcome]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def expect(self, call_id: str) -> None:
        """Create the Future. Call this before the call is sent: its result may arrive before `wait`."""
        self._waiting[call_id] = asyncio.get_running_loop().create_future()

    async def wait(self, call_id: str) -> ToolOutcome:
        """Wait for the result of an expected call, and forget the call however the wait ends.

        There is no time limit here: the session has it.
        """
        try:
            return await self._waiting[call_id]
        finally:
            self.forget(call_id)

    def answer(self, call_id: str, outcome: ToolOutcome) -> bool:
        """Wake the waiter; False for a late, unknown or repeated result."""
        waiting = self._waiting.get(call_id)
        # Done: a barge-in or the time limit came first, and the result goes the way of late ones.
        if waiting is None or waiting.done():
            return False
        waiting.set_result(outcome)
        return True

    def forget(self, call_id: str) -> None:
        """Stop expecting a result."""
        waiting = self._waiting.pop(call_id, None)
        if waiting is not None:
            waiting.cancel()
