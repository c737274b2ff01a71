"""A model provider that plays scripts: a test decides what the model says and when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from conductor.errors import ModelError
from conductor.messages import ToolCall
from conductor.models.base import Finished, ModelEvent, ModelRequest, TextDelta

Step: TypeAlias = TextDelta | ToolCall | Finished | ModelError | asyncio.Event | float
Script: TypeAlias = Sequence[Step]


@dataclass(slots=True)
class StreamRecord:
    """The state of one stream: ``closed`` is set when it has ended in any way.

    ``closed_early`` is true if it was closed or cancelled before its `Finished` or `ModelError`.
    """

    started: asyncio.Event = field(default_factory=asyncio.Event)
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    closed_early: bool = False
    request: ModelRequest | None = None


class ScriptedProvider:
    """Plays one script for each request, in order, or what ``replies(request)`` returns.

    A script's steps: a `TextDelta`, `ToolCall` or `Finished` is yielded, a `ModelError` raised, an
    `asyncio.Event` waited for, and a float slept (seconds). A script that ends without `Finished` or
    `ModelError` gets a `Finished` whose stop reason is ``tool_use`` if it held a call, else ``end_turn``.
    When no script is left, the request fails with ``ModelError("protocol")``.

    ``requests`` holds the requests, ``record(i)`` is the state of the i-th stream (also before it starts, so
    that a test can wait for it), and ``closed`` is set once any stream was closed early.
    """

    def __init__(
        self,
        replies: Iterable[Script] | Callable[[ModelRequest], Script],
        *,
        name: str = "scripted",
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.name = name
        self.requests: list[ModelRequest] = []
        self.closed = asyncio.Event()
        self._script_for = replies if callable(replies) else _in_order(replies)
        self._sleep = sleep
        self._records: dict[int, StreamRecord] = {}

    def record(self, index: int) -> StreamRecord:
        """Return the record of the stream number ``index``, counted from 0 in the order of requests."""
        return self._records.setdefault(index, StreamRecord())

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Play the next script."""
        record = self.record(len(self.requests))
        record.request = request
        record.closed_early = True  # until the end is reached: closing raises at any yield
        self.requests.append(request)
        record.started.set()
        try:
            for step in _whole(self._script_for(request)):
                if isinstance(step, (Finished, ModelError)):
                    record.closed_early = False
                if isinstance(step, ModelError):
                    raise step
                if isinstance(step, asyncio.Event):
                    await step.wait()
                elif isinstance(step, (int, float)):
                    await self._sleep(step)
                else:
                    yield step
        except ModelError:
            record.closed_early = False
            raise
        finally:
            if record.closed_early:
                self.closed.set()
            record.closed.set()

    async def start(self) -> None:
        """Do nothing."""

    async def aclose(self) -> None:
        """Do nothing."""


def _in_order(replies: Iterable[Script]) -> Callable[[ModelRequest], Script]:
    scripts = iter(list(replies))

    def next_script(_: ModelRequest) -> Script:
        script = next(scripts, None)
        if script is None:
            raise ModelError("protocol", "The script has no reply left.")
        return script

    return next_script


def _whole(script: Script) -> Script:
    if script and isinstance(script[-1], (Finished, ModelError)):
        return script
    # As services do: calls are run only with this stop reason (models, "Anthropic", rule 7).
    called = any(isinstance(step, ToolCall) for step in script)
    return [*script, Finished("tool_use" if called else "end_turn")]
