"""Decode the streams of ``/chat/completions`` and ``/completions``: bytes in, model events out."""

from __future__ import annotations

from typing import Any

import msgspec

from conductor.models.base import Finished, ModelEvent, StopReason, Usage, is_json, token_count
from conductor.models.failures import failure
from conductor.plugins.models.calls import MAX_CALLS, arguments_text, has_arguments, one_object
from conductor.plugins.models.decoding import EventDecoder, Item, SSEParser, json_decoder
from conductor.plugins.models.openai_request import REASONING, ChatOpaque
from conductor.plugins.models.service_errors import cut_off, from_event, problem_of
from conductor.plugins.models.thought_filter import ThoughtFilter, ThoughtHabit
from conductor.plugins.models.tool_names import ToolNameMap

# Reasons for the end of a reply, in lower case; others mean a normal end.
_STOPS: dict[str, StopReason] = {
    **dict.fromkeys(("length", "max_tokens", "max_output_tokens", "model_length"), "max_tokens"),
    **dict.fromkeys(("content_filter", "safety", "refusal", "sensitive", "prohibited_content"), "refusal"),
}
_FAILURES = ("error", "abort", "network_error", "insufficient_system_resource")
# Reasons after calls; some services say "stop".
_CALLED = ("tool_calls", "function_call")


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: Any = None  # some services send JSON itself, not its text


