"""What the Messages API's prompt cache holds, by its documented rules; a token is four bytes of the request.

A prompt is a row of blocks: tools, then system, then messages. A mark (``cache_control``) stores all up to
its own block, if that is long enough for the model. It finds a prefix stored at one of the 20 blocks that
end with it, if nothing before differs. What is stored stays for five minutes after its last use.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import msgspec

from tests.stand_ins.anthropic_script import JsonObject

LIFETIME_S = 300.0
_LOOK_BACK = 20
_LEAST_TOKENS = {
    "claude-haiku-5-5": 512,
    "claude-opus-4-6": 4096,
    "claude-opus-5-5": 512,
    "claude-sonnet-5-5": 1024,
}


class PromptCache:
    """The cache of one account."""

    def __init__(self) -> None:
        self._used_at: dict[str, float] = {}

    def count(self, body: JsonObject, now: float) -> dict[str, int]:
        """Give the usage of a request at the second ``now``: tokens read, stored, and neither."""
        ends: list[tuple[str, int, bool]] = []
        digest, size = "", 0
        for block, marked in _blocks(body):
            digest, size = hashlib.sha256(digest.encode() + block).hexdigest(), size + len(block)
            ends.append((digest, size // 4, marked))
        read = stored_tokens = 0
        stored: list[str] = []
        for number, (digest, tokens, marked) in enumerate(ends):
            if not marked:
                continue
            for earlier, length, _ in reversed(ends[max(0, number + 1 - _LOOK_BACK) : number + 1]):
                if now - self._used_at.get(earlier, -LIFETIME_S) < LIFETIME_S:
                    read = max(read, length)
                    stored.append(earlier)
                    break
            if tokens >= _LEAST_TOKENS.get(body["model"], 1024):
                stored_tokens = max(stored_tokens, tokens)
                stored.append(digest)
        self._used_at.update(dict.fromkeys(stored, now))
        cached = max(read, stored_tokens)
        return {
            "input_tokens": ends[-1][1] - cached,
            "cache_read_input_tokens": read,
            "cache_creation_input_tokens": cached - read,
        }


def _blocks(body: JsonObject) -> Iterator[tuple[bytes, bool]]:
    # The thinking stands before the tools for some models: for all of them here, which is stricter.
    yield _plain([body["model"], body.get("thinking"), body.get("output_config")]), False
    for tool in body.get("tools", ()):
        yield _plain(tool), "cache_control" in tool
    system = body.get("system") or ()
    for block in [{"text": system}] if isinstance(system, str) else system:
        yield _plain(block), "cache_control" in block
    # Another choice of tools changes the messages' part of the cache only.
    yield _plain(body.get("tool_choice")), False
    for message in body["messages"]:
        content = message["content"]
        for block in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            yield message["role"].encode() + _plain(block), "cache_control" in block


def _plain(block: object) -> bytes:
    if isinstance(block, dict):
        block = {key: value for key, value in block.items() if key != "cache_control"}
    return msgspec.json.encode(block)
