"""Running other people's code: in a task of its own, to its end, and never beyond whoever waits for it."""

from __future__ import annotations

import asyncio
from typing import TypeVar

T = TypeVar("T")


async def finish(task: asyncio.Task[T]) -> T | None:
    """Wait for a task whose maker bounded it; None if it was cancelled, by whomever.

    Where the wait itself is cancelled, so is the task. (Awaiting the task could not tell these two apart.)
    """
    try:
        await asyncio.wait({task})
    finally:
        task.cancel()
    return None if task.cancelled() else task.result()


def where(error: BaseException) -> str:
    """Say what went wrong and where, without the message: that may quote what somebody said."""
    trace = error.__traceback__
    place = ""
    while trace is not None:
        place = f" in {trace.tb_frame.f_code.co_name}, line {trace.tb_lineno}"
        trace = trace.tb_next
    return f"{type(error).__name__}{place}"
