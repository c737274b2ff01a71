"""The scripted model of the tests and benchmarks: one script, played in the process or served over HTTP.

A script is a list of answers. `ScriptedProvider` plays it in the process. `AnthropicService` and
`OpenAIService` serve it on a loopback port, each in its service's format and with its service's rules.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, cast

from conductor.errors import ModelError, ModelFailure
from conductor.messages import ToolCall
from conductor.models.base import Finished, ModelEvent, ModelRequest, StopReason, TextDelta
from conductor.plugins.models.tool_names import ToolNameMap
from tests.stand_ins.anthropic_persona import BenchPersona, rounds_so_far
from tests.stand_ins.anthropic_script import (
    Answer,
    Break,
    Call,
    HttpFailure,
    JsonObject,
    Reply,
    ServiceScript,
    Thought,
    words,
)
from tests.stand_ins.anthropic_service import AnthropicService
from tests.stand_ins.model_service import ModelService
from tests.stand_ins.openai_service import OpenAIService, TextService

__all__ = [
    "Answer",
    "AnthropicService",
    "BenchPersona",
    "Break",
    "Call",
    "HttpFailure",
    "JsonObject",
    "ModelService",
    "OpenAIService",
    "Reply",
    "Script",
    "ScriptedProvider",
    "ServiceScript",
    "Step",
    "Stream",
    "TextService",
    "Thought",
    "rounds_so_far",
]

Step: TypeAlias = TextDelta | ToolCall | Finished | ModelError | asyncio.Event | float
Script: TypeAlias = Sequence[Step]
_Replies: TypeAlias = Iterable[Script | Answer] | Callable[[ModelRequest], Script | Answer]

_FAILURES: dict[str, ModelFailure] = {"error": "overloaded", "cut": "connection"}
_STOPS: dict[str, StopReason] = {"model_context_window_exceeded": "context_window"}
_STATUS_FAILURES: dict[int, ModelFailure] = {401: "authentication", 429: "rate_limited", 529: "overloaded"}


@dataclass(slots=True)
class Stream:
    """The state of one stream. ``closed_early``: it was closed or cancelled before its end."""

    started: asyncio.Event = field(default_factory=asyncio.Event)
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    closed_early: bool = False


class ScriptedProvider:
    """Plays one script for each request: the next of ``replies``, or the result of ``replies(request)``.

    A script is an `Answer` or a list of steps. A `TextDelta`, `ToolCall` or `Finished` is yielded, a
    `ModelError` raised, an `asyncio.Event` awaited, and a float slept (seconds). Without a `Finished` the
    stop reason is ``tool_use`` if the script has a call, else ``end_turn``. With no script left, a request
    fails.
    """

    def __init__(self, replies: _Replies, *, name: str = "scripted") -> None:
        self.name = name
        self.requests: list[ModelRequest] = []
        self._replies = replies if callable(replies) else iter(list(replies))
        self._streams: dict[int, Stream] = {}

    def record(self, index: int) -> Stream:
        """Return the stream of request ``index``, from 0. It exists before the request does."""
        return self._streams.setdefault(index, Stream())

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Play the next script."""
        stream = self.record(len(self.requests))
        self.requests.append(request)
        stream.started.set()
        try:
            steps = self._steps(request)
            stream.closed_early = True  # closing raises at any yield
            for step in steps:
                if isinstance(step, (Finished, ModelError)):
                    stream.closed_early = False
                if isinstance(step, ModelError):
                    raise step
                if isinstance(step, asyncio.Event):
                    await step.wait()
                elif isinstance(step, (int, float)):
                    await asyncio.sleep(step)
                else:
                    yield step
        finally:
            stream.closed.set()

    def _steps(self, request: ModelRequest) -> Script:
        if callable(self._replies):
            script = self._replies(request)
        else:
            script = next(self._replies, [ModelError("protocol", "The script has no reply left.")])
        steps = _steps_of(script, request) if isinstance(script, (Reply, HttpFailure)) else script
        if steps and isinstance(steps[-1], (Finished, ModelError)):
            return steps
        has_call = any(isinstance(step, ToolCall) for step in steps)
        return [*steps, Finished("tool_use" if has_call else "end_turn")]

    async def start(self) -> None:
        """Do nothing."""

    async def aclose(self) -> None:
        """Do nothing."""


def _steps_of(answer: Answer, request: ModelRequest) -> Script:
    """Give the steps of an answer, without its thinking."""
    if isinstance(answer, HttpFailure):
        return [ModelError(_STATUS_FAILURES.get(answer.status, "protocol"), answer.message)]
    names = ToolNameMap(tool.name for tool in request.tools)
    texts = answer.chunks if answer.chunks is not None else words(answer.text)
    deltas: list[Step] = [TextDelta(text) for text in texts]
    for number, call in enumerate(answer.calls):
        call_id = call.id or f"call_{len(request.messages)}_{number}"
        deltas.append(ToolCall(call_id, names.to_tool(call.name), call.raw))
    steps: list[Step] = [answer.first_delay_s]
    for number, delta in enumerate(deltas):
        if answer.hold is not None and number == answer.hold_at:
            steps.append(answer.hold)
        if answer.broken is not None and number == answer.broken.after:
            break
        steps += [answer.delay_s, delta]
    if answer.broken is None:
        return [*steps, Finished(_STOPS.get(answer.stop) or cast(StopReason, answer.stop))]
    stall = [asyncio.Event()] if answer.broken.kind == "stall" else []
    failure = _FAILURES.get(answer.broken.kind, "protocol")
    return [*steps, *stall, ModelError(failure, "The reply broke off.")]
