"""The pending calls and questions of a session: id -> Future.

The Future only wakes its waiter: the result is recorded before it is set.
"""

from __future__ import annotations

import asyncio
from typing import Any


class PendingCalls:
    """Futures by call id or question id."""

    def __init__(self) -> None:
        self._futures: dict[str, asyncio.Future[Any]] = {}
        self._requests: dict[str, asyncio.Future[Any]] = {}

    def __len__(self) -> int:
        return len(self._futures)

    def expect(self, key: str) -> asyncio.Future[Any]:
        """Return the Future of a call or question; the same one each time until it is answered."""
        future = self._futures.get(key)
        if future is None:
            future = self._futures[key] = asyncio.get_running_loop().create_future()
        return future

    def answer(self, key: str, value: Any) -> None:
        """Wake the waiter, if there is one."""
        future = self._futures.pop(key, None)
        if future is not None and not future.done():
            future.set_result(value)

    def forget(self, key: str) -> None:
        """Drop a Future."""
        self._futures.pop(key, None)

    def watch(self, call_id: str, future: asyncio.Future[Any]) -> None:
        """Keep the Future of a program that waits for a call's turn to end."""
        self._requests[call_id] = future

    def finish(self, call_id: str, value: Any) -> None:
        """Answer the program."""
        future = self._requests.pop(call_id, None)
        if future is not None and not future.done():
            future.set_result(value)
