"""Every event that the server may send, one struct each; fields are the payload's, in snake case.

Their docstrings and descriptions are the reference's, so they name fields as they are on the wire.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

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

CAPABILITIES: Mapping[str, str] = MappingProxyType(
    {
        "resume": "The client says what it knows when it comes back, and keeps what is not acknowledged.",
        "tools": "The app declares its own tools.",
        "approval": "The app shows calls that need a person's consent, and sends the decisions.",
        "cancel": "Turns and calls are cancelled by events.",
        "lease": "The time limit of a call counts silence.",
        "late": "Results after the time limit are confirmed.",
        "async": "A call may go on as a job beside the conversation.",
        "activity": "The app is told when a tool begins and ends, wherever it runs.",
        "segments": "Replies are spoken sentence by sentence, while the rest is still being written.",
        "metrics": "The app is told when a turn has ended, and how long its parts took.",
        "goaway": "The app is told before the server closes the connection on purpose.",
        "diagnostics": "The app's developer is told what the server ignores.",
    }
)
"""The extensions that this version accepts, each with its meaning."""

DiagnosticCode: TypeAlias = Literal[
    "unknown_event",
    "unknown_capability",
    "missing_capability",
    "unknown_field",
    "unknown_model",
    "unknown_time_zone",
    "invalid_traceparent",
    "unknown_call",
]


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
            description="Names of the declared tools that the model is offered.",
            examples=[["lamp.switch"]],
            extra={"needs": "tools"},
        ),
    ] = None
    rejected_tools: Annotated[
        list[RejectedTool] | None,
        Meta(description="The declared tools that it is not.", examples=[[]], extra={"needs": "tools"}),
    ] = None
    reason: Annotated[
        Literal["new", "not_kept"] | None,
        Meta(
            description="Why ``resumed`` is false: the session is ``new``, or the client came back to one "
            "that is ``not_kept`` any more.",
            examples=["new"],
        ),
    ] = None
    resend: Annotated[
        list[str] | None,
        Meta(
            description="Calls whose ``tool.result`` is to be sent again.",
            examples=[[]],
            extra={"needs": "resume"},
        ),
    ] = None
    drop: Annotated[
        list[str] | None,
        Meta(
            description="Calls that are no longer wanted: not to be started, their results to be forgotten.",
            examples=[[]],
            extra={"needs": "resume"},
        ),
    ] = None
    model: Annotated[
        str | None,
        Meta(
            description="The model that replies now, where the server has names for them; another one may "
            "stand in for it.",
            examples=["home"],
        ),
    ] = None
    local_only: Annotated[
        bool | None,
        Meta(description="True if the server sends nothing beyond the local network.", examples=[True]),
    ] = None


class EventAck(msgspec.Struct, frozen=True, rename="camel"):
    """Transcripts and results that are recorded: the client may forget them."""

    TYPE: ClassVar[str] = "event.ack"
    CAPABILITY: ClassVar[str] = "resume"
    event_ids: Annotated[
        list[str], Meta(description="The envelope ids of the client's events.", examples=[["cevt_3"]])
    ]


class SpeechPartial(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The reply so far: cumulative text, never a bare delta."""

    TYPE: ClassVar[str] = "assistant.speech.partial"
    text: Annotated[
        str,
        Meta(
            description="All of the text so far; it begins again with each message of the model.",
            examples=["Seventeen percent of 2340"],
        ),
    ]
    speech_id: Annotated[
        str | None,
        Meta(
            description="The ``speechId`` of the reply's ``tts.speak`` calls.",
            examples=["speech_5d_1"],
            extra={"needs": "segments"},
        ),
    ] = None


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


