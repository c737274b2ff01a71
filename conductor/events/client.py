"""The events of the client, one struct each with the payload's fields in snake case.

Docstrings and descriptions appear in docs/protocol-reference.md and name fields as they are on the wire.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import Meta

from conductor.events.envelope import doc

MAX_RESUMED = 256
"""The most call ids in ``drop`` of ``session.started``."""
MAX_INSTRUCTIONS_BYTES = 4096
MAX_MESSAGE_CHARS = 2_000
MAX_HOLD_MS = 10_000
MAX_GREETING_CHARS = 1_000
MAX_FACT_CHARS = 2_000
MAX_TTL_S = 366 * 86_400

_encode = msgspec.json.Encoder().encode

Id = Annotated[str, Meta(min_length=1, max_length=128)]
"""The id of an event or of a call."""
_Short = Annotated[str, Meta(max_length=256)]
_Variable = Annotated[str, Meta(min_length=1, max_length=64)]
MAX_VALUE_CHARS = 200
Value = Annotated[str, Meta(max_length=MAX_VALUE_CHARS)]
"""The value of a variable."""
_DIGEST = "26fc0e90bc1cb480872c7ff65a4defc1e48ead5b4c78878af9be170aad6b9ff1"
_WORDS = f"The person's words, for the model; of more than {MAX_MESSAGE_CHARS:,} characters the first ones."
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
"""The conditions of `_check_edit` as JSON Schema."""
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


class FromClient(msgspec.Struct, frozen=True, rename="camel"):
    """An event of a client. Its traits stand beside its ``TYPE``, and nowhere else.

    It is ignored from a client that did not name its ``CAPABILITY``, if it has one. ``RECORDED``: its meaning
    is recorded, which ``event.ack`` confirms. ``CLAIMS``: it takes the session back from another process.
    """

    TYPE: ClassVar[str]
    CAPABILITY: ClassVar[str] = ""
    RECORDED: ClassVar[bool] = False
    CLAIMS: ClassVar[bool] = False


class Resume(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The client's state of a session that it resumes. It lists tool calls; UI calls are ignored."""

    last_event_id: Annotated[
        str | None,
        doc(
            "The last event that was handled, apart from partials, pings, ``session.started`` "
            "and ``event.ack``. It acknowledges all events before it except calls.",
            "evt_5d_9",
        ),
    ] = None
    done: Annotated[
        list[ToolResultEvent],
        doc(
            "Results, as in ``tool.result``, that no ``event.ack`` has named. The server asks in "
            "``resend`` for a result that is left out here.",
            [{"callId": "call_5d_1", "result": "on"}],
        ),
    ] = []
    pending: Annotated[list[Id], doc("Calls that are waiting or running.", ["call_5d_2"])] = []


