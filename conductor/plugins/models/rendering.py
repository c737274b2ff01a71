"""The common parts of the requests to all model services; pure."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeAlias

import msgspec

from conductor.messages import AssistantMessage, Image, Message, ToolCall, ToolResult, UserMessage
from conductor.models.base import ModelRequest, ToolDefinition, whole_characters
from conductor.plugins.models.tool_names import ToolNameMap, with_hash
from conductor.tools.media import label

Json: TypeAlias = dict[str, Any]

# Services refuse a blank text, and a history that begins with the assistant.
BEGINNING = "[The conversation goes on from here.]"
_NO_WORDS = "[No words.]"
_NO_RESULT = "(nothing)"
# Services' rule for ids.
_ID = re.compile(r"[a-zA-Z0-9_-]+\Z")


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
    """Return a call's arguments as JSON; ``{}`` if they are no object, as in a reply that was cut off."""
    try:
        data = call.arguments.encode()
        _decode_object(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return b"{}"
    return data


# msgspec takes 100 times as long as Python for floats such as 1e308.
_decode_object = msgspec.json.Decoder(dict[str, Any], float_hook=float).decode


def user_text(item: Message, images: Mapping[str, bytes] | None) -> str:
    """Return the text of a message that is not the assistant's, with a line for each image that is not shown.

    ``images`` are the request's.
    """
    assert not isinstance(item, AssistantMessage)
    if isinstance(item, UserMessage):
        text = item.text if item.text.strip() else _NO_WORDS
    elif isinstance(item, ToolResult):
        text = item.content if item.content.strip() else _NO_RESULT
    else:
        text = f"[{item.text}]"
    hidden = [image for image in item.images if image.id not in (images or ()) or image.gone]
    return "\n".join([text, *(_line(image, images) for image in hidden)])


def _line(image: Image, images: Mapping[str, bytes] | None) -> str:
    if image.refused:
        return f"[an image that was refused: {image.refused}]"
    why = "an image that is no longer shown"
    if images is None and not image.gone:
        why = "an image that this model cannot see"
    return f"[{why}: {label(image.media_type, image.size)[1:]}"


def shown(item: Message, images: Mapping[str, bytes] | None) -> list[tuple[str, str]]:
    """List the images of a message that the model gets: media types and base64."""
    if images is None or isinstance(item, AssistantMessage):
        return []
    return [
        (image.media_type, b64encode(images[image.id]).decode())
        for image in item.images
        if image.id in images and not image.gone
    ]


def shown_ids(request: ModelRequest) -> frozenset[str] | None:
    """Return which images a rendering depends on: a turn's later request may have more."""
    return None if request.images is None else frozenset(request.images)


def for_eyes(request: ModelRequest, *, sees: bool) -> ModelRequest:
    """Return the request for a model that sees, or for one that does not."""
    return request if sees else replace(request, images=None)


def without_marks(request: ModelRequest) -> ModelRequest:
    """Break the marks of chat templates in words, notes and results, with a blank.

    Local servers read them as their tokens: a web page could end its result and go on as the system.
    """
    return replace(request, messages=list(map(_without_marks, request.messages)))


def _without_marks(item: Message) -> Message:
    if isinstance(item, AssistantMessage):
        return item
    text = item.content if isinstance(item, ToolResult) else item.text
    if not _MARK.search(text):
        return item
    broken = _MARK.sub(r"\g<0> ", text)
    field = "content" if isinstance(item, ToolResult) else "text"
    return msgspec.structs.replace(item, **{field: broken})


# The begin of a mark: of ChatML, Llama, Gemma, Mistral, DeepSeek and models with like ones.
_MARK = re.compile(
    r"<(?=[|\uff5c][^<>|\uff5c\s]{1,40}[|\uff5c]>)"
    r"|<(?=/?(?:start_of_turn|end_of_turn|start_of_image|tool_call|tool_response|think|bos|eos|unk|pad|s)>)"
    r"|<(?=</?SYS>>)|\[(?=/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT"
    r"|ARGS|CALL_ID|THINK|IMG)\])"
)


def object_schema(schema: Mapping[str, Any]) -> Json:
    """Return a schema that services accept; arguments are validated against the tool's own.

    Type "object", no oneOf, anyOf or allOf at the top, no list of types, and no schema that is ``true``.
    """
    rendered: Json = _subschema({**schema, "type": "object"})
    return {key: value for key, value in rendered.items() if key not in ("oneOf", "anyOf", "allOf")}


# Keywords that hold a schema, a list of schemas, or schemas by name.
_ONE = ("items", "contains", "not", "if", "then", "else", "propertyNames", "additionalProperties")
_LIST = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAP = ("properties", "patternProperties", "dependentSchemas")
# Keywords for values of one type.
_OF_TYPE: Mapping[str, str] = {
    **dict.fromkeys("minLength maxLength pattern format".split(), "string"),
    **dict.fromkeys("minimum maximum exclusiveMinimum exclusiveMaximum multipleOf".split(), "number"),
    **dict.fromkeys("items prefixItems contains minItems maxItems uniqueItems".split(), "array"),
    **dict.fromkeys("properties required additionalProperties patternProperties".split(), "object"),
    **dict.fromkeys("propertyNames minProperties maxProperties".split(), "object"),
}
_CLASSES: Mapping[str, tuple[type, ...]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "array": (list,),
    "object": (dict,),
}


def _subschema(schema: Any) -> Any:
    """Render a schema, and the schemas in it."""
    if not isinstance(schema, Mapping):
        return {}  # ``true``; ``false`` is for the tool to refuse
    rendered: Json = {}
    for keyword, value in schema.items():
        if keyword == "additionalProperties" and isinstance(value, bool):
            rendered[keyword] = value  # every service takes these
        elif keyword in _ONE:
            rendered[keyword] = _subschema(value)
        elif keyword in _LIST and isinstance(value, list):
            rendered[keyword] = list(map(_subschema, value))
        elif keyword in _MAP and isinstance(value, Mapping):
            rendered[keyword] = {name: _subschema(item) for name, item in value.items()}
        else:
            rendered[keyword] = value
    types = schema.get("type")
    if not isinstance(types, list):
        return rendered
    branches = [branch for kind in types if (branch := _branch(rendered, kind)) is not None]
    if len(branches) < 2:
        return branches[0] if branches else {}
    # Gemini refuses other keywords beside ``anyOf``.
    return {"anyOf": branches}


def _branch(schema: Json, kind: str) -> Json | None:
    """Return the part of a schema for values of one type; None if its options have none."""
    branch: Json = {**schema, "type": kind}
    for keyword in schema:
        wanted = _OF_TYPE.get(keyword)
        if wanted is not None and wanted != ("number" if kind == "integer" else kind):
            del branch[keyword]
    fits = [value for value in schema.get("enum", ()) if _is_of(value, kind)]
    if "enum" in schema and not fits or "const" in schema and not _is_of(schema["const"], kind):
        return None
    if kind == "null":
        branch.pop("enum", None)  # Gemini's options are texts
    elif "enum" in schema:
        branch["enum"] = fits
    if "default" in schema and not _is_of(schema["default"], kind):
        del branch["default"]
    return branch


def _is_of(value: Any, kind: str) -> bool:
    return isinstance(value, _CLASSES[kind]) and (kind == "boolean" or not isinstance(value, bool))


def encode(body: Any) -> bytes:
    """Encode a body; half characters, which services refuse, are joined or replaced."""
    try:
        return _encode(body)
    except UnicodeEncodeError:
        plain = msgspec.to_builtins(body, enc_hook=msgspec.json.decode)  # of `msgspec.Raw`
        return whole_characters(json.dumps(plain, ensure_ascii=False)).encode()


_encode = msgspec.json.Encoder().encode
