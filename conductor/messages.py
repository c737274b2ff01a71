"""The provider-neutral items of a conversation's history.

A history is a flat sequence of messages. A turn is a `UserMessage` or `Note` (or several) and what
follows it: `AssistantMessage`s, each followed by exactly one `ToolResult` for each of its calls, in
the order of the calls. Providers group them as their service wants.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class UserMessage(msgspec.Struct, frozen=True, tag="user"):
    """What the person said: a final transcript."""

    text: str


class Note(msgspec.Struct, frozen=True, tag="note"):
    """What the server tells the model and nobody said: a late result, an agent that has finished.

    ``untrusted``: strangers wrote part of it, so that instructions may hide in it.
    """

    text: str
    untrusted: bool = False


class ToolCall(msgspec.Struct, frozen=True):
    """A model's wish to run a tool.

    ``call_id`` is what the wire and the history know it by; ``name`` is the tool's own dotted name;
    ``arguments`` is the JSON text that the model wrote, whole or not.
    """

    call_id: str
    name: str
    arguments: str


class AssistantMessage(msgspec.Struct, frozen=True, tag="assistant"):
    """One reply of the model: words, calls, or both.

    ``opaque`` holds blocks that the provider ``provider`` wants back verbatim (thinking, say), as JSON
    text; other providers leave it out.
    """

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    opaque: str | None = None
    provider: str | None = None


class ToolResult(msgspec.Struct, frozen=True, tag="result"):
    """What came of one call. ``content`` is what the model reads, JSON as a rule.

    ``untrusted``: strangers wrote it, so that instructions may hide in it.
    """

    call_id: str
    content: str
    is_error: bool = False
    untrusted: bool = False


Message: TypeAlias = UserMessage | Note | AssistantMessage | ToolResult
