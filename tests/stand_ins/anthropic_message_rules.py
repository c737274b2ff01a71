"""The Messages API's refusals of a request's messages, as pure checks of messages of the right shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.stand_ins.anthropic_script import JsonObject, Refused, seal, signature_of
from tests.stand_ins.picture_rules import check_picture


def check_messages(
    messages: Sequence[JsonObject], issued: Mapping[str, Sequence[JsonObject]]
) -> list[JsonObject]:
    """Refuse bad messages; give the good ones with their content as lists of blocks.

    ``issued`` holds, by tool_use id, the thinking blocks of the reply with that call. Neighbours of one role
    are combined, as the service does, except that a reply's results must all be in the one next message.
    """
    checked: list[JsonObject] = []
    for number, message in enumerate(messages):
        content = message["content"]
        if isinstance(content, str):
            content = [{"type": "text", "text": content}] if content else []
        if not content and not (number == len(messages) - 1 and message["role"] == "assistant"):
            raise Refused(
                f"messages.{number}: all messages must have non-empty content except for the optional final "
                "assistant message"
            )
        for index, block in enumerate(content):
            _check_seals(block, f"messages.{number}.content.{index}")
            _check_images(block, f"messages.{number}.content.{index}")
        checked.append({"role": message["role"], "content": content, "number": number})
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


def _check_seals(block: JsonObject, path: str) -> None:
    """Refuse changed thinking."""
    if block["type"] == "thinking":
        binding = block["signature"].partition(".")[2]
        if block["signature"] != signature_of(block["thinking"], binding):
            raise Refused(f"{path}: Invalid `signature` in `thinking` block")
    if block["type"] == "redacted_thinking" and block["data"][-64:] != seal(block["data"][:-64]):
        raise Refused(f"{path}: Invalid `data` in `redacted_thinking` block")


def _check_images(block: JsonObject, path: str) -> None:
    """Refuse images that are none, and images in the result of a failed call."""
    if block["type"] == "image":
        check_picture(block["source"]["media_type"], block["source"]["data"], path)
    if block["type"] == "tool_result" and not isinstance(block.get("content", ""), str):
        for part in block["content"]:
            if part["type"] != "text" and block.get("is_error"):
                raise Refused(f"{path}: all content must be type `text` if `is_error` is true")
            _check_images(part, path)


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
