"""Every event that the server may send, one struct each; fields are the payload's, in snake case."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import Meta

from conductor.errors import ErrorCode

ConversationState: TypeAlias = Literal["idle", "listening", "transcribing", "thinking", "speaking"]
"""What ``convo.setState`` takes. The app knows ``error`` too, but that shuts the microphone: never sent."""

STATE_MEANINGS: Mapping[ConversationState, str] = MappingProxyType(
    {
        "idle": "Nothing is under way: open the microphone. Each turn ends with it, however it ended.",
        "listening": "The person is speaking.",
        "transcribing": "The person has spoken, and the final transcript is not there yet.",
        "thinking": "The transcript was taken, and the model is at work.",
        "speaking": "The reply is about to be spoken.",
    }
)
"""What each state means for the app's screen and microphone."""


class RejectedTool(msgspec.Struct, frozen=True, rename="camel"):
    """A declared tool that is not offered to the model, and why."""

    name: Annotated[str, Meta(description="As declared, as far as it can be shown.", examples=["calculator"])]
    reason: Annotated[
        str, Meta(description="Why, for the app's author.", examples=["this name is taken by another tool"])
    ]


class SessionStarted(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The session is there; the answer to ``session.start``."""

    TYPE: ClassVar[str] = "session.started"
    session_id: Annotated[str, Meta(description="The envelope's.", examples=["s-1"])]
    resumed: Annotated[
        bool, Meta(description="Whether the session was there before, with its history.", examples=[False])
    ]
    capabilities: Annotated[
        list[str] | None,
        Meta(
            description="The capabilities that are accepted; left out if none were named.",
            examples=[["tools"]],
        ),
    ] = None
    accepted_tools: Annotated[
        list[str] | None,
        Meta(
            description="Names of the declared tools that the model is offered (capability ``tools``).",
            examples=[["lamp.switch"]],
        ),
    ] = None
    rejected_tools: Annotated[
        list[RejectedTool] | None,
        Meta(description="The declared tools that it is not (capability ``tools``).", examples=[[]]),
    ] = None


class SpeechPartial(msgspec.Struct, frozen=True, rename="camel"):
    """The reply so far: cumulative text, never a bare delta."""

    TYPE: ClassVar[str] = "assistant.speech.partial"
    text: Annotated[
        str,
        Meta(
            description="All of the text so far; it begins anew with each message of the model.",
            examples=["Seventeen percent of 2340"],
        ),
    ]


class SpeechFinal(msgspec.Struct, frozen=True, rename="camel"):
    """The whole reply."""

    TYPE: ClassVar[str] = "assistant.speech.final"
    text: Annotated[
        str,
        Meta(
            description="The whole text, for the eye: it may hold markdown. It clears the partials.",
            examples=["Seventeen percent of 2340 is **397.8**."],
        ),
    ]


class ToolCallEvent(msgspec.Struct, frozen=True, rename="camel"):
    """Run a tool on the device, or do one of the UI calls; answered by ``tool.result``."""

    TYPE: ClassVar[str] = "tool.call"
    call_id: Annotated[
        str, Meta(description="Names this call in its ``tool.result``.", examples=["call_5d_1"])
    ]
    name: Annotated[str, Meta(description="The tool, or the UI call.", examples=["agent.status"])]
    arguments: Annotated[
        str, Meta(description="A JSON object, written as a string.", examples=['{"id":"a-77"}'])
    ]


class ErrorEvent(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Something went wrong. ``code`` is stable, ``message`` is for people."""

    TYPE: ClassVar[str] = "error"
    code: Annotated[ErrorCode, Meta(description="What went wrong.", examples=["invalid_transcript"])]
    message: Annotated[
        str, Meta(description="The same in words, without secrets.", examples=["The transcript is empty."])
    ]
    event_id: Annotated[
        str | None, Meta(description="The id of the event that it is about.", examples=["ios-42"])
    ] = None
    call_id: Annotated[str | None, Meta(description="The call that it is about.")] = None
    retry_after_ms: Annotated[int | None, Meta(description="When to come back, in milliseconds.")] = None


class ToolsChanged(msgspec.Struct, frozen=True, rename="camel"):
    """The device's tools are now these (capability ``tools``)."""

    TYPE: ClassVar[str] = "tools.changed"
    accepted_tools: Annotated[
        list[str],
        Meta(description="Names of the tools that the model is offered.", examples=[["lamp.switch"]]),
    ]
    rejected_tools: Annotated[
        list[RejectedTool],
        Meta(
            description="The declared tools that it is not.",
            examples=[[{"name": "calculator", "reason": "this name is taken by another tool"}]],
        ),
    ]


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
