"""The session as its decisions read it, and the results of calls, without I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from msgspec.structs import replace

from conductor.conversation.conduct import Conduct
from conductor.conversation.history import HistoryBudget
from conductor.conversation.phrases import shown_with_answer
from conductor.conversation.records import CallFinished
from conductor.conversation.state import Call, Conversation, Input, LateCall, Question, Summary, UnknownCall
from conductor.events.server import ConversationState
from conductor.messages import ToolCall, ToolResult
from conductor.tools.outcomes import ToolOutcome, interrupted_outcome, truncate, with_timing

if TYPE_CHECKING:  # a type only
    from conductor.tools.judge import Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The events for a new connection: their speeches and cards, in their order.

    ``unconfirmed``: the client may have handled UI calls among them, and cannot tell. ``waits``: a part is
    held until the end of a speech. ``state`` is the last one, shown or held.
    """

    speeches: Sequence[str] = ()
    cards: Sequence[str] = ()
    unconfirmed: bool = False
    waits: bool = False
    state: ConversationState = "thinking"


@dataclass(frozen=True, slots=True)
class Edit:
    """Valid edited arguments: JSON, their digest, and a note for the model."""

    arguments: str
    digest: str
    note: str


class CallGate(Protocol):
    """What a decision asks about the session's tools, rules and judges; it changes nothing."""

    def classify(self, question: Question, utterance: str, lang: str) -> Answer:
        """Classify an answer to a question; ``lang`` is the language that the recogniser heard, if any."""

    def is_backchannel(self, words: str, lang: str) -> bool:
        """Return whether words only show that the person listens; ``lang`` as in `classify`."""

    def is_unfinished(self, words: str, lang: str) -> bool:
        """Return whether words end in the middle of a sentence, in the person's language."""

    def is_credit(self, words: str) -> bool:
        """Return whether words are the credits of a film, in any language."""

    def language_of(self, lang: str) -> str:
        """Choose the language of a question for a person who has spoken in ``lang``, if that is known."""

    def prompt(self, question: Question, attempt: int) -> str:
        """Word a question; ``attempt`` counts from 1, and is 0 where the person asks for the question."""

    def by_voice(self, question: Question) -> bool:
        """Return whether a question can be allowed by voice."""

    def refusal(self, question: Question, arguments: str) -> ToolOutcome | None:
        """Return the outcome of a call whose tool or rules have changed since it was asked about."""

    def held_refusal(self, call: Call) -> ToolOutcome | None:
        """Return the outcome of a held call whose tool changed or that may not run unasked by now."""

    def edited(self, question: Question, arguments: Mapping[str, Any]) -> Edit | str:
        """Validate edited arguments; a text is the refusal."""

    def granted(self, question: Question, grants: str) -> str:
        """Add the session's grant for a question."""

    def allows(self, question: Question, grants: str) -> bool:
        """Return whether a question needs no answer with these grants of the session."""

    def result(self, call: Call, outcome: ToolOutcome) -> ToolResult:
        """Redact and shorten an outcome for the model."""

    def memories(self, words: str) -> str:
        """Return what is remembered of the person, fitting to the first words; empty without any."""


class Written(Protocol):
    """An event on its way to the client, and whether it was handed to a socket."""

    @property
    def is_written(self) -> bool: ...


@dataclass(slots=True)
class Stop:
    """``is_suspended``: another process continues the session, and this one stops."""

    draining: bool = False
    is_suspended: bool = False
    closing: bool = False


@dataclass(slots=True)
class Openings:
    """What the server may start unasked.

    ``floor_at``: when it may start a turn, None while it may not. ``refused_input``: words were refused
    without a sentence about it yet.
    """

    floor_at: int | None = None
    refused_input: bool = False


@dataclass(slots=True)
class Listening:
    """What the person's partial transcripts show; times are epoch milliseconds.

    ``heard_at``: when something was heard last, or the app connected.
    """

    heard_at: int = 0
    utterance_began: int = 0
    speaking_until: int = 0
    sends_partials: bool = False


@dataclass(slots=True)
class Cards:
    """What the present connection shows.

    ``visible``: question id -> since when. ``told``: questions whose outcome was sent to it.
    """

    visible: dict[str, int] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Outgoing:
    """What was sent. ``unanswered``: the events of calls that are not answered, by call id.

    ``finished_speeches``: speech id -> when it was acknowledged.
    """

    unanswered: Mapping[str, Written] = field(default_factory=dict)
    finished_speeches: dict[str, int] = field(default_factory=dict)
    is_connected: bool = False


@dataclass(slots=True)
class Writing:
    """The reply that the model is writing: the text of its ``draft``.

    It is for the request ``request`` (turn id, rounds, retries). ``history`` bounds the history in a request.
    """

    history: HistoryBudget
    draft: str = ""
    request: tuple[str, int, int] = ("", 0, 0)


@dataclass(slots=True)
class Running:
    """``calls`` of the server run here. Notices wait until ``notices_after``."""

    calls: set[str] = field(default_factory=set)
    notices_after: int = 0


