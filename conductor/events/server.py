"""Every event that the server may send, one struct each; fields are the payload's, in snake case."""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

import msgspec

from conductor.errors import ErrorCode

ConversationState: TypeAlias = Literal["idle", "listening", "transcribing", "thinking", "speaking"]
"""What ``convo.setState`` takes. The app knows ``error`` too, but that shuts the microphone: never sent."""


class RejectedTool(msgspec.Struct, frozen=True, rename="camel"):
    """A declared tool that is not offered to the model, and why."""

    name: str
    reason: str


class SessionStarted(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The session is there. ``resumed`` says whether it was before, with its history."""

    TYPE: ClassVar[str] = "session.started"
    session_id: str
    resumed: bool
    capabilities: list[str] | None = None
    accepted_tools: list[str] | None = None
    rejected_tools: list[RejectedTool] | None = None


class SpeechPartial(msgspec.Struct, frozen=True, rename="camel"):
    """The reply so far: cumulative text, never a bare delta."""

    TYPE: ClassVar[str] = "assistant.speech.partial"
    text: str


class SpeechFinal(msgspec.Struct, frozen=True, rename="camel"):
    """The whole reply."""

    TYPE: ClassVar[str] = "assistant.speech.final"
    text: str


class ToolCallEvent(msgspec.Struct, frozen=True, rename="camel"):
    """Run a tool on the device. ``arguments`` is a JSON object as a string."""

    TYPE: ClassVar[str] = "tool.call"
    call_id: str
    name: str
    arguments: str


class ErrorEvent(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Something went wrong. ``code`` is stable, ``message`` is for people."""

    TYPE: ClassVar[str] = "error"
    code: ErrorCode
    message: str
    event_id: str | None = None
    call_id: str | None = None
    retry_after_ms: int | None = None


class ToolsChanged(msgspec.Struct, frozen=True, rename="camel"):
    """The device's tools are now these (capability ``tools``)."""

    TYPE: ClassVar[str] = "tools.changed"
    accepted_tools: list[str]
    rejected_tools: list[RejectedTool]


class SessionPing(msgspec.Struct, frozen=True, rename="camel"):
    """A sign of life; a client ignores it."""

    TYPE: ClassVar[str] = "session.ping"


ServerEvent: TypeAlias = (
    SessionStarted | SpeechPartial | SpeechFinal | ToolCallEvent | ErrorEvent | ToolsChanged | SessionPing
)


def set_state(call_id: str, state: ConversationState) -> ToolCallEvent:
    """Make the UI call that shows the conversation's state; ``idle`` reopens the microphone."""
    return ToolCallEvent(call_id, "convo.setState", f'{{"state":"{state}"}}')


def append_message(call_id: str, role: Literal["user", "assistant"], text: str) -> ToolCallEvent:
    """Make the UI call that puts a whole message into the app's transcript."""
    arguments = msgspec.json.encode({"role": role, "text": text, "isPartial": False}).decode()
    return ToolCallEvent(call_id, "convo.appendMessage", arguments)


def speak(call_id: str, text: str) -> ToolCallEvent:
    """Make the UI call that has the device say something."""
    return ToolCallEvent(call_id, "tts.speak", msgspec.json.encode({"text": text}).decode())


def is_ui_call(name: str) -> bool:
    """Tell the server's own calls, which no model may make, from tools."""
    return name.startswith(("convo.", "tts."))
