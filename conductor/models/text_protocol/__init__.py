"""Tools for models that only write text (models, "Text protocol").

`TextProtocol` wraps the provider of such a model, and is a provider itself: the model is taught to write its
calls as JSON objects, and what it writes becomes calls and speech. Approvals, results, redaction and limits
are the turn's, as with any model.
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
)
from conductor.models.failures import failure
from conductor.models.rendering import limit_of
from conductor.models.retry import BROKEN_OFF
from conductor.models.text_protocol.parser import Tools
from conductor.models.text_protocol.prompt import STOP, Style, messages, observation, system_prompt
from conductor.models.text_protocol.scanner import MAX_CHARS, Problem, ReplyScanner

# Rounds of calls for one transcript; then it must answer. Small models go round in circles sooner.
MAX_ROUNDS = 4
_PROBLEMS: dict[Problem, str] = {
    "truncated": "Your JSON was cut off, so nothing was run. Write the call again, and shorter.",
    "malformed": "Your call could not be read, so nothing was run. Write it again as one valid JSON object.",
    "misplaced": (
        "Your JSON was no call or had words on its line, so nothing was run. "
        "Write a call alone on a line, or answer in plain words."
    ),
    "empty": "You answered nothing. Write a final_answer.",
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
        tools = {tool.name: tool.input_schema for tool in request.tools}
        history = messages(request.messages, self._style)
        usage = Usage()
        has_words = False
        for is_last in (False, True):
            reply = _Reply(tools)
            asked = replace(
                request,
                system=system_prompt(request.system, request.tools, self._style, may_call=may_call),
                messages=history,
                tools=(),
                max_tokens=limit_of(request, request.max_tokens or self._max_tokens),
                stop=STOP,
            )
            try:
                async with (
                    aclosing(self._provider.stream(asked)) as events,
                    aclosing(reply.read(events)) as pieces,
                ):
                    async for words in pieces:
                        # What is written again follows the words that were spoken before.
                        yield TextDelta(f" {words}" if has_words and not reply.has_words else words)
                        reply.has_words = True
            except ModelError as error:
                # The turn asks again for a reply that broke off if it has heard of it; another profile, if
                # there is one, is asked before this one is again.
                broke_off = error.reason in BROKEN_OFF and reply.text and not reply.has_words
                if is_last or not broke_off or not request.may_retry:
                    raise
                continue
            usage += reply.finished.usage
            has_words = has_words or reply.has_words
            problem = reply.problem(may_call=may_call)
            if problem is None:
                calls = reply.scanner.calls if may_call else ()
                for number, call in enumerate(calls):
                    yield ToolCall(f"call_{number}", call.name, call.arguments, call.repaired)
                yield replace(
                    reply.finished, stop="tool_use" if calls else _stop(reply.finished), usage=usage
                )
                return
            log.info("call not read", problem=problem)
            # Its calls are not run, so that nothing of a reply is run twice when it is written again.
            history += [
                AssistantMessage(reply.text[:MAX_CHARS]),
                UserMessage(observation("", _PROBLEMS[problem])),
            ]
        raise failure("malformed")


class _Reply:
    """One reply of the model, as it arrives. ``finished``: its end, also if it was not waited for."""

    def __init__(self, tools: Tools) -> None:
        self.scanner = ReplyScanner(tools)
        self.finished = Finished("end_turn")
        self.has_words = False
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    async def read(self, events: AsyncIterator[ModelEvent]) -> AsyncGenerator[str, None]:
        """Yield the words up to the end of the reply. Raises `ModelError` if it does not come."""
        finished = None
        async for event in events:
            if isinstance(event, TextDelta):
                self._pieces.append(event.text)
                if words := self.scanner.feed(event.text):
                    yield words
                # What follows is invented: the stream is closed, which saves its tokens.
                if self.scanner.is_over:
                    break
            elif isinstance(event, Finished):
                finished = event
        if finished is None and not self.scanner.is_over:
            raise failure("connection")
        if words := self.scanner.end():
            yield words
        self.finished = finished or self.finished

    def problem(self, *, may_call: bool) -> Problem | None:
        """Tell why the model must be asked again, if it must."""
        problem = self.scanner.problem
        if problem == "empty" and self.finished.stop not in ("end_turn", "tool_use", "max_tokens"):
            return None
        if may_call:
            return problem
        return None if self.has_words else problem or "empty"


def _stop(finished: Finished) -> StopReason:
    return "end_turn" if finished.stop == "tool_use" else finished.stop


def _rounds(history: Sequence[Message]) -> int:
    """Count the replies with calls since the person spoke."""
    latest = takewhile(lambda message: not isinstance(message, UserMessage), reversed(history))
    return sum(isinstance(message, AssistantMessage) and bool(message.calls) for message in latest)
