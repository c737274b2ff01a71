"""Render a model request as the body that the Messages API accepts; pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import msgspec

from conductor.messages import AssistantMessage, Message, Note, ToolCall, ToolResult, UserMessage
from conductor.models.base import ModelRequest, ToolDefinition
from conductor.models.tool_names import ToolNameMap, with_hash

PROVIDER = "anthropic"
Json: TypeAlias = dict[str, Any]

# Tokens of a reply that may hold calls: arguments need more than spoken words.
TOKENS_WITH_TOOLS = 4096
_CACHE: Json = {"type": "ephemeral"}
# What stands for text that is missing: the service refuses a blank block and a history that begins with the
# assistant (models, "Anthropic", rule 3).
_BEGINNING = "[The conversation goes on from here.]"
_NO_WORDS = "[No words.]"
_NO_RESULT = "(nothing)"
# The service's rules for ids and property names; calls in another provider's history may break them.
_ID = re.compile(r"[a-zA-Z0-9_-]+\Z")
_PROPERTY = re.compile(r"[a-zA-Z0-9_.-]{1,64}\Z")
_THINKING = ("thinking", "redacted_thinking")


def names_of(request: ModelRequest) -> ToolNameMap:
    """Map the names of the offered tools and of the history's calls."""
    return _names(tuple(request.tools), frozenset(_called(request.messages)))


@lru_cache(maxsize=256)
def _names(tools: tuple[ToolDefinition, ...], called: frozenset[str]) -> ToolNameMap:
    return ToolNameMap([*(tool.name for tool in tools), *sorted(called)])


@lru_cache(maxsize=256)
def _tools(tools: tuple[ToolDefinition, ...], names: ToolNameMap) -> list[Json]:
    rendered = [_tool(tool, names) for tool in tools]
    # Rule 6 of models, "Anthropic": tools stay in the request while the history holds their calls.
    rendered += [_former_tool(name, names) for name in names.besides({tool.name for tool in tools})]
    if rendered:
        # A cache mark covers all before it, so one at the end stands for all tools.
        rendered[-1]["cache_control"] = _CACHE
    return rendered


def body_of(request: ModelRequest, names: ToolNameMap, *, model: str, max_tokens: int) -> Json:
    """Render a streaming request.

    With tools offered the limit is ``min(4 * max_tokens, 4096)``, and never below ``max_tokens``: a limit
    made for spoken answers would cut arguments off.
    """
    offered = tuple(request.tools)
    may_call = bool(offered) and request.tool_choice == "auto"
    if may_call:
        max_tokens = max(max_tokens, min(4 * max_tokens, TOKENS_WITH_TOOLS))
    tools = _tools(offered, names)
    body: Json = {
        "model": model,
        "max_tokens": max_tokens,
        "stream": True,
        "messages": _messages(request.messages, names),
    }
    if request.system.strip():
        body["system"] = [{"type": "text", "text": request.system, "cache_control": _CACHE}]
    if tools:
        body["tools"] = tools
        if not may_call:
            # Leaving the tools out instead would be refused with a history of calls, and would lose the
            # cached prefix.
            body["tool_choice"] = {"type": "none"}
    return body


def encode(body: Json) -> bytes:
    """Encode a body; lone surrogates in the prompt or in tools become question marks."""
    try:
        return _encode(body)
    except UnicodeEncodeError:
        clean = {key: _without_surrogates(body[key]) for key in ("system", "tools") if key in body}
        return _encode({**body, **clean})


def _without_surrogates(value: Any) -> Any:
    match value:
        case str():
            return _unicode(value)
        case Mapping():
            return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
        case list() | tuple():
            return [_without_surrogates(item) for item in value]
        case _:
            return value


_encode = msgspec.json.Encoder().encode
# The hook: msgspec takes 100 times as long as Python for floats such as 1e308.
_decode_object = msgspec.json.Decoder(dict[str, Any], float_hook=float).decode
_EMPTY = msgspec.Raw(b"{}")


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


