"""The parts that the definitions of built-in tools share."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, TypeVar

from conductor.tools.base import ToolSpec
from conductor.tools.outcomes import Effect, ErrorType, NotStarted, OnInterrupt, Risk, ToolOutcome, failed

T = TypeVar("T")


class ToolFailure(Exception):
    """A call that fails. The message is for the model, and contains no path outside the permitted folders."""

    def __init__(self, error_type: ErrorType, message: str) -> None:
        super().__init__(message)
        self.error_type: ErrorType = error_type

    @property
    def outcome(self) -> ToolOutcome:
        """The failure as the result of the call."""
        return failed(self.error_type, str(self))


def argument(kind: str, description: str = "", **limits: Any) -> dict[str, Any]:
    """Make the schema of an argument; ``limits`` are keywords of JSON schema, such as ``maxLength``."""
    return {"type": kind, **limits, **({"description": description} if description else {})}


def definition(
    name: str,
    description: str,
    arguments: Mapping[str, Mapping[str, Any]],
    *,
    required: Sequence[str] = (),
    risk: Risk,
    effect: Effect,
    **fields: Any,
) -> ToolSpec:
    """Make the definition of a tool; an interruption cancels a call that only reads.

    ``fields`` are other fields of `ToolSpec`.
    """
    schema = {
        "type": "object",
        "properties": dict(arguments),
        **({"required": list(required)} if required else {}),
        "additionalProperties": False,
    }
    on_interrupt: OnInterrupt = "cancel" if effect == "read" else "keep"
    return ToolSpec(
        name=name,
        description=description,
        input_schema=schema,
        source="builtin",
        risk=risk,
        effect=effect,
        on_interrupt=on_interrupt,
        **fields,
    )


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
