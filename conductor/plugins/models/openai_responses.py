"""The Responses API: render a request and decode its stream; pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any, TypeAlias

import msgspec

from conductor.messages import AssistantMessage, Message, ToolResult
from conductor.models.base import (
    Finished,
    ModelRequest,
    StopReason,
    ToolDefinition,
    folded,
    is_json,
    limit_of,
    may_call,
    running_turn,
)
from conductor.models.profiles import Effort
from conductor.plugins.models.calls import arguments_text
from conductor.plugins.models.decoding import EventDecoder, Item, SSEParser, joined, json_decoder
from conductor.plugins.models.openai_request import PROVIDER, function_of
from conductor.plugins.models.openai_stream import usage
from conductor.plugins.models.reasoning import (
    Reasoning,
    ReplyBlock,
    Words,
    add_slot,
    opaque_of,
    received_of,
    render,
)
from conductor.plugins.models.rendering import BEGINNING, Json, shown, shown_ids, user_text
from conductor.plugins.models.service_errors import from_event, problem_of, read_problem
from conductor.plugins.models.thought_filter import ThoughtFilter, ThoughtHabit
from conductor.plugins.models.tool_names import ToolNameMap

# The smallest limit that OpenAI accepts.
_MIN_TOKENS = 16
# OpenAI's models without reasoning refuse a request for it.
_PLAIN_MODELS = re.compile(r"gpt-[34]|chatgpt|.*-chat")
_INCOMPLETE: dict[str, StopReason] = {"max_output_tokens": "max_tokens", "content_filter": "refusal"}


def responses_body(
    request: ModelRequest,
    names: ToolNameMap,
    *,
    model: str,
    max_tokens: int,
    source: str,
    official: bool = False,
    effort: Effort | None = None,
) -> Json:
    """Render a request to ``/responses``; the service stores nothing. The API has no stop sequences.

    Reasoning goes back only to its ``source``: service and model.
    """
    body: Json = {
        "model": model,
        "input": _input(request, names, source),
        "stream": True,
        "store": False,
        "max_output_tokens": max(_MIN_TOKENS, limit_of(request, max_tokens)),
    }
    if request.system.strip():
        body["instructions"] = request.system
    if request.tools:
        body["tools"] = _tools(tuple(request.tools), names)
    if not _PLAIN_MODELS.match(model):
        body["include"] = ["reasoning.encrypted_content"]
    if official and request.cache_key is not None:
        body["prompt_cache_key"] = request.cache_key
    if effort is not None:
        body["reasoning"] = {"effort": effort}
    if request.tools and not may_call(request):
        body["tool_choice"] = "none"
    return body


@lru_cache(maxsize=256)
def _tools(tools: tuple[ToolDefinition, ...], names: ToolNameMap) -> list[Json]:
    # The default of "strict" is true, and refuses schemas with optional properties.
    return [{"type": "function", "strict": False, **function_of(tool, names)} for tool in tools]


class _InputText(msgspec.Struct, tag_field="type", tag="input_text"):
    text: str


class _Image(msgspec.Struct, tag_field="type", tag="input_image"):
    image_url: str
    detail: str = "auto"


_Content: TypeAlias = str | list[_InputText | _Image]


class _User(msgspec.Struct, tag_field="role", tag="user"):
    content: _Content


class _OutputText(msgspec.Struct, tag_field="type", tag="output_text"):
    text: str


class _Message(msgspec.Struct, tag_field="type", tag="message"):
    # llama.cpp does not accept the short form of the assistant's messages.
    content: list[_OutputText]
    role: str = "assistant"


class _Call(msgspec.Struct, tag_field="type", tag="function_call"):
    call_id: str
    name: str
    arguments: str


class _Output(msgspec.Struct, tag_field="type", tag="function_call_output"):
    call_id: str
    output: _Content


def _input(request: ModelRequest, names: ToolNameMap, source: str) -> list[Any]:
    running = running_turn(request.messages)
    key = _History, names, source, running, shown_ids(request)
    history = folded(request, key, partial(_History, names, source, running, request.images))
    return [*history.items] or [_User(BEGINNING)]


class _History:
    """The items of a history. ``running`` is the index where the running turn's replies begin."""

    def __init__(
        self, names: ToolNameMap, source: str, running: int, images: Mapping[str, bytes] | None
    ) -> None:
        self.items: list[Any] = []
        self._images = images
        self._names = names
        self._source = source
        self._left = running
        self._ids: dict[str, str] = {}

    def add(self, message: Message) -> None:
        """Add a message of the history."""
        if isinstance(message, AssistantMessage):
            if not self.items:
                self.items.append(_User(BEGINNING))
            received = received_of(message, PROVIDER) if self._left <= 0 else None
            if received is not None and received.prefix != self._source:
                received = None
            self.items += render(message, received, self._names, self._ids, text=_message, call=_call)
        elif isinstance(message, ToolResult):
            self.items.append(_Output(self._ids[message.call_id], self._content(message)))
        else:
            self.items.append(_User(self._content(message)))
        self._left -= 1

    def _content(self, message: Message) -> _Content:
        text = user_text(message, self._images)
        images = [_Image(f"data:{kind};base64,{data}") for kind, data in shown(message, self._images)]
        return [_InputText(text), *images] if images else text


