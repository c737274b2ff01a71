"""Every event that a client may send, one struct each; fields are the payload's, in snake case."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, TypeAlias

import msgspec
from msgspec import Meta

MAX_INSTRUCTIONS_BYTES = 4096
"""Protocol, "Base: client to server": ``instructions`` are at most 4 KiB."""

_Id = Annotated[str, Meta(min_length=1, max_length=128)]
_Short = Annotated[str, Meta(max_length=256)]
_TOOL = {
    "name": "lamp.switch",
    "description": "Switches the lamp of a room on or off.",
    "inputSchema": {
        "type": "object",
        "properties": {"room": {"type": "string"}, "on": {"type": "boolean"}},
        "required": ["room", "on"],
    },
    "annotations": {"destructiveHint": False, "idempotentHint": True},
    "_meta": {"conductor": {"timeoutMs": 5000}},
}


class SessionStart(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Create or resume the session; answered by ``session.started``. Sent again on every reconnect."""

    TYPE: ClassVar[str] = "session.start"
    session_id: Annotated[
        str | None, Meta(description="The same as the envelope's, if it is given.", examples=["s-1"])
    ] = None
    github_token: Annotated[
        str | None, Meta(description="Accepted from apps that send one. It is neither used nor kept.")
    ] = None
    locale: Annotated[
        _Short | None, Meta(description="The device's language, a BCP 47 tag.", examples=["en-GB"])
    ] = None
    time_zone: Annotated[
        _Short | None, Meta(description="The device's time zone, an IANA name.", examples=["Europe/London"])
    ] = None
    instructions: Annotated[
        str | None,
        Meta(
            description=f"Added to the system prompt; at most {MAX_INSTRUCTIONS_BYTES} bytes of UTF-8.",
            examples=["The user's name is Ada."],
        ),
    ] = None
    capabilities: Annotated[
        list[str],
        Meta(
            max_length=64,
            description="Names of the extensions that the client speaks; those unknown are ignored.",
            examples=[["tools"]],
        ),
    ] = []
    tools: Annotated[
        list[Any] | None,
        Meta(
            description="The device's tools; read only with the capability ``tools``. Left out, they stay.",
            examples=[[_TOOL]],
        ),
    ] = None


class SessionUpdate(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Declare the device's tools anew (capability ``tools``); answered by ``tools.changed``."""

    TYPE: ClassVar[str] = "session.update"
    tools: Annotated[
        list[Any], Meta(description="All of the device's tools; they replace the former.", examples=[[_TOOL]])
    ]


class TranscriptPartial(msgspec.Struct, frozen=True, rename="camel"):
    """The transcriber's text so far: the person is speaking. Starts no turn."""

    TYPE: ClassVar[str] = "user.audio.transcript.partial"
    text: Annotated[str, Meta(description="The text so far.", examples=["what is seventeen"])]


class TranscriptFinal(msgspec.Struct, frozen=True, rename="camel"):
    """What the person said: one user turn."""

    TYPE: ClassVar[str] = "user.audio.transcript.final"
    text: Annotated[
        str,
        Meta(
            description="The whole text. Blank text is answered by the error ``invalid_transcript``.",
            examples=["What is seventeen percent of 2340?"],
        ),
    ]


class ToolResultEvent(msgspec.Struct, frozen=True, rename="camel"):
    """What came of a ``tool.call``. A non-null ``error`` wins over ``result``."""

    TYPE: ClassVar[str] = "tool.result"
    call_id: Annotated[_Id, Meta(description="The ``callId`` of the call.", examples=["call_5d_1"])]
    result: Annotated[
        str | None,
        Meta(description="What the tool gave, often JSON as text.", examples=['{"status":"running"}']),
    ] = None
    error: Annotated[
        str | None, Meta(description="What went wrong, in words that the model can pass on.", examples=[None])
    ] = None


class OutputInterrupted(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Barge-in: the person spoke, or touched, over the speech.

    It concerns the oldest ``tts.speak`` that is not over. Either of ``spoken_text`` and ``played_ms`` lets
    the model know how much of its reply was heard.
    """

    TYPE: ClassVar[str] = "audio.output.interrupted"
    reason: Annotated[str, Meta(description="Why, for the log.", examples=["user_speech"])] = ""
    speech_id: Annotated[
        str | None, Meta(description="The ``speechId`` of the speech, where it had one.")
    ] = None
    spoken_text: Annotated[
        str | None, Meta(description="What was said of the text.", examples=["Seventeen percent of"])
    ] = None
    played_ms: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        Meta(description="How much of the speech was played, in milliseconds.", examples=[900]),
    ] = None


class AgentCompleted(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A coding agent has ended; the server narrates it in a turn of its own."""

    TYPE: ClassVar[str] = "agent.completed"
    agent_id: Annotated[_Id, Meta(description="The agent's id.", examples=["a-77"])]
    status: Annotated[_Short, Meta(description="How it ended.", examples=["FINISHED"])]
    summary: Annotated[
        str | None, Meta(description="What it did.", examples=["Fixed the login page and its test."])
    ] = None
    name: Annotated[str | None, Meta(description="What it is called.", examples=["Fix login"])] = None
    prompt: Annotated[
        str | None, Meta(description="What it was asked to do.", examples=["Fix the login page."])
    ] = None


ClientEvent: TypeAlias = (
    SessionStart
    | SessionUpdate
    | TranscriptPartial
    | TranscriptFinal
    | ToolResultEvent
    | OutputInterrupted
    | AgentCompleted
)