class SessionStart(FromClient, frozen=True, omit_defaults=True, kw_only=True):
    """Creates or resumes the session. Send it after each connect; ``session.started`` answers it."""

    TYPE: ClassVar[str] = "session.start"
    CLAIMS: ClassVar[bool] = True
    session_id: Annotated[str | None, doc("The envelope's.", "s-1")] = None
    github_token: Annotated[str | None, doc("Neither read nor kept.")] = None
    locale: Annotated[_Short | None, doc("The device's language (BCP 47).", "en-GB")] = None
    lang: Annotated[
        _Short | None,
        doc("The language in which questions are spoken (BCP 47). Without it, the locale's.", "de"),
    ] = None
    time_zone: Annotated[_Short | None, doc("The device's time zone (IANA).", "Europe/London")] = None
    instructions: Annotated[
        str | None,
        doc(
            f"Text for the system prompt, at most {MAX_INSTRUCTIONS_BYTES} bytes of UTF-8.",
            "The user's name is Ada.",
        ),
    ] = None
    variables: Annotated[
        dict[_Variable, Value] | None,
        doc(
            "The values of the variables of the system prompt, which are names in double braces. A value has "
            f"at most {MAX_VALUE_CHARS} characters. A name that the prompt does not have is the error "
            "``invalid_event``, unless the session has had these ``variables`` before; one without a value "
            "is empty.",
            {"shop": "Corner Books"},
        ),
    ] = None
    greeting: Annotated[
        Annotated[str, Meta(max_length=MAX_GREETING_CHARS)] | None,
        doc("Spoken first in a new session, without the model.", "Good morning! How can I help?"),
    ] = None
    capabilities: Annotated[
        list[str], doc("The extensions that the client uses.", ["tools"], max_length=64)
    ] = []
    tools: Annotated[
        list[Any] | None,
        doc("The device's tools. Without it the declared tools stay.", [_TOOL], needs="tools"),
    ] = None
    resume: Annotated[Resume | None, doc("The client's state.", needs="resume")] = None
    model: Annotated[
        _Short | None,
        doc(
            "One of the models that the operator offers. Without it, or with another name, the "
            "present choice stays.",
            "home",
        ),
    ] = None
    traceparent: Annotated[
        _Short | None,
        doc(
            "The app's trace (W3C Trace Context), the parent of the server's traces. An invalid "
            "one is ignored.",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ),
    ] = None
    hold_unfinished_ms: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_HOLD_MS)] | None,
        doc(
            "How long half a sentence waits for the other half; 0 is not at all. Without it, as long as "
            "the operator says (`HOLD_UNFINISHED_MS`).",
            1200,
            needs="hints",
        ),
    ] = None


class SessionUpdate(FromClient, frozen=True, omit_defaults=True):
    """Replaces the device's tools, or renews the connection's token. ``tools.changed`` answers new tools."""

    TYPE: ClassVar[str] = "session.update"
    tools: Annotated[list[Any] | None, doc("All of the device's tools.", [_TOOL], needs="tools")] = None
    token: Annotated[
        str | None,
        doc("A new token of the same person, before the connection's expires.", "eyJhbGciOiJFUzI1NiJ9..."),
    ] = None


class TranscriptPartial(FromClient, frozen=True):
    """The transcript so far. The person is speaking; no turn starts."""

    TYPE: ClassVar[str] = "user.audio.transcript.partial"
    text: Annotated[str, doc("The text so far.", "what is seventeen")]


class WirePicture(msgspec.Struct, frozen=True, rename="camel"):
    """An image for a model that sees."""

    mime_type: Annotated[
        str, doc("``image/jpeg``, ``image/png`` or ``image/webp``.", "image/png", max_length=64)
    ]
    data: Annotated[str, doc("Base64, at most 1,048,576 characters.", "iVBORw0KGgo=")]


class TranscriptFinal(FromClient, frozen=True, omit_defaults=True):
    """The person's words. They start a turn."""

    TYPE: ClassVar[str] = "user.audio.transcript.final"
    RECORDED: ClassVar[bool] = True
    CLAIMS: ClassVar[bool] = True
    text: Annotated[
        str,
        doc(
            "The whole text. Without a letter or a digit outside brackets it is the error "
            "``invalid_transcript``: no turn starts, and the running one goes on.",
            "What is seventeen percent of 2340?",
        ),
    ]
    lang: Annotated[_Short | None, doc("The language that the recogniser heard (BCP 47).", "en")] = None
    images: Annotated[
        list[WirePicture],
        doc(
            "Images that the words are about, at most 3. Of a refused one the model reads why.",
            needs="images",
        ),
    ] = []


class ToolResultEvent(FromClient, frozen=True):
    """The result of a ``tool.call``. ``error``, if it is not null, wins over ``result``."""

    TYPE: ClassVar[str] = "tool.result"
    RECORDED: ClassVar[bool] = True
    call_id: Annotated[Id, doc("The call.", "call_5d_1")]
    result: Annotated[
        Any,
        doc("The tool's output, a string. Another value is taken as its JSON text.", '{"status":"running"}'),
    ] = None
    error: Annotated[str | None, doc("The failure, in words for the person.", None)] = None
    images: Annotated[
        list[WirePicture] | msgspec.UnsetType,
        doc(
            "Images that the tool gives, at most 3. Of a refused one the model reads why. After a "
            "reconnect, name a call with images in ``done`` without its result: the server asks for it in "
            "``resend``.",
            needs="images",
        ),
    ] = msgspec.UNSET

    def __post_init__(self) -> None:
        _make_text(self)


