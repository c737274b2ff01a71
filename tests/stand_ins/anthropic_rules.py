"""The Messages API's refusals, as pure checks of a request.

The wording follows the service's own messages where they are known from public reports. It is stricter than
the service in four places, because nothing here needs them: roles other than user and assistant, block types
that this project never sends, and results split over several user messages are refused, and so is thinking
that is bound elsewhere though the request asks to drop it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tests.stand_ins.anthropic_binding import BOUND_ELSEWHERE, bound_elsewhere
from tests.stand_ins.anthropic_message_rules import TOOL_NAME, Refused, check_messages, check_text
from tests.stand_ins.anthropic_script import JsonObject

MAX_BODY_BYTES = 32 * 1024 * 1024
PROPERTY = re.compile(r"[a-zA-Z0-9_.-]{1,64}\Z")
VERSION = re.compile(r"20[2-9]\d-\d\d-\d\d\Z")
_TOP_LEVEL = {
    "cache_control", "container", "inference_geo", "max_tokens", "messages", "metadata", "model",
    "output_config", "service_tier", "stop_sequences", "stream", "system", "temperature", "thinking",
    "tool_choice", "tools", "top_k", "top_p",
}  # fmt: skip
_THINKING_KEYS = {
    "adaptive": {"block_binding", "display"}, "enabled": {"block_binding", "budget_tokens", "display"},
    "between_tools": set[str](), "disabled": set[str](),
}  # fmt: skip
BINDING_BETA = "thinking-binding-controls-2026-08-01"
_TOOL_KEYS = {
    "name", "description", "input_schema", "cache_control", "type", "strict", "input_examples",
    "eager_input_streaming", "defer_loading", "allowed_callers",
}  # fmt: skip


def check_headers(headers: Mapping[str, str], keys: frozenset[str] | None) -> None:
    """Refuse a request without a good key (401), version or content type; header names are lower case."""
    key = headers.get("x-api-key")
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if key is None and scheme.lower() == "bearer":
        key = token.strip()
    if not key:
        raise Refused("x-api-key header is required", 401, "authentication_error")
    if keys is not None and key not in keys:
        raise Refused("invalid x-api-key", 401, "authentication_error")
    version = headers.get("anthropic-version")
    if version is None:
        raise Refused("anthropic-version: header is required")
    if not VERSION.match(version):
        raise Refused(f'anthropic-version: "{version}" is not a valid version')
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refused("content-type: must be application/json")


def check_body(body: Any, issued: Mapping[str, Sequence[JsonObject]]) -> JsonObject:
    """Refuse a request's body; give it back if it is good.

    ``issued`` holds, by tool_use id, the thinking blocks of the reply with that call.
    """
    if not isinstance(body, dict):
        raise Refused("Input should be a valid dictionary or object to extract fields from")
    for name in ("model", "max_tokens", "messages"):
        if name not in body:
            raise Refused(f"{name}: Field required")
    for name in body.keys() - _TOP_LEVEL:
        raise Refused(f"{name}: Extra inputs are not permitted")
    _check_scalars(body)
    _check_thinking(body)
    _check_system(body.get("system"))
    names = _check_tools(body)
    messages = check_messages(body["messages"], issued)
    _check_tools_present(messages, names)
    _check_cache(body)
    _check_thinking_fields(body.get("thinking"))
    for path in bound_elsewhere(body, messages):
        raise Refused(f"{path}: {BOUND_ELSEWHERE}")
    return body


def check_betas(headers: Mapping[str, str], body: JsonObject) -> None:
    """Refuse a field of a beta that the headers do not ask for."""
    if "block_binding" in body.get("thinking", ()) and BINDING_BETA not in headers.get("anthropic-beta", ""):
        raise Refused("thinking.block_binding: Extra inputs are not permitted")


def _check_thinking_fields(setting: Any) -> None:
    if setting is None:
        return
    kind = setting.get("type") if isinstance(setting, dict) else None
    if kind not in _THINKING_KEYS:
        raise Refused(f"thinking: Input tag {kind!r} does not match any of the expected tags")
    for key in setting.keys() - _THINKING_KEYS[kind] - {"type"}:
        raise Refused(f"thinking.{kind}.{key}: Extra inputs are not permitted")
    binding = setting.get("block_binding", {})
    if not isinstance(binding, dict) or binding.keys() - {"prefix_mismatch_behavior"}:
        raise Refused("thinking.block_binding: Input should be a valid dictionary")
    if binding.get("prefix_mismatch_behavior", "error") not in ("error", "drop_block"):
        raise Refused(
            "thinking.block_binding.prefix_mismatch_behavior: Input should be 'error' or 'drop_block'"
        )


def _check_scalars(body: JsonObject) -> None:
    if not isinstance(body["model"], str) or not body["model"]:
        raise Refused("model: String should have at least 1 character")
    limit = body["max_tokens"]
    if not isinstance(limit, int) or isinstance(limit, bool):
        raise Refused("max_tokens: Input should be a valid integer")
    if limit < 0:
        raise Refused("max_tokens: must be greater than or equal to 0")
    if not isinstance(body.get("stream", False), bool):
        raise Refused("stream: Input should be a valid boolean")
    # Fills the prompt cache, and writes nothing.
    if limit == 0 and (body.get("stream") or body.get("output_config", {}).get("format")):
        raise Refused("max_tokens: 0 cannot be combined with streaming or an output format")
    temperature = body.get("temperature", 1)
    if not isinstance(temperature, int | float) or not 0 <= temperature <= 1:
        raise Refused("temperature: range: 0..1")
    for number, stop in enumerate(body.get("stop_sequences", ())):
        if not isinstance(stop, str) or not stop.strip():
            raise Refused(f"stop_sequences.{number}: each stop sequence must contain non-whitespace")


# The modes of models besides "adaptive"; other models accept every mode.
_THINKING = {
    "claude-haiku-5-5": {"disabled"},
    "claude-sonnet-5-5": {"between_tools"},
    "claude-opus-5-5": set[str](),
    "claude-fable-5-2": set[str](),
}


def _check_thinking(body: JsonObject) -> None:
    thinking, effort = body.get("thinking"), body.get("output_config", {}).get("effort")
    if effort not in (None, "low", "medium", "high", "xhigh", "max"):
        raise Refused("output_config.effort: Input should be 'low', 'medium', 'high', 'xhigh' or 'max'")
    if thinking is None:
        return
    kind = thinking.get("type")
    if kind not in _THINKING.get(body["model"], {"disabled", "between_tools"}) | {"adaptive"}:
        raise Refused(f'"thinking.type.{kind}" is not supported for this model.')
    if kind != "adaptive" and effort in ("xhigh", "max"):
        raise Refused(f'"thinking.type.{kind}" is not supported at effort {effort}.')


def _check_system(system: Any) -> None:
    if system is None or isinstance(system, str):
        return  # an empty string counts as absent
    if not isinstance(system, list):
        raise Refused("system: Input should be a valid list")
    for number, block in enumerate(system):
        if not isinstance(block, dict) or block.get("type") != "text":
            raise Refused(f"system.{number}: Input should be a text block")
        check_text(block, f"system.{number}", "system")


def _check_tools(body: JsonObject) -> set[str]:
    tools = body.get("tools", [])
    if not isinstance(tools, list):
        raise Refused("tools: Input should be a valid list")
    names: set[str] = set()
    for number, tool in enumerate(tools):
        _check_tool(tool, f"tools.{number}.custom")
        if tool["name"] in names:
            raise Refused("tools: Tool names must be unique.")
        names.add(tool["name"])
    choice = body.get("tool_choice")
    if choice is not None:
        _check_choice(choice, names)
    return names


def _check_tool(tool: Any, path: str) -> None:
    if not isinstance(tool, dict):
        raise Refused(f"{path}: Input should be a valid dictionary")
    for key in tool.keys() - _TOOL_KEYS:
        raise Refused(f"{path}.{key}: Extra inputs are not permitted")
    name = tool.get("name")
    if not isinstance(name, str) or not TOOL_NAME.match(name):
        raise Refused(f"{path}.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'")
    if not isinstance(tool.get("description", ""), str):
        raise Refused(f"{path}.description: Input should be a valid string")
    schema = tool.get("input_schema")
    if not isinstance(schema, dict):
        raise Refused(f"{path}.input_schema: Field required")
    if schema.get("type") != "object":
        raise Refused(f"{path}.input_schema.type: Input should be 'object'")
    if schema.keys() & {"oneOf", "allOf", "anyOf"}:
        raise Refused(
            f"{path}.input_schema: input_schema does not support oneOf, allOf, or anyOf at the top level"
        )
    properties = schema.get("properties") or {}
    if not isinstance(properties, dict):
        raise Refused(f"{path}.input_schema.properties: Input should be a valid dictionary")
    if any(not PROPERTY.match(key) for key in properties):
        raise Refused(
            f"{path}.input_schema.properties: Property keys should match pattern '^[a-zA-Z0-9_.-]{{1,64}}$'"
        )


def _check_choice(choice: Any, names: set[str]) -> None:
    if not isinstance(choice, dict) or choice.get("type") not in ("auto", "any", "tool", "none"):
        raise Refused("tool_choice: Input tag should be one of 'auto', 'any', 'tool', 'none'")
    if not names:
        raise Refused("tool_choice: may only be specified while providing tools")
    if choice["type"] == "tool" and choice.get("name") not in names:
        raise Refused(f"Tool '{choice.get('name')}' not found in provided tools")


def _check_tools_present(messages: list[JsonObject], names: set[str]) -> None:
    has_calls = any(b["type"] in ("tool_use", "tool_result") for m in messages for b in m["content"])
    if has_calls and not names:
        raise Refused("Requests which include `tool_use` or `tool_result` blocks must define tools")


def _check_cache(body: JsonObject) -> None:
    """Refuse malformed cache_control, and more than four of them."""
    count = 1 if body.get("cache_control") is not None else 0
    system = body.get("system")
    holders: list[Any] = list(system) if isinstance(system, list) else []
    holders += body.get("tools", [])
    for message in body["messages"]:
        if isinstance(message["content"], list):
            holders += message["content"]
    for holder in holders:
        control = holder.get("cache_control")
        if control is None:
            continue
        count += 1
        if not isinstance(control, dict) or control.get("type") != "ephemeral":
            raise Refused("cache_control.type: Input should be 'ephemeral'")
        if control.keys() - {"type", "ttl"} or control.get("ttl", "5m") not in ("5m", "1h"):
            raise Refused("cache_control.ttl: Input should be '5m' or '1h'")
    if count > 4:
        raise Refused(f"A maximum of 4 blocks with cache_control may be provided. Found {count}.")