class ToolCallEvent(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Run a tool on the device, or do one of the UI calls; answered by ``tool.result``."""

    TYPE: ClassVar[str] = "tool.call"
    call_id: Annotated[
        str, Meta(description="Names this call in its ``tool.result``.", examples=["call_5d_1"])
    ]
    name: Annotated[str, Meta(description="The tool, or the UI call.", examples=["agent.status"])]
    arguments: Annotated[
        str, Meta(description="A JSON object, written as a string.", examples=['{"id":"a-77"}'])
    ]
    timeout_ms: Annotated[
        int | None,
        Meta(description="How long the server waits without a sign of life.", extra={"needs": "lease"}),
    ] = None


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
    """The device's tools are now these."""

    TYPE: ClassVar[str] = "tools.changed"
    CAPABILITY: ClassVar[str] = "tools"
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


class ToolCancel(msgspec.Struct, frozen=True, rename="camel"):
    """The result of a call is not waited for any more: stop it.

    Answered by ``tool.cancelled``, or by the ``tool.result`` if that was faster.
    """

    TYPE: ClassVar[str] = "tool.cancel"
    CAPABILITY: ClassVar[str] = "cancel"
    call_id: Annotated[str, Meta(description="The ``callId`` of the call.", examples=["call_5d_1"])]
    reason: Annotated[
        Literal["barge_in", "superseded", "timeout", "session_end"],
        Meta(description="Why.", examples=["barge_in"]),
    ]


class ToolLate(msgspec.Struct, frozen=True, rename="camel"):
    """A result that came after its time is used all the same."""

    TYPE: ClassVar[str] = "tool.late"
    CAPABILITY: ClassVar[str] = "late"
    call_id: Annotated[str, Meta(description="The ``callId`` of the call.", examples=["call_5d_1"])]
    delivered_as: Annotated[
        Literal["context", "turn"],
        Meta(
            description="Whether the model reads it with the next turn, or in one of its own.",
            examples=["turn"],
        ),
    ]


class ToolActivity(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A tool begins or ends, wherever it runs."""

    TYPE: ClassVar[str] = "tool.activity"
    CAPABILITY: ClassVar[str] = "activity"
    call_id: Annotated[str, Meta(description="Names the call.", examples=["call_5d_1"])]
    name: Annotated[str, Meta(description="The tool.", examples=["calculator"])]
    source: Annotated[
        str, Meta(description="Where it runs: ``device``, ``builtin``, ``mcp:…``.", examples=["builtin"])
    ]
    status: Annotated[Literal["started", "finished"], Meta(description="Which.", examples=["finished"])]
    error_type: Annotated[
        str | None, Meta(description="``none``, or what went wrong; once finished.", examples=["none"])
    ] = None
    execution_time_ms: Annotated[int | None, Meta(description="How long it took.", examples=[2])] = None
    data_size_bytes: Annotated[int | None, Meta(description="How much it gave.", examples=[21])] = None
    display: Annotated[
        str, Meta(description="The same for people.", examples=["calculator: done, 21 bytes, 2 ms"])
    ] = ""


class ApprovalRequest(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A call that runs only if the person says so."""

    TYPE: ClassVar[str] = "approval.request"
    CAPABILITY: ClassVar[str] = "approval"
    approval_id: Annotated[str, Meta(description="Names the request.", examples=["appr_5d_1"])]
    batch_id: Annotated[
        str, Meta(description="The same for all requests of one reply of the model.", examples=["batch_5d_1"])
    ]
    call_id: Annotated[str, Meta(description="The call that waits for it.", examples=["call_5d_1"])]
    name: Annotated[str, Meta(description="The tool.", examples=["delete_file"])]
    arguments: Annotated[
        Mapping[str, Any], Meta(description="What it would be run with.", examples=[{"path": "notes.txt"}])
    ]
    arguments_digest: Annotated[
        str,
        Meta(
            description="Hex SHA-256 of the tool's name, a line feed, and the arguments as canonical JSON "
            "(RFC 8785). The decision echoes it.",
            examples=["26fc0e90bc1cb480872c7ff65a4defc1e48ead5b4c78878af9be170aad6b9ff1"],
        ),
    ]
    risk: Annotated[
        Literal["safe", "medium", "high"], Meta(description="``high`` deserves a warning.", examples=["high"])
    ]
    reasons: Annotated[
        Sequence[str], Meta(description="Why it is asked, for people.", examples=[["It cannot be undone."]])
    ]
    prompt: Annotated[
        str, Meta(description="The question in words.", examples=["May I run delete file, path notes.txt?"])
    ]
    scopes: Annotated[
        Sequence[Literal["once", "session", "always"]],
        Meta(description="For how long it may be allowed.", examples=[["once", "session"]]),
    ]
    expires_at: Annotated[
        str, Meta(description="Until when; as ``timestamp``.", examples=["2026-03-01T12:10:00.000Z"])
    ]
    preview: Annotated[
        str, Meta(description="What it would do, in lines; for a file that is replaced, a unified diff.")
    ] = ""


class ApprovalResolved(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What became of a request, or of a decision that came too late for one."""

    TYPE: ClassVar[str] = "approval.resolved"
    CAPABILITY: ClassVar[str] = "approval"
    approval_id: Annotated[str, Meta(description="Of the request.", examples=["appr_5d_1"])]
    outcome: Annotated[
        Literal["allowed", "denied", "edited", "expired", "superseded", "refused"],
        Meta(
            description="``refused``: this decision does not count; the request stands if it stood.",
            examples=["allowed"],
        ),
    ]
    message: Annotated[str | None, Meta(description="Why, for people.")] = None


class Diagnostic(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A mistake of the client that is otherwise ignored in silence.

    It is for the app's author. Each is sent once a session; what it is about was ignored.
    """

    TYPE: ClassVar[str] = "diagnostic"
    CAPABILITY: ClassVar[str] = "diagnostics"
    severity: Annotated[
        Literal["info", "warning"],
        Meta(description="``info`` may be meant, ``warning`` is a mistake.", examples=["warning"]),
    ]
    code: Annotated[DiagnosticCode, Meta(description="What it is.", examples=["unknown_field"])]
    message: Annotated[
        str,
        Meta(
            description="The same in words; it may quote the client's own names.",
            examples=["'annotations.readonlyHint' of the tool 'lamp.switch' is not known."],
        ),
    ]
    event_id: Annotated[str | None, Meta(description="The id of the event that it is about.")] = None


class TurnEnded(msgspec.Struct, frozen=True, rename="camel"):
    """A turn has ended, with an answer or without one."""

    TYPE: ClassVar[str] = "turn.ended"
    CAPABILITY: ClassVar[str] = "metrics"
    turn_id: Annotated[str, Meta(description="Names the turn.", examples=["turn_5d_1"])]
    reason: Annotated[
        Literal["answered", "interrupted", "session_end", "timed_out", "failed"],
        Meta(description="Why.", examples=["answered"]),
    ]


class TurnMetrics(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """How long the parts of a turn took; follows its ``turn.ended``."""

    TYPE: ClassVar[str] = "turn.metrics"
    CAPABILITY: ClassVar[str] = "metrics"
    turn_id: Annotated[str, Meta(description="Names the turn.", examples=["turn_5d_1"])]
    tool_ms: Annotated[int, Meta(description="The times of its calls, added up.", examples=[48])]
    input_tokens: Annotated[int, Meta(description="What the model has read.", examples=[812])]
    output_tokens: Annotated[int, Meta(description="What the model has written.", examples=[34])]
    interrupted: Annotated[bool, Meta(description="Whether the person stopped it.", examples=[False])]
    first_token_ms: Annotated[
        int | None,
        Meta(description="From its begin to the model's first word or call.", examples=[310]),
    ] = None
    first_speech_ms: Annotated[
        int | None, Meta(description="From its begin to the first ``tts.speak``.", examples=[620])
    ] = None


class SessionGoaway(msgspec.Struct, frozen=True, rename="camel"):
    """The server is about to close this connection on purpose; the app comes back at once after that."""

    TYPE: ClassVar[str] = "session.goaway"
    CAPABILITY: ClassVar[str] = "goaway"
    time_left_ms: Annotated[int, Meta(description="Until then, at the latest.", examples=[25_000])]
    reason: Annotated[str, Meta(description="For the log.", examples=["service restart"])]


class SessionPing(msgspec.Struct, frozen=True, rename="camel"):
    """A sign of life; a client ignores it."""

    TYPE: ClassVar[str] = "session.ping"


ServerEvent: TypeAlias = (
    SessionStarted
    | EventAck
    | SpeechPartial
    | SpeechFinal
    | ToolCallEvent
    | ErrorEvent
    | ToolsChanged
    | ToolCancel
    | ToolLate
    | ToolActivity
    | ApprovalRequest
    | ApprovalResolved
    | Diagnostic
    | TurnEnded
    | TurnMetrics
    | SessionGoaway
    | SessionPing
)


class Segment(msgspec.Struct, frozen=True, rename={"number": "segment", "speech_id": "speechId"}):
    """The part of a reply that a ``tts.speak`` says: its ``number`` from 0, and whether it is the last."""

    speech_id: str
    number: int
    last: bool


def set_state(call_id: str, state: ConversationState) -> ToolCallEvent:
    """Make the UI call that shows the conversation's state; ``idle`` reopens the microphone."""
    # Written by hand, since it is sent three times a turn; the states need no escaping.
    return ToolCallEvent(call_id, "convo.setState", f'{{"state":"{state}"}}')


def append_message(
    call_id: str, role: Literal["user", "assistant"], text: str, message_id: str | None = None
) -> ToolCallEvent:
    """Make the UI call that puts a message into the app's transcript; ``message_id`` for ``segments``."""
    arguments: dict[str, str | bool] = {"role": role, "text": text, "isPartial": False}
    if message_id is not None:
        arguments["messageId"] = message_id
    return ToolCallEvent(call_id, "convo.appendMessage", msgspec.json.encode(arguments).decode())


def speak(call_id: str, text: str, segment: Segment | None = None) -> ToolCallEvent:
    """Make the UI call that has the device say something; ``segment`` for ``segments``."""
    arguments = {"text": text} if segment is None else {"text": text, **msgspec.to_builtins(segment)}
    return ToolCallEvent(call_id, "tts.speak", msgspec.json.encode(arguments).decode())


def is_ui_call(name: str) -> bool:
    """Tell the server's own calls, which no model may make, from tools."""
    # By prefix, so that the server's next UI call cannot be a tool that an app has declared.
    return name.startswith(("convo.", "tts."))
