"""Every event that a client may send, one struct each; fields are the payload's, in snake case."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, TypeAlias

import msgspec

MAX_INSTRUCTIONS_BYTES = 4096
"""Protocol, "Base: client to server": ``instructions`` are at most 4 KiB."""

_Id = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
_Short = Annotated[str, msgspec.Meta(max_length=256)]


class SessionStart(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Create or resume the session; answered by ``session.started``. Sent again on every reconnect."""

    TYPE: ClassVar[str] = "session.start"
    session_id: str | None = None
    github_token: str | None = None
    locale: _Short | None = None
    time_zone: _Short | None = None
    instructions: str | None = None
    capabilities: Annotated[list[str], msgspec.Meta(max_length=64)] = []
    tools: list[Any] | None = None


class SessionUpdate(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Declare the device's tools anew (capability ``tools``); answered by ``tools.changed``."""

    TYPE: ClassVar[str] = "session.update"
    tools: list[Any]


class TranscriptPartial(msgspec.Struct, frozen=True, rename="camel"):
    """The transcriber's text so far: the person is speaking. Starts no turn."""

    TYPE: ClassVar[str] = "user.audio.transcript.partial"
    text: str


class TranscriptFinal(msgspec.Struct, frozen=True, rename="camel"):
    """What the person said: one user turn."""

    TYPE: ClassVar[str] = "user.audio.transcript.final"
    text: str


class ToolResultEvent(msgspec.Struct, frozen=True, rename="camel"):
    """What came of a ``tool.call``. A non-null ``error`` wins over ``result``."""

    TYPE: ClassVar[str] = "tool.result"
    call_id: _Id
    result: str | None = None
    error: str | None = None


class OutputInterrupted(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Barge-in: the person spoke, or touched, over the speech.

    ``played_ms`` is how much of it was played, in milliseconds; ``spoken_text`` what was said of it.
    """

    TYPE: ClassVar[str] = "audio.output.interrupted"
    reason: str = ""
    speech_id: str | None = None
    spoken_text: str | None = None
    played_ms: Annotated[float, msgspec.Meta(ge=0)] | None = None


class AgentCompleted(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A coding agent has ended; the server narrates it in a turn of its own."""

    TYPE: ClassVar[str] = "agent.completed"
    agent_id: _Id
    status: _Short
    summary: str | None = None
    name: str | None = None
    prompt: str | None = None


ClientEvent: TypeAlias = (
    SessionStart
    | SessionUpdate
    | TranscriptPartial
    | TranscriptFinal
    | ToolResultEvent
    | OutputInterrupted
    | AgentCompleted
)
