"""What tools do in threads: work that blocks, and an import that takes long."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

from conductor.tools.outcomes import NotStarted

T = TypeVar("T")


async def web_client() -> Any:
    """Return the module of the HTTP client; importing it takes 0.2 s, once, in a thread."""
    return await asyncio.to_thread(importlib.import_module, "conductor.plugins.tools.web_client")


async def in_thread(threads: Executor, work: Callable[[], T]) -> T:
    """Run work in a thread. Raises `NotStarted` if it is cancelled before a thread takes it."""
    job = threads.submit(work)
    try:
        return await asyncio.wrap_future(job)
    except asyncio.CancelledError:
        if job.cancelled():
            raise NotStarted("No thread for this tool became free in time.") from None
        raise
