"""The seam between a turn and a model service."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from conductor.messages import Message, ToolCall

StopReason: TypeAlias = Literal[
    "end_turn", "tool_use", "max_tokens", "refusal", "pause_turn", "context_window"
]


@dataclass(frozen=True, slots=True, eq=False)
class ToolDefinition:
    """A tool as a model sees it. ``name`` is the tool's own dotted name; a provider maps it as it must.

    Definitions are equal only to themselves, so that what is made of them can be cached by them.
    """

    name: str
    description: str
    input_schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One call of the model.

    ``messages`` is a valid history (`conductor.conversation.history`) that ends with a user's message,
    a note or tool results. ``tool_choice`` "none" switches the tools off and leaves them in the request.
    ``silence_s`` bounds how long the service may send no byte; ``deadline_s`` is what is left of the turn,
    within which retries must stay.
    """

    system: str
    messages: Sequence[Message]
    tools: Sequence[ToolDefinition] = ()
    tool_choice: Literal["auto", "none"] = "auto"
    silence_s: float = 30.0
    deadline_s: float = 120.0


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens used by one call of the model, as far as the service says."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Some more words of the reply."""

    text: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The reply is complete. ``opaque`` goes into the `AssistantMessage` and comes back with it."""

    stop: StopReason
    usage: Usage = field(default_factory=Usage)
    opaque: str | None = None


ModelEvent: TypeAlias = TextDelta | ToolCall | Finished


class ModelProvider(Protocol):
    """A model service.

    ``stream`` yields the reply as it arrives and ends with exactly one `Finished`; a `ToolCall` is yielded
    when its block ends, and its ``arguments`` are the raw text, which is complete JSON only if the stop
    reason is ``tool_use``. Closing the iterator (``aclose``) stops the request at the service at once.
    Raises `ModelError`; retries (429, 5xx, 529, connection) happen inside, only before the first event.
    """

    name: str

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Ask the model to go on from ``request.messages``."""
        ...

    async def start(self) -> None:
        """Get ready, so that the first request need not wait; `stream` works without it."""
        ...

    async def aclose(self) -> None:
        """Let go of connections."""
        ...
