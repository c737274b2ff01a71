"""Decode the streams of ``/chat/completions`` and ``/completions``: bytes in, model events out."""

from __future__ import annotations

from typing import Any

import msgspec

from conductor.errors import ModelError
from conductor.messages import ToolCall
from conductor.models.base import Finished, ModelEvent, StopReason, TextDelta, Usage
from conductor.models.failures import failure, from_event, problem_of, read_problem
from conductor.models.rendering import is_json
from conductor.models.sse import SSEError, SSEParser
from conductor.models.thought_filter import ThoughtFilter, ThoughtHabit
from conductor.models.tool_names import ToolNameMap

_STOPS: dict[str, StopReason] = {"length": "max_tokens", "content_filter": "refusal"}
# What a service says after calls; some say "stop", as after words.
_CALLED = ("tool_calls", "function_call")


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: msgspec.Raw = msgspec.Raw(b"null")


class _CallDelta(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    tool_calls: list[_CallDelta] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None  # of completions
    finish_reason: str | None = None


class InputDetails(msgspec.Struct, gc=False):
    """What a service says about the tokens that it read."""

    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    details: InputDetails | None = msgspec.field(default=None, name="prompt_tokens_details")


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None
    message: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode
_NO_FUNCTION = _Function()


class _OpenCall:
    def __init__(self) -> None:
        self.id: str | None = None
        self.name = ""
        self.parts: list[str] = []

    def goes_on(self, call_id: str | None, name: str, arguments: str) -> bool:
        """Tell whether a delta is of this call, whose index it has."""
        if not (self.name and name):
            return True
        if name != self.name or (call_id and self.id and call_id != self.id):
            return False
        return not arguments.strip() or not is_json("".join(self.parts))


class ChatDecoder:
    """Turns the bytes of one streamed reply into model events; pure.

    ``finished`` is true after `Finished`. Text that arrives together becomes one `TextDelta`. Calls are given
    at the end of the reply, since nothing else says that their arguments are complete. ``habit`` is that of
    the model (`ThoughtFilter`).
    """

    def __init__(self, names: ToolNameMap, habit: ThoughtHabit | None = None) -> None:
        self._names = names
        self._sse = SSEParser()
        self._thinking = ThoughtFilter(habit)
        self._calls: list[_OpenCall] = []
        self._by_index: dict[int | None, _OpenCall] = {}
        self._usage: _Usage | None = None
        self._stop: str | None = None
        self.finished = False

    def feed(self, chunk: bytes) -> list[ModelEvent]:
        """Decode the next bytes. Raises `ModelError`: that of an error event, ``protocol``, ``malformed``."""
        text: list[str] = []
        is_done = False
        try:
            for item in self._sse.feed(chunk):
                if item.data == b"[DONE]":
                    is_done = True
                    break
                event = _decode(item.data)
                if event.choices:
                    self._take(event.choices[0], text)
                if event.usage is not None:
                    self._usage = event.usage
                if event.error is not None:
                    raise from_event(problem_of(event.error))
                if event.choices is None and event.message is not None:
                    raise from_event(read_problem(item.data))
        except (msgspec.DecodeError, UnicodeDecodeError, SSEError):
            raise failure("undecodable") from None
        words = self._thinking.feed("".join(text))
        return [*said(words), *(self._finish() if is_done else ())]

    def end(self) -> list[ModelEvent]:
        """Give the last events, if only the end mark was missing. Raises `ModelError` for a cut reply."""
        if self._stop is None:
            raise ModelError("connection", "The model service ended its answer before it was complete.")
        return self._finish()

    def _take(self, choice: _Choice, text: list[str]) -> None:
        delta = choice.delta
        words = choice.text if delta is None else delta.content
        if words:
            text.append(words)
        if delta is not None and delta.tool_calls:
            for part in delta.tool_calls:
                self._extend(part)
        if choice.finish_reason:
            self._stop = choice.finish_reason

    def _extend(self, delta: _CallDelta) -> None:
        function = delta.function or _NO_FUNCTION
        name, arguments = function.name or "", _text_of(function.arguments)
        call = self._by_index.get(delta.index)
        # Some services send the index 0, or none, with each call, and some repeat the name in each delta.
        if call is None or not call.goes_on(delta.id, name, arguments):
            call = self._by_index[delta.index] = _OpenCall()
            self._calls.append(call)
        call.id = call.id or delta.id
        call.name = call.name or name
        call.parts.append(arguments)

    def _finish(self) -> list[ModelEvent]:
        stop: StopReason = _STOPS.get(self._stop or "", "end_turn")
        # Without a reason the end mark stands for one; with an unknown one no calls are run.
        if self._stop in (None, "stop", *_CALLED):
            # mlx-lm drops a call that it cannot parse, and says nothing but this.
            if (self._stop in _CALLED and not self._calls) or not all(call.name for call in self._calls):
                raise failure("malformed")
            stop = "tool_use" if self._calls else "end_turn"
        self.finished = True
        events = said(self._thinking.rest(is_cut=stop == "max_tokens"))
        for number, call in enumerate(self._calls):
            arguments = "".join(call.parts)
            if stop == "tool_use" and not arguments.strip():
                arguments = "{}"
            events.append(ToolCall(call.id or f"call_{number}", self._names.to_tool(call.name), arguments))
        used = self._usage or _Usage()
        return [*events, Finished(stop, usage(used.prompt_tokens, used.completion_tokens, used.details))]


def said(words: str) -> list[ModelEvent]:
    """Give the delta of some words, if there are any."""
    return [TextDelta(words)] if words else []


def usage(read: int | None, written: int | None, details: InputDetails | None) -> Usage:
    """Give the figures; services count what the cache gave and took among those read."""
    cached = (details.cached_tokens if details is not None else None) or 0
    stored = (details.cache_write_tokens if details is not None else None) or 0
    return Usage(max(0, (read or 0) - cached - stored), written or 0, cached, stored)


def _text_of(raw: msgspec.Raw) -> str:
    # The text of JSON, or, from some services, the JSON itself.
    data = bytes(raw)
    if data.startswith(b'"'):
        return msgspec.json.decode(data, type=str)
    return "" if data == b"null" else data.decode()
