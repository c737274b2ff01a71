"""The state of a conversation: everything that outlives the process, as plain data.

Only `conductor.conversation.apply` changes it. Times are epoch milliseconds. Facts of one process are in
`conductor.conversation.view`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias
from zlib import crc32

import msgspec
from msgspec.structs import replace

from conductor.messages import Image, Message, Note, ToolResult, UserMessage
from conductor.tools.outcomes import Caution, Effect, OnInterrupt, Outcome, Risk, Scope

# Notices that wait in a session.
MAX_NOTICES = 16
# Facts of the app in a session, and the bytes of their texts together. The oldest facts go first.
MAX_FACTS, MAX_FACTS_BYTES = 32, 8_192

Cause: TypeAlias = Literal["transcript", "news", "request", "refused", "words", "greeting"]
Consent: TypeAlias = Literal["free", "held", "needed", "asked", "given", "denied"]
Kind: TypeAlias = Literal[
    "call", "final", "message", "state", "speak", "resume", "approval", "resolved", "ended", "flash"
]


class Part(msgspec.Struct, omit_defaults=True):
    """A part of the state."""


class Value(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of the state that is replaced, never changed."""


class Profile(Value, frozen=True, kw_only=True):
    """The client's declaration; ``tools`` are MCP declarations, None for the catalog.

    Half a sentence waits for ``hold_ms``, None for as long as the operator says.
    """

    capabilities: tuple[str, ...] = ()
    locale: str | None = None
    lang: str | None = None
    time_zone: str | None = None
    instructions: str | None = None
    variables: dict[str, str] | None = None
    tools: list[Any] | None = None
    model: str | None = None
    traceparent: str | None = None
    hold_ms: int | None = None


class Call(Part, kw_only=True):
    """A tool call of the running turn.

    ``arguments`` is JSON as the call runs; ``digest`` binds a decision to tool and arguments. A call with
    the consent "needed" starts only after a recorded yes. One that is "held" starts after the decisions
    on the earlier writes of its reply. Both have the ``fingerprint`` of their tool, which must not change
    meanwhile. From ``started_at`` on a call may be on the wire, or may have run in the process with
    ``claim``. ``reasons`` and ``cautions`` come from the gate. ``result`` is the only result.
    ``notified``: the backend was asked to wake the device. ``shown``: what the person showed with the answer.
    """

    id: str
    name: str
    arguments: str = ""
    source: str = "none"
    effect: Effect = "read"
    risk: Risk = "medium"
    limit_ms: int = 30_000
    interactive: bool = False
    untrusted: bool = False
    on_interrupt: OnInterrupt = "keep"
    digest: str = ""
    consent: Consent = "free"
    reasons: tuple[str, ...] = ()
    cautions: tuple[Caution, ...] = ()
    notes: tuple[str, ...] = ()
    started_at: int = 0
    claim: str = ""
    fingerprint: str = ""
    notified: bool = False
    shown: tuple[Image, ...] = ()
    result: ToolResult | None = None

    @property
    def is_open(self) -> bool:
        """Whether it has no result."""
        return self.result is None

    @property
    def is_device(self) -> bool:
        """Whether the app runs it."""
        return self.source == "device"


class TurnFacts(Value, frozen=True):
    """The app's facts in all requests of a turn, before the message at ``position`` of the log."""

    note: Note
    position: int


class Turn(Part, kw_only=True):
    """The running turn.

    The clock stands while a person decides: ``left_ms`` is left of the limit at ``running_since``, which is 0
    while it stands. ``attempts`` counts the processes that asked the model since its last reply; ``retries``
    the requests of this process that broke off. ``reply_text`` is the part of the unfinished reply that is
    spoken or on its way under ``reply_id``; ``segments`` counts the speeches of the last reply.
    ``transcripts`` are the events that started it and that answered its questions.
    ``denied`` are digests of refused calls, ``actions`` names of tools that changed something; ``succeeded``:
    a tool did, which may have only read. ``lang`` is the language of the transcript, if the recogniser tells.
    ``facts`` stood when the turn started.
    """

    id: str
    cause: Cause
    left_ms: int
    transcripts: list[str] = []
    started_at: int = 0
    running_since: int = 0
    attempts: int = 1
    retries: int = 0
    rounds: int = 0
    calls_made: int = 0
    calls: list[Call] = []
    reply_text: str = ""
    reply_id: str = ""
    segments: int = 0
    denied: list[str] = []
    refused_rounds: int = 0
    actions: list[str] = []
    succeeded: bool = False
    bridged: bool = False
    lang: str = ""
    facts: TurnFacts | None = None


