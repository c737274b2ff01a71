"""The messages of a conversation's history, independent of the model provider.

A history is a flat sequence of messages. A turn is a `UserMessage` or `Note` (or several) and what
follows it: `AssistantMessage`s, each followed by exactly one `ToolResult` for each of its calls, in
the order of the calls. Providers group them as their service wants.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from conductor.images import Image as Image  # a part of messages


class Illustrated(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A message that may have images."""

    images: tuple[Image, ...] = ()


class UserMessage(Illustrated, frozen=True, tag="user", omit_defaults=True):
    """A final transcript."""

    text: str


class Note(Illustrated, frozen=True, tag="note", omit_defaults=True):
    """A message of the server to the model: a late result, or the end of an agent.

    ``untrusted``: part of it comes from third parties and may contain injected instructions. ``passing``:
    only the requests of one turn have it, so a prompt cache ends before it.
    """

    text: str
    untrusted: bool = False
    passing: bool = False


class ToolCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A model's request to run a tool.

    ``call_id`` identifies it on the wire and in the history; ``name`` is the tool's dotted name;
    ``arguments`` is the model's JSON text, which may be incomplete. ``repaired``: errors in that text were
    corrected, so its meaning may differ from the model's.
    """

    call_id: str
    name: str
    arguments: str
    repaired: bool = False


class AssistantMessage(msgspec.Struct, frozen=True, tag="assistant", omit_defaults=True, kw_only=True):
    """One reply of the model: text, calls, or both.

    ``opaque`` holds blocks that the provider ``provider`` needs back unchanged (such as thinking), as JSON
    text; other providers ignore it. ``untrusted``: the call is a program's, which wrote its arguments, or the
    model had untrusted facts.
    """

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    opaque: str | None = None
    provider: str | None = None
    untrusted: bool = False


class ToolResult(Illustrated, frozen=True, tag="result", omit_defaults=True):
    """The result of one call. ``content`` is the text for the model, usually JSON.

    ``untrusted``: it comes from third parties and may contain injected instructions.
    """

    call_id: str
    content: str
    is_error: bool = False
    untrusted: bool = False


Message: TypeAlias = UserMessage | Note | AssistantMessage | ToolResult
