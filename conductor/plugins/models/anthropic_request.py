"""The account of a model's requests, and their rendering as the body that the Messages API accepts; pure."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import msgspec

from conductor.messages import AssistantMessage, Message, Note, ToolResult, UserMessage
from conductor.models.base import ModelRequest, ToolDefinition, folded, limit_of, may_call, running_turn
from conductor.models.profiles import Thinking
from conductor.plugins.models.families import Claude
from conductor.plugins.models.reasoning import digest, received_of, render
from conductor.plugins.models.rendering import BEGINNING, Json, object_schema, shown, shown_ids, user_text
from conductor.plugins.models.tool_names import ToolNameMap

if TYPE_CHECKING:
    from anthropic.types import (
        CacheControlEphemeralParam,
        TextBlockParam,
        ThinkingConfigParam,
        ToolChoiceNoneParam,
        ToolParam,
    )

    from conductor.models.profiles import Platform

# Typed by the SDK, so that mypy fails when the API changes.
_CACHE: CacheControlEphemeralParam = {"type": "ephemeral"}
_THINKING: dict[Thinking, ThinkingConfigParam] = {
    "disabled": {"type": "disabled"},
    "between_tools": {"type": "between_tools"},
    "adaptive": {"type": "adaptive"},
}
_NO_CALLS: ToolChoiceNoneParam = {"type": "none"}
# In the place of a person's next words.
_PLACEHOLDER = "..."


@dataclass(frozen=True, slots=True)
class Account:
    """An account at Anthropic or on another platform, for the SDK.

    ``token`` and ``credentials``, the name of a profile of the SDK, are in place of a ``key``; with none of
    them the SDK looks for credentials, unless the service ``needs_none``. ``headers``, with lower-case names,
    replace the SDK's. ``options`` are more arguments of the SDK's client.
    """

    key: str | None = None
    base_url: str | None = None
    platform: Platform = "anthropic"
    token: str | None = None
    credentials: str | None = None
    needs_none: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)


@lru_cache(maxsize=256)
def _tools(tools: tuple[ToolDefinition, ...], names: ToolNameMap) -> list[ToolParam]:
    rendered = [_tool(tool, names) for tool in tools]
    # The service refuses a tool_use in the history without a definition of its tool.
    for name in names.besides({tool.name for tool in tools}):
        former = ToolDefinition(name, "No longer available. Do not call it.", {})
        rendered.append(_tool(former, names))
    if rendered:
        # A cache mark covers all before it.
        rendered[-1]["cache_control"] = _CACHE
    return rendered


def body_of(
    request: ModelRequest, names: ToolNameMap, claude: Claude, max_tokens: int, *, reasoning: bool = True
) -> Json:
    """Render a streaming request; ``max_tokens`` is raised if it may call tools (`base.limit_of`).

    With ``reasoning``, the provider's own goes back (`conductor.plugins.models.reasoning`).
    """
    head, messages, has_reasoning = _render(request, names, claude, reasoning=reasoning)
    body: Json = {**head, "max_tokens": limit_of(request, max_tokens), "stream": True, "messages": messages}
    thinking, effort = claude.least_reasoning()
    if thinking is not None:
        body["thinking"] = {**_THINKING[thinking]}
    if effort is not None:
        body["output_config"] = {"effort": effort}
    if request.stop:
        body["stop_sequences"] = list(request.stop)
    if "tools" in head and not may_call(request):
        # Without its tools a history of calls is refused, and the cached prefix is lost.
        body["tool_choice"] = _NO_CALLS
    if has_reasoning:
        setting = body.setdefault("thinking", {"type": "adaptive"})
        if setting["type"] in ("adaptive", "enabled"):
            setting["block_binding"] = {"prefix_mismatch_behavior": "drop_block"}
    # The service looks back a limited number of blocks for a cached prefix. With the last message but one
    # marked too, the next request finds this one, however many blocks it adds.
    users = [index for index, message in enumerate(messages) if message.role == "user"]
    starts = [index for index in users if not isinstance(messages[index].content[0], _Result)]
    # A new turn sends the last one without its thinking, so the cache ends where that turn began.
    for index in (starts if starts[-1] == users[-1] else users)[-2:]:
        messages[index] = _marked(messages[index])
    if any(isinstance(message.content[-1], _Passing) for message in messages) and "tools" in body:
        # The service takes four marks. The one of the tools is for sessions that begin.
        *tools, last = body["tools"]
        body["tools"] = [*tools, {key: value for key, value in last.items() if key != "cache_control"}]
    return body


def warming_of(request: ModelRequest, names: ToolNameMap, claude: Claude) -> Json:
    """Render a request that only has the service cache ``request``."""
    extended = replace(request, messages=[*request.messages, UserMessage(_PLACEHOLDER)])
    body = body_of(extended, names, claude, max_tokens=0)
    # The service refuses a stream here. The next request has other words in the placeholder's place.
    del body["stream"]
    body["messages"][-1].content[-1].cache_control = None
    return body


def prefix_of(request: ModelRequest, names: ToolNameMap, claude: Claude, *, reasoning: bool = True) -> str:
    """Return the `digest` to which the service binds the thinking of the reply; arguments as in `body_of`."""
    head, messages, _ = _render(request, names, claude, reasoning=reasoning)
    return digest({**head, "messages": messages})


class _TextBlock(msgspec.Struct, tag_field="type", tag="text", omit_defaults=True):
    text: str
    cache_control: CacheControlEphemeralParam | None = None


class _Source(msgspec.Struct, tag_field="type", tag="base64"):
    media_type: str
    data: str


class _Image(msgspec.Struct, tag_field="type", tag="image", omit_defaults=True):
    source: _Source
    cache_control: CacheControlEphemeralParam | None = None


class _Passing(_TextBlock, tag_field="type", tag="text", omit_defaults=True):
    """The text of a note that later turns leave out."""


class _Result(msgspec.Struct, tag_field="type", tag="tool_result", omit_defaults=True):
    tool_use_id: str
    content: str | list[_TextBlock | _Image]
    is_error: bool = False
    cache_control: CacheControlEphemeralParam | None = None


class _Use(msgspec.Struct, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: msgspec.Raw


class _Message(msgspec.Struct):
    role: str
    content: list[Any]


def _tool(tool: ToolDefinition, names: ToolNameMap) -> ToolParam:
    rendered: ToolParam = {
        "name": names.to_service(tool.name),
        "input_schema": object_schema(tool.input_schema),
    }
    if tool.description.strip():
        rendered["description"] = tool.description
    return rendered


def _marked(message: _Message) -> _Message:
    """Mark the last block, and the last one that later turns have, too."""
    blocks = [*message.content]
    lasting = max((at for at, block in enumerate(blocks) if not isinstance(block, _Passing)), default=-1)
    for at in {lasting, len(blocks) - 1}:
        blocks[at] = msgspec.structs.replace(blocks[at], cache_control=_CACHE)
    return _Message(message.role, blocks)


def _render(
    request: ModelRequest, names: ToolNameMap, claude: Claude, *, reasoning: bool
) -> tuple[Json, list[_Message], bool]:
    """Return a request's head, its messages, and whether they hold reasoning."""
    head: Json = {"model": claude.model}
    tools = tuple(request.tools)
    if rendered := _tools(tools, names):
        head["tools"] = rendered
    if request.system.strip():
        system: TextBlockParam = {"type": "text", "text": request.system, "cache_control": _CACHE}
        head["system"] = [system]
    first = running_turn(request.messages) if reasoning else sys.maxsize
    while True:
        key = _History, claude, names, tools, request.system, first, shown_ids(request)
        new = partial(_History, names, claude.provider, head, first, request.images)
        try:
            history = folded(request, key, new)
        except _PrefixChanged as error:
            first = error.index + 1
        else:
            return head, history.messages(), history.has_reasoning


