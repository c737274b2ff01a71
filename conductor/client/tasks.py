"""Wait for tasks that run the app's code, and describe their errors without personal data."""

from __future__ import annotations

import asyncio
from typing import TypeVar

T = TypeVar("T")


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
