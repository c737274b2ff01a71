"""Every event that a client may send, one struct each; fields are the payload's, in snake case.

Their docstrings and descriptions are the reference's, so they name fields as they are on the wire.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import Meta

MAX_RESUMED = 256
"""Of the calls that a client names and no one waits for, this many are answered for when it comes back."""
MAX_INSTRUCTIONS_BYTES = 4096
"""Protocol, "Base: client to server": ``instructions`` are at most 4 KiB."""

_encode = msgspec.json.Encoder().encode

Id = Annotated[str, Meta(min_length=1, max_length=128)]
"""The id of an event, or of a call, as a client may give it."""
_Short = Annotated[str, Meta(max_length=256)]
_DIGEST = "26fc0e90bc1cb480872c7ff65a4defc1e48ead5b4c78878af9be170aad6b9ff1"
_ARGUMENTS = {"editedArguments": {"type": "object"}}
_NO_ARGUMENTS = {"editedArguments": {"type": "null"}}
_EDITS = [
    {
        "if": {"properties": {"decision": {"const": "edit"}}, "required": ["decision"]},
        "then": {"properties": _ARGUMENTS, "required": ["editedArguments"]},
    },
    {
        "if": {"properties": {"decision": {"const": "allow"}}, "required": ["decision"]},
        "then": {"properties": _NO_ARGUMENTS},
    },
]
"""`_check_edit` as JSON Schema."""
_ONE = ("approvalId", "argumentsDigest", "decision")
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


class ResumeDone(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A call that the client has run."""

    call_id: Annotated[Id, Meta(description="The ``callId`` of the call.", examples=["call_5d_1"])]
    result: Annotated[Any, Meta(description="As in ``tool.result``.", examples=["on"])] = None
    error: Annotated[str | None, Meta(description="What went wrong.")] = None

    def __post_init__(self) -> None:
        _make_text(self)


