"""The UI calls of the server: a ``tool.call`` that shows a state, adds a message or speaks a text."""

from __future__ import annotations

from typing import Literal

import msgspec

from conductor.events.server import ConversationState, ToolCallEvent


class Segment(msgspec.Struct, frozen=True, rename={"number": "segment", "speech_id": "speechId"}):
    """The part of a reply in one ``tts.speak``; ``number`` counts from 0."""

    speech_id: str
    number: int
    last: bool


def set_state(call_id: str, state: ConversationState) -> ToolCallEvent:
    """Make the UI call that shows the conversation's state."""
    # Not encoded by msgspec: it is sent three times a turn, and the states need no escaping.
    return ToolCallEvent(call_id, "convo.setState", f'{{"state":"{state}"}}')


def append_message(
    call_id: str, role: Literal["user", "assistant"], text: str, message_id: str | None = None
) -> ToolCallEvent:
    """Make the UI call that adds a message to the app's transcript; ``message_id`` for ``segments``."""
    arguments: dict[str, str | bool] = {"role": role, "text": text, "isPartial": False}
    if message_id is not None:
        arguments["messageId"] = message_id
    return ToolCallEvent(call_id, "convo.appendMessage", msgspec.json.encode(arguments).decode())


def speak(call_id: str, text: str, segment: Segment | None = None) -> ToolCallEvent:
    """Make the UI call that speaks a text; ``segment`` for ``segments``."""
    arguments = {"text": text} if segment is None else {"text": text, **msgspec.to_builtins(segment)}
    return ToolCallEvent(call_id, "tts.speak", msgspec.json.encode(arguments).decode())


def is_ui_call(name: str) -> bool:
    """Whether a call is the server's own, which no model may make."""
    # By prefix, so that an app cannot declare the name of a future UI call.
    return name.startswith(("convo.", "tts."))
