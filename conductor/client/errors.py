"""The errors that the client library raises, and helpers for the app's code.

Every message is one sentence without secrets: a URL is shown without its query.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any, TypeVar

from conductor.errors import ConductorError
from conductor.events.server import ErrorEvent

T = TypeVar("T")


class ClientError(ConductorError):
    """Base class of the client library's errors."""


class CannotConnect(ClientError):
    """No socket could be opened; ``status`` is the HTTP status, if there was one."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class StartRefused(ClientError):
    """The server answered ``session.start`` with an error; ``code`` and ``event`` describe it."""

    def __init__(self, event: ErrorEvent) -> None:
        super().__init__(f"The server refused the session: {event.message} ({event.code})")
        self.code = event.code
        self.event = event


class ConnectionLost(ClientError):
    """The connection is lost; ``close_code`` is the WebSocket close code, if a close frame came."""

    def __init__(self, message: str, *, close_code: int | None = None) -> None:
        super().__init__(message)
        self.close_code = close_code


class WaitTimeout(ClientError, TimeoutError):
    """A wait reached its time limit."""


async def finish(task: asyncio.Task[T]) -> T | None:
    """Wait for a task that has its own time limit; None if it was cancelled.

    Cancelling the wait cancels the task. Awaiting it directly would not tell the two cancellations apart.
    """
    try:
        await asyncio.wait({task})
    finally:
        task.cancel()
    return None if task.cancelled() else task.result()


def describe_error(error: BaseException) -> str:
    """Give an error's type and location. The message is omitted because it may quote the person."""
    traceback = error.__traceback__
    location = ""
    while traceback is not None:
        location = f" in {traceback.tb_frame.f_code.co_name}, line {traceback.tb_lineno}"
        traceback = traceback.tb_next
    return f"{type(error).__name__}{location}"


async def stop(tasks: Collection[asyncio.Task[Any]], seconds: float) -> None:
    """Cancel tasks, and wait at most ``seconds`` for them."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=seconds)
