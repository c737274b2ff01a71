"""Render a model request for OpenAI-compatible services; pure."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any

import msgspec

from conductor.messages import AssistantMessage, Message, ToolResult
from conductor.models.base import ModelRequest, ToolDefinition, folded, limit_of, may_call, running_turn
from conductor.models.profiles import Effort
from conductor.plugins.models.rendering import (
    BEGINNING,
    Json,
    arguments_of,
    call_id,
    encode,
    object_schema,
    shown,
    shown_ids,
    user_text,
)
from conductor.plugins.models.tool_names import ToolNameMap

PROVIDER = "openai"
# The fields that services want back of a reply with calls.
REASONING = ("reasoning_content", "reasoning", "reasoning_details")
# Ends a reply of "completions": a model without a chat template would write the person's words too.
_NEXT_SPEAKER = "\nUser:"


class ChatOpaque(msgspec.Struct):
    """The data of a reply with calls for its ``source``, service and model, alone.

    ``message`` has the fields `REASONING`, ``calls`` the ``extra_content`` of each call, such as a signature.
    """

    source: str
    message: dict[str, Any]
    calls: list[Any]

    def dump(self) -> str:
        """Encode it for `AssistantMessage.opaque`."""
        return encode(self).decode()


def chat_body(
    request: ModelRequest,
    names: ToolNameMap,
    *,
    model: str,
    max_tokens: int,
    official: bool,
    source: str,
    effort: Effort | None = None,
) -> Json:
    """Render a request to ``/chat/completions``; ``official`` is for OpenAI's own service.

    Reasoning goes back only to its ``source``, and only within its turn.
    """
    body: Json = {
        "model": model,
        "messages": _messages(request, names, source),
        "stream": True,
        "stream_options": {"include_usage": True},
        # OpenAI's newer models refuse the old name, other services the new one.
        "max_completion_tokens" if official else "max_tokens": limit_of(request, max_tokens),
    }
    if effort is not None:
        body["reasoning_effort"] = effort
    if official and request.cache_key is not None:
        body["prompt_cache_key"] = request.cache_key
    if request.stop:
        body["stop"] = list(request.stop)
    # Ollama ignores "none", and llama.cpp then writes calls as text, which would be spoken.
    if request.tools and (official or may_call(request)):
        body["tools"] = _tools(tuple(request.tools), names)
        if not may_call(request):
            body["tool_choice"] = "none"
        # llama.cpp's default is one call; some of OpenAI's models refuse the field.
        elif not official:
            body["parallel_tool_calls"] = True
    return body


def completions_body(request: ModelRequest, *, model: str, max_tokens: int) -> Json:
    """Render a request to ``/completions``: the messages as a prompt, without tools and calls."""
    return {
        "model": model,
        "prompt": _prompt(request),
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": max_tokens,
        "stop": [*request.stop, _NEXT_SPEAKER],
    }


def function_of(tool: ToolDefinition, names: ToolNameMap) -> Json:
    """Render a tool; services want ``properties`` in its schema."""
    parameters = {"properties": {}, **object_schema(tool.input_schema)}
    function: Json = {"name": names.to_service(tool.name), "parameters": parameters}
    if tool.description.strip():
        function["description"] = tool.description
    return function


class _Text(msgspec.Struct, tag_field="type", tag="text"):
    text: str


class _Address(msgspec.Struct):
    url: str


class _Image(msgspec.Struct, tag_field="type", tag="image_url"):
    image_url: _Address


class _User(msgspec.Struct, tag_field="role", tag="user"):
    content: str | list[_Text | _Image]


class _System(msgspec.Struct, tag_field="role", tag="system"):
    content: str


class _Tool(msgspec.Struct, tag_field="role", tag="tool"):
    tool_call_id: str
    content: str


class _Function(msgspec.Struct):
    name: str
    arguments: str


class _Call(msgspec.Struct, tag_field="type", tag="function"):
    id: str
    function: _Function
    extra_content: Any = msgspec.UNSET


class _Assistant(msgspec.Struct, tag_field="role", tag="assistant"):
    content: str | None
    tool_calls: list[_Call] | msgspec.UnsetType = msgspec.UNSET
    reasoning_content: Any = msgspec.UNSET
    reasoning: Any = msgspec.UNSET
    reasoning_details: Any = msgspec.UNSET


def _messages(request: ModelRequest, names: ToolNameMap, source: str) -> list[Any]:
    running = running_turn(request.messages)
    key = _History, names, source, running, shown_ids(request)
    history = folded(request, key, partial(_History, names, source, running, request.images))
    messages = [*history.messages, *history.pending()]
    if not messages or isinstance(messages[0], _Assistant):
        messages.insert(0, _User(BEGINNING))
    if request.system.strip():
        messages.insert(0, _System(request.system))
    return messages


class _History:
    """The messages of a history. ``running`` is the index where the running turn's replies begin."""

    def __init__(
        self, names: ToolNameMap, source: str, running: int, images: Mapping[str, bytes] | None
    ) -> None:
        self.messages: list[Any] = []
        self._images = images
        # Of results, whose messages are texts only; they come after all results of a reply.
        self._pictures: list[_Text | _Image] = []
        self._names = names
        self._source = source
        self._left = running

    def add(self, item: Message) -> None:
        """Add a message of the history."""
        if not isinstance(item, ToolResult):
            self.messages += self.pending()
            self._pictures = []
        last = self.messages[-1] if self.messages else None
        if isinstance(item, AssistantMessage):
            if item.text.strip() or item.calls:
                self._add_reply(item, last)
        elif isinstance(item, ToolResult):
            self.messages.append(_Tool(call_id(item.call_id), user_text(item, self._images)))
            if pictures := _pictures(item, self._images):
                text = f"[The images of the result of {call_id(item.call_id)}:]"
                self._pictures += [_Text(text), *pictures]
        else:
            user = _User(user_text(item, self._images))
            if pictures := _pictures(item, self._images):
                user = _User([*pictures, _Text(user_text(item, self._images))])
            if isinstance(last, _User):
                user = _joined(last, user)
                self.messages.pop()
            self.messages.append(user)
        self._left -= 1

    def pending(self) -> list[_User]:
        """Return the message with the images of the last results, if they have any."""
        return [_User([*self._pictures])] if self._pictures else []

    def _add_reply(self, item: AssistantMessage, last: Any) -> None:
        text = item.text.rstrip()
        calls = [_call(call, self._names) for call in item.calls] or msgspec.UNSET
        # Chat templates want alternating roles: two replies in a row, such as after a barge-in, are one.
        if isinstance(last, _Assistant):
            text = "\n\n".join(part for part in (last.content, text) if part)
            self.messages.pop()
        rendered = _Assistant(text or None, calls)
        self.messages.append(rendered)
        _give_back(rendered, item, self._source, runs=self._left <= 0)


