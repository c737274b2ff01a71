"""Tools for models that only write text.

`TextProtocol` wraps the provider of such a model: the model is taught to write its calls as JSON objects.
Approvals, results, redaction and limits are the turn's, as with any model.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
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
    limit_of,
    may_call,
)
from conductor.models.failures import BROKEN_OFF, failure
from conductor.models.profiles import ModelProfile
from conductor.plugins.models.text_protocol.parser import Tools
from conductor.plugins.models.text_protocol.prompt import STOP, Style, messages, observation, system_prompt
from conductor.plugins.models.text_protocol.scanner import MAX_CHARS, ReplyScanner, ServiceProblem
from conductor.plugins.models.text_protocol.words import words_of

# Rounds of calls for one transcript; then the model must answer. Small models go round in circles.
MAX_ROUNDS = 4
_PROBLEMS: dict[ServiceProblem, str] = {
    "truncated": "Your JSON was cut off, so nothing was run. Write the call again, and shorter.",
    "malformed": "Your call could not be read, so nothing was run. Write it again as one valid JSON object.",
    "misplaced": (
        "Your JSON was no call or had words on its line, so nothing was run. "
        "Write a call alone on a line, or answer in plain words."
    ),
}

log = structlog.get_logger(__name__)


def wrap(provider: ModelProvider, profile: ModelProfile) -> TextProtocol:
    """Wrap the provider of a profile whose model writes its calls as text."""
    return TextProtocol(provider, profile.style, profile.max_tokens)


class TextProtocol:
    """A provider of models that write their calls as text in ``style``, over ``provider``.

    An invalid call does not run: the model gets the error and writes the reply again, once; of a second
    invalid reply the words are given. ``max_tokens`` limits spoken answers; with tools offered it is raised
    (`base.limit_of`).
    """

    def __init__(self, provider: ModelProvider, style: Style = "jsonl", max_tokens: int = 512) -> None:
        self.name = provider.name
        self._provider = provider
        self._style = style
        self._max_tokens = max_tokens

    async def start(self) -> None:
        """Prepare the provider."""
        await self._provider.start()

    async def aclose(self) -> None:
        """Close the provider."""
        await self._provider.aclose()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Stream the reply. Raises `ModelError`: ``malformed`` after two invalid replies without words."""
        can_call = may_call(request) and _rounds(request.messages) < MAX_ROUNDS
        tools = {tool.name: tool.input_schema for tool in request.tools}
        history = messages(request.messages, self._style)
        usage = Usage()
        has_words = False
        for is_last in (False, True):
            reply = _Reply(tools, reads_on=is_last)
            attempt = replace(
                request,
                system=system_prompt(request.system, request.tools, self._style, may_call=can_call),
                messages=history,
                tools=(),
                max_tokens=limit_of(request, request.max_tokens or self._max_tokens),
                stop=STOP,
                images=None,
            )
            try:
                async with (
                    aclosing(self._provider.stream(attempt)) as events,
                    aclosing(reply.read(events)) as pieces,
                ):
                    async for words in pieces:
                        # A second reply follows the words that were spoken before.
                        yield TextDelta(f" {words}" if has_words and not reply.has_words else words)
                        reply.has_words = True
            except ModelError as error:
                # The turn repeats the request if words were given; another profile comes before a second try.
                broke_off = error.reason in BROKEN_OFF and reply.text and not reply.has_words
                if is_last or not broke_off or not request.may_retry:
                    raise
                continue
            usage += reply.finished.usage
            has_words = has_words or reply.has_words
            problem = reply.problem(may_call=can_call)
            if problem is None:
                calls = reply.scanner.calls if can_call else ()
                for number, call in enumerate(calls):
                    yield ToolCall(f"call_{number}", call.name, call.arguments, call.repaired)
                yield replace(
                    reply.finished, stop="tool_use" if calls else _stop(reply.finished), usage=usage
                )
                return
            log.info("call not read", problem=problem)
            # After a broken call only invented prose follows.
            words = words_of(reply.scanner.rest, tools, with_prose=problem == "misplaced") if is_last else ""
            if words:
                yield TextDelta(f" {words}" if has_words else words)
                yield replace(reply.finished, stop=_stop(reply.finished), usage=usage)
                return
            # No call of the reply has run: the second reply may repeat them.
            history += [
                AssistantMessage(text=reply.text[:MAX_CHARS]),
                UserMessage(observation("", _PROBLEMS[problem])),
            ]
        raise failure("malformed")


class _Reply:
    """One reply of the model, as it arrives; with ``reads_on`` an invalid one is read to its end."""

    def __init__(self, tools: Tools, *, reads_on: bool) -> None:
        self._reads_on = reads_on
        self.scanner = ReplyScanner(tools)
        self.finished = Finished("end_turn")
        self.has_words = False
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    async def read(self, events: AsyncIterator[ModelEvent]) -> AsyncGenerator[str, None]:
        """Yield the words up to the end of the reply. Raises `ModelError` if the end is missing."""
        finished = None
        async for event in events:
            if isinstance(event, TextDelta):
                self._pieces.append(event.text)
                if words := self.scanner.feed(event.text):
                    yield words
                # The remainder is invented; closing the stream saves its tokens.
                if self.scanner.is_over and not (self.scanner.problem and self._reads_on):
                    break
            elif isinstance(event, Finished):
                finished = event
        if finished is None and not self.scanner.is_over:
            raise failure("connection")
        if words := self.scanner.end():
            yield words
        self.finished = finished or self.finished

    def problem(self, *, may_call: bool) -> ServiceProblem | None:
        """Return the reason for a second reply; None if the reply is valid."""
        return self.scanner.problem if may_call or not self.has_words else None


def _stop(finished: Finished) -> StopReason:
    return "end_turn" if finished.stop == "tool_use" else finished.stop


def _rounds(history: Sequence[Message]) -> int:
    """Count the replies with calls since the person spoke."""
    latest = takewhile(lambda message: not isinstance(message, UserMessage), reversed(history))
    return sum(isinstance(message, AssistantMessage) and bool(message.calls) for message in latest)
