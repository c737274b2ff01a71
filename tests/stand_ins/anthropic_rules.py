"""The Messages API's refusals, as pure checks of a request.

msgspec reads the shape of a request; the other rules follow the service's messages where they are known from
public reports. It is stricter than the service in four places, because nothing here needs them: fields and
block types that this project never sends, roles other than user and assistant, and results split over several
user messages are refused, and so is thinking that is bound elsewhere though the request asks to drop it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tests.stand_ins.anthropic_binding import BOUND_ELSEWHERE, bound_elsewhere
from tests.stand_ins.anthropic_message_rules import check_messages
from tests.stand_ins.anthropic_script import JsonObject, Refused

MAX_BODY_BYTES = 32 * 1024 * 1024
PROPERTY = re.compile(r"[a-zA-Z0-9_.-]{1,64}\Z")
VERSION = re.compile(r"20[2-9]\d-\d\d-\d\d\Z")
BINDING_BETA = "thinking-binding-controls-2026-08-01"

_Words = Annotated[str, Meta(pattern=r"\S")]
_Name = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,128}\Z")]
_Id = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]+\Z")]


class _Strict(msgspec.Struct, forbid_unknown_fields=True):
    """An object without unknown fields."""


class _Cache(_Strict, tag="ephemeral"):
    ttl: Literal["5m", "1h"] = "5m"


class _Text(_Strict, tag="text"):
    text: _Words
    cache_control: _Cache | None = None


class _ToolUse(_Strict, tag="tool_use"):
    id: _Id
    name: _Name
    input: dict[str, Any]
    cache_control: _Cache | None = None


class _Base64(_Strict, tag="base64"):
    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    data: str


class _Image(_Strict, tag="image"):
    source: _Base64
    cache_control: _Cache | None = None


class _ToolResult(_Strict, tag="tool_result"):
    tool_use_id: _Id
    content: str | list[_Text | _Image] = ""
    is_error: bool = False
    cache_control: _Cache | None = None


class _Thinking(_Strict, tag="thinking"):
    thinking: str
    signature: str


class _Redacted(_Strict, tag="redacted_thinking"):
    data: str


class _User(_Strict, tag="user", tag_field="role"):
    content: str | list[_Text | _Image | _ToolResult]


class _Assistant(_Strict, tag="assistant", tag_field="role"):
    content: str | list[_Text | _ToolUse | _Thinking | _Redacted]


class _Tool(_Strict):
    name: _Name
    input_schema: dict[str, Any]
    description: str = ""
    cache_control: _Cache | None = None


class _Choice(_Strict):
    type: Literal["auto", "any", "none"]


class _Binding(_Strict):
    prefix_mismatch_behavior: Literal["error", "drop_block"]


class _Adaptive(_Strict, tag="adaptive"):
    block_binding: _Binding | None = None


class _BetweenTools(_Strict, tag="between_tools"):
    pass


class _Disabled(_Strict, tag="disabled"):
    pass


class _Output(_Strict):
    effort: Literal["low", "medium", "high", "xhigh", "max"]


class _Body(_Strict):
    model: _Words
    max_tokens: Annotated[int, Meta(ge=0)]
    messages: Annotated[list[_User | _Assistant], Meta(min_length=1)]
    system: str | list[_Text] = ""
    tools: list[_Tool] = []
    tool_choice: _Choice | None = None
    thinking: _Adaptive | _BetweenTools | _Disabled | None = None
    output_config: _Output | None = None
    stop_sequences: list[_Words] = []
    stream: bool = False


# The modes of models besides "adaptive"; other models accept every mode.
_MODES = {
    "claude-haiku-5-5": {"disabled"},
    "claude-sonnet-5-5": {"between_tools"},
    "claude-opus-5-5": set[str](),
    "claude-fable-5-2": set[str](),
}


def check_headers(headers: Mapping[str, str], keys: frozenset[str] | None) -> None:
    """Refuse a request without a good key (401), version or content type; header names are lower case."""
    key = headers.get("x-api-key")
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if key is None and scheme.lower() == "bearer":
        key = token.strip()
    if keys is not None and key not in keys:
        raise Refused("invalid x-api-key", 401, "authentication_error")
    if not VERSION.match(headers.get("anthropic-version", "")):
        raise Refused("anthropic-version: is not a valid version")
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refused("content-type: must be application/json")


def check_body(body: Any, issued: Mapping[str, Sequence[JsonObject]]) -> JsonObject:
    """Refuse a request's body; give it back if it is good.

    ``issued`` holds, by tool_use id, the thinking blocks of the reply with that call.
    """
    try:
        msgspec.convert(body, _Body)
    except msgspec.ValidationError as error:
        raise Refused(str(error)) from None
    checked: JsonObject = body
    # 0 fills the prompt cache, and writes nothing.
    if not checked["max_tokens"] and checked.get("stream"):
        raise Refused("max_tokens: 0 cannot be combined with streaming")
    _check_thinking(checked)
    _check_tools(checked)
    messages = check_messages(checked["messages"], issued)
    blocks = [block for message in messages for block in message["content"]]
    if not checked.get("tools") and any(block["type"] in ("tool_use", "tool_result") for block in blocks):
        raise Refused("Requests which include `tool_use` or `tool_result` blocks must define tools")
    system = checked.get("system", ())
    marked = [*([] if isinstance(system, str) else system), *checked.get("tools", ()), *blocks]
    if sum("cache_control" in item for item in marked) > 4:
        raise Refused("A maximum of 4 blocks with cache_control may be provided.")
    for path in bound_elsewhere(checked, messages):
        raise Refused(f"{path}: {BOUND_ELSEWHERE}")
    return checked


def check_betas(headers: Mapping[str, str], body: JsonObject) -> None:
    """Refuse a field of a beta that the headers do not ask for."""
    if "block_binding" in body.get("thinking", ()) and BINDING_BETA not in headers.get("anthropic-beta", ""):
        raise Refused("thinking.block_binding: Extra inputs are not permitted")


def _check_thinking(body: JsonObject) -> None:
    kind, effort = (
        body.get("thinking", {}).get("type", "adaptive"),
        body.get("output_config", {}).get("effort"),
    )
    if kind not in _MODES.get(body["model"], {"disabled", "between_tools"}) | {"adaptive"}:
        raise Refused(f'"thinking.type.{kind}" is not supported for this model.')
    if kind != "adaptive" and effort in ("xhigh", "max"):
        raise Refused(f'"thinking.type.{kind}" is not supported at effort {effort}.')


def _check_tools(body: JsonObject) -> None:
    tools = body.get("tools", [])
    if len({tool["name"] for tool in tools}) < len(tools):
        raise Refused("tools: Tool names must be unique.")
    if "tool_choice" in body and not tools:
        raise Refused("tool_choice: may only be specified while providing tools")
    for tool in tools:
        schema = tool["input_schema"]
        if schema.get("type") != "object":
            raise Refused("input_schema.type: Input should be 'object'")
        if schema.keys() & {"oneOf", "allOf", "anyOf"}:
            raise Refused("input_schema does not support oneOf, allOf, or anyOf at the top level")
        if not all(map(PROPERTY.match, schema.get("properties", ()))):
            raise Refused(f"Property keys should match pattern '{PROPERTY.pattern}'")
