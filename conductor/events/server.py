"""The events of the server, one struct each with the payload's fields in snake case.

Docstrings and descriptions appear in docs/protocol-reference.md and name fields as they are on the wire.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import Meta

from conductor.errors import ErrorCode

ConversationState: TypeAlias = Literal["idle", "listening", "transcribing", "thinking", "speaking"]
"""The states of ``convo.setState``. Apps also know ``error``, which closes the microphone; never send it."""

STATE_MEANINGS: Mapping[ConversationState, str] = MappingProxyType(
    {
        "idle": "No turn is running. Open the microphone.",
        "listening": "The person is speaking.",
        "transcribing": "The person has spoken; the transcript is on its way.",
        "thinking": "The model is working on the transcript.",
        "speaking": "The reply is about to be spoken.",
    }
)

CAPABILITIES: Mapping[str, str] = MappingProxyType(
    {
        "resume": "The client repeats unacknowledged events and reports its state after a reconnect.",
        "tools": "The app declares its own tools.",
        "approval": "The app shows a card for a call that a person decides.",
        "cancel": "The client stops a turn, and the server a call.",
        "lease": "The time limit of a call counts the silence since its last event.",
        "late": "The server confirms a result after the time limit.",
        "async": "A long call goes on as a job while the conversation continues.",
        "activity": "The server reports every tool's start and end.",
        "segments": "A reply is spoken sentence by sentence while the model still writes.",
        "turns": "The server reports the end of each transcript's turn, also after a reconnect.",
        "metrics": "The server reports the times of a turn.",
        "goaway": "The server announces that it will close the connection.",
        "inspect": "The client reads the tools and the prompt of the session. `INSPECT` allows it.",
        "diagnostics": "The server reports ignored events and fields, for the app's developer.",
    }
)
"""The extensions that this version accepts."""

EndReason: TypeAlias = Literal["answered", "interrupted", "session_end", "timed_out", "failed"]
"""The causes of a turn's end."""

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
    """A declared tool that the model is not offered."""

    name: Annotated[str, Meta(description="The declared name.", examples=["calculator"])]
    reason: Annotated[
        str, Meta(description="For the app's author.", examples=["this name is taken by another tool"])
    ]


