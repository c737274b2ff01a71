"""The stand-in for the Messages API binds thinking to its prefix.

A block's signature names the system prompt, the tools and every earlier block that is no thinking, and lists
the thinking before it. It is valid while both are the same, but the oldest thinking may be left out, and
marks for the cache may move (platform.claude.com, "Prefix checks on thinking blocks"). Stricter than the
service, a block that is bound to nothing is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from tests.stand_ins.anthropic_script import (
    Call,
    JsonObject,
    Reply,
    Thought,
    as_held,
    redacted_data,
    signature_of,
)

THINKING = ("thinking", "redacted_thinking")
BOUND_ELSEWHERE = (
    "Invalid `signature` in `thinking` block. The block is bound to a different conversation. Remove the "
    'block, or set `thinking.block_binding.prefix_mismatch_behavior` to "drop_block".'
)
_encode = msgspec.json.Encoder(order="sorted").encode


class Prefix:
    """The part of a request, or of its reply, before the next block."""

    def __init__(self, body: JsonObject) -> None:
        system = body.get("system") or []
        blocks = [{"type": "text", "text": system}] if isinstance(system, str) else system
        self._rest = hashlib.sha256()
        self._thinking: list[str] = []
        for block in [*blocks, *body.get("tools", [])]:
            self._add("system", block)
        for message in body["messages"]:
            content = message["content"]
            for block in [{"type": "text", "text": content}] if isinstance(content, str) else content:
                self.add(message["role"], block)

    def add(self, role: str, block: JsonObject) -> None:
        """Add a block."""
        if block["type"] in THINKING:
            self._thinking.append(_name(block))
        else:
            self._add(role, block)

    def _add(self, role: str, block: JsonObject) -> None:
        plain = {key: value for key, value in block.items() if key != "cache_control"}
        self._rest.update(_encode([role, plain]))

    def bind(self) -> str:
        """Give the binding of a thinking block that comes next."""
        return f"{self._rest.hexdigest()[:16]}:{'-'.join(self._thinking)}"

    def allows(self, binding: str) -> bool:
        """Tell whether a block with this binding may come next."""
        digest, _, names = binding.partition(":")
        before = names.split("-") if names else []
        recent = before[len(before) - len(self._thinking) :] if len(self._thinking) <= len(before) else None
        return digest == self._rest.hexdigest()[:16] and recent == self._thinking


def content_of(reply: Reply, message_id: str, prefix: Prefix) -> list[JsonObject]:
    """Give the reply's content blocks as the service would hold them, arguments still as raw text.

    ``prefix`` is that of the reply.
    """
    blocks: list[JsonObject] = []
    number = 0
    for item in reply.content:
        block: JsonObject
        match item:
            case Thought(text, redacted=True):
                block = {"type": "redacted_thinking", "data": redacted_data(text, prefix.bind())}
            case Thought(text):
                block = {"type": "thinking", "thinking": text, "signature": signature_of(text, prefix.bind())}
            case str():
                block = {"type": "text", "text": item}
            case Call():
                call_id = item.id or f"toolu_{message_id}_{number}"
                number += 1
                block = {"type": "tool_use", "id": call_id, "name": item.name, "raw": item.raw}
        prefix.add("assistant", as_held(block))
        blocks.append(block)
    return blocks


def bound_elsewhere(body: JsonObject, messages: Iterable[JsonObject]) -> list[str]:
    """List the thinking blocks that are bound to another prefix.

    ``messages`` are the body's, with their content as lists of blocks.
    """
    paths: list[str] = []
    prefix = Prefix({**body, "messages": []})
    for message in messages:
        for index, block in enumerate(message["content"]):
            if block["type"] in THINKING and not prefix.allows(_binding(block)):
                paths.append(f"messages.{message['number']}.content.{index}")
            prefix.add(message["role"], block)
    return paths


def _binding(block: JsonObject) -> str:
    sealed: str = block.get("signature") or block["data"].rpartition(".")[0]
    return sealed.partition(".")[2]


def _name(block: JsonObject) -> str:
    return hashlib.sha256(_encode(block)).hexdigest()[:8]
