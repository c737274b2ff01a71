"""The account of a model's requests, and their rendering as the body that the Messages API accepts; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from conductor.messages import AssistantMessage, Message, ToolResult, UserMessage
from conductor.models.base import ModelRequest, ToolDefinition, limit_of, may_call, running_turn
from conductor.models.profiles import Thinking
from conductor.plugins.models.families import Claude
from conductor.plugins.models.reasoning import digest, received_of, render
from conductor.plugins.models.rendering import BEGINNING, Json, object_schema, user_text
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
    head, messages = _render(request, names, claude, reasoning=reasoning)
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
    if any(isinstance(block, dict) for message in messages for block in message.content):
        setting = body.setdefault("thinking", {"type": "adaptive"})
        if setting["type"] in ("adaptive", "enabled"):
            setting["block_binding"] = {"prefix_mismatch_behavior": "drop_block"}
    # The service looks back a limited number of blocks for a cached prefix. With the last message but one
    # marked too, the next request finds this one, however many blocks it adds.
    users = [message for message in messages if message.role == "user"]
    starts = [message for message in users if not isinstance(message.content[0], _Result)]
    # A new turn sends the last one without its thinking, so the cache ends where that turn began.
    for message in (starts if starts[-1] is users[-1] else users)[-2:]:
        message.content[-1].cache_control = _CACHE
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
    """Give the `digest` to which the service binds the thinking of the reply; arguments as in `body_of`."""
    head, messages = _render(request, names, claude, reasoning=reasoning)
    return digest({**head, "messages": messages})


class _Text(msgspec.Struct, tag_field="type", tag="text", omit_defaults=True):
    text: str
    cache_control: CacheControlEphemeralParam | None = None


class _Result(msgspec.Struct, tag_field="type", tag="tool_result", omit_defaults=True):
    tool_use_id: str
    content: str
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


def _render(
    request: ModelRequest, names: ToolNameMap, claude: Claude, *, reasoning: bool
) -> tuple[Json, list[_Message]]:
    head: Json = {"model": claude.model}
    if tools := _tools(tuple(request.tools), names):
        head["tools"] = tools
    if request.system.strip():
        system: TextBlockParam = {"type": "text", "text": request.system, "cache_control": _CACHE}
        head["system"] = [system]
    first = running_turn(request.messages) if reasoning else len(request.messages)
    return head, _messages(request.messages, names, claude.provider, head, first)


def _messages(
    history: Sequence[Message], names: ToolNameMap, provider: str, head: Json, first: int
) -> list[_Message]:
    # ``first`` is the index of the first reply whose thinking may go back.
    messages: list[_Message] = []
    results: list[_Result] = []
    texts: list[_Text] = []
    ids: dict[str, str] = {}

    def end_user() -> None:
        if results or texts or not messages:
            messages.append(_Message("user", [*results, *texts] or [_Text(BEGINNING)]))
        results.clear()
        texts.clear()

    for index, item in enumerate(history):
        # The service wants all results before any text.
        if isinstance(item, ToolResult):
            results.append(_Result(ids[item.call_id], user_text(item), item.is_error))
            continue
        if not isinstance(item, AssistantMessage):
            texts.append(_Text(user_text(item)))
            continue
        if not (item.text.strip() or item.calls):
            continue
        end_user()
        received = received_of(item, provider) if index >= first else None
        if received is not None and received.prefix != digest({**head, "messages": messages}):
            return _messages(history, names, provider, head, index + 1)
        blocks = render(item, received, names, ids, text=_Text, call=_use)
        if received is not None and isinstance(blocks[-1], _Text):
            blocks[-1].text = blocks[-1].text.rstrip()
        # Roles alternate: two replies in a row, such as after a barge-in, are one message.
        if messages[-1].role == "assistant":
            messages[-1].content += blocks
        else:
            messages.append(_Message("assistant", blocks))
    end_user()
    return messages


def _use(call_id: str, name: str, arguments: bytes) -> _Use:
    return _Use(call_id, name, msgspec.Raw(arguments))
