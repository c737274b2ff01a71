"""The Responses API: render a request and decode its stream; pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import msgspec

from conductor.errors import ModelError
from conductor.messages import AssistantMessage, ToolCall, ToolResult
from conductor.models.base import (
    Finished,
    ModelEvent,
    ModelRequest,
    StopReason,
    ToolDefinition,
)
from conductor.models.failures import failure, from_event, problem_of, read_problem
from conductor.models.families import Effort
from conductor.models.openai_request import PROVIDER, object_parameters, user_text
from conductor.models.openai_stream import said, usage
from conductor.models.rendering import (
    BEGINNING,
    Json,
    arguments_of,
    call_id,
    is_json,
    limit_of,
    may_call,
    unicode_of,
)
from conductor.models.sse import SSEError, SSEParser
from conductor.models.thought_filter import ThoughtFilter, ThoughtHabit
from conductor.models.tool_names import ToolNameMap

# The smallest limit that OpenAI accepts.
_MIN_TOKENS = 16
# OpenAI's models that do not reason: they refuse to be asked for their reasoning.
_PLAIN_MODELS = re.compile(r"gpt-[34]|chatgpt|.*-chat")
_INCOMPLETE: dict[str, StopReason] = {"max_output_tokens": "max_tokens", "content_filter": "refusal"}


def responses_body(
    request: ModelRequest,
    names: ToolNameMap,
    *,
    model: str,
    max_tokens: int,
    source: str,
    effort: Effort | None = None,
) -> Json:
    """Render a request to ``/responses``, which stores nothing at the service.

    Reasoning goes back to the ``source``, service and model, that it came from. The API has no stop
    sequences.
    """
    body: Json = {
        "model": model,
        "input": _input(request, names, source),
        "stream": True,
        "store": False,
        "max_output_tokens": max(_MIN_TOKENS, limit_of(request, max_tokens)),
    }
    if not _PLAIN_MODELS.match(model):
        body["include"] = ["reasoning.encrypted_content"]
    if effort is not None:
        body["reasoning"] = {"effort": effort}
    if request.system.strip():
        body["instructions"] = request.system
    if request.tools:
        body["tools"] = _tools(tuple(request.tools), names)
        if not may_call(request):
            body["tool_choice"] = "none"
    return body


@lru_cache(maxsize=256)
def _tools(tools: tuple[ToolDefinition, ...], names: ToolNameMap) -> list[Json]:
    return [_tool(tool, names) for tool in tools]


def _tool(tool: ToolDefinition, names: ToolNameMap) -> Json:
    rendered: Json = {
        "type": "function",
        "name": names.to_service(tool.name),
        "parameters": object_parameters(tool),
        # The default is true, and refuses schemas with optional properties.
        "strict": False,
    }
    if tool.description.strip():
        rendered["description"] = tool.description
    return rendered


class _User(msgspec.Struct, tag_field="role", tag="user"):
    content: str


class _OutputText(msgspec.Struct, tag_field="type", tag="output_text"):
    text: str


class _Said(msgspec.Struct, tag_field="type", tag="message"):
    # In full: llama.cpp does not take the short form of the assistant's messages.
    content: list[_OutputText]
    role: str = "assistant"


class _Call(msgspec.Struct, tag_field="type", tag="function_call"):
    call_id: str
    name: str
    arguments: str


class _Output(msgspec.Struct, tag_field="type", tag="function_call_output"):
    call_id: str
    output: str


def _input(request: ModelRequest, names: ToolNameMap, source: str) -> list[Any]:
    items: list[Any] = []
    for message in request.messages:
        if isinstance(message, AssistantMessage):
            if not items:
                items.append(_User(BEGINNING))
            items += _assistant(message, names, source)
        elif isinstance(message, ToolResult):
            items.append(_Output(call_id(message.call_id), user_text(message)))
        else:
            items.append(_User(user_text(message)))
    return items or [_User(BEGINNING)]


def _assistant(message: AssistantMessage, names: ToolNameMap, source: str) -> list[Any]:
    text = unicode_of(message.text.rstrip())
    words: list[Any] = [_Said([_OutputText(text)])] if text else []
    calls = [
        _Call(call_id(call.call_id), names.to_service(call.name), arguments_of(call).decode())
        for call in message.calls
    ]
    # In the reply's order: the service wants each reasoning item before the item that it led to.
    items: list[Any] = []
    for item in _kept_items(message, source):
        match item.get("type"):
            case "reasoning":
                items.append(item)
            case "message":
                items += words[:1]
                words.clear()
            case "function_call":
                items += calls[:1]
                del calls[:1]
    items += [*words, *calls]
    while items and isinstance(items[-1], dict):
        items.pop()
    return items


class _Kept(msgspec.Struct):
    source: str
    items: list[dict[str, Any]]


def _kept_items(message: AssistantMessage, source: str) -> list[dict[str, Any]]:
    # Another model's reasoning is not understood.
    if message.opaque is None or message.provider != PROVIDER:
        return []
    try:
        kept = msgspec.json.decode(message.opaque, type=_Kept)
    except msgspec.DecodeError:
        return []
    return kept.items if kept.source == source else []


class _Incomplete(msgspec.Struct, gc=False):
    reason: str | None = None


class _Response(msgspec.Struct):
    usage: Any = None
    error: Any = None
    incomplete_details: _Incomplete | None = None


class _Event(msgspec.Struct):
    # One shape for all events: a type that is not known matches nothing and is ignored.
    type: str = ""
    delta: Any = None
    item: dict[str, Any] | None = None
    response: _Response | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Event).decode


class ResponsesDecoder:
    """Turns the bytes of one streamed response into model events; pure.

    ``finished`` is true after `Finished`. Text that arrives together becomes one `TextDelta`. A reply's
    reasoning is kept in ``opaque``, for the same ``source``. ``habit`` is that of the model
    (`ThoughtFilter`).
    """

    def __init__(self, names: ToolNameMap, source: str, habit: ThoughtHabit | None = None) -> None:
        self._names = names
        self._source = source
        self._sse = SSEParser()
        self._thinking = ThoughtFilter(habit)
        self._items: list[dict[str, Any]] = []
        self._calls_stop: StopReason = "end_turn"
        self._refused = False
        self.finished = False

    def feed(self, chunk: bytes) -> Iterator[ModelEvent]:
        """Decode the next bytes; what came before an error is given first.

        Raises `ModelError`: that of an error event, or ``undecodable``.
        """
        text: list[str] = []
        error: ModelError | None = None
        try:
            for item in self._sse.feed(chunk):
                # An end mark, or a word that keeps the connection alive.
                if not item.data.startswith(b"{"):
                    continue
                event = _decode(item.data)
                # Nearly all events are these, so they skip the dispatch below.
                if event.type == "response.output_text.delta":
                    text.append(str(event.delta))
                    continue
                if event.type == "error" or event.error is not None:
                    raise from_event(read_problem(item.data))
                found = self._take(event)
                if found is not None:
                    heard = "".join(text)
                    text.clear()
                    words = self._thinking.feed(heard)
                    if isinstance(found, Finished):
                        words += self._thinking.rest(is_cut=found.stop == "max_tokens")
                    yield from said(words)
                    yield found
        except ModelError as raised:
            error = raised
        except (msgspec.DecodeError, UnicodeDecodeError, SSEError):
            error = failure("undecodable")
        yield from said(self._thinking.feed("".join(text)))
        if error is not None:
            raise error

    def end(self) -> list[ModelEvent]:
        """Say that the bytes ended before the reply. Raises `ModelError`."""
        raise ModelError("connection", "The model service ended its answer before it was complete.")

    def _take(self, event: _Event) -> ModelEvent | None:
        response = event.response or _Response()
        match event.type:
            case "response.output_item.done" if event.item is not None:
                return self._end_item(event.item)
            case "response.refusal.delta":
                self._refused = True
            case "response.completed":
                return self._finish(self._calls_stop, response)
            case "response.incomplete":
                reason = response.incomplete_details.reason if response.incomplete_details else None
                return self._finish(_INCOMPLETE.get(reason or "", "max_tokens"), response)
            case "response.failed":
                raise from_event(problem_of(response.error))
        return None

    def _end_item(self, item: dict[str, Any]) -> ModelEvent | None:
        kind = item.get("type")
        # Reasoning without its content is only a name, of something that the service does not store.
        if kind == "reasoning" and (item.get("encrypted_content") or item.get("content")):
            self._items.append(item)
        if kind not in ("message", "function_call"):
            return None
        self._items.append({"type": kind})
        if kind == "message":
            return None
        given_id = item.get("call_id") or item.get("id") or f"call_{len(self._items)}"
        arguments = str(item.get("arguments") or "")
        if not arguments and item.get("status") != "incomplete":
            arguments = "{}"
        # llama.cpp says "completed" of a reply that its limit cut off, too.
        self._calls_stop = (
            "tool_use" if is_json(arguments) and self._calls_stop != "max_tokens" else "max_tokens"
        )
        return ToolCall(str(given_id), self._names.to_tool(str(item.get("name", ""))), arguments)

    def _finish(self, stop: StopReason, response: _Response) -> Finished:
        self.finished = True
        opaque = None
        if any(item["type"] == "reasoning" for item in self._items):
            opaque = msgspec.json.encode(_Kept(self._source, self._items)).decode()
        figures = usage(response.usage, "input_tokens", "output_tokens")
        return Finished("refusal" if self._refused else stop, figures, opaque)
