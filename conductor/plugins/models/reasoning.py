"""A reply's reasoning, in its order with the reply's words and calls; pure.

Services bind reasoning to its prefix: system prompt, tools and every earlier block, in order. Anthropic
refuses a request if the prefix changed, or if reasoning other than the oldest is missing or moved
(platform.claude.com, "Prefix checks on thinking blocks"); OpenAI ignores such reasoning. So reasoning goes
back only while its turn runs and with an unchanged reply, and Anthropic's only after the same prefix.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from conductor.messages import AssistantMessage
from conductor.plugins.models.rendering import Json, arguments_of, call_id, encode
from conductor.plugins.models.tool_names import ToolNameMap


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


class Received(msgspec.Struct, frozen=True):
    """A reply with reasoning, as it came; ``prefix`` tells the request after which it is valid."""

    prefix: str
    blocks: tuple[ReplyBlock, ...]


def add_slot(blocks: list[ReplyBlock], own_id: str) -> None:
    """Record the place of a call; one that the service repeats keeps its first place."""
    slot = CallSlot(own_id)
    if not own_id or slot not in blocks:
        blocks.append(slot)


def opaque_of(blocks: Sequence[ReplyBlock], prefix: Callable[[], str]) -> str | None:
    """Encode a reply's blocks for `AssistantMessage.opaque`; None without reasoning."""
    if not any(isinstance(block, Reasoning) for block in blocks):
        return None
    return encode(Received(prefix(), tuple(blocks))).decode()


def received_of(message: AssistantMessage, provider: str) -> Received | None:
    """Return a reply with its reasoning; None for another provider's, or one that was changed."""
    if message.opaque is None or message.provider != provider:
        return None
    try:
        received = msgspec.json.decode(message.opaque, type=Received)
    except msgspec.DecodeError:
        return None
    words = "".join(block.text for block in received.blocks if isinstance(block, Words))
    calls = sum(isinstance(block, CallSlot) for block in received.blocks)
    return received if words.strip() == message.text.strip() and calls == len(message.calls) else None


def render(
    message: AssistantMessage,
    received: Received | None,
    names: ToolNameMap,
    ids: dict[str, str],
    *,
    text: Callable[[str], Any],
    call: Callable[[str, str, bytes], Any],
) -> list[Any]:
    """Render a reply by ``text`` and ``call`` (id, name, arguments), and note the calls' ids for the results.

    Reasoning goes back unchanged and in its place; services refuse it at the end.
    """
    rendered: list[Any] = []
    if received is None:  # like most of a history
        if words := message.text.rstrip():
            rendered.append(text(words))
        for item in message.calls:
            ids[item.call_id] = own = call_id(item.call_id)
            rendered.append(call(own, names.to_service(item.name), arguments_of(item)))
        return rendered
    calls = iter(message.calls)
    for block in received.blocks:
        if isinstance(block, CallSlot):
            item = next(calls)
            # Reasoning is bound to the service's own id, which some gateways repeat in each reply.
            is_own = block.id and block.id not in ids.values()
            ids[item.call_id] = call_id(block.id if is_own else item.call_id)
            rendered.append(call(ids[item.call_id], names.to_service(item.name), arguments_of(item)))
        elif isinstance(block, Reasoning):
            rendered.append(block.block)
        elif block.text.strip():
            rendered.append(text(block.text))
    while rendered and isinstance(rendered[-1], dict):
        rendered.pop()
    return rendered


def digest(prefix: Json) -> str:
    """Hash the part of a request before a reply."""
    return hashlib.blake2b(encode(prefix), digest_size=16).hexdigest()