class Form(Value, frozen=True):
    """A question of a running tool, with a form to fill in."""

    source: str
    message: str
    schema: dict[str, Any]


class Question(Part, kw_only=True):
    """A call that waits for a person's decision.

    ``id`` is the approval id. ``arguments`` and ``redacted_arguments`` are JSON, ``prompt`` the question in
    words, ``title`` the headline of its card. ``card``: it is shown, else spoken. ``form``: a running tool
    asks, and its call is not decided. ``presented_at`` is 0 until the prompt was heard to the end,
    ``presentations`` counts how often it was spoken, ``unclear`` the answers that decided nothing.
    ``language`` is the code of its language. After an
    interruption the prompt is repeated in the next silence, from ``repeat_at`` on.
    """

    id: str
    batch_id: str
    call_id: str
    tool: str
    arguments: str
    redacted_arguments: str
    digest: str
    prompt: str
    risk: Risk
    expires_at: int
    reasons: tuple[str, ...] = ()
    scopes: tuple[Scope, ...] = ()
    cautions: tuple[Caution, ...] = ()
    fingerprint: str = ""
    source: str = ""
    preview: str = ""
    title: str = ""
    asked_at: int = 0
    card: bool = False
    form: Form | None = None
    speech_id: str = ""
    message_id: str = ""
    presented_at: int = 0
    presentations: int = 0
    unclear: int = 0
    repeat_at: int = 0
    language: str = "en"


class Speech(Part, kw_only=True):
    """A ``tts.speak``.

    ``text`` is its message up to the end of this speech, ``preceding`` the part before, ``speech_text`` the
    text for the ear. The speeches of one reply share ``reply_id``. ``position`` is the message's place in the
    log, -1 before it is logged. ``actions`` are the tools that had changed something by then. ``resumed_as``
    is the app's name of a speech whose pause was over before any words came.
    """

    id: str
    turn_id: str
    speech_text: str
    text: str
    reply_id: str = ""
    preceding: str = ""
    position: int = -1
    segment: int = 0
    last: bool = True
    question_id: str = ""
    actions: tuple[str, ...] = ()
    resumed_as: str = ""


class Pause(Value, frozen=True, kw_only=True):
    """A speech that the app has paused since ``at``, because the person speaks over it. No other one is sent.

    ``speech_id`` is empty if the speech is not known; the app calls it ``name``. ``spoken_text`` or
    ``played_ms`` is the heard part.
    """

    speech_id: str
    name: str
    at: int
    spoken_text: str | None = None
    played_ms: float | None = None


class LateCall(Value, frozen=True, kw_only=True):
    """A device call that was closed without its result, which may still come.

    ``starts_turn``: the result starts a turn if no turn is running; the result of a ``job`` always does.
    ``arguments``, which may be shortened, tell it from other calls of its tool.
    """

    call_id: str
    name: str
    effect: Effect
    expires_at: int
    started_at: int = 0
    untrusted: bool = False
    starts_turn: bool = True
    job: bool = False
    arguments: str = ""


class UnknownCall(Value, frozen=True):
    """A call that may have changed something: an identical one asks first."""

    digest: str
    expires_at: int