class _PrefixChanged(Exception):
    """The reply at ``index`` has reasoning that came after another prefix."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index


class _History:
    """The messages of a history. ``first`` is the index of the first reply whose thinking may go back."""

    def __init__(
        self, names: ToolNameMap, provider: str, head: Json, first: int, images: Mapping[str, bytes] | None
    ) -> None:
        self.images = images
        self.has_reasoning = False
        self._names = names
        self._provider = provider
        self._head = head
        self._first = first
        self._count = 0
        self._messages: list[_Message] = []
        # Of the user's message at the end. The service wants all results before any text.
        self._results: list[_Result] = []
        self._texts: list[_TextBlock | _Image] = []
        # Behind the mark of their message.
        self._passing: list[_TextBlock] = []
        self._ids: dict[str, str] = {}

    def messages(self) -> list[_Message]:
        """Return the messages so far."""
        if self._results or self._texts or self._passing or not self._messages:
            blocks = [*self._results, *self._texts, *self._passing]
            last = _Message("user", blocks or [_TextBlock(BEGINNING)])
            return [*self._messages, last]
        return [*self._messages]

    def add(self, item: Message) -> None:
        """Add a message of the history. Raises `_PrefixChanged`."""
        if isinstance(item, ToolResult):
            self._add_result(item)
        elif isinstance(item, Note) and item.passing:
            self._passing.append(_Passing(user_text(item, self.images)))
        elif not isinstance(item, AssistantMessage):
            self._texts += [*self._images(item), _TextBlock(user_text(item, self.images))]
        elif item.text.strip() or item.calls:
            self._add_reply(item)
        self._count += 1

    def _add_result(self, item: ToolResult) -> None:
        text, images, key = user_text(item, self.images), self._images(item), self._ids[item.call_id]
        content: str | list[_TextBlock | _Image] = [_TextBlock(text), *images]
        if not images or item.is_error:
            content = text
        self._results.append(_Result(key, content, item.is_error))
        if images and item.is_error:  # the service refuses an error with anything but text
            self._texts += [_TextBlock(f"[The images of the result of {key}:]"), *images]

    def _images(self, item: Message) -> list[_Image]:
        return [_Image(_Source(media_type, data)) for media_type, data in shown(item, self.images)]

    def _add_reply(self, item: AssistantMessage) -> None:
        self._messages = messages = self.messages()
        self._results, self._texts, self._passing = [], [], []
        received = received_of(item, self._provider) if self._count >= self._first else None
        if received is not None and received.prefix != digest({**self._head, "messages": messages}):
            raise _PrefixChanged(self._count)
        blocks = render(item, received, self._names, self._ids, text=_TextBlock, call=_use)
        if received is not None:
            self.has_reasoning |= any(isinstance(block, dict) for block in blocks)
            if isinstance(blocks[-1], _TextBlock):
                blocks[-1].text = blocks[-1].text.rstrip()
        # Roles alternate: two replies in a row, such as after a barge-in, are one message.
        if messages[-1].role == "assistant":
            messages[-1].content += blocks
        else:
            messages.append(_Message("assistant", blocks))


def _use(call_id: str, name: str, arguments: bytes) -> _Use:
    return _Use(call_id, name, msgspec.Raw(arguments))