class Resume(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What the client knows of the session that it comes back to.

    It is about calls of tools; UI calls may be left out, and mean nothing here.
    """

    last_event_id: Annotated[
        str | None,
        Meta(
            description="The last event that was handled and was no partial and no ping; the answers "
            "``session.started`` and ``event.ack`` need not count either. It acknowledges all before it, "
            "except calls.",
            examples=["evt_5d_9"],
        ),
    ] = None
    done: Annotated[
        list[ResumeDone],
        Meta(
            description="Calls whose result the server has not acknowledged by ``event.ack``. One with "
            "neither ``result`` nor ``error``, which may be too large here, is asked for in ``resend``.",
            examples=[[{"callId": "call_5d_1", "result": "on"}]],
        ),
    ] = []
    pending: Annotated[
        list[Id],
        Meta(
            description="Calls that were received and have no result yet.",
            examples=[["call_5d_2"]],
        ),
    ] = []


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
            description="The device's tools. Left out, they stay.",
            examples=[[_TOOL]],
            extra={"needs": "tools"},
        ),
    ] = None
    resume: Annotated[
        Resume | None,
        Meta(description="What the client knows already.", extra={"needs": "resume"}),
    ] = None
    model: Annotated[
        _Short | None,
        Meta(
            description="One of the models that the server's operator lets clients choose. Left out, or not "
            "one of them, the former choice stays.",
            examples=["home"],
        ),
    ] = None
    traceparent: Annotated[
        _Short | None,
        Meta(
            description="The app's trace (W3C Trace Context): the server's traces of the session's turns are "
            "part of it. One that is not valid is ignored.",
            examples=["00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"],
        ),
    ] = None


class SessionUpdate(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Declare the device's tools again; answered by ``tools.changed``."""

    TYPE: ClassVar[str] = "session.update"
    CAPABILITY: ClassVar[str] = "tools"
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
    call_id: Annotated[Id, Meta(description="The ``callId`` of the call.", examples=["call_5d_1"])]
    result: Annotated[
        Any,
        Meta(
            description="What the tool gave: a string, often JSON as text. Any other value but null is taken "
            "as its JSON text.",
            examples=['{"status":"running"}'],
        ),
    ] = None
    error: Annotated[
        str | None, Meta(description="What went wrong, in words that the model can pass on.", examples=[None])
    ] = None

    def __post_init__(self) -> None:
        _make_text(self)


class OutputInterrupted(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Barge-in: the person spoke, or touched, over the speech.

    It concerns the oldest ``tts.speak`` that is not over. Either of ``spokenText`` and ``playedMs`` lets
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
    agent_id: Annotated[Id, Meta(description="The agent's id.", examples=["a-77"])]
    status: Annotated[_Short, Meta(description="How it ended.", examples=["FINISHED"])]
    summary: Annotated[
        str | None, Meta(description="What it did.", examples=["Fixed the login page and its test."])
    ] = None
    name: Annotated[str | None, Meta(description="What it is called.", examples=["Fix login"])] = None
    prompt: Annotated[
        str | None, Meta(description="What it was asked to do.", examples=["Fix the login page."])
    ] = None


class ResponseCancel(msgspec.Struct, frozen=True, rename="camel"):
    """Stop the running turn without a word: a button instead of a barge-in."""

    TYPE: ClassVar[str] = "response.cancel"
    CAPABILITY: ClassVar[str] = "cancel"


class ToolCancelled(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What became of a call that was to be cancelled."""

    TYPE: ClassVar[str] = "tool.cancelled"
    CAPABILITY: ClassVar[str] = "cancel"
    call_id: Annotated[Id, Meta(description="The ``callId`` of the call.", examples=["call_5d_1"])]
    effect: Annotated[
        Literal["none", "partial", "complete"],
        Meta(description="How much of it had happened by then.", examples=["none"]),
    ]
    result: Annotated[
        Any, Meta(description="What the tool gave, where it was complete, or what was done.")
    ] = None

    def __post_init__(self) -> None:
        _make_text(self)


class ToolStarted(msgspec.Struct, frozen=True, rename="camel"):
    """The device has started a call: its time limit starts again."""

    TYPE: ClassVar[str] = "tool.started"
    CAPABILITY: ClassVar[str] = "lease"
    call_id: Annotated[Id, Meta(description="The ``callId`` of the call.", examples=["call_5d_1"])]


class ToolProgress(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The device is still at it: the limit counts silence since this event."""

    TYPE: ClassVar[str] = "tool.progress"
    CAPABILITY: ClassVar[str] = "lease"
    call_id: Annotated[Id, Meta(description="The ``callId`` of the call.", examples=["call_5d_1"])]
    message: Annotated[str | None, Meta(description="Where it is, in words.", examples=["3 of 7"])] = None
    percent: Annotated[
        Annotated[float, Meta(ge=0, le=100)] | None, Meta(description="How much is done.", examples=[42])
    ] = None


class ToolAccepted(msgspec.Struct, frozen=True, rename="camel"):
    """The call has become a job: the turn goes on, the ``tool.result`` comes later."""

    TYPE: ClassVar[str] = "tool.accepted"
    CAPABILITY: ClassVar[str] = "async"
    call_id: Annotated[Id, Meta(description="The ``callId`` of the call.", examples=["call_5d_1"])]
    job_id: Annotated[_Short, Meta(description="The device's own name for the job.", examples=["job-7"])]


class ApprovalShown(msgspec.Struct, frozen=True, rename="camel"):
    """A person can see the card of a request now.

    From then on a yes by voice counts for the card too; words that were on their way before it do not. An app
    that never sends this is answered by ``approval.response`` alone.
    """

    TYPE: ClassVar[str] = "approval.shown"
    CAPABILITY: ClassVar[str] = "approval"
    approval_id: Annotated[Id, Meta(description="Of the request.", examples=["appr_5d_1"])]


class Decision(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The person's decision about one call, bound to the arguments that were shown.

    Raises ValueError for an ``edit`` without arguments, and for an ``allow`` with some: it is not clear
    which are meant.
    """

    CONDITIONS: ClassVar[Mapping[str, Any]] = {"allOf": _EDITS}
    approval_id: Annotated[Id, Meta(description="Of the request.", examples=["appr_5d_1"])]
    arguments_digest: Annotated[
        str,
        Meta(
            max_length=128,
            description="The ``argumentsDigest`` of the request: a decision about anything else is refused.",
            examples=[_DIGEST],
        ),
    ]
    decision: Annotated[
        Literal["allow", "deny", "edit"],
        Meta(description="``edit`` allows the call with ``editedArguments``.", examples=["allow"]),
    ]
    scope: Annotated[
        Literal["once", "session", "always"],
        Meta(description="How long an ``allow`` holds; one of the request's ``scopes``.", examples=["once"]),
    ] = "once"
    edited_arguments: Annotated[
        dict[str, Any] | None,
        Meta(description="All of the arguments: required for ``edit``, refused with ``allow``."),
    ] = None
    message: Annotated[
        Annotated[str, Meta(max_length=2_000)] | None,
        Meta(description="The person's words, for the model.", examples=["no, leave it"]),
    ] = None

    def __post_init__(self) -> None:
        _check_edit(self.decision, self.edited_arguments)


class ApprovalResponse(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Decide a call that was asked about: one, or several in ``decisions``.

    Either ``approvalId``, ``argumentsDigest`` and ``decision`` are given, or ``decisions`` alone.
    """

    TYPE: ClassVar[str] = "approval.response"
    CAPABILITY: ClassVar[str] = "approval"
    CONDITIONS: ClassVar[Mapping[str, Any]] = {
        "allOf": _EDITS,
        # Null is as good as left out, so `required` alone would say too little and too much.
        "oneOf": [
            {
                "title": "one decision",
                "properties": {"decisions": {"type": "null"}} | {name: {"type": "string"} for name in _ONE},
                "required": list(_ONE),
            },
            {
                "title": "several decisions",
                "properties": {"decisions": {"type": "array"}} | {name: {"type": "null"} for name in _ONE},
                "required": ["decisions"],
            },
        ],
    }
    approval_id: Annotated[Id | None, Meta(description="Of the request.", examples=["appr_5d_1"])] = None
    arguments_digest: Annotated[
        Annotated[str, Meta(max_length=128)] | None,
        Meta(description="Of the request; see ``decisions`` for all of these fields.", examples=[_DIGEST]),
    ] = None
    decision: Annotated[
        Literal["allow", "deny", "edit"] | None, Meta(description="What to do.", examples=["allow"])
    ] = None
    scope: Annotated[
        Literal["once", "session", "always"], Meta(description="How long an ``allow`` holds.")
    ] = "once"
    edited_arguments: Annotated[
        dict[str, Any] | None, Meta(description="All of the arguments, for ``edit``.")
    ] = None
    message: Annotated[
        Annotated[str, Meta(max_length=2_000)] | None, Meta(description="The person's words, for the model.")
    ] = None
    decisions: Annotated[
        Annotated[list[Decision], Meta(min_length=1, max_length=100)] | None,
        Meta(description="Several decisions at once, instead of the other fields."),
    ] = None

    def __post_init__(self) -> None:
        one = (self.approval_id, self.arguments_digest, self.decision)
        if self.decisions is None and None in one:
            raise ValueError("it needs approvalId, argumentsDigest and decision, or decisions")
        if self.decisions is not None and any(value is not None for value in one):
            raise ValueError("it holds decisions beside one of its own")
        _check_edit(self.decision, self.edited_arguments)

    def all(self) -> list[Decision]:
        """List the decisions; there is at least one."""
        if self.decisions is not None:
            return self.decisions
        assert self.approval_id is not None and self.arguments_digest is not None
        assert self.decision is not None, "checked when it was made"
        return [
            Decision(
                self.approval_id,
                self.arguments_digest,
                self.decision,
                self.scope,
                self.edited_arguments,
                self.message,
            )
        ]


def _make_text(event: ResumeDone | ToolResultEvent | ToolCancelled) -> None:
    # Let a result that is no string be its JSON text: apps send objects.
    if event.result is not None and not isinstance(event.result, str):
        msgspec.structs.force_setattr(event, "result", _encode(event.result).decode())


def _check_edit(decision: str | None, edited_arguments: dict[str, Any] | None) -> None:
    if decision == "edit" and edited_arguments is None:
        raise ValueError("an edit needs editedArguments")
    if decision == "allow" and edited_arguments is not None:
        raise ValueError("an allow takes no editedArguments; an edit does")


ClientEvent: TypeAlias = (
    SessionStart
    | SessionUpdate
    | TranscriptPartial
    | TranscriptFinal
    | ToolResultEvent
    | OutputInterrupted
    | AgentCompleted
    | ResponseCancel
    | ToolCancelled
    | ToolStarted
    | ToolProgress
    | ToolAccepted
    | ApprovalShown
    | ApprovalResponse
)