class UnreadableResult(ToolResultEvent, frozen=True, kw_only=True):
    """A ``tool.result`` whose result cannot be read; ``why`` is a clause."""

    why: str


class OutputInterrupted(FromClient, frozen=True, omit_defaults=True):
    """Barge-in: the person interrupted the speech.

    It concerns the oldest ``tts.speak`` without a result. ``spokenText`` or ``playedMs`` tells the model how
    much of its reply was heard.
    """

    TYPE: ClassVar[str] = "audio.output.interrupted"
    RECORDED: ClassVar[bool] = True
    reason: Annotated[str, doc("For the log.", "user_speech")] = ""
    speech_id: Annotated[str | None, doc("The speech; not read.")] = None
    spoken_text: Annotated[str | None, doc("The spoken part of the text.", "Seventeen percent of")] = None
    played_ms: Annotated[
        Annotated[float, Meta(ge=0)] | None, doc("Milliseconds of the speech that were played.", 900)
    ] = None


class OutputPaused(FromClient, frozen=True, omit_defaults=True):
    """The person has begun to speak over the speech, and the app has paused it. The next transcript decides.

    It concerns the speech ``speechId``, or without it the oldest ``tts.speak`` without a result.
    ``spokenText`` or ``playedMs`` tells how much of it was heard. If the speech has ended, nothing is held,
    and ``audio.output.resume`` follows at once.
    """

    TYPE: ClassVar[str] = "audio.output.paused"
    CAPABILITY: ClassVar[str] = "pause"
    RECORDED: ClassVar[bool] = True
    speech_id: Annotated[
        _Short, doc("The ``speechId`` of the ``tts.speak``, or its ``callId``.", "speech_5d_1")
    ] = ""
    spoken_text: Annotated[str | None, doc("The spoken part of the text.", "Seventeen percent of")] = None
    played_ms: Annotated[
        Annotated[float, Meta(ge=0)] | None, doc("Milliseconds of the speech that were played.", 900)
    ] = None


class AgentCompleted(FromClient, frozen=True, omit_defaults=True, kw_only=True):
    """A coding agent has ended; the server tells the person in a separate turn."""

    TYPE: ClassVar[str] = "agent.completed"
    RECORDED: ClassVar[bool] = True
    CLAIMS: ClassVar[bool] = True
    agent_id: Annotated[Id, doc("The agent.", "a-77")]
    status: Annotated[_Short, doc("Its last status.", "FINISHED")]
    summary: Annotated[str | None, doc("Its work.", "Fixed the login page and its test.")] = None
    name: Annotated[str | None, doc("Its name.", "Fix login")] = None
    prompt: Annotated[str | None, doc("Its task.", "Fix the login page.")] = None


