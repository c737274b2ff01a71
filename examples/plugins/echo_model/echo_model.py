"""A model that repeats the person's words, and says what a tool answered."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec

from conductor.plugin import (
    Finished,
    ModelEvent,
    ModelProfile,
    ModelRequest,
    Settings,
    TextDelta,
    ToolCall,
    ToolResult,
    UserMessage,
)


class EchoModel:
    """Repeats the last message; "call NAME" calls a tool without arguments."""

    name = "echo"

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    async def start(self) -> None:
        """Do nothing: there is no service."""

    async def aclose(self) -> None:
        """Do nothing."""

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Stream the reply word by word."""
        last = request.messages[-1]
        text = last.content if isinstance(last, ToolResult) else getattr(last, "text", "")
        name = text.removeprefix("call ").strip()
        is_offered = request.tool_choice == "auto" and name in [tool.name for tool in request.tools]
        if isinstance(last, UserMessage) and text.startswith("call ") and is_offered:
            yield ToolCall("call_1", name, msgspec.json.encode({}).decode())
            yield Finished("tool_use")
            return
        for word in f"{self._prefix} {text}".split():
            yield TextDelta(f"{word} ")
        yield Finished("end_turn")


def from_profile(profile: ModelProfile, settings: Settings) -> EchoModel:
    """Make the provider; the profile's ``model`` is the word that begins a reply."""
    return EchoModel(profile.model or "You said:")