def _called(messages: Iterable[Message]) -> list[str]:
    return [
        call.name for message in messages if isinstance(message, AssistantMessage) for call in message.calls
    ]


def _tool(tool: ToolDefinition, names: ToolNameMap) -> Json:
    rendered: Json = {"name": names.to_service(tool.name), "input_schema": _object_schema(tool.input_schema)}
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


def _object_schema(schema: Mapping[str, Any]) -> Json:
    # The service wants type "object", no oneOf, anyOf or allOf at the top, and property names of 1 to 64 of
    # ``a-zA-Z0-9_.-``. Arguments are validated here in any case.
    rendered = {key: value for key, value in schema.items() if key not in ("oneOf", "anyOf", "allOf")}
    rendered["type"] = "object"
    properties = rendered.get("properties")
    if isinstance(properties, Mapping) and not all(map(_PROPERTY.match, properties)):
        rendered["properties"] = {name: value for name, value in properties.items() if _PROPERTY.match(name)}
        rendered["required"] = [
            name for name in rendered.get("required", ()) if name in rendered["properties"]
        ]
    return rendered


def _messages(history: Sequence[Message], names: ToolNameMap) -> list[_Message]:
    messages: list[_Message] = []
    users: list[_Message] = []
    results: list[_Result] = []
    texts: list[_Text] = []
    for item in history:
        if not isinstance(item, AssistantMessage):
            _add_user(item, results, texts)
            continue
        blocks = _assistant(item, names)
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
        users.insert(0, _Message("user", [_Text(_BEGINNING)]))
        messages.insert(0, users[0])
    # The service looks back a limited number of blocks for a cached prefix. With the message before the last
    # marked as well, the next request finds this one, however many blocks it adds.
    for message in users[-2:]:
        message.content[-1].cache_control = _CACHE
    return messages


def _add_user(item: UserMessage | Note | ToolResult, results: list[_Result], texts: list[_Text]) -> None:
    # The service wants all results before any text.
    if isinstance(item, ToolResult):
        content = _unicode(item.content) if item.content.strip() else _NO_RESULT
        results.append(_Result(call_id(item.call_id), content, item.is_error))
    elif isinstance(item, UserMessage):
        texts.append(_Text(_unicode(item.text) if item.text.strip() else _NO_WORDS))
    else:
        texts.append(_Text(f"[{_unicode(item.text)}]"))


def _unicode(text: str) -> str:
    # The service refuses halves of surrogate pairs, which are no Unicode.
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _assistant(message: AssistantMessage, names: ToolNameMap) -> list[Any]:
    blocks: list[Any] = []
    text = message.text.rstrip()  # the service refuses trailing white space in the last message
    if text:
        blocks.append(_Text(_unicode(text)))
    blocks += [_tool_use(call, names) for call in message.calls]
    # Thinking goes back verbatim with its tool_use (rule 5), and another provider's is not understood.
    if blocks and message.opaque is not None and message.provider == PROVIDER:
        return [*_thinking(message.opaque), *blocks]
    return blocks


def _thinking(opaque: str) -> list[Json]:
    try:
        blocks = msgspec.json.decode(opaque, type=list[dict[str, Any]])
    except msgspec.DecodeError:
        return []
    return [block for block in blocks if block.get("type") in _THINKING]


def _tool_use(call: ToolCall, names: ToolNameMap) -> _Use:
    # Arguments that are no JSON object (a reply that was cut off) go back as ``{}``.
    try:
        given = call.arguments.encode()
        _decode_object(given)
        arguments = msgspec.Raw(given)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        arguments = _EMPTY
    return _Use(call_id(call.call_id), names.to_service(call.name), arguments)


def call_id(value: str) -> str:
    """Make an id that the service accepts (``^[a-zA-Z0-9_-]+$``): unchanged, or with a hash."""
    return value if _ID.match(value) else with_hash(value)
