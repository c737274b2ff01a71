"""Tools for models that only write text (models, "Text protocol").

`TextProtocol` wraps the provider of such a model, and is a provider itself: the model is taught to write its
calls as JSON objects, and what it writes becomes calls and speech. Approvals, results, redaction and limits
are the turn's, as with any model.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import takewhile

import structlog

from conductor.errors import ModelError
from conductor.messages import AssistantMessage, Message, ToolCall, UserMessage
from conductor.models.base import (
    Finished,
    ModelEvent,
    ModelProvider,
    ModelRequest,
    StopReason,
    TextDelta,
    Usage,
)
from conductor.models.failures import failure
from conductor.models.rendering import limit_of
from conductor.models.retry import BROKEN_OFF
from conductor.models.text_protocol.parser import MAX_CHARS, Problem, Written, parse
from conductor.models.text_protocol.prompt import STOP, Style, messages, observation, system_prompt
from conductor.models.text_protocol.speech import SpokenText

# Rounds of calls for one transcript; then it must answer. Small models go round in circles sooner.
MAX_ROUNDS = 4
_PROBLEMS: dict[Problem, str] = {
    "truncated": "Your JSON was cut off, so nothing was run. Write the call again, and shorter.",
    "malformed": "Your call could not be read, so nothing was run. Write it again as one valid JSON object.",
}

log = structlog.get_logger(__name__)


class TextProtocol:
    """A provider of models that write their calls as text in ``style``, over ``provider``.

    A call that cannot be read is not run: the model is told so and asked again, once. ``max_tokens`` is the
    limit for spoken answers; with tools offered it is raised, as it is for models that make calls.
    """

    def __init__(
        self,
        provider: ModelProvider,
        style: Style = "jsonl",
        max_tokens: int = 512,
        max_rounds: int = MAX_ROUNDS,
    ) -> None:
        self.name = provider.name
        self._provider = provider
        self._style = style
        self._max_tokens = max_tokens
        self._max_rounds = max_rounds

    async def start(self) -> None:
        """Prepare the provider."""
        await self._provider.start()

    async def aclose(self) -> None:
        """Close the provider."""
        await self._provider.aclose()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Stream the reply. Raises `ModelError`: ``malformed`` after two replies that cannot be read."""
        may_call = bool(request.tools) and request.tool_choice == "auto"
        may_call = may_call and _rounds(request.messages) < self._max_rounds
        names = {tool.name for tool in request.tools} if may_call else set()
        history = messages(request.messages, self._style)
        usage = Usage()
        for is_last in (False, True):
            reply = _Reply()
            asked = replace(
                request,
                system=system_prompt(request.system, request.tools, self._style, may_call=may_call),
                messages=history,
                tools=(),
                max_tokens=limit_of(request, request.max_tokens or self._max_tokens),
                stop=STOP,
            )
            try:
                async with aclosing(self._provider.stream(asked)) as events:
                    async for event in events:
                        if isinstance(event, TextDelta):
                            if words := reply.add(event.text):
                                yield TextDelta(words)
                        elif isinstance(event, Finished):
                            reply.finished = event
            except ModelError as error:
                # The turn asks again for a reply that broke off if it has heard of it; another profile, if
                # there is one, is asked before this one is again.
                broke_off = error.reason in BROKEN_OFF and reply.text and not reply.spoken
                if is_last or not broke_off or not request.may_retry:
                    raise
                continue
            if reply.finished is None:
                raise failure("connection")
            usage = _sum(usage, reply.finished.usage)
            found = parse(reply.text, names)
            # Its calls are not run, so that nothing of a reply is run twice when it is written again.
            if found.problem is None or not may_call:
                for ending in reply.ending(found, may_call=may_call):
                    yield ending
                yield replace(
                    reply.finished,
                    stop="tool_use" if found.calls and may_call else _stop(reply.finished),
                    usage=usage,
                )
                return
            log.info("call not read", problem=found.problem)
            history += [
                AssistantMessage(reply.text[:MAX_CHARS]),
                UserMessage(observation("", _PROBLEMS[found.problem])),
            ]
        raise failure("malformed")


class _Reply:
    """One reply of the model, as it arrives."""

    def __init__(self) -> None:
        self.finished: Finished | None = None
        self._pieces: list[str] = []
        self._speech = SpokenText()
        self._spoken: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    @property
    def spoken(self) -> str:
        return "".join(self._spoken)

    def add(self, text: str) -> str:
        """Take the next piece; return what can be said of it."""
        self._pieces.append(text)
        words = self._speech.feed(text)
        self._spoken.append(words)
        return words

    def ending(self, found: Written, *, may_call: bool) -> list[ModelEvent]:
        """Give what follows the words that were said while the reply was written."""
        if found.calls and may_call:
            return [
                ToolCall(f"call_{number}", call.name, call.arguments, call.repaired)
                for number, call in enumerate(found.calls)
            ]
        if found.calls or found.problem is not None:
            return []
        # What looked like a call was none.
        words = self._speech.end() if found.answer is None else ""
        spoken = self.spoken + words
        whole = self.text if found.answer is None and not spoken.strip() else found.answer
        if whole is not None and whole.startswith(spoken):
            words += whole[len(spoken) :]
        return [TextDelta(words)] if words else []


def _stop(finished: Finished) -> StopReason:
    return "end_turn" if finished.stop == "tool_use" else finished.stop


def _rounds(history: Sequence[Message]) -> int:
    """Count the replies with calls since the person spoke."""
    latest = takewhile(lambda message: not isinstance(message, UserMessage), reversed(history))
    return sum(isinstance(message, AssistantMessage) and bool(message.calls) for message in latest)


def _sum(one: Usage, other: Usage) -> Usage:
    return Usage(
        one.input_tokens + other.input_tokens,
        one.output_tokens + other.output_tokens,
        one.cache_read_tokens + other.cache_read_tokens,
        one.cache_write_tokens + other.cache_write_tokens,
    )


def wrap(provider: ModelProvider, style: Style = "jsonl", max_tokens: int = 512) -> ModelProvider:
    """Make the provider of a model that only writes text."""
    return TextProtocol(provider, style, max_tokens)
