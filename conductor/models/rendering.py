"""What the requests to all model services have in common; pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import msgspec

from conductor.messages import AssistantMessage, Message, Note, ToolCall, UserMessage
from conductor.models.base import ModelRequest, ToolDefinition
from conductor.models.tool_names import ToolNameMap, with_hash

Json: TypeAlias = dict[str, Any]

# Tokens of a reply that may hold calls: arguments need more than spoken words.
TOKENS_WITH_TOOLS = 4096
# What stands for text that is missing: services refuse a blank text and a history that begins with the
# assistant (models, "Anthropic", rule 3).
BEGINNING = "[The conversation goes on from here.]"
NO_WORDS = "[No words.]"
NO_RESULT = "(nothing)"
# Services' rules for ids and property names; calls in another provider's history may break it.
_ID = re.compile(r"[a-zA-Z0-9_-]+\Z")
_PROPERTY = re.compile(r"[a-zA-Z0-9_.-]{1,64}\Z")


def may_call(request: ModelRequest) -> bool:
    """Tell whether the reply may hold calls."""
    return bool(request.tools) and request.tool_choice == "auto"


def limit_of(request: ModelRequest, max_tokens: int) -> int:
    """Give the limit of a reply in tokens.

    If it may hold calls that is ``min(4 * max_tokens, 4096)``, and never below ``max_tokens``: a limit made
    for spoken answers would cut arguments off.
    """
    return max(max_tokens, min(4 * max_tokens, TOKENS_WITH_TOOLS)) if may_call(request) else max_tokens


def running_turn(messages: Sequence[Message]) -> int:
    """Give the index of the first message behind the last words that are not the model's.

    From there on stand the replies and results of the turn that is still running; 0 without such words.
    """
    for index in range(len(messages), 0, -1):
        if isinstance(messages[index - 1], UserMessage | Note):
            return index
    return 0


def names_of(request: ModelRequest) -> ToolNameMap:
    """Map the names of the offered tools and of the history's calls."""
    return _names(tuple(request.tools), frozenset(_called(request.messages)))


@lru_cache(maxsize=256)
def _names(tools: tuple[ToolDefinition, ...], called: frozenset[str]) -> ToolNameMap:
    return ToolNameMap([*(tool.name for tool in tools), *sorted(called)])


def _called(messages: Iterable[Message]) -> list[str]:
    return [
        call.name for message in messages if isinstance(message, AssistantMessage) for call in message.calls
    ]


def call_id(value: str) -> str:
    """Make an id that services accept (``^[a-zA-Z0-9_-]+$``): unchanged, or with a hash."""
    return value if _ID.match(value) else with_hash(value)


def arguments_of(call: ToolCall) -> bytes:
    """Give a call's arguments as JSON; ``{}`` for those that are no object (a reply that was cut off)."""
    try:
        given = call.arguments.encode()
        _decode_object(given)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return b"{}"
    return given


# The hook: msgspec takes 100 times as long as Python for floats such as 1e308.
_decode_object = msgspec.json.Decoder(dict[str, Any], float_hook=float).decode


def is_json(text: str) -> bool:
    """Tell whether a text is whole JSON."""
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False
    return True


def unicode_of(text: str) -> str:
    """Replace halves of surrogate pairs, which services refuse, by question marks."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def object_schema(schema: Mapping[str, Any]) -> Json:
    """Give a schema that services accept.

    They want type "object", no oneOf, anyOf or allOf at the top, and property names of 1 to 64 of
    ``a-zA-Z0-9_.-``. Arguments are validated here in any case.
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


def encode(body: Json) -> bytes:
    """Encode a body; lone surrogates in the prompt or in tools become question marks."""
    try:
        return _encode(body)
    except UnicodeEncodeError:
        clean = {key: _without_surrogates(body[key]) for key in _FROM_FILES if key in body}
        return _encode({**body, **clean})


_encode = msgspec.json.Encoder().encode
# The parts of bodies that hold an operator's or a client's text unchecked.
_FROM_FILES = ("system", "instructions", "tools")


def _without_surrogates(value: Any) -> Any:
    match value:
        case str():
            return unicode_of(value)
        case Mapping():
            return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
        case list() | tuple():
            return [_without_surrogates(item) for item in value]
        case _:
            return value