class SessionStarted(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Answers ``session.start``."""

    TYPE: ClassVar[str] = "session.started"
    session_id: Annotated[str, Meta(description="The envelope's.", examples=["s-1"])]
    resumed: Annotated[
        bool, Meta(description="Whether the session existed, with its history.", examples=[False])
    ]
    capabilities: Annotated[
        list[str] | None,
        Meta(
            description="The accepted capabilities; absent if the client named no capability.",
            examples=[["tools"]],
        ),
    ] = None
    accepted_tools: Annotated[
        list[str] | None,
        Meta(
            description="The declared tools that the model is offered.",
            examples=[["lamp.switch"]],
            extra={"needs": "tools"},
        ),
    ] = None
    rejected_tools: Annotated[
        list[RejectedTool] | None,
        Meta(description="The other declared tools.", examples=[[]], extra={"needs": "tools"}),
    ] = None
    reason: Annotated[
        Literal["new", "not_kept"] | None,
        Meta(
            description="Why ``resumed`` is false: the session is ``new``, or it is ``not_kept`` any longer.",
            examples=["new"],
        ),
    ] = None
    resend: Annotated[
        list[str] | None,
        Meta(
            description="Calls whose ``tool.result`` the server asks for again.",
            examples=[[]],
            extra={"needs": "resume"},
        ),
    ] = None
    drop: Annotated[
        list[str] | None,
        Meta(
            description="Calls that the client must not start and whose results it may forget.",
            examples=[[]],
            extra={"needs": "resume"},
        ),
    ] = None
    model: Annotated[
        str | None,
        Meta(
            description="The model that replies, if the operator named it. Another may stand in for it.",
            examples=["home"],
        ),
    ] = None
    local_only: Annotated[
        bool | None, Meta(description="True if no data leaves the local network.", examples=[True])
    ] = None


class EventAck(msgspec.Struct, frozen=True, rename="camel"):
    """Acknowledges recorded events: the client may forget them."""

    TYPE: ClassVar[str] = "event.ack"
    CAPABILITY: ClassVar[str] = "resume"
    event_ids: Annotated[list[str], Meta(description="Ids of the client's events.", examples=[["cevt_3"]])]


class SpeechPartial(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The reply so far."""

    TYPE: ClassVar[str] = "assistant.speech.partial"
    text: Annotated[
        str,
        Meta(
            description="The whole text so far. It restarts with each message of the model.",
            examples=["Seventeen percent of 2340"],
        ),
    ]
    speech_id: Annotated[
        str | None,
        Meta(description="The reply's ``speechId``.", examples=["speech_5d_1"], extra={"needs": "segments"}),
    ] = None


class SpeechFinal(msgspec.Struct, frozen=True, rename="camel"):
    """The whole reply."""

    TYPE: ClassVar[str] = "assistant.speech.final"
    text: Annotated[
        str,
        Meta(
            description="The whole text, with Markdown. It replaces the partials.",
            examples=["Seventeen percent of 2340 is **397.8**."],
        ),
    ]


class ToolCallEvent(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Runs a tool on the device, or makes a UI call. The client answers with ``tool.result``."""

    TYPE: ClassVar[str] = "tool.call"
    call_id: Annotated[str, Meta(description="The id for the ``tool.result``.", examples=["call_5d_1"])]
    name: Annotated[str, Meta(description="The tool or UI call.", examples=["agent.status"])]
    arguments: Annotated[str, Meta(description="A JSON object, as a string.", examples=['{"id":"a-77"}'])]
    timeout_ms: Annotated[
        int | None, Meta(description="The silence after which the call times out.", extra={"needs": "lease"})
    ] = None


class ErrorEvent(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An error. The connection stays open."""

    TYPE: ClassVar[str] = "error"
    code: Annotated[
        ErrorCode, Meta(description="The kind of error; stable.", examples=["invalid_transcript"])
    ]
    message: Annotated[
        str, Meta(description="For people; may change.", examples=["The transcript is empty."])
    ]
    event_id: Annotated[str | None, Meta(description="The event that caused it.", examples=["ios-42"])] = None
    call_id: Annotated[str | None, Meta(description="The call that caused it.")] = None
    retry_after_ms: Annotated[int | None, Meta(description="Milliseconds to wait before the next try.")] = (
        None
    )


class ToolsChanged(msgspec.Struct, frozen=True, rename="camel"):
    """The device's tools have changed."""

    TYPE: ClassVar[str] = "tools.changed"
    CAPABILITY: ClassVar[str] = "tools"
    accepted_tools: Annotated[
        list[str],
        Meta(description="The declared tools that the model is offered.", examples=[["lamp.switch"]]),
    ]
    rejected_tools: Annotated[
        list[RejectedTool],
        Meta(
            description="The other declared tools.",
            examples=[[{"name": "calculator", "reason": "this name is taken by another tool"}]],
        ),
    ]


class ListedTool(msgspec.Struct, frozen=True, rename="camel"):
    """A tool of the session."""

    name: Annotated[str, Meta(description="The tool.", examples=["calculator"])]
    title: Annotated[str, Meta(description="The name for people.", examples=["Calculator"])]
    source: Annotated[
        str, Meta(description="``device``, ``builtin``, ``mcp:NAME`` and others.", examples=["builtin"])
    ]
    risk: Annotated[Literal["safe", "medium", "high"], Meta(description="The risk.", examples=["safe"])]
    decision: Annotated[
        Literal["allow", "ask", "deny", "disabled"],
        Meta(description="On a call without arguments; a ``disabled`` tool is hidden.", examples=["allow"]),
    ]
    reason: Annotated[str, Meta(description="Why, in sentences.", examples=["It is safe."])]
    input_schema: Annotated[
        Mapping[str, Any],
        Meta(description="The JSON Schema of the arguments.", examples=[{"type": "object"}]),
    ]


class ToolsListed(msgspec.Struct, frozen=True, rename="camel"):
    """Answers ``tools.list``."""

    TYPE: ClassVar[str] = "tools.listed"
    CAPABILITY: ClassVar[str] = "inspect"
    tools: Annotated[list[ListedTool], Meta(description="The device's tools and the server's.")]
    model: Annotated[str, Meta(description="The model that replies.", examples=["home"])]
    prompt_name: Annotated[str, Meta(description="The name of the system prompt.", examples=["voice"])]
    prompt: Annotated[
        str, Meta(description="The system prompt of this session.", examples=["You talk with a person."])
    ]
    models: Annotated[
        list[str], Meta(description="What ``session.start.model`` may name.", examples=[["home", "cloud"]])
    ]


class ToolCancel(msgspec.Struct, frozen=True, rename="camel"):
    """Stops a call. The client answers with ``tool.cancelled``, or with ``tool.result`` if that is faster."""

    TYPE: ClassVar[str] = "tool.cancel"
    CAPABILITY: ClassVar[str] = "cancel"
    call_id: Annotated[str, Meta(description="The call.", examples=["call_5d_1"])]
    reason: Annotated[
        Literal["barge_in", "superseded", "timeout", "session_end"],
        Meta(description="The cause.", examples=["barge_in"]),
    ]


class ToolLate(msgspec.Struct, frozen=True, rename="camel"):
    """Confirms a result that came after the time limit. The model gets it."""

    TYPE: ClassVar[str] = "tool.late"
    CAPABILITY: ClassVar[str] = "late"
    call_id: Annotated[str, Meta(description="The call.", examples=["call_5d_1"])]
    delivered_as: Annotated[
        Literal["context", "turn"],
        Meta(description="With the next turn, or in a turn of its own.", examples=["turn"]),
    ]


class ToolActivity(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A tool has started or finished, on the device or on the server."""

    TYPE: ClassVar[str] = "tool.activity"
    CAPABILITY: ClassVar[str] = "activity"
    call_id: Annotated[str, Meta(description="The call.", examples=["call_5d_1"])]
    name: Annotated[str, Meta(description="The tool.", examples=["calculator"])]
    source: Annotated[
        str, Meta(description="``device``, ``builtin``, ``mcp:NAME`` and others.", examples=["builtin"])
    ]
    status: Annotated[Literal["started", "finished"], Meta(description="The step.", examples=["finished"])]
    error_type: Annotated[
        str | None, Meta(description="The kind of failure, or ``none``.", examples=["none"])
    ] = None
    execution_time_ms: Annotated[int | None, Meta(description="The run time.", examples=[2])] = None
    data_size_bytes: Annotated[int | None, Meta(description="The size of the result.", examples=[21])] = None
    display: Annotated[
        str, Meta(description="A line for people.", examples=["calculator: done, 21 bytes, 2 ms"])
    ] = ""


class ApprovalRequest(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Asks for a person's decision. The call runs only if the person allows it."""

    TYPE: ClassVar[str] = "approval.request"
    CAPABILITY: ClassVar[str] = "approval"
    approval_id: Annotated[str, Meta(description="The id for the response.", examples=["appr_5d_1"])]
    batch_id: Annotated[
        str, Meta(description="Common to all requests of one reply.", examples=["batch_5d_1"])
    ]
    call_id: Annotated[str, Meta(description="The waiting call.", examples=["call_5d_1"])]
    name: Annotated[str, Meta(description="The tool.", examples=["delete_file"])]
    arguments: Annotated[
        Mapping[str, Any], Meta(description="The call's arguments.", examples=[{"path": "notes.txt"}])
    ]
    arguments_digest: Annotated[
        str,
        Meta(
            description="The digest of name and arguments; the response repeats it.",
            examples=["26fc0e90bc1cb480872c7ff65a4defc1e48ead5b4c78878af9be170aad6b9ff1"],
        ),
    ]
    risk: Annotated[
        Literal["safe", "medium", "high"], Meta(description="Show a warning for ``high``.", examples=["high"])
    ]
    reasons: Annotated[
        Sequence[str], Meta(description="Warnings for the person.", examples=[["It cannot be undone."]])
    ]
    prompt: Annotated[
        str, Meta(description="The question.", examples=["May I run delete file, path notes.txt?"])
    ]
    scopes: Annotated[
        Sequence[Literal["once", "session", "always"]],
        Meta(description="How long an ``allow`` may hold.", examples=[["once", "session"]]),
    ]
    expires_at: Annotated[
        str, Meta(description="The end of the request.", examples=["2026-03-01T12:10:00.000Z"])
    ]
    preview: Annotated[str, Meta(description="The effect in lines; for a replaced file a unified diff.")] = ""


class ApprovalResolved(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The outcome of a request or of a late decision."""

    TYPE: ClassVar[str] = "approval.resolved"
    CAPABILITY: ClassVar[str] = "approval"
    approval_id: Annotated[str, Meta(description="The request.", examples=["appr_5d_1"])]
    outcome: Annotated[
        Literal["allowed", "denied", "edited", "expired", "superseded", "refused"],
        Meta(
            description="``refused``: the decision does not count, and an open request stays open.",
            examples=["allowed"],
        ),
    ]
    message: Annotated[str | None, Meta(description="The cause, for people.")] = None


class Diagnostic(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Reports something that the server ignored, once a session, for the app's developer."""

    TYPE: ClassVar[str] = "diagnostic"
    CAPABILITY: ClassVar[str] = "diagnostics"
    severity: Annotated[
        Literal["info", "warning"], Meta(description="A ``warning`` is a mistake.", examples=["warning"])
    ]
    code: Annotated[DiagnosticCode, Meta(description="The kind of mistake.", examples=["unknown_field"])]
    message: Annotated[
        str,
        Meta(
            description="For people; it may quote the client's names.",
            examples=["'annotations.readonlyHint' of the tool 'lamp.switch' is not known."],
        ),
    ]
    event_id: Annotated[str | None, Meta(description="The event that caused it.")] = None


class TurnEnded(msgspec.Struct, frozen=True, rename="camel"):
    """The turn of a transcript has ended. Every accepted transcript gets this event once."""

    TYPE: ClassVar[str] = "turn.ended"
    CAPABILITY: ClassVar[str] = "turns"
    turn_id: Annotated[str, Meta(description="The turn.", examples=["turn_5d_1"])]
    event_id: Annotated[
        str,
        Meta(description="The transcript that started the turn or answered in it.", examples=["ios-42"]),
    ]
    reason: Annotated[EndReason, Meta(description="The cause.", examples=["answered"])]


class TurnMetrics(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The times of a turn that has ended."""

    TYPE: ClassVar[str] = "turn.metrics"
    CAPABILITY: ClassVar[str] = "metrics"
    turn_id: Annotated[str, Meta(description="The turn.", examples=["turn_5d_1"])]
    tool_ms: Annotated[int, Meta(description="The sum of its calls' run times.", examples=[48])]
    input_tokens: Annotated[int, Meta(description="Tokens that the model read.", examples=[812])]
    output_tokens: Annotated[int, Meta(description="Tokens that the model wrote.", examples=[34])]
    interrupted: Annotated[bool, Meta(description="Whether the person interrupted it.", examples=[False])]
    first_token_ms: Annotated[
        int | None, Meta(description="From the start to the model's first output.", examples=[310])
    ] = None
    first_speech_ms: Annotated[
        int | None, Meta(description="From the start to the first ``tts.speak``.", examples=[620])
    ] = None
    cost: Annotated[
        float | None, Meta(description="The cost of the tokens, by the operator's prices.", examples=[0.0003])
    ] = None


class SessionGoaway(msgspec.Struct, frozen=True, rename="camel"):
    """The server will close the connection. Connect again at once after the close."""

    TYPE: ClassVar[str] = "session.goaway"
    CAPABILITY: ClassVar[str] = "goaway"
    time_left_ms: Annotated[int, Meta(description="The time until the close, at most.", examples=[25_000])]
    reason: Annotated[str, Meta(description="For the log.", examples=["service restart"])]


class SessionPing(msgspec.Struct, frozen=True, rename="camel"):
    """Keeps the connection alive; ignore it."""

    TYPE: ClassVar[str] = "session.ping"


ServerEvent: TypeAlias = (
    SessionStarted
    | EventAck
    | SpeechPartial
    | SpeechFinal
    | ToolCallEvent
    | ErrorEvent
    | ToolsChanged
    | ToolsListed
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
