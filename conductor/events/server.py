"""The events of the server, one struct each with the payload's fields in snake case.

Docstrings and descriptions appear in docs/protocol-reference.md and name fields as they are on the wire.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import msgspec

from conductor.errors import ErrorCode
from conductor.events.envelope import doc

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
        "pause": 'The app pauses its speech while the person speaks; after a mere "mhm" it goes on.',
        "segments": "A reply is spoken sentence by sentence while the model still writes.",
        "hints": "The server waits for the other half of a sentence, and names words to listen for.",
        "turns": "The server reports the end of each transcript's turn, also after a reconnect.",
        "metrics": "The server reports the times of a turn.",
        "context": "The app tells the model facts.",
        "goaway": "The server announces that it will close the connection.",
        "images": "Results and transcripts may carry images, in frames of up to 4 MiB.",
        "inspect": "The client reads the tools and the prompt of the session. `INSPECT` allows it.",
        "diagnostics": "The server reports ignored events and fields, for the app's developer.",
    }
)
"""The extensions that this version accepts."""

EndReason: TypeAlias = Literal["answered", "interrupted", "resumed", "session_end", "timed_out", "failed"]
"""The causes of a turn's end; ``resumed`` is the end of a transcript that let a paused speech go on."""
MAX_HINTS = 100

DiagnosticCode: TypeAlias = Literal[
    "unknown_event",
    "unknown_capability",
    "missing_capability",
    "missing_variable",
    "unknown_field",
    "unknown_model",
    "unknown_time_zone",
    "invalid_traceparent",
    "unknown_call",
    "unreadable_result",
    "refused_image",
    "dropped_facts",
]


class RejectedTool(msgspec.Struct, frozen=True, rename="camel"):
    """A declared tool that the model is not offered."""

    name: Annotated[str, doc("The declared name.", "calculator")]
    reason: Annotated[str, doc("For the app's author.", "this name is taken by another tool")]