class _CallDelta(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None
    extra_content: Any = None


class _Delta(msgspec.Struct):
    content: Any = None
    tool_calls: list[_CallDelta] | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    reasoning_details: Any = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: Any = None  # of completions
    finish_reason: str | None | msgspec.UnsetType = msgspec.UNSET


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: Any = None
    error: Any = None


_decode = json_decoder(_Chunk)


class _OpenCall:
    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.parts: list[str] = []
        self.extra: Any = None
        self.is_repeated = False

    def goes_on(self, call_id: str, name: str, arguments: str) -> bool:
        """Return whether a delta with the call's index belongs to it."""
        if not (self.name and name):
            return True
        if name != self.name or (call_id and self.id and call_id != self.id):
            return False
        return not arguments.strip() or not is_json(self.arguments)

    def is_begun_again(self, call_id: str, name: str, arguments: str, *, same_index: bool) -> bool:
        """Return whether a delta with a name repeats this call, as some services do at the stream's end."""
        if not name or name != self.name:
            return False
        if call_id and self.id:
            return call_id == self.id
        # Two equal calls without ids may be meant, unless only one of them has none.
        may_be = same_index or bool(call_id or self.id)
        doubled = self.arguments + arguments
        return may_be and is_json(arguments) and one_object(doubled) != doubled

    @property
    def arguments(self) -> str:
        return "".join(self.parts)


class _Reasoning:
    """The fields of a reply that a service wants back."""

    def __init__(self) -> None:
        self._parts: dict[str, list[str]] = {}
        self._details: list[dict[str, Any]] = []

    def add(self, delta: _Delta) -> None:
        for name, value in zip(REASONING, (delta.reasoning_content, delta.reasoning), strict=False):
            if value and isinstance(value, str):
                self._parts.setdefault(name, []).append(value)
        if isinstance(delta.reasoning_details, list):
            for detail in delta.reasoning_details:
                self._add_detail(detail)

    def _add_detail(self, detail: Any) -> None:
        # The pieces of one block follow each other and have its index.
        if not isinstance(detail, dict):
            return
        last = self._details[-1] if self._details else {}
        if not last or any(last.get(key) != detail.get(key) for key in ("type", "index")):
            self._details.append(detail)
            return
        for key, value in detail.items():
            if key in ("text", "summary", "data") and isinstance(value, str):
                text = last.get(key)
                last[key] = (text if isinstance(text, str) else "") + value
            elif value is not None:
                last[key] = value

    @property
    def fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {name: "".join(parts) for name, parts in self._parts.items()}
        return fields | {REASONING[2]: self._details} if self._details else fields


class ChatDecoder(EventDecoder):
    """Decodes a streamed reply.

    Only at the end of the reply are a call's arguments complete. The reasoning of a reply with calls is kept
    in ``opaque`` for its ``source``. ``habit``: see `ThoughtFilter`. With ``offers_tools`` an empty reply at
    the limit is a lost call.
    """

    def __init__(
        self,
        names: ToolNameMap,
        source: str = "",
        habit: ThoughtHabit | None = None,
        *,
        offers_tools: bool = False,
    ) -> None:
        super().__init__(ThoughtFilter(habit))
        self._names = names
        self._source = source
        self._offers_tools = offers_tools
        self._sse = SSEParser()
        self._reasoning = _Reasoning()
        self._calls: list[_OpenCall] = []
        self._by_index: dict[int | None, _OpenCall] = {}
        self._usage: Any = None
        self._stop: str | None = None
        self._names_reasons = True
        self._has_text = False

    def end(self) -> list[ModelEvent]:
        """Return the last events if only the end mark is missing. Raises `ModelError` for a cut reply."""
        return self._events([self._finish()])

    def _read(self, chunk: bytes, items: list[Item]) -> None:
        for data in self._sse.feed(chunk):
            if data == b"[DONE]":
                # To a service without reasons the end mark is one.
                self._stop = self._stop or (None if self._names_reasons else "stop")
                items.append(self._finish())
                return
            # Other data are keep-alives.
            if not data.startswith(b"{"):
                continue
            part = _decode(data)
            if part.choices and (text := self._take(part.choices[0])):
                items.append(text)
            if part.usage is not None:
                self._usage = part.usage
            if part.error:
                raise from_event(problem_of(part.error))

    def _take(self, choice: _Choice) -> str:
        delta = choice.delta or _Delta()
        if delta.reasoning_content or delta.reasoning or delta.reasoning_details:
            self._reasoning.add(delta)
        for part in delta.tool_calls or ():
            self._extend(part)
        self._names_reasons = choice.finish_reason is None
        self._stop = choice.finish_reason or self._stop
        text = _text_of(choice.text or delta.content)
        self._has_text = self._has_text or bool(text.strip())
        return text

    def _extend(self, delta: _CallDelta) -> None:
        function = delta.function or _Function()
        name, call_id, arguments = function.name or "", delta.id or "", arguments_text(function.arguments)
        call = self._by_index.get(delta.index)
        # Some services send no index or 0 with each call, and some repeat the name in each delta.
        if call is None or not call.goes_on(call_id, name, arguments):
            call = self._by_index[delta.index] = self._begin(call, call_id, name, arguments)
        call.id = call.id or call_id
        call.name = call.name or name
        call.extra = delta.extra_content or call.extra
        if not call.is_repeated:
            call.parts.append(arguments)

    def _begin(self, current: _OpenCall | None, call_id: str, name: str, arguments: str) -> _OpenCall:
        """Return the call that a delta begins, begins again, or continues under another index."""
        for call in self._calls:
            if call.is_begun_again(call_id, name, arguments, same_index=call is current):
                call.is_repeated = has_arguments(call.arguments)  # whole arguments stay
                return call
        own = [call for call in self._calls if call.id == call_id] if call_id else self._calls[-1:]
        if own and not name:
            return own[0]
        if len(self._calls) >= MAX_CALLS:
            raise failure("undecodable")
        self._calls.append(_OpenCall())
        return self._calls[-1]

    def _finish(self) -> Finished:
        if self._stop is None:
            raise cut_off()
        reason = self._stop.lower()
        if reason in _FAILURES:
            raise failure("overloaded")
        self._calls = [call for call in self._calls if call.name or call.arguments.strip()]
        stop = _STOPS.get(reason) or self._stop_of_calls(reason)
        fields = self._reasoning.fields
        # mlx-lm drops an invalid call and says only this.
        if self._offers_tools and stop == "max_tokens" and not (self._has_text or self._calls or fields):
            raise failure("malformed")
        self.finished = True
        for number, call in enumerate(self._calls):
            arguments = call.arguments
            if stop == "tool_use" and not arguments.strip():
                arguments = "{}"
            self._add_call(call.id or f"call_{number}", self._names.to_tool(call.name), arguments)
        extras = [call.extra for call in self._calls]
        has_opaque = self._calls and (fields or any(extras))
        opaque = ChatOpaque(self._source, fields, extras).dump() if has_opaque else None
        return Finished(stop, usage(self._usage), opaque)

    def _stop_of_calls(self, reason: str) -> StopReason:
        if (reason in _CALLED and not self._calls) or not all(call.name for call in self._calls):
            raise failure("malformed")
        # With an unknown reason the reply may be cut off.
        is_whole = reason in ("stop", *_CALLED) or all(
            is_json(one_object(call.arguments) or "{}") for call in self._calls
        )
        return "tool_use" if self._calls and is_whole else "end_turn"


def usage(figures: Any, read: str = "prompt_tokens", output: str = "completion_tokens") -> Usage:
    """Return the figures of a service by their names; those read include the cache's."""
    if not isinstance(figures, dict):
        return Usage()
    details = figures.get(f"{read}_details")
    details = details if isinstance(details, dict) else {}
    cached, stored = token_count(details.get("cached_tokens")), token_count(details.get("cache_write_tokens"))
    fresh = max(0, token_count(figures.get(read)) - cached - stored)
    return Usage(fresh, token_count(figures.get(output)), cached, stored)


def _text_of(content: Any) -> str:
    # Mistral's reasoning models send a list of parts with thoughts.
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(map(_text_of, content))
    if isinstance(content, dict) and content.get("type") in (None, "text", "output_text"):
        return _text_of(content.get("text"))
    return ""