def _pictures(item: Message, images: Mapping[str, bytes] | None) -> list[_Image]:
    return [_Image(_Address(f"data:{kind};base64,{data}")) for kind, data in shown(item, images)]


def _joined(first: _User, second: _User) -> _User:
    if isinstance(first.content, str) and isinstance(second.content, str):
        return _User(f"{first.content}\n\n{second.content}")
    return _User([*_parts(first), *_parts(second)])


def _parts(user: _User) -> list[_Text | _Image]:
    return [_Text(user.content)] if isinstance(user.content, str) else user.content


def _give_back(rendered: _Assistant, message: AssistantMessage, source: str, *, runs: bool) -> None:
    """Add the source's own fields of a reply; the reasoning only while the turn runs."""
    if message.opaque is None or not isinstance(rendered.tool_calls, list):
        return
    try:
        opaque = msgspec.json.decode(message.opaque, type=ChatOpaque)
    except msgspec.DecodeError:
        return  # another provider's
    if opaque.source != source:
        return
    for call, extra in zip(rendered.tool_calls, opaque.calls, strict=False):
        call.extra_content = extra or msgspec.UNSET
    for name in REASONING if runs else ():
        setattr(rendered, name, opaque.message.get(name, msgspec.UNSET))


def _call(call: Any, names: ToolNameMap) -> _Call:
    # Anything but the text of an object is status 500 from llama.cpp.
    return _Call(call_id(call.call_id), _Function(names.to_service(call.name), arguments_of(call).decode()))


@lru_cache(maxsize=256)
def _tools(tools: tuple[ToolDefinition, ...], names: ToolNameMap) -> list[Json]:
    return [{"type": "function", "function": function_of(tool, names)} for tool in tools]


def _prompt(request: ModelRequest) -> str:
    parts = [request.system.strip()] if request.system.strip() else []
    parts += [line for item in request.messages if (line := _line(item))]
    return "\n\n".join([*parts, "Assistant:"])


def _line(item: Message) -> str:
    if isinstance(item, AssistantMessage):
        return f"Assistant: {item.text.strip()}" if item.text.strip() else ""
    return f"{'Result' if isinstance(item, ToolResult) else 'User'}: {user_text(item, None)}"