def _message(text: str) -> _Message:
    return _Message([_OutputText(text)])


def _call(call_id: str, name: str, arguments: bytes) -> _Call:
    return _Call(call_id, name, arguments.decode())


class _Incomplete(msgspec.Struct, gc=False):
    reason: str | None = None


class _Response(msgspec.Struct):
    usage: Any = None
    error: Any = None
    incomplete_details: _Incomplete | None = None


class _Event(msgspec.Struct):
    # One shape for all events; unknown types are ignored.
    type: str = ""
    delta: Any = None
    item: dict[str, Any] | None = None
    response: _Response | None = None
    error: Any = None


_decode = json_decoder(_Event)


class ResponsesDecoder(EventDecoder):
    """Decodes a streamed reply; its reasoning is kept for its ``source``. ``habit``: see `ThoughtFilter`."""

    def __init__(self, names: ToolNameMap, source: str, habit: ThoughtHabit | None = None) -> None:
        super().__init__(ThoughtFilter(habit))
        self._names = names
        self._source = source
        self._sse = SSEParser()
        self._received: list[ReplyBlock] = []
        self._words: list[str] = []
        self._refused = False

    def _read(self, chunk: bytes, items: list[Item]) -> None:
        for data in self._sse.feed(chunk):
            # An end mark or a keep-alive.
            if not data.startswith(b"{"):
                continue
            event = _decode(data)
            if event.type == "response.output_text.delta":
                self._words.append(str(event.delta))
                items.append(self._words[-1])
            elif event.type == "error" or event.error is not None:
                raise from_event(read_problem(data))
            elif (result := self._take(event)) is not None:
                items.append(result)

    def _take(self, event: _Event) -> Item | None:
        response = event.response or _Response()
        match event.type:
            case "response.output_item.done" if event.item is not None:
                self._end_item(event.item)
            case "response.refusal.delta":
                self._refused = True
            case "response.completed":
                return self._finish(self._stop_of_calls(), response)
            case "response.incomplete":
                reason = response.incomplete_details.reason if response.incomplete_details else None
                return self._finish(_INCOMPLETE.get(reason or "", "max_tokens"), response)
            case "response.failed":
                raise from_event(problem_of(response.error))
        return None

    def _end_item(self, item: dict[str, Any]) -> None:
        kind = item.get("type")
        # Reasoning without content is only an id, and the service stores nothing.
        if kind == "reasoning" and (item.get("encrypted_content") or item.get("content")):
            self._received.append(Reasoning(item))
        elif kind == "message":
            self._received.append(Words(joined(self._words)))
            self._words.clear()
        elif kind == "function_call":
            call_id = str(item.get("call_id") or item.get("id") or f"call_{len(self._received) + 1}")
            add_slot(self._received, call_id)
            arguments = arguments_text(item.get("arguments"))
            if not arguments and item.get("status") != "incomplete":
                arguments = "{}"
            self._add_call(call_id, self._names.to_tool(str(item.get("name", ""))), arguments)

    def _stop_of_calls(self) -> StopReason:
        calls = self._calls_of_reply()
        if not calls:
            return "end_turn"
        # llama.cpp also says "completed" of a reply that its limit cut off.
        return "tool_use" if all(is_json(call.arguments) for call in calls) else "max_tokens"

    def _finish(self, stop: StopReason, response: _Response) -> Finished:
        self.finished = True
        figures = usage(response.usage, "input_tokens", "output_tokens")
        opaque = opaque_of(self._received, lambda: self._source)
        return Finished("refusal" if self._refused else stop, figures, opaque)
