"""Render a model request as the body that the Messages API accepts; pure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec

from conductor.messages import AssistantMessage, Message, Note, ToolCall, ToolResult, UserMessage
from conductor.models.base import ModelRequest, ToolDefinition
from conductor.models.families import Effort, Thinking, claude_reasoning
from conductor.models.rendering import (
    BEGINNING,
    NO_RESULT,
    NO_WORDS,
    Json,
    arguments_of,
    call_id,
    limit_of,
    may_call,
    object_schema,
    unicode_of,
)
from conductor.models.tool_names import ToolNameMap

PROVIDER = "anthropic"
_CACHE: Json = {"type": "ephemeral"}
_THINKING = ("thinking", "redacted_thinking")


@lru_cache(maxsize=256)
def _tools(tools: tuple[ToolDefinition, ...], names: ToolNameMap) -> list[Json]:
    rendered = [_tool(tool, names) for tool in tools]
    # Rule 6 of models, "Anthropic": tools stay in the request while the history holds their calls.
    rendered += [_former_tool(name, names) for name in names.besides({tool.name for tool in tools})]
    if rendered:
        # A cache mark covers all before it, so one at the end stands for all tools.
        rendered[-1]["cache_control"] = _CACHE
    return rendered


def body_of(
    request: ModelRequest,
    names: ToolNameMap,
    *,
    model: str,
    max_tokens: int,
    provider: str = PROVIDER,
    thinking: Thinking | None = None,
    effort: Effort | None = None,
) -> Json:
    """Render a streaming request; ``max_tokens`` is raised if it may call tools (`rendering.limit_of`).

    ``provider`` is the one whose thinking goes back. Without ``thinking`` and ``effort`` the model thinks as
    little as it allows.
    """
    tools = _tools(tuple(request.tools), names)
    body: Json = {
        "model": model,
        "max_tokens": limit_of(request, max_tokens),
        "stream": True,
        "messages": _messages(request.messages, names, provider),
    }
    thinking, effort = claude_reasoning(model, thinking, effort)
    if thinking is not None:
        body["thinking"] = {"type": thinking}
    if effort is not None:
        body["output_config"] = {"effort": effort}
    if request.system.strip():
        body["system"] = [{"type": "text", "text": request.system, "cache_control": _CACHE}]
    if request.stop:
        body["stop_sequences"] = list(request.stop)
    if tools:
        body["tools"] = tools
        if not may_call(request):
            # Leaving the tools out instead would be refused with a history of calls, and would lose the
            # cached prefix.
            body["tool_choice"] = {"type": "none"}
    return body


class _Text(msgspec.Struct, tag_field="type", tag="text", omit_defaults=True):
    text: str
    cache_control: Json | None = None


class _Result(msgspec.Struct, tag_field="type", tag="tool_result", omit_defaults=True):
    tool_use_id: str
    content: str
    is_error: bool = False
    cache_control: Json | None = None


class _Use(msgspec.Struct, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: msgspec.Raw


class _Message(msgspec.Struct):
    role: str
    content: list[Any]


def _tool(tool: ToolDefinition, names: ToolNameMap) -> Json:
    rendered: Json = {"name": names.to_service(tool.name), "input_schema": object_schema(tool.input_schema)}
    if tool.description.strip():
        rendered["description"] = tool.description
    return rendered


def _former_tool(name: str, names: ToolNameMap) -> Json:
    # The service wants a definition of each tool that a tool_use names.
    return {
        "name": names.to_service(name),
        "description": "No longer available. Do not call it.",
        "input_schema": {"type": "object"},
    }


def _messages(history: Sequence[Message], names: ToolNameMap, provider: str) -> list[_Message]:
    messages: list[_Message] = []
    users: list[_Message] = []
    results: list[_Result] = []
    texts: list[_Text] = []
    for item in history:
        if not isinstance(item, AssistantMessage):
            _add_user(item, results, texts)
            continue
        blocks = _assistant(item, names, provider)
        if not blocks:
            continue
        if results or texts:
            users.append(_Message("user", [*results, *texts]))
            messages.append(users[-1])
            results, texts = [], []
        # Roles alternate: two replies in a row, such as one that a barge-in cut, are one message to the
        # service.
        if messages and messages[-1].role == "assistant":
            messages[-1].content += blocks
        else:
            messages.append(_Message("assistant", blocks))
    if results or texts:
        users.append(_Message("user", [*results, *texts]))
        messages.append(users[-1])
    if not messages or messages[0].role == "assistant":
        users.insert(0, _Message("user", [_Text(BEGINNING)]))
        messages.insert(0, users[0])
    # The service looks back a limited number of blocks for a cached prefix. With the message before the last
    # marked as well, the next request finds this one, however many blocks it adds.
    for message in users[-2:]:
        message.content[-1].cache_control = _CACHE
    return messages


def _add_user(item: UserMessage | Note | ToolResult, results: list[_Result], texts: list[_Text]) -> None:
    # The service wants all results before any text.
    if isinstance(item, ToolResult):
        content = unicode_of(item.content) if item.content.strip() else NO_RESULT
        results.append(_Result(call_id(item.call_id), content, item.is_error))
    elif isinstance(item, UserMessage):
        texts.append(_Text(unicode_of(item.text) if item.text.strip() else NO_WORDS))
    else:
        texts.append(_Text(f"[{unicode_of(item.text)}]"))


def _assistant(message: AssistantMessage, names: ToolNameMap, provider: str) -> list[Any]:
    blocks: list[Any] = []
    text = message.text.rstrip()  # the service refuses trailing white space in the last message
    if text:
        blocks.append(_Text(unicode_of(text)))
    blocks += [_tool_use(call, names) for call in message.calls]
    # Thinking goes back verbatim with its tool_use (rule 5), and another provider's is not understood.
    if blocks and message.opaque is not None and message.provider == provider:
        return [*_thinking(message.opaque), *blocks]
    return blocks


def _thinking(opaque: str) -> list[Json]:
    try:
        blocks = msgspec.json.decode(opaque, type=list[dict[str, Any]])
    except msgspec.DecodeError:
        return []
    return [block for block in blocks if block.get("type") in _THINKING]


def _tool_use(call: ToolCall, names: ToolNameMap) -> _Use:
    return _Use(call_id(call.call_id), names.to_service(call.name), msgspec.Raw(arguments_of(call)))
