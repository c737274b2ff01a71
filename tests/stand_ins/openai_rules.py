"""What OpenAI's API refuses in a request, as pure checks.

Stricter than the service where nothing here needs more: a field that this project never sends is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tests.stand_ins.anthropic_script import JsonObject, Refused
from tests.stand_ins.picture_rules import check_data_url

TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")
_COMMON = {"model", "stream", "tools", "tool_choice", "parallel_tool_calls", "prompt_cache_key"}
_FIELDS = {
    "/v1/chat/completions": _COMMON
    | {"messages", "stream_options", "max_tokens", "max_completion_tokens", "stop", "reasoning_effort"},
    "/v1/completions": {"model", "prompt", "stream", "stream_options", "max_tokens", "stop"},
    "/v1/responses": _COMMON
    | {"input", "instructions", "store", "include", "max_output_tokens", "reasoning"},
}


def check_headers(headers: Mapping[str, str], keys: frozenset[str] | None) -> None:
    """Refuse a request without a good key (401) or content type; header names are lower case."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if keys is not None and (scheme != "Bearer" or token not in keys):
        raise Refused("Incorrect API key provided", 401)
    if headers.get("content-type", "") != "application/json":
        raise Refused("Unsupported content type")


def check_body(path: str, body: Any, issued: Mapping[str, JsonObject]) -> JsonObject:
    """Refuse a request's body; give it back if it is good.

    ``issued`` holds the reasoning of a call: by its id the reasoning item before it; with chat, by
    `chat_key`, its message's ``reasoning_content`` (as DeepSeek) and its ``extra_content`` (as Gemini).
    """
    if path not in _FIELDS:
        raise Refused(f"Invalid URL (POST {path})", 404)
    if not isinstance(body, dict):
        raise Refused("We could not parse the JSON body of your request.")
    for name in body.keys() - _FIELDS[path]:
        raise Refused(f"Unrecognized request argument supplied: {name}")
    if not isinstance(body.get("model"), str) or not body["model"]:
        raise Refused("you must provide a model parameter")
    if not isinstance(body.get("stop", []), list) or len(body.get("stop", [])) > 4:
        raise Refused("'stop' must be a list of at most 4 texts")
    _check_tools(body, nested=path != "/v1/responses")
    _check_effort(path, body)
    if path == "/v1/responses":
        _check_input(body, issued)
    elif path == "/v1/completions":
        _check_text(body.get("prompt"), "prompt")
    else:
        _check_messages(body.get("messages"))
        _check_reasoning(body["messages"], issued)
    return body


def chat_key(name: str, arguments: str) -> str:
    """Name a call by its tool and arguments: a client may change its id."""
    return f"{name} {msgspec.json.encode(msgspec.json.decode(arguments), order='deterministic').decode()}"


def _check_reasoning(messages: Sequence[JsonObject], issued: Mapping[str, JsonObject]) -> None:
    """Refuse reasoning of the running turn that is missing or changed, and any of turns before it."""
    turn = max((number for number, message in enumerate(messages) if message["role"] == "user"), default=0)
    for number, message in enumerate(messages):
        reasoning = message.get("reasoning_content")
        if number < turn and reasoning is not None:
            raise Refused(f"messages[{number}]: reasoning_content of a finished turn")
        for call in message.get("tool_calls", ()) if number > turn else ():
            function = call["function"]
            issued_call = issued.get(chat_key(function["name"], function["arguments"]))
            if issued_call is None:
                continue  # another service's
            if reasoning != issued_call.get("reasoning_content"):
                raise Refused("The reasoning_content in the thinking mode must be passed back to the API.")
            if call.get("extra_content") != issued_call.get("extra_content"):
                raise Refused(f"Function call {function['name']} is missing a thought_signature.")


def _check_tools(body: JsonObject, *, nested: bool) -> None:
    if "tools" not in body:
        if body.keys() & {"tool_choice", "parallel_tool_calls"}:
            raise Refused("'tool_choice' is only allowed when 'tools' are specified")
        return
    if not body["tools"]:
        raise Refused("[] is too short - 'tools'")
    names = []
    for tool in body["tools"]:
        function = tool.get("function", {}) if nested else tool
        if tool.get("type") != "function" or not TOOL_NAME.match(function.get("name", "")):
            raise Refused("Invalid 'tools': a function needs a name of a-zA-Z0-9_-")
        parameters = function.get("parameters")
        if not isinstance(parameters, dict) or parameters.get("type") != "object":
            raise Refused(f"Invalid schema for function {function['name']!r}: type must be 'object'")
        if "properties" not in parameters:
            raise Refused(
                f"Invalid schema for function {function['name']!r}: object schema missing properties"
            )
        if not nested and tool.get("strict") is not False:
            raise Refused("Invalid schema: in strict mode all properties must be required")
        names.append(function["name"])
    if len(set(names)) < len(names):
        raise Refused("Tool names must be unique")


def _check_effort(path: str, body: JsonObject) -> None:
    model, effort = body["model"], body.get("reasoning_effort") or body.get("reasoning", {}).get("effort")
    if not model.startswith(("gpt-5.6", "gpt-6")):
        return
    if effort == "minimal" or (
        effort == "none" and model.startswith(("gpt-6-astra", "gpt-6.1-sol", "gpt-6.2"))
    ):
        raise Refused(f"Unsupported value: 'reasoning_effort' does not support {effort!r} with this model.")
    if path == "/v1/chat/completions" and "tools" in body and effort != "none":
        raise Refused(
            f"Function tools with reasoning_effort are not supported for {model} in /v1/chat/completions. "
            "To use function tools, use /v1/responses or set reasoning_effort to 'none'."
        )


