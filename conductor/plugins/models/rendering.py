"""The common parts of the requests to all model services; pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeAlias

import msgspec

from conductor.messages import AssistantMessage, Message, ToolCall, ToolResult, UserMessage
from conductor.models.base import ModelRequest, ToolDefinition, whole_characters
from conductor.plugins.models.tool_names import ToolNameMap, with_hash

Json: TypeAlias = dict[str, Any]

# Tokens of a reply that may hold calls: arguments need more than spoken words.
TOKENS_WITH_TOOLS = 4096
# Services refuse a blank text, and a history that begins with the assistant.
BEGINNING = "[The conversation goes on from here.]"
_NO_WORDS = "[No words.]"
_NO_RESULT = "(nothing)"
# Services' rules for ids and property names.
_ID = re.compile(r"[a-zA-Z0-9_-]+\Z")
_PROPERTY = re.compile(r"[a-zA-Z0-9_.-]{1,64}\Z")


def may_call(request: ModelRequest) -> bool:
    """Tell whether the reply may hold calls."""
    return bool(request.tools) and request.tool_choice == "auto"


def limit_of(request: ModelRequest, max_tokens: int) -> int:
    """Give the limit of a reply in tokens.

    With calls it is ``min(4 * max_tokens, 4096)`` or more: a limit for spoken answers cuts arguments off.
    """
    return max(max_tokens, min(4 * max_tokens, TOKENS_WITH_TOOLS)) if may_call(request) else max_tokens


def names_of(request: ModelRequest) -> ToolNameMap:
    """Map the names of the offered tools and of the history's calls."""
    replies = (message for message in request.messages if isinstance(message, AssistantMessage))
    return _names(tuple(request.tools), frozenset(call.name for reply in replies for call in reply.calls))


@lru_cache(maxsize=256)
def _names(tools: tuple[ToolDefinition, ...], calls: frozenset[str]) -> ToolNameMap:
    return ToolNameMap([*(tool.name for tool in tools), *calls])


def call_id(value: str) -> str:
    """Make an id that services accept (``^[a-zA-Z0-9_-]+$``), with a hash if it is changed."""
    return value if _ID.match(value) else with_hash(value)


def arguments_of(call: ToolCall) -> bytes:
    """Give a call's arguments as JSON; ``{}`` if they are no object, as in a reply that was cut off."""
    try:
        data = call.arguments.encode()
        _decode_object(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return b"{}"
    return data


# msgspec takes 100 times as long as Python for floats such as 1e308.
_decode_object = msgspec.json.Decoder(dict[str, Any], float_hook=float).decode


def user_text(item: Message) -> str:
    """Give the text of a message that is not the assistant's."""
    if isinstance(item, UserMessage):
        return item.text if item.text.strip() else _NO_WORDS
    if isinstance(item, ToolResult):
        return item.content if item.content.strip() else _NO_RESULT
    assert not isinstance(item, AssistantMessage)
    return f"[{item.text}]"


def object_schema(schema: Mapping[str, Any]) -> Json:
    """Give a schema that services accept; arguments are validated against the tool's own.

    Type "object", no oneOf, anyOf or allOf at the top, property names of 1 to 64 of ``a-zA-Z0-9_.-``.
    """
    rendered = {key: value for key, value in schema.items() if key not in ("oneOf", "anyOf", "allOf")}
    rendered["type"] = "object"
    properties = rendered.get("properties")
    if isinstance(properties, Mapping) and not all(map(_PROPERTY.match, properties)):
        rendered["properties"] = {name: value for name, value in properties.items() if _PROPERTY.match(name)}
        rendered["required"] = [
            name for name in rendered.get("required", ()) if name in rendered["properties"]
        ]
    return rendered


def encode(body: Any) -> bytes:
    """Encode a body; half characters, which services refuse, are joined or replaced."""
    try:
        return _encode(body)
    except UnicodeEncodeError:
        plain = msgspec.to_builtins(body, enc_hook=msgspec.json.decode)  # of `msgspec.Raw`
        return whole_characters(json.dumps(plain, ensure_ascii=False)).encode()


_encode = msgspec.json.Encoder().encode
