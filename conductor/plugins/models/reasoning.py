"""A reply's reasoning, in its order with the reply's words and calls; pure.

Services bind reasoning to its prefix: system prompt, tools and every earlier block, in order. Anthropic
refuses a request if the prefix changed, or if reasoning other than the oldest is missing or moved
(platform.claude.com, "Prefix checks on thinking blocks"); OpenAI ignores such reasoning. So reasoning goes
back only while its turn runs, after the same prefix, and with an unchanged reply.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from conductor.messages import AssistantMessage, ToolCall
from conductor.plugins.models.rendering import Json, call_id, encode


class Words(msgspec.Struct, frozen=True, tag="words"):
    """A part of the reply's text."""

    text: str


class CallSlot(msgspec.Struct, frozen=True, tag="call"):
    """The position of the reply's next call; ``id`` is the service's own."""

    id: str


class Reasoning(msgspec.Struct, frozen=True, tag="reasoning"):
    """A block that goes back unchanged."""

    block: Json


ReplyBlock: TypeAlias = Words | CallSlot | Reasoning


class _Received(msgspec.Struct, frozen=True):
    prefix: str
    blocks: tuple[ReplyBlock, ...]


def opaque_of(blocks: Sequence[ReplyBlock], prefix: Callable[[], str]) -> str | None:
    """Encode a reply's blocks for `AssistantMessage.opaque`; None without reasoning."""
    if not any(isinstance(block, Reasoning) for block in blocks):
        return None
    return msgspec.json.encode(_Received(prefix(), tuple(blocks))).decode()


def blocks_of(message: AssistantMessage, provider: str) -> tuple[str | None, Sequence[ReplyBlock]]:
    """Give a reply's blocks, and the digest of the prefix for which they are valid.

    Another provider's reply, or one that was changed, has no reasoning and no digest.
    """
    plain: list[ReplyBlock] = [Words(message.text.rstrip()), *(CallSlot("") for _ in message.calls)]
    if message.opaque is None or message.provider != provider:
        return None, plain
    try:
        received = msgspec.json.decode(message.opaque, type=_Received)
    except msgspec.DecodeError:
        return None, plain
    words = "".join(block.text for block in received.blocks if isinstance(block, Words))
    calls = sum(isinstance(block, CallSlot) for block in received.blocks)
    changed = words.strip() != message.text.strip() or calls != len(message.calls)
    return (None, plain) if changed else (received.prefix, received.blocks)


def service_id(slot: CallSlot, call: ToolCall, ids: dict[str, str]) -> str:
    """Give a call's id in a request, and note it in ``ids`` for its result.

    Reasoning is bound to the service's own id. A gateway that numbers each reply's calls repeats ids.
    """
    is_taken = not slot.id or slot.id in ids.values()
    ids[call.call_id] = call_id(call.call_id if is_taken else slot.id)
    return ids[call.call_id]


def digest(prefix: Json) -> str:
    """Hash the part of a request before a reply."""
    return hashlib.blake2b(encode(prefix), digest_size=16).hexdigest()
