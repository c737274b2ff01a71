"""Calls that wait for somebody else's answer: call id -> Future."""

from __future__ import annotations

import asyncio

from conductor.tools.base import ToolOutcome


class Pending:
    """The waiting calls of one session.

    The Future only wakes the one who waits: whoever answers has recorded the outcome before.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[ToolOutcome]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def expect(self, call_id: str) -> None:
        """Make the Future, before the call is sent: an answer may overtake the one who will wait."""
        self._waiting[call_id] = asyncio.get_running_loop().create_future()

    async def wait(self, call_id: str) -> ToolOutcome:
        """Wait for the answer to an expected call, and forget it however the wait ends.

        It is bounded by whoever holds the call's time limit, who then answers for the client.
        """
        try:
            return await self._waiting[call_id]
        finally:
            self.forget(call_id)

    def answer(self, call_id: str, outcome: ToolOutcome) -> bool:
        """Wake the one who waits; False for a late, unknown or repeated answer."""
        waiting = self._waiting.get(call_id)
        if waiting is None or waiting.done():
            return False
        waiting.set_result(outcome)
        return True

    def forget(self, call_id: str) -> None:
        """Stop expecting an answer."""
        waiting = self._waiting.pop(call_id, None)
        if waiting is not None:
            waiting.cancel()