def _check_text(value: Any, field_path: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise Refused(f"{field_path}: expected a text that is not blank")
    return value


def _check_parts(content: Any, field_path: str, *, text: str = "text", image: str = "image_url") -> None:
    """Refuse content that is neither a text nor a list of texts and images."""
    if not isinstance(content, list):
        _check_text(content, field_path)
        return
    if not content:
        raise Refused(f"{field_path}: expected at least one part")
    for part in content:
        kind = part.get("type")
        if kind == text and part.keys() == {"type", "text"}:
            _check_text(part["text"], field_path)
        elif kind == image == "image_url" and part.keys() == {"type", "image_url"}:
            check_data_url(part["image_url"].get("url"), field_path)
        elif kind == image == "input_image" and part.keys() == {"type", "image_url", "detail"}:
            if part["detail"] not in ("auto", "low", "high"):
                raise Refused(f"{field_path}: invalid detail")
            check_data_url(part["image_url"], field_path)
        else:
            raise Refused(f"{field_path}: Invalid value: {kind!r}")


def _check_messages(messages: Any) -> None:
    if not isinstance(messages, list) or not messages:
        raise Refused("'messages' must be a list that is not empty")
    waiting: list[str] = []
    roles: list[str] = []
    for number, message in enumerate(messages):
        field_path, role = f"messages[{number}]", message.get("role")
        if role != "tool" and waiting:
            raise Refused(
                f"An assistant message with 'tool_calls' must be followed by tool messages: {waiting}"
            )
        if role == "tool":
            if message.get("tool_call_id") not in waiting:
                raise Refused(f"{field_path}: a message with role 'tool' must follow its 'tool_calls'")
            waiting.remove(message["tool_call_id"])
        elif role == "assistant":
            waiting = [_checked_call(call, field_path) for call in message.get("tool_calls", [])]
        elif role not in ("system", "user") or (role == "system" and number):
            raise Refused(f"{field_path}: unexpected role {role!r}")
        if role == "user":
            _check_parts(message.get("content"), field_path)
        elif role != "assistant" or not waiting:
            _check_text(message.get("content"), field_path)
        roles.append(role)
    # As many chat templates want it.
    turns = [role for role in roles if role in ("user", "assistant")]
    if turns[:1] != ["user"] or any(
        role == following == "user" for role, following in zip(roles, roles[1:], strict=False)
    ):
        raise Refused("Conversation roles must alternate user/assistant/user/assistant/...")
    if waiting:
        raise Refused(f"'tool_calls' must be followed by tool messages: {waiting}")


def _checked_call(call: JsonObject, field_path: str) -> str:
    if call.get("type") != "function":
        raise Refused(f"{field_path}.tool_calls: type must be 'function'")
    _check_arguments(call["function"], field_path)
    return _check_text(call.get("id"), field_path)


def _check_arguments(function: JsonObject, field_path: str) -> None:
    if not TOOL_NAME.match(function.get("name", "")):
        raise Refused(f"{field_path}: invalid function name")
    if not isinstance(function.get("arguments"), str):
        raise Refused(f"{field_path}: arguments must be a text")
    try:
        msgspec.json.decode(function["arguments"], type=dict[str, Any])
    except msgspec.DecodeError:
        raise Refused(
            f"{field_path}: Failed to parse tool call arguments as JSON", 500, "server_error"
        ) from None


def _check_input(body: JsonObject, issued: Mapping[str, JsonObject]) -> None:
    if body.get("store") is not False:
        raise Refused("This project stores nothing at the service")
    if body.get("max_output_tokens", 16) < 16:
        raise Refused("Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16")
    items: Sequence[JsonObject] = body.get("input") or []
    if not items:
        raise Refused("'input' must be a list that is not empty")
    waiting: list[str] = []
    turn = max((number for number, item in enumerate(items) if item.get("role") == "user"), default=0)
    for number, item in enumerate(items):
        # The reasoning of finished turns may be left out.
        _check_item(f"input[{number}]", item, items[:number], waiting, issued if number > turn else {})
    if waiting:
        raise Refused(f"No tool output found for function call {waiting}")
    if items[-1].get("type") == "reasoning":
        raise Refused("Item of type 'reasoning' was provided without its required following item.")


def _check_item(
    field_path: str,
    item: JsonObject,
    before: Sequence[JsonObject],
    waiting: list[str],
    issued: Mapping[str, JsonObject],
) -> None:
    kind = item.get("type", "message")
    if kind == "message":
        content: Any = item.get("content")
        # As llama.cpp's server wants it.
        if item.get("role") == "assistant":
            if item.get("type") != kind or content[0]["type"] != "output_text":
                raise Refused("Cannot determine type of 'item'")
            content = content[0]["text"]
        _check_parts(content, field_path, text="input_text", image="input_image")
    elif kind == "function_call":
        _check_arguments(item, field_path)
        waiting.append(item["call_id"])
        if issued.get(item["call_id"]) not in (None, *before):
            raise Refused(f"{field_path}: 'function_call' was provided without its 'reasoning' item")
    elif kind == "function_call_output":
        if item["call_id"] not in waiting:
            raise Refused(f"No tool call found for function call output with call_id {item['call_id']}")
        waiting.remove(item["call_id"])
        _check_parts(item.get("output"), field_path, text="input_text", image="input_image")
    elif kind != "reasoning":
        raise Refused(f"{field_path}: unexpected type {kind!r}")
