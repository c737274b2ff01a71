"""The knowledge of this process about a session that is not stored: read by the pure functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from conductor.conversation.history import HistoryBudget
from conductor.conversation.phrases import Failure
from conductor.conversation.state import Call, Conversation, Question, Summary
from conductor.settings import Limits
from conductor.tools.base import ToolOutcome
from conductor.tools.judge import Answer
from conductor.tools.permissions import Verdict


class Decisions(Protocol):
    """The gate, the grammar of spoken answers and the executor, as the pure functions use them."""

    def classify(self, question: Question, utterance: str) -> Answer:
        """Classify a spoken answer."""
        ...

    def is_yes(self, question: Question, words: str) -> bool:
        """Tell whether words are a yes at any risk."""
        ...

    def timed_out(self, effect: str, took_s: float) -> ToolOutcome:
        """Make the outcome of a call that timed out."""
        ...

    def prompt(self, question: Question, attempt: int) -> str:
        """Word a question for its ``attempt``, counted from 1."""
        ...

    def by_voice(self, question: Question) -> bool:
        """Tell whether a question can be allowed by voice."""
        ...

    def refusal(self, question: Question, arguments: str) -> ToolOutcome | None:
        """Give the outcome of a call whose tool changed or is forbidden by now; None if it may run."""
        ...

    def held_refusal(self, live: Live, call: Call) -> ToolOutcome | None:
        """Give the outcome of a held call whose tool changed or that may not run unasked by now."""
        ...

    def edited(self, question: Question, arguments: Mapping[str, Any]) -> Edit | str:
        """Validate edited arguments; a text is the refusal."""
        ...

    def granted(self, question: Question, grants: str) -> str:
        """Add the session's grant for a question; returns the encoded grants."""
        ...

    def allows(self, question: Question, grants: str) -> bool:
        """Tell whether a question needs no answer with these grants of the session."""
        ...

    def result(self, call: Call, outcome: ToolOutcome) -> Finished:
        """Redact and shorten an outcome for the model."""
        ...

    def for_the_ear(self, text: str) -> str:
        """Make the text for the ear."""
        ...


@dataclass(frozen=True, slots=True)
class Edit:
    """Valid edited arguments: JSON, their digest, and a note for the model."""

    arguments: str
    digest: str
    note: str


@dataclass(frozen=True, slots=True)
class Finished:
    """A result for the model, with the facts about its outcome."""

    content: str
    is_error: bool
    error_type: str
    reason: str
    took_ms: int
    size: int


@dataclass(frozen=True, slots=True)
class ReadySummary:
    """A summary of everything before a position of the log."""

    before: int
    summary: Summary


@dataclass(frozen=True)
class Rules:
    """Settings of the conversation, read where things are decided. Times are milliseconds.

    ``cancels``: a transcript interrupts the running turn. ``durable``: another process continues a session
    that this one releases. ``failures`` are the apologies by error code.
    """

    limits: Limits
    cancels: bool = True
    durable: bool = False
    failures: Mapping[Failure, str] = field(default_factory=dict)
    late_ms: int = 600_000
    notice_ms: int = 600_000
    job_ms: int = 86_400_000
    max_queue: int = 3
    max_unclear: int = 2
    max_presentations: int = 5
    max_attempts: int = 2
    max_refused_rounds: int = 2

    @property
    def question_ms(self) -> int:
        """How long a question stands."""
        return round(self.limits.approval_timeout * 1000)

    @property
    def window_ms(self) -> int:
        """The time after a speech in which an interruption or a yes still concerns it."""
        return round(self.limits.heard_window * 1000)

    @property
    def floor_ms(self) -> int:
        """How long the person has the floor after a partial transcript."""
        return round(self.limits.floor_timeout * 1000)

    @property
    def turn_ms(self) -> int:
        """The limit of a turn."""
        return round(self.limits.turn_timeout * 1000)


@dataclass
class Live:
    """Facts of this process.

    ``now`` gives epoch milliseconds. ``history`` bounds the history in a request. ``was_sent``: whether a
    call was handed to a socket. ``draft``: the text of the reply that the model is writing, for the
    request ``request`` (turn id, rounds, retries). ``running_calls``: server calls that run here.
    ``finished_speeches``: speech id -> when it was acknowledged. ``visible_cards``: question id -> since
    when. ``told_outcomes``: questions whose outcome was sent to the present connection.
    ``utterance_began`` and ``speaking_until`` follow the partial transcripts. ``floor_at``: when the
    server may start a turn of its own, None while it may not. ``request_waits``: a program's call waits.
    ``notices_after``: notices wait until then.
    """

    now: Callable[[], int]
    decisions: Decisions
    history: HistoryBudget = field(default_factory=lambda: HistoryBudget(60_000))
    was_sent: Callable[[str], bool] = lambda call_id: True
    draft: str = ""
    request: tuple[str, int, int] = ("", 0, 0)
    running_calls: set[str] = field(default_factory=set)
    finished_speeches: dict[str, int] = field(default_factory=dict)
    visible_cards: dict[str, int] = field(default_factory=dict)
    told_outcomes: set[str] = field(default_factory=set)
    utterance_began: int = 0
    speaking_until: int = 0
    sends_partials: bool = False
    floor_at: int | None = None
    draining: bool = False
    closing: bool = False
    request_waits: bool = False
    refused_input: bool = False
    notices_after: int = 0
    summary: ReadySummary | None = None
    may_start: Callable[[], bool] = lambda: True

    def is_suspended(self, rules: Rules) -> bool:
        """Tell whether another process continues the session: this one is about to stop."""
        return self.draining and rules.durable


def follows(state: Conversation, live: Live, rules: Rules) -> bool:
    """Tell whether another turn starts at once after the running one."""
    return bool(state.queue) and not (live.closing or live.is_suspended(rules))


def is_tainted(state: Conversation, extra: Sequence[object] = ()) -> bool:
    """Tell whether outsiders wrote a part of the history."""
    if state.summary is not None and state.summary.untrusted:
        return True
    return any(getattr(message, "untrusted", False) for message in (*state.log, *extra))


def verdict_words(verdict: Verdict) -> str:
    """Join the reasons of a verdict."""
    return " ".join(verdict.reasons)