@dataclass(slots=True)
class Programs:
    """The calls of programs that wait."""

    requests: list[ToolCall] = field(default_factory=list)


@dataclass(slots=True)
class Summaries:
    """A summary of everything before a position of the log."""

    ready: tuple[int, Summary] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """The facts of this process that are not stored, by owner: one module writes the fields of each part."""

    model: Writing
    stop: Stop = field(default_factory=Stop)
    openings: Openings = field(default_factory=Openings)
    speech: Listening = field(default_factory=Listening)
    cards: Cards = field(default_factory=Cards)
    outbox: Outgoing = field(default_factory=Outgoing)
    loop: Running = field(default_factory=Running)
    programs: Programs = field(default_factory=Programs)
    summary: Summaries = field(default_factory=Summaries)


def live_of(conduct: Conduct) -> Live:
    """Make the facts of a process that has just taken a session."""
    return Live(model=Writing(HistoryBudget(conduct.history_tokens, conduct.window_tokens)))


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """All that a decision reads: the state, the facts of this process, the gate, and the settings.

    ``now`` gives epoch milliseconds.
    """

    state: Conversation
    live: Live
    gate: CallGate
    conduct: Conduct
    now: Callable[[], int]

    @property
    def follows(self) -> bool:
        """Whether another turn starts at once after the running one."""
        if not self.state.queue or self.live.stop.closing or self.live.stop.is_suspended:
            return False
        return not self.is_held(self.state.queue[0])

    @property
    def hold_ms(self) -> int:
        """How long half a sentence waits for the other half; 0 for an app that cannot listen on."""
        profile = self.state.profile
        hold_ms = self.conduct.hold_ms if profile.hold_ms is None else profile.hold_ms
        return hold_ms if "hints" in profile.capabilities else 0

    def held_until(self, waiting: Input) -> int:
        """Return until when a transcript waits for its other half, which may be under way; else 0."""
        if not waiting.until or self.live.stop.draining:
            return 0
        longest = waiting.until + self.conduct.max_hold_ms
        return max(waiting.until, min(self.live.speech.speaking_until, longest))

    def is_held(self, waiting: Input) -> bool:
        """Return whether a transcript waits for its other half."""
        return self.now() < self.held_until(waiting)

    def was_sent(self, call_id: str) -> bool:
        """Return whether a call was ever written to a socket: one that is not unanswered was."""
        event = self.live.outbox.unanswered.get(call_id)
        return event is None or event.is_written

    def seconds_since(self, at_ms: int) -> float:
        """Return the seconds since a time; 0.0 for the time 0."""
        return max(0.0, (self.now() - at_ms) / 1000) if at_ms else 0.0


def finish(
    view: View,
    call: Call,
    outcome: ToolOutcome,
    *,
    late: LateCall | None = None,
    unknown: UnknownCall | None = None,
) -> CallFinished:
    """Make the record of a call's result."""
    shown = tuple(image for image in call.shown if not image.refused)
    notes = (*call.notes, *shown_with_answer(len(shown), [i.refused for i in call.shown if i.refused]))
    outcome, ran = with_timing(outcome, 0.0, notes), bool(call.started_at)
    outcome = replace(outcome, images=(*shown, *outcome.images))
    facts = outcome.metadata
    return CallFinished(
        result=view.gate.result(call, outcome),
        tool=call.name if ran else "",
        source=call.source if ran else "",
        error_type=outcome.error_type,
        reason=facts.reason,
        took_ms=facts.execution_time_ms,
        size=facts.data_size_bytes,
        late=late,
        unknown=unknown,
    )


def finish_without_result(view: View, call: Call, outcome: ToolOutcome, *, starts_turn: bool) -> CallFinished:
    """Close a call without its result; the true one of a device call may still come."""
    until = view.now() + view.conduct.late_ms
    late = late_call(call, until, starts_turn=starts_turn) if call.is_device else None
    is_unknown = outcome.error_type == "unknown" and call.effect != "read"
    unknown = UnknownCall(call.digest, until) if is_unknown else None
    return finish(view, call, outcome, late=late, unknown=unknown)


# Bytes of the arguments that are kept of a call whose result may come later.
_LATE_ARGUMENTS_BYTES = 1_000


def late_call(call: Call, expires_at: int, *, starts_turn: bool = True, job: bool = False) -> LateCall:
    """Make the memory of a call whose result may come later."""
    return LateCall(
        call_id=call.id,
        name=call.name,
        effect=call.effect,
        expires_at=expires_at,
        started_at=call.started_at,
        untrusted=call.untrusted,
        starts_turn=starts_turn,
        job=job,
        arguments=truncate(call.arguments, _LATE_ARGUMENTS_BYTES),
    )


def lost_result(call_id: str) -> ToolResult:
    """Make the result of a call whose result was lost."""
    outcome = interrupted_outcome("write", was_sent=True, reason="interrupted")
    return outcome.to_result(call_id)