class ContextAdd(FromClient, frozen=True, omit_defaults=True, kw_only=True):
    """Tells the model a fact, from the next turn on. It starts no turn, and interrupts none.

    A fact stands until it is replaced, removed or over, also after a reconnect. A session has at most 32
    facts with 8 KiB of text together: one more drops the oldest.
    """

    TYPE: ClassVar[str] = "context.add"
    CAPABILITY: ClassVar[str] = "context"
    RECORDED: ClassVar[bool] = True
    CONDITIONS: ClassVar[Mapping[str, Any]] = {
        "anyOf": [
            {"properties": {"key": {"type": "string"}}, "required": ["key"]},
            {"properties": {"text": {"pattern": r"\S"}}},
        ]
    }
    text: Annotated[
        str,
        doc(
            "The fact. A blank text removes the fact with the ``key``, and is ``invalid_event`` without one.",
            "The cart has 3 items.",
            max_length=MAX_FACT_CHARS,
        ),
    ]
    key: Annotated[
        Id | None,
        doc("Its name: a later fact with the same key replaces it. The model reads it.", "cart"),
    ] = None
    ttl_s: Annotated[
        Annotated[float, Meta(ge=0, le=MAX_TTL_S)] | None,
        doc("Seconds until it is over, at most a year. Without it, it stands as long as the session.", 600),
    ] = None
    untrusted: Annotated[
        bool,
        doc("Others have written it, as a message or a web page. Calls that it may have caused ask first."),
    ] = False

    def __post_init__(self) -> None:
        if self.key is None and not self.text.strip():
            raise ValueError("a fact without a key needs a text")


class ResponseCancel(FromClient, frozen=True):
    """Stops the running turn, for a button in place of a barge-in."""

    TYPE: ClassVar[str] = "response.cancel"
    CAPABILITY: ClassVar[str] = "cancel"


class ToolCancelled(FromClient, frozen=True, omit_defaults=True):
    """Answers ``tool.cancel``."""

    TYPE: ClassVar[str] = "tool.cancelled"
    CAPABILITY: ClassVar[str] = "cancel"
    RECORDED: ClassVar[bool] = True
    call_id: Annotated[Id, doc("The call.", "call_5d_1")]
    effect: Annotated[
        Literal["none", "partial", "complete"], doc("How much of the call took effect.", "none")
    ]
    result: Annotated[Any, doc("The tool's output so far.")] = None

    def __post_init__(self) -> None:
        _make_text(self)


class ToolStarted(FromClient, frozen=True):
    """The device has started a call: the time limit restarts."""

    TYPE: ClassVar[str] = "tool.started"
    CAPABILITY: ClassVar[str] = "lease"
    call_id: Annotated[Id, doc("The call.", "call_5d_1")]


class ToolProgress(FromClient, frozen=True, omit_defaults=True):
    """The call is still running: the time limit restarts."""

    TYPE: ClassVar[str] = "tool.progress"
    CAPABILITY: ClassVar[str] = "lease"
    call_id: Annotated[Id, doc("The call.", "call_5d_1")]
    message: Annotated[str | None, doc("The progress, in words.", "3 of 7")] = None
    percent: Annotated[Annotated[float, Meta(ge=0, le=100)] | None, doc("The progress.", 42)] = None


class ToolAccepted(FromClient, frozen=True):
    """The call goes on as a job: the turn continues, and the ``tool.result`` comes later."""

    TYPE: ClassVar[str] = "tool.accepted"
    CAPABILITY: ClassVar[str] = "async"
    RECORDED: ClassVar[bool] = True
    call_id: Annotated[Id, doc("The call.", "call_5d_1")]
    job_id: Annotated[_Short, doc("The device's name for the job.", "job-7")]


class ApprovalShown(FromClient, frozen=True):
    """A person can see the card of a request now. From then on a yes by voice counts for the card."""

    TYPE: ClassVar[str] = "approval.shown"
    CAPABILITY: ClassVar[str] = "approval"
    approval_id: Annotated[Id, doc("The request.", "appr_5d_1")]


class ToolsList(FromClient, frozen=True):
    """Asks for the session's tools; ``tools.listed`` answers it."""

    TYPE: ClassVar[str] = "tools.list"
    CAPABILITY: ClassVar[str] = "inspect"