class SessionStarted(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """Answers ``session.start``."""

    TYPE: ClassVar[str] = "session.started"
    session_id: Annotated[str, doc("The envelope's.", "s-1")]
    resumed: Annotated[bool, doc("Whether the session existed, with its history.", False)]
    capabilities: Annotated[
        list[str] | None,
        doc("The accepted capabilities; absent if the client named no capability.", ["tools"]),
    ] = None
    accepted_tools: Annotated[
        list[str] | None, doc("The declared tools that the model is offered.", ["lamp.switch"], needs="tools")
    ] = None
    rejected_tools: Annotated[
        list[RejectedTool] | None, doc("The other declared tools.", [], needs="tools")
    ] = None
    reason: Annotated[
        Literal["new", "not_kept"] | None,
        doc("Why ``resumed`` is false: the session is ``new``, or it is ``not_kept`` any longer.", "new"),
    ] = None
    resend: Annotated[
        list[str] | None, doc("Calls whose ``tool.result`` the server asks for again.", [], needs="resume")
    ] = None
    drop: Annotated[
        list[str] | None,
        doc("Calls that the client must not start and whose results it may forget.", [], needs="resume"),
    ] = None
    model: Annotated[
        str | None,
        doc("The model that replies, if the operator named it. Another may stand in for it.", "home"),
    ] = None
    local_only: Annotated[bool | None, doc("True if no data leaves the local network.", True)] = None


class EventAck(msgspec.Struct, frozen=True, rename="camel"):
    """Acknowledges recorded events: the client may forget them."""

    TYPE: ClassVar[str] = "event.ack"
    CAPABILITY: ClassVar[str] = "resume"
    event_ids: Annotated[list[str], doc("Ids of the client's events.", ["cevt_3"])]


class SpeechPartial(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The reply so far."""

    TYPE: ClassVar[str] = "assistant.speech.partial"
    text: Annotated[
        str,
        doc(
            "The whole text so far. It restarts with each message of the model.", "Seventeen percent of 2340"
        ),
    ]
    speech_id: Annotated[str | None, doc("The reply's ``speechId``.", "speech_5d_1", needs="segments")] = None


class SpeechFinal(msgspec.Struct, frozen=True, rename="camel"):
    """The whole reply."""

    TYPE: ClassVar[str] = "assistant.speech.final"
    text: Annotated[
        str,
        doc(
            "The whole text, with Markdown. It replaces the partials.",
            "Seventeen percent of 2340 is **397.8**.",
        ),
    ]


class ToolCallEvent(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Runs a tool on the device, or makes a UI call. The client answers with ``tool.result``."""

    TYPE: ClassVar[str] = "tool.call"
    call_id: Annotated[str, doc("The id for the ``tool.result``.", "call_5d_1")]
    name: Annotated[str, doc("The tool or UI call.", "agent.status")]
    arguments: Annotated[str, doc("A JSON object, as a string.", '{"id":"a-77"}')]
    timeout_ms: Annotated[int | None, doc("The silence after which the call times out.", needs="lease")] = (
        None
    )


class ErrorEvent(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """An error. The connection stays open."""

    TYPE: ClassVar[str] = "error"
    code: Annotated[ErrorCode, doc("The kind of error; stable.", "invalid_transcript")]
    message: Annotated[str, doc("For people; may change.", "The transcript is empty.")]
    event_id: Annotated[str | None, doc("The event that caused it.", "ios-42")] = None
    call_id: Annotated[str | None, doc("The call that caused it.")] = None
    retry_after_ms: Annotated[int | None, doc("Milliseconds to wait before the next try.")] = None


class ToolsChanged(msgspec.Struct, frozen=True, rename="camel"):
    """The device's tools have changed."""

    TYPE: ClassVar[str] = "tools.changed"
    CAPABILITY: ClassVar[str] = "tools"
    accepted_tools: Annotated[
        list[str], doc("The declared tools that the model is offered.", ["lamp.switch"])
    ]
    rejected_tools: Annotated[
        list[RejectedTool],
        doc(
            "The other declared tools.",
            [{"name": "calculator", "reason": "this name is taken by another tool"}],
        ),
    ]


class ListedTool(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A tool of the session."""

    name: Annotated[str, doc("The tool.", "calculator")]
    title: Annotated[str, doc("The name for people.", "Calculator")]
    source: Annotated[str, doc("``device``, ``builtin``, ``mcp:NAME`` and others.", "builtin")]
    risk: Annotated[Literal["safe", "medium", "high"], doc("The risk.", "safe")]
    decision: Annotated[
        Literal["allow", "ask", "deny", "disabled"],
        doc("On a call without arguments; a ``disabled`` tool is hidden.", "allow"),
    ]
    reason: Annotated[str, doc("Why, in sentences.", "It is safe.")]
    input_schema: Annotated[Mapping[str, Any], doc("The JSON Schema of the arguments.", {"type": "object"})]


class ToolsListed(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """Answers ``tools.list``."""

    TYPE: ClassVar[str] = "tools.listed"
    CAPABILITY: ClassVar[str] = "inspect"
    tools: Annotated[list[ListedTool], doc("The device's tools and the server's.")]
    model: Annotated[str, doc("The model that replies.", "home")]
    prompt_name: Annotated[str, doc("The name of the system prompt.", "voice")]
    prompt: Annotated[str, doc("The system prompt of this session.", "You talk with a person.")]
    models: Annotated[list[str], doc("What ``session.start.model`` may name.", ["home", "cloud"])]
    prompt_version: Annotated[
        str | None, doc("The version of the system prompt: a hash of the operator's text.", "5b1a3f2c9d0e")
    ] = None


class ToolCancel(msgspec.Struct, frozen=True, rename="camel"):
    """Stops a call. The client answers with ``tool.cancelled``, or with ``tool.result`` if that is faster."""

    TYPE: ClassVar[str] = "tool.cancel"
    CAPABILITY: ClassVar[str] = "cancel"
    call_id: Annotated[str, doc("The call.", "call_5d_1")]
    reason: Annotated[
        Literal["barge_in", "superseded", "timeout", "session_end"], doc("The cause.", "barge_in")
    ]


class ToolLate(msgspec.Struct, frozen=True, rename="camel"):
    """Confirms a result that came after the time limit. The model gets it."""

    TYPE: ClassVar[str] = "tool.late"
    CAPABILITY: ClassVar[str] = "late"
    call_id: Annotated[str, doc("The call.", "call_5d_1")]
    delivered_as: Annotated[
        Literal["context", "turn"], doc("With the next turn, or in a separate turn.", "turn")
    ]


class ToolActivity(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """A tool has started or finished, on the device or on the server."""

    TYPE: ClassVar[str] = "tool.activity"
    CAPABILITY: ClassVar[str] = "activity"
    call_id: Annotated[str, doc("The call.", "call_5d_1")]
    name: Annotated[str, doc("The tool.", "calculator")]
    source: Annotated[str, doc("``device``, ``builtin``, ``mcp:NAME`` and others.", "builtin")]
    status: Annotated[Literal["started", "finished"], doc("The step.", "finished")]
    error_type: Annotated[str | None, doc("The kind of failure, or ``none``.", "none")] = None
    execution_time_ms: Annotated[int | None, doc("The run time.", 2)] = None
    data_size_bytes: Annotated[int | None, doc("The size of the result.", 21)] = None
    display: Annotated[str, doc("A line for people.", "calculator: done, 21 bytes, 2 ms")] = ""


class ApprovalRequest(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """Asks for a person's decision. The call runs only if the person allows it."""

    TYPE: ClassVar[str] = "approval.request"
    CAPABILITY: ClassVar[str] = "approval"
    approval_id: Annotated[str, doc("The id for the response.", "appr_5d_1")]
    batch_id: Annotated[str, doc("Common to all requests of one reply.", "batch_5d_1")]
    call_id: Annotated[str, doc("The waiting call.", "call_5d_1")]
    name: Annotated[str, doc("The tool.", "delete_file")]
    arguments: Annotated[Mapping[str, Any], doc("The call's arguments.", {"path": "notes.txt"})]
    arguments_digest: Annotated[
        str,
        doc(
            "The digest of name and arguments; the response repeats it.",
            "26fc0e90bc1cb480872c7ff65a4defc1e48ead5b4c78878af9be170aad6b9ff1",
        ),
    ]
    risk: Annotated[Literal["safe", "medium", "high"], doc("Show a warning for ``high``.", "high")]
    reasons: Annotated[Sequence[str], doc("Warnings for the person.", ["It cannot be undone."])]
    prompt: Annotated[str, doc("The question.", "May I run delete file, path notes.txt?")]
    scopes: Annotated[
        Sequence[Literal["once", "session", "always"]],
        doc("How long an ``allow`` may hold.", ["once", "session"]),
    ]
    expires_at: Annotated[str, doc("The end of the request.", "2026-03-01T12:10:00.000Z")]
    preview: Annotated[str, doc("The effect in lines; for a replaced file a unified diff.")] = ""
    title: Annotated[str, doc("The headline: the tool's ``spoken`` filled in, else its ``title``.")] = ""


class ApprovalResolved(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The outcome of a request or of a late decision."""

    TYPE: ClassVar[str] = "approval.resolved"
    CAPABILITY: ClassVar[str] = "approval"
    approval_id: Annotated[str, doc("The request.", "appr_5d_1")]
    outcome: Annotated[
        Literal["allowed", "denied", "edited", "expired", "superseded", "refused"],
        doc("``refused``: the decision does not count, and an open request stays open.", "allowed"),
    ]
    message: Annotated[str | None, doc("The cause, for people.")] = None


class Diagnostic(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Reports something that the server ignored, once a session, for the app's developer."""

    TYPE: ClassVar[str] = "diagnostic"
    CAPABILITY: ClassVar[str] = "diagnostics"
    severity: Annotated[Literal["info", "warning"], doc("A ``warning`` is a mistake.", "warning")]
    code: Annotated[DiagnosticCode, doc("The kind of mistake.", "unknown_field")]
    message: Annotated[
        str,
        doc(
            "For people; it may quote the client's names.",
            "'annotations.readonlyHint' of the tool 'lamp.switch' is not known.",
        ),
    ]
    event_id: Annotated[str | None, doc("The event that caused it.")] = None


class OutputResume(msgspec.Struct, frozen=True, rename="camel"):
    """The paused speech goes on where it was: nobody has interrupted it."""

    TYPE: ClassVar[str] = "audio.output.resume"
    CAPABILITY: ClassVar[str] = "pause"
    speech_id: Annotated[str, doc("The speech, as ``audio.output.paused`` named it.", "speech_5d_1")]


class TurnEndedEvent(msgspec.Struct, frozen=True, rename="camel"):
    """The turn of a transcript has ended. Every accepted transcript gets this event once."""

    TYPE: ClassVar[str] = "turn.ended"
    CAPABILITY: ClassVar[str] = "turns"
    turn_id: Annotated[str, doc("The turn; an id of their own, for words that no turn had.", "turn_5d_1")]
    event_id: Annotated[str, doc("The transcript that started the turn or answered in it.", "ios-42")]
    reason: Annotated[EndReason, doc("The cause.", "answered")]


class SttHints(msgspec.Struct, frozen=True, rename="camel"):
    """The words that the person will probably say, for the recogniser. It replaces the former ones."""

    TYPE: ClassVar[str] = "stt.hints"
    CAPABILITY: ClassVar[str] = "hints"
    phrases: Annotated[list[str], doc(f"At most {MAX_HINTS}, the newest first.", ["yes", "no", "kitchen"])]


class TurnHint(msgspec.Struct, frozen=True, rename="camel"):
    """The transcript is half a sentence: the server waits for the other half, and the app listens on."""

    TYPE: ClassVar[str] = "turn.hint"
    CAPABILITY: ClassVar[str] = "hints"
    complete: Annotated[bool, doc("Whether the person has finished.", False)]


class TurnMetrics(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """The times of a turn that has ended."""

    TYPE: ClassVar[str] = "turn.metrics"
    CAPABILITY: ClassVar[str] = "metrics"
    turn_id: Annotated[str, doc("The turn.", "turn_5d_1")]
    tool_ms: Annotated[int, doc("The sum of its calls' run times.", 48)]
    input_tokens: Annotated[int, doc("Tokens that the model read.", 812)]
    output_tokens: Annotated[int, doc("Tokens that the model wrote.", 34)]
    interrupted: Annotated[bool, doc("Whether the person interrupted it.", False)]
    first_token_ms: Annotated[int | None, doc("From the start to the model's first output.", 310)] = None
    first_speech_ms: Annotated[int | None, doc("From the start to the first ``tts.speak``.", 620)] = None
    cost: Annotated[float | None, doc("The cost of the tokens, by the operator's prices.", 0.0003)] = None


class SessionGoaway(msgspec.Struct, frozen=True, rename="camel"):
    """The server will close the connection. Connect again at once after the close."""

    TYPE: ClassVar[str] = "session.goaway"
    CAPABILITY: ClassVar[str] = "goaway"
    time_left_ms: Annotated[int, doc("The time until the close, at most.", 25_000)]
    reason: Annotated[str, doc("For the log.", "service restart")]


class SessionPing(msgspec.Struct, frozen=True, rename="camel"):
    """Keeps the connection alive; ignore it."""

    TYPE: ClassVar[str] = "session.ping"


# -- UI calls: a ``tool.call`` that shows a state, adds a message or speaks a text


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


def speak(call_id: str, text: str, segment: Segment | None = None, lang: str = "") -> ToolCallEvent:
    """Make the UI call that speaks a text; ``segment`` for ``segments``, ``lang`` if the app may not know."""
    arguments = {"text": text} if segment is None else {"text": text, **msgspec.to_builtins(segment)}
    if lang:
        arguments["lang"] = lang
    return ToolCallEvent(call_id, "tts.speak", msgspec.json.encode(arguments).decode())


def is_ui_call(name: str) -> bool:
    """Whether a call is the server's own, which no model may make."""
    # By prefix, so that an app cannot declare the name of a future UI call.
    return name.startswith(("convo.", "tts."))


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
    | OutputResume
    | TurnEndedEvent
    | SttHints
    | TurnHint
    | TurnMetrics
    | SessionGoaway
    | SessionPing
)
