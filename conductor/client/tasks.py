"""Run the app's code in tasks of their own, and log its errors without personal data."""

from __future__ import annotations

import asyncio
from typing import TypeVar

T = TypeVar("T")


async def finish(task: asyncio.Task[T]) -> T | None:
    """Wait for a task that has its own time limit; None if it was cancelled.

    If the wait itself is cancelled, the task is cancelled as well. (Awaiting the task directly could not tell
    the two cancellations apart.)
    """
    try:
        await asyncio.wait({task})
    finally:
        task.cancel()
    return None if task.cancelled() else task.result()


def where(error: BaseException) -> str:
    """Name an error's type and place. Its message is left out: it may quote the person."""
    trace = error.__traceback__
    place = ""
    while trace is not None:
        place = f" in {trace.tb_frame.f_code.co_name}, line {trace.tb_lineno}"
        trace = trace.tb_next
    return f"{type(error).__name__}{place}"