class Decision(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """The person's decision about one call, bound to the arguments of the card.

    Raises ValueError for an ``edit`` without arguments and for an ``allow`` with arguments.
    """

    CONDITIONS: ClassVar[Mapping[str, Any]] = {"allOf": _EDITS}
    approval_id: Annotated[Id, doc("The request.", "appr_5d_1")]
    arguments_digest: Annotated[str, doc("The request's digest.", _DIGEST, max_length=128)]
    decision: Annotated[
        Literal["allow", "deny", "edit"], doc("``edit`` allows the call with ``editedArguments``.", "allow")
    ]
    scope: Annotated[
        Literal["once", "session", "always"], doc("One of the request's ``scopes``.", "once")
    ] = "once"
    edited_arguments: Annotated[dict[str, Any] | None, doc("All arguments, for ``edit`` only.")] = None
    message: Annotated[str | None, doc(_WORDS, "no, leave it")] = None

    def __post_init__(self) -> None:
        _cut_message(self)
        _check_edit(self.decision, self.edited_arguments)


class ApprovalResponse(FromClient, frozen=True, omit_defaults=True, kw_only=True):
    """Answers ``approval.request``: one decision, or several in ``decisions``.

    Send ``approvalId``, ``argumentsDigest`` and ``decision``, or ``decisions`` alone.
    """

    TYPE: ClassVar[str] = "approval.response"
    CAPABILITY: ClassVar[str] = "approval"
    RECORDED: ClassVar[bool] = True
    CLAIMS: ClassVar[bool] = True
    CONDITIONS: ClassVar[Mapping[str, Any]] = {
        "allOf": _EDITS,
        # Null means left out, so `required` alone is not enough.
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
    approval_id: Annotated[Id | None, doc("The request.", "appr_5d_1")] = None
    arguments_digest: Annotated[
        Annotated[str, Meta(max_length=128)] | None,
        doc("The request's ``argumentsDigest``; another one is refused.", _DIGEST),
    ] = None
    decision: Annotated[
        Literal["allow", "deny", "edit"] | None,
        doc("``edit`` allows the call with ``editedArguments``.", "allow"),
    ] = None
    scope: Annotated[
        Literal["once", "session", "always"],
        doc("How long an ``allow`` holds; one of the request's ``scopes``."),
    ] = "once"
    edited_arguments: Annotated[
        dict[str, Any] | None, doc("All arguments; required for ``edit``, refused with ``allow``.")
    ] = None
    message: Annotated[str | None, doc(_WORDS)] = None
    decisions: Annotated[
        Annotated[list[Decision], Meta(min_length=1, max_length=100)] | None,
        doc("Several decisions, each with the fields above."),
    ] = None

    def __post_init__(self) -> None:
        _cut_message(self)
        fields = (self.approval_id, self.arguments_digest, self.decision)
        if self.decisions is None and None in fields:
            raise ValueError("send approvalId, argumentsDigest and decision, or decisions")
        if self.decisions is not None and any(value is not None for value in fields):
            raise ValueError("decisions excludes approvalId, argumentsDigest and decision")
        _check_edit(self.decision, self.edited_arguments)

    def all(self) -> list[Decision]:
        """List the decisions; there is at least one."""
        if self.decisions is not None:
            return self.decisions
        assert self.approval_id is not None and self.arguments_digest is not None
        assert self.decision is not None, "checked when it was made"
        return [
            Decision(
                approval_id=self.approval_id,
                arguments_digest=self.arguments_digest,
                decision=self.decision,
                scope=self.scope,
                edited_arguments=self.edited_arguments,
                message=self.message,
            )
        ]


def _cut_message(event: Decision | ApprovalResponse) -> None:
    # A decision counts, however long its words: refused, it would leave its card open.
    if event.message is not None and len(event.message) > MAX_MESSAGE_CHARS:
        msgspec.structs.force_setattr(event, "message", event.message[:MAX_MESSAGE_CHARS])


def _make_text(event: ToolResultEvent | ToolCancelled) -> None:
    # A result that is no string becomes its JSON text: apps send objects.
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
    | OutputPaused
    | AgentCompleted
    | ContextAdd
    | ResponseCancel
    | ToolCancelled
    | ToolStarted
    | ToolProgress
    | ToolAccepted
    | ApprovalShown
    | ApprovalResponse
    | ToolsList
)