class Input(Value, frozen=True, kw_only=True):
    """A transcript that waits for its turn.

    ``until``: it is half a sentence, and waits until then for the other half. ``earlier`` are the transcripts
    of the halves before it, whose words the ``text`` has, too. The app shows ``shown`` characters of it.
    """

    event_id: str
    text: str
    lang: str = ""
    until: int = 0
    earlier: tuple[str, ...] = ()
    images: tuple[Image, ...] = ()
    shown: int = 0

    def continued_by(self, other: Input) -> Input:
        """Make one transcript of this half and the one after it."""
        return replace(
            other,
            text=f"{self.text} {other.text}",
            lang=other.lang or self.lang,
            earlier=(*self.earlier, self.event_id),
            images=(*self.images, *other.images),
            shown=self.shown,
        )


class Notice(Value, frozen=True, kw_only=True):
    """A text of the server for the model. Until ``expires_at`` it starts a turn.

    ``words`` of the app's backend are the whole reply of that turn. ``late``: it is a separate note.
    """

    text: str
    expires_at: int = 0
    untrusted: bool = False
    late: bool = False
    words: str = ""
    images: tuple[Image, ...] = ()


class AppFact(Value, frozen=True, kw_only=True):
    """A fact that the app has told; it stands until ``expires_at``, if that is not 0.

    ``untrusted``: others have written it. An empty ``text`` removes the fact with the ``key``.
    """

    text: str
    key: str = ""
    expires_at: int = 0
    untrusted: bool = False

    @property
    def name(self) -> tuple[str, str]:
        """What a later fact with the same value replaces: its key, or its text if it has no key."""
        return self.key, "" if self.key else self.text

    def stands(self, at: int) -> bool:
        """Return whether it holds at a time."""
        return not self.expires_at or at < self.expires_at


class Summary(Value, frozen=True):
    """The history before the log. ``untrusted``: outsiders wrote part of it."""

    text: str
    untrusted: bool = False


class Event(Part, kw_only=True):
    """An event for the client; every kind but ``flash`` stays until it is acknowledged.

    ``payload`` is JSON. ``effect`` and ``limit_ms`` belong to a call. ``withheld``: an earlier process of
    the app may have run this call; it is never sent again. ``probe``: it is one of `StateShown`.
    """

    id: str
    kind: Kind
    type: str
    payload: bytes
    at: int
    call_id: str = ""
    effect: Effect = "read"
    limit_ms: int = 5_000
    withheld: bool = False
    probe: bool = False


class WebhookEvent(Value, frozen=True):
    """A fact for the app's backend, with its ``data`` as JSON values."""

    id: str
    type: str
    at: int
    data: dict[str, Any]


def checksum(words: str) -> int:
    """Return a number by which the words of a transcript differ from others; 0 without words."""
    return crc32(words.encode(errors="replace"))


def former_id(event_id: str, words: int) -> str:
    """Name an event of a former client by its id and the `checksum` of its words."""
    return f"{event_id} {words:x}"


