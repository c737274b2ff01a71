"""One call as its handler sees it: it tells how far it is, hears of a cancellation, and may become a job."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from conductor.client.errors import ConnectionLost
from conductor.client.options import ClientLimits
from conductor.client.results import clean
from conductor.client.sender import Sender
from conductor.events.client import ToolAccepted, ToolProgress
from conductor.events.server import ToolCallEvent

Effect: TypeAlias = Literal["none", "partial", "complete"]
"""How much of a call had happened (protocol, "Extensions": ``tool.cancelled``)."""

MAX_MESSAGE = 1_000
MAX_JOB_ID = 256


class ToolCancelledError(Exception):
    """Raised by a handler: its call was cancelled, and this much of it had happened.

    ``result`` is what it gave, or what was done: a string or what JSON can hold.
    """

    def __init__(self, effect: Effect, result: Any = None) -> None:
        super().__init__(f"The tool was cancelled on the device; effect: {effect}.")
        self.effect = effect
        self.result = result


class ToolRun:
    """The second argument of a handler that takes two.

    ``timeout_ms`` is how long the server waits without a sign of life, where it says so. ``cancelled`` is set
    when the server has cancelled the call, for the ``reason`` given (``barge_in``, ``superseded``,
    ``timeout``, ``session_end``); the handler's task is cancelled at the same time. ``effect`` may be set by
    the handler, and set again as it gets on: it is what the server is told then.
    """

    def __init__(
        self, call: ToolCallEvent, sender: Sender, limits: ClientLimits, room: Callable[[], bool]
    ) -> None:
        self.call_id = call.call_id
        self.name = call.name
        self.timeout_ms = call.timeout_ms
        self.cancelled = asyncio.Event()
        self.reason: str | None = None
        self.effect: Effect | None = None
        self.job_id: str | None = None
        self.begun = False
        """Whether the handler was called."""
        self.dropped = False
        """Whether the server wants no answer any more (capability ``resume``): none is sent."""
        self.released = asyncio.Event()
        """Set when nobody waits for the call any more: it has ended, or it has become a job."""
        self._sender = sender
        self._limits = limits
        self._room = room
        self._told = float("-inf")
        self._limit: asyncio.Timeout | None = None
        self._task: asyncio.Task[Any] | None = None

    async def progress(self, message: str | None = None, percent: float | None = None) -> None:
        """Tell the server that the tool is still at it (capability ``lease``); nothing where it takes none.

        It is sent once, and not more often than each ``ClientLimits.progress_s`` seconds. Raises `ValueError`
        for a ``percent`` that is not from 0 to 100.
        """
        if percent is not None and not 0 <= percent <= 100:
            raise ValueError("percent must be from 0 to 100")
        now = asyncio.get_running_loop().time()
        if self._over or not self._sender.accepts("lease") or now - self._told < self._limits.progress_s:
            return
        self._told = now
        text = None if message is None else clean(message[:MAX_MESSAGE])
        with contextlib.suppress(ConnectionLost):  # the result will be sent again, this need not be
            await self._sender.once(ToolProgress(self.call_id, text, percent))

    async def accept(self, job_id: str) -> bool:
        """Become a job (capability ``async``): the turn goes on, and what the handler returns is sent later.

        False where the server takes no jobs, or ``ClientLimits.jobs`` run: the call goes on as it was. A job
        may take ``ClientLimits.job_s`` seconds from now. Raises `ValueError` for a name that cannot be sent.
        """
        if not 1 <= len(job_id) <= MAX_JOB_ID or clean(job_id) != job_id:
            raise ValueError(f"a job's name must be a text of 1 to {MAX_JOB_ID} characters")
        if self.job_id is not None:
            return True
        if self._over or self._limit is None or not self._sender.accepts("async") or not self._room():
            return False
        self.job_id = job_id
        self._limit.reschedule(asyncio.get_running_loop().time() + self._limits.job_s)
        await self._sender.keep(ToolAccepted(self.call_id, job_id))
        self.released.set()
        return True

    # What the library does with it

    @property
    def limit_s(self) -> float:
        """How long the handler may take, in seconds."""
        return self._limits.tool_s if self.job_id is None else self._limits.job_s

    def begin(self, handler: ToolHandler, arguments: dict[str, Any], limit: asyncio.Timeout) -> Any:
        """Call the handler, within a time limit, in the task that runs it."""
        self.begun = True
        self._limit = limit
        return handler(arguments, self) if takes_run(handler) else handler(arguments)

    def watch(self, task: asyncio.Task[Any]) -> None:
        """Note the task that is about to run the handler."""
        self._task = task

    def cancel(self, reason: str) -> None:
        """Cancel the call, unless its handler has ended already."""
        if self._task is not None and self._task.done():
            return
        self.reason = reason
        self.cancelled.set()
        if self._task is not None:
            self._task.cancel()

    def drop(self, *, stop: bool) -> None:
        """Send no more about the call; with ``stop`` its handler is cancelled, too."""
        self.dropped = True
        if stop:
            self.cancel("superseded")

    @property
    def _over(self) -> bool:
        ended = self.dropped or self._task is None or self._task.done()
        return ended or self.cancelled.is_set() or (self._limit is not None and self._limit.expired())


ToolHandler: TypeAlias = Callable[..., Any]
"""Takes the arguments as a dict, and the `ToolRun` if it has a second parameter without a default.

It returns (or, async, comes to return) a string or anything that JSON can hold.
"""


def takes_run(handler: ToolHandler) -> bool:
    """Tell whether a handler takes a second argument: by its signature, where it has one."""
    try:
        parameters = inspect.signature(handler).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = [
        parameter
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        and parameter.default is parameter.empty
    ]
    return len(positional) > 1
