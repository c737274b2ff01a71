"""The Messages API's refusals of a request's messages, as pure checks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tests.stand_ins.anthropic_script import JsonObject, seal, signature_of

TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}\Z")
TOOL_ID = re.compile(r"[a-zA-Z0-9_-]+\Z")
_BLOCK_KEYS = {
    "text": ({"type", "text"}, {"cache_control", "citations"}),
    "tool_use": ({"type", "id", "name", "input"}, {"cache_control", "caller"}),
    "tool_result": ({"type", "tool_use_id"}, {"content", "is_error", "cache_control"}),
    "thinking": ({"type", "thinking", "signature"}, set[str]()),
    "redacted_thinking": ({"type", "data"}, set[str]()),
}
_ROLE_BLOCKS = {
    "user": {"text", "tool_result"},
    "assistant": {"text", "tool_use", "thinking", "redacted_thinking"},
}


class Refused(Exception):
    """A request that the service answers with an error."""

    def __init__(self, message: str, status: int = 400, error_type: str = "invalid_request_error") -> None:
        super().__init__(message)
        self.status = status
        self.error_type = error_type


def check_text(block: JsonObject, path: str, part: str) -> None:
    text = block.get("text")
    if not isinstance(text, str):
        raise Refused(f"{path}.text: Input should be a valid string")
    if not text and "cache_control" in block:
        raise Refused(f"{path}: cache_control cannot be set for empty text blocks")
    if not text:
        raise Refused(f"{part}: text content blocks must be non-empty")
    if not text.strip():
        raise Refused(f"{part}: text content blocks must contain non-whitespace text")


def check_messages(messages: Any, issued: Mapping[str, Sequence[JsonObject]]) -> list[JsonObject]:
    """Refuse bad messages; give the good ones with their content as lists of blocks.

    ``issued`` holds, by tool_use id, the thinking blocks of the reply with that call. Neighbours of one role
    are combined, as the service does, except that a reply's results must all be in the one next message.
    """
    if not isinstance(messages, list):
        raise Refused("messages: Input should be a valid list")
    if not messages:
        raise Refused("messages: at least one message is required")
    checked: list[JsonObject] = []
    for number, message in enumerate(messages):
        role, blocks = _check_message(message, f"messages.{number}", last=number == len(messages) - 1)
        checked.append({"role": role, "content": blocks, "number": number})
    _check_pairs(checked)
    _check_ends(_merged(checked), issued)
    return checked


def _merged(messages: list[JsonObject]) -> list[JsonObject]:
    merged: list[JsonObject] = []
    for message in messages:
        if merged and merged[-1]["role"] == message["role"]:
            joined = merged[-1]["content"] + message["content"]
            merged[-1] = {**message, "content": joined}
        else:
            merged.append(message)
    return merged


def _check_message(message: Any, path: str, *, last: bool) -> tuple[str, list[JsonObject]]:
    if not isinstance(message, dict) or message.keys() != {"role", "content"}:
        raise Refused(f"{path}: role and content are required, and nothing else is permitted")
    role, content = message["role"], message["content"]
    if role not in _ROLE_BLOCKS:
        raise Refused(f"{path}.role: Input should be 'user' or 'assistant'")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}] if content else []
    if not isinstance(content, list):
        raise Refused(f"{path}.content: Input should be a valid list")
    if not content and not (last and role == "assistant"):
        raise Refused(
            f"{path}: all messages must have non-empty content except for the optional final assistant "
            "message"
        )
    for index, block in enumerate(content):
        _check_block(block, role, f"{path}.content.{index}")
    return role, content


def _check_block(block: Any, role: str, path: str) -> None:
    kind = block.get("type") if isinstance(block, dict) else None
    if kind not in _BLOCK_KEYS:
        raise Refused(f"{path}: Input tag {kind!r} does not match any of the expected tags")
    if kind not in _ROLE_BLOCKS[role]:
        raise Refused(f"{path}: `{kind}` blocks are not permitted in a message of role '{role}'")
    required, optional = _BLOCK_KEYS[kind]
    for key in required - block.keys():
        raise Refused(f"{path}.{kind}.{key}: Field required")
    for key in block.keys() - required - optional:
        raise Refused(f"{path}.{kind}.{key}: Extra inputs are not permitted")
    _CHECKS[kind](block, path)


def _check_tool_use(block: JsonObject, path: str) -> None:
    if not isinstance(block["id"], str) or not TOOL_ID.match(block["id"]):
        raise Refused(f"{path}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'")
    if not isinstance(block["name"], str) or not TOOL_NAME.match(block["name"]):
        raise Refused(f"{path}.tool_use.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'")
    if not isinstance(block["input"], dict):
        raise Refused(f"{path}.tool_use.input: Input should be a valid dictionary")


def _check_tool_result(block: JsonObject, path: str) -> None:
    call_id = block["tool_use_id"]
    if not isinstance(call_id, str) or not TOOL_ID.match(call_id):
        raise Refused(f"{path}.tool_result.tool_use_id: String should match pattern '^[a-zA-Z0-9_-]+$'")
    if not isinstance(block.get("is_error", False), bool):
        raise Refused(f"{path}.tool_result.is_error: Input should be a valid boolean")
    content = block.get("content", "")
    if isinstance(content, str):
        return
    if not isinstance(content, list):
        raise Refused(f"{path}.tool_result.content: Input should be a valid list")
    for index, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type") != "text":
            raise Refused(f"{path}.tool_result.content.{index}: Input should be a text block")
        check_text(part, f"{path}.tool_result.content.{index}", "messages")


def _check_thinking(block: JsonObject, path: str) -> None:
    thinking = block["thinking"]
    binding = str(block["signature"]).partition(".")[2]
    if not isinstance(thinking, str) or block["signature"] != signature_of(thinking, binding):
        raise Refused(f"{path}: Invalid `signature` in `thinking` block")


def _check_redacted(block: JsonObject, path: str) -> None:
    data = block["data"]
    if not isinstance(data, str) or data[-64:] != seal(data[:-64]):
        raise Refused(f"{path}: Invalid `data` in `redacted_thinking` block")


_CHECKS = {
    "text": lambda block, path: check_text(block, path, "messages"),
    "tool_use": _check_tool_use,
    "tool_result": _check_tool_result,
    "thinking": _check_thinking,
    "redacted_thinking": _check_redacted,
}


def _check_pairs(messages: list[JsonObject]) -> None:
    """Refuse calls without results in the next message, results without calls, and either twice."""
    ids: set[str] = set()
    open_calls: list[str] = []
    before = -1
    for message in messages:
        results = _leading_results(message)
        if len(set(results)) != len(results):
            raise Refused(
                f"messages.{message['number']}: each tool_use must have a single result. "
                "Found multiple `tool_result` blocks with the same id"
            )
        for call_id in results:
            if call_id not in open_calls:
                raise Refused(
                    f"messages.{message['number']}: unexpected `tool_use_id` found in `tool_result` blocks: "
                    f"{call_id}. Each `tool_result` block must have a corresponding `tool_use` block in the "
                    "previous message."
                )
        _refuse_open([call for call in open_calls if call not in results], before)
        open_calls = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
        before = message["number"]
        for call_id in open_calls:
            if call_id in ids:
                raise Refused(f"messages.{before}: `tool_use` ids must be unique")
            ids.add(call_id)
    _refuse_open(open_calls, before)


def _refuse_open(missing: list[str], number: int) -> None:
    if missing:
        raise Refused(
            f"messages.{number}: `tool_use` ids were found without `tool_result` blocks immediately after: "
            f"{', '.join(missing)}. Each `tool_use` block must have a corresponding `tool_result` block in "
            "the next message."
        )


def _leading_results(message: JsonObject) -> list[str]:
    """List the results of a message; they must come before its text."""
    results: list[str] = []
    has_other = False
    for block in message["content"]:
        if block["type"] != "tool_result":
            has_other = True
        elif has_other:
            raise Refused(
                f"messages.{message['number']}: `tool_result` blocks must come first in the message"
            )
        else:
            results.append(block["tool_use_id"])
    return results


def _check_ends(messages: list[JsonObject], issued: Mapping[str, Sequence[JsonObject]]) -> None:
    """Check the first message, the last, and the thinking of the last assistant message."""
    if messages[0]["role"] != "user":
        raise Refused('messages: first message must use the "user" role')
    last = messages[-1]
    if last["role"] == "assistant" and last["content"]:
        text = last["content"][-1].get("text", "")
        if text != text.rstrip():
            raise Refused("messages: final assistant content cannot end with trailing whitespace")
    for message in messages:
        if message["role"] != "assistant" or not message["content"]:
            continue
        if message["content"][-1]["type"] in ("thinking", "redacted_thinking"):
            raise Refused(
                f"messages.{message['number']}: The final block in an assistant message cannot be `thinking`."
            )
    assistant = next((m for m in reversed(messages) if m["role"] == "assistant"), None)
    if assistant is not None:
        _check_issued(assistant, issued)


def _check_issued(message: JsonObject, issued: Mapping[str, Sequence[JsonObject]]) -> None:
    thinking = [block for block in message["content"] if block["type"] in ("thinking", "redacted_thinking")]
    for block in message["content"]:
        thoughts = issued.get(block["id"]) if block["type"] == "tool_use" else None
        # All of it may be left out.
        if thoughts and len({part in thinking for part in thoughts}) > 1:
            raise Refused(
                f"messages.{message['number']}: `thinking` or `redacted_thinking` blocks in the latest "
                "assistant message cannot be modified. These blocks must remain as they were in the original "
                "response."
            )