class Conversation(Part, kw_only=True):
    """A session. The first message of ``log`` has the position ``log_start``.

    ``at`` is the time of the last commit: no later owner's clock is behind it.
    ``claim`` is the token of the owner, who may only visit it (``visits``);
    ``claims`` maps the last owners to their last revisions, and ``claim_times`` are the recent takeovers.
    Event ids are made of the claim and ``record_count``.
    ``handled_ids`` maps the ids of the client's last events to the `checksum` of their words; ``former_ids``
    are the `former_id` of events of clients before it. ``fields`` belong to tools. ``decided`` are the
    outcomes of the last questions. ``usage`` sums up the replies: input tokens, output tokens, cost.
    ``webhooks`` are the events that the app's backend wants, and ``webhook_events`` those that wait for
    delivery. ``opened``: the backend knows that the session is open. ``greeted``: the app's greeting
    was given. ``images`` are the ids of stored images with the number of turns that had them; the next commit
    removes the ``dropped_images`` from the store. ``late_pause`` came when its speech had ended, and holds
    nothing; a backchannel may follow it.
    """

    revision: int = 0
    at: int = 0
    record_count: int = 0
    claim: str = ""
    visits: bool = False
    claims: dict[str, int] = {}
    claim_times: list[int] = []
    released: bool = False
    profile: Profile = Profile()
    log: list[Message] = []
    log_start: int = 0
    summary: Summary | None = None
    queue: list[Input] = []
    notices: list[Notice] = []
    facts: tuple[AppFact, ...] = ()
    turn: Turn | None = None
    questions: dict[str, Question] = {}
    decided: dict[str, Outcome] = {}
    question_closed_at: int = 0
    grants: str = ""
    speeches: dict[str, Speech] = {}
    pause: Pause | None = None
    late_pause: Pause | None = None
    late_calls: dict[str, LateCall] = {}
    unknown_calls: dict[str, UnknownCall] = {}
    outbound: dict[str, Event] = {}
    handled_ids: dict[str, int] = {}
    former_ids: dict[str, None] = {}
    fields: dict[str, str] = {}
    usage: tuple[int, int, float] = (0, 0, 0.0)
    webhooks: tuple[str, ...] = ()
    webhook_events: dict[str, WebhookEvent] = {}
    opened: bool = False
    greeted: bool = False
    images: dict[str, int] = {}
    dropped_images: list[str] = []

    @property
    def log_end(self) -> int:
        """The position of the next message."""
        return self.log_start + len(self.log)

    @property
    def focus(self) -> Question | None:
        """The question that a spoken answer concerns."""
        return next(iter(self.questions.values()), None)

    @property
    def half(self) -> Input | None:
        """The half of a sentence that the next words continue."""
        return self.queue[-1] if self.queue and self.queue[-1].until else None

    @property
    def unanswered(self) -> Input | None:
        """The words of the running turn, as they would wait for more; None once it has brought anything."""
        turn, said = self.turn, self.log[-1] if self.log else None
        if turn is None or turn.reply_text or turn.bridged:
            return None
        if not isinstance(said, UserMessage) or not turn.transcripts:
            return None
        return Input(
            event_id=turn.transcripts[-1],
            text=said.text,
            lang=turn.lang,
            until=turn.started_at,
            earlier=tuple(turn.transcripts[:-1]),
            images=said.images,
            shown=len(said.text),
        )

    @property
    def is_new(self) -> bool:
        """Whether nothing was recorded but claims."""
        is_empty = not (self.log or self.handled_ids or self.former_ids or self.fields or self.outbound)
        return is_empty and self.profile == Profile()

    @property
    def calls(self) -> Sequence[Call]:
        """The calls of the running round."""
        return self.turn.calls if self.turn is not None else ()

    def facts_with(self, added: AppFact, at: int) -> tuple[tuple[AppFact, ...], int]:
        """Replace the fact of this name, or remove it; returns all facts, and how many of the oldest went."""
        facts = [fact for fact in self.facts if fact.stands(at) and fact.name != added.name]
        facts += [added] if added.text else []
        first = 0
        while len(facts) - first > MAX_FACTS or _size(facts[first:]) > MAX_FACTS_BYTES:
            first += 1
        return tuple(facts[first:]), first

    def has_handled(self, event_id: str, words: str = "") -> bool:
        """Return whether an event was handled; ``words`` identify the words of a transcript.

        A client that has lost its state begins its ids anew: its event has the id of another one.
        """
        return event_id in self.handled_ids or former_id(event_id, checksum(words)) in self.former_ids

    def open_call(self, call_id: str) -> Call | None:
        """Find a call of the running round that has no result."""
        for call in self.turn.calls if self.turn is not None else ():
            if call.id == call_id and call.result is None:
                return call
        return None

    def continues(self, earlier: Conversation) -> bool:
        """Return whether this state was in the state ``earlier``: it contains its last commit."""
        if not earlier.claims:
            return True
        claim, revision = next(reversed(earlier.claims.items()))
        return self.claims.get(claim, 0) >= revision


def _size(facts: Sequence[AppFact]) -> int:
    return sum(len(fact.text.encode()) for fact in facts)
