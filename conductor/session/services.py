"""The services that all sessions of a server share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol, TypeAlias
from weakref import WeakValueDictionary

from conductor.conversation.conduct import Conduct
from conductor.conversation.phrases import FAILURES, SpokenFailure
from conductor.conversation.records import Commit
from conductor.conversation.state import Call, Conversation, Question
from conductor.entry_points import JUDGES, plugins
from conductor.errors import ConductorError
from conductor.events.envelope import Payload
from conductor.events.server import CAPABILITIES
from conductor.identity import ANONYMOUS
from conductor.models.base import Finished, ModelProvider
from conductor.models.budget import BudgetedProvider, DailyBudget
from conductor.models.metrics import ModelMetrics
from conductor.models.router import ModelRouter
from conductor.rate_limit import Admission, SharedRate, TokenBucket
from conductor.session.fields import SubjectRecords
from conductor.session.transport import Transport
from conductor.settings import Limits
from conductor.stores.base import SessionKey, SessionLog
from conductor.tools.audit import AuditLog
from conductor.tools.base import Toolset, ToolSpec
from conductor.tools.executor import ToolExecutor
from conductor.tools.judge import ApprovalJudge
from conductor.tools.metrics import ToolMetrics
from conductor.tools.permissions import Gate, GateOptions, Verdict
from conductor.tools.policies import Policies, PolicyFile
from conductor.tools.redaction import Redactor

Output: TypeAlias = Literal["token", "partial", "speech"]
StartOutcome: TypeAlias = Literal["new", "resumed", "not_kept"]

# The history leaves most of a window of 200,000 tokens to one turn's tool results.
HISTORY_TOKENS = 60_000


class Observed(Protocol):
    """A session as its observer reads it."""

    key: SessionKey
    state: Conversation
    services: Services
    provider: ModelProvider

    def spec_of(self, item: Call | Question) -> ToolSpec | None:
        """Find the tool of a call or a question."""

    def flash(self, event: Payload) -> None:
        """Send an event that may be lost."""


class SessionObserver:
    """Observes the records of one session, and facts that are not recorded; this one ignores them."""

    def applying(self, commit: Commit) -> None:
        """Record a commit; the state is the one before it."""

    def applied(self) -> None:
        """Report after the events of the commit are sent."""

    def first(self, output: Output) -> None:
        """Record an output of the turn; only the first one counts."""

    def note(self, mark: str) -> None:
        """Record a mark for the trace of the turn."""

    def lost(self, finished: Finished) -> None:
        """Record a reply without words or without its call, which is requested once more."""

    def failed(self, error: ConductorError) -> None:
        """Record the cause of a failure before its turn ends."""

    def requested(self, start_ns: int, first_ns: int, finished: Finished | None, error: str) -> None:
        """Record the end of a request to the model; ``first_ns`` is 0 without output."""

    def replied(self, finished: Finished) -> None:
        """Record the end of a whole reply."""

    def warmed(self, finished: Finished) -> None:
        """Record a request that filled the prompt cache."""

    def started(self, result: StartOutcome) -> None:
        """Record the answer to a ``session.start``."""

    def decided(self, spec: ToolSpec, arguments: Mapping[str, Any], verdict: Verdict) -> None:
        """Record the gate's verdict about a call."""


class Delivery(Protocol):
    """Delivers the sessions' waiting webhook events."""

    def wake(self, session: Observed) -> None:
        """Start the delivery of a session's waiting events."""

    async def settle(self, session: Observed) -> None:
        """Wait for the delivery of a session's events, if it is under way."""


@dataclass
class Webhooks:
    """The events that the app's backend wants, and their ``delivery`` while it runs."""

    events: tuple[str, ...] = ()
    delivery: Delivery | None = None


class Observers:
    """Makes the observers of sessions; ``prompt`` is the name and the version of the system prompt."""

    prompt: tuple[str, str] = ("", "")

    def observe(self, session: Observed) -> SessionObserver:
        """Make the observer of a session."""
        return SessionObserver()

    def lagged(self, seconds: float) -> None:
        """Record the lateness of the event loop's timers."""

    def close(self) -> None:
        """Flush; may block for seconds."""


def load_judges() -> Mapping[str, ApprovalJudge[Any]]:
    """Make the installed judges, by language. Raises `SettingsError`."""
    return {name: plugin.make(ApprovalJudge) for name, plugin in plugins(JUDGES).items()}


@dataclass(frozen=True, kw_only=True)
class Services:
    """The services that all sessions of a server share.

    ``catalog`` lists the device tools for clients that cannot declare theirs, ``catalog_name`` is its name.
    ``failures`` are the sentences for
    failed turns, by error code; an empty mapping disables them.
    ``speak_segments``: replies are spoken in segments to all clients. ``bridge_phrases`` are spoken when a
    turn waits long for a tool or the model.
    ``summarize_history``: the model summarises the dropped part of a history.
    ``policies`` are the operator's, read from ``policy_file``. ``subject_records`` enable the scope "always".
    ``turn_rates`` and ``budget`` limit turns and the model's use by person; a rate is kept by the
    sessions that share it. With ``local_only`` nothing leaves the local network. ``inspect``: which clients
    may read the tools and the prompt of their session.
    """

    store: SessionLog
    provider: ModelProvider
    toolsets: Sequence[Toolset]
    catalog: Sequence[ToolSpec]
    system_prompt: str
    limits: Limits = field(default_factory=Limits)
    interruption_mode: Literal["cancel", "queue"] = "cancel"
    speak_segments: bool = False
    bridge_phrases: Sequence[str] = ()
    summarize_history: bool = False
    failures: Mapping[SpokenFailure, str] = field(default_factory=lambda: FAILURES)
    metrics: ToolMetrics = field(default_factory=ToolMetrics)
    model_metrics: ModelMetrics = field(default_factory=ModelMetrics)
    local_only: bool = False
    policies: Policies = Policies()
    policy_file: PolicyFile | None = None
    gate_options: GateOptions = field(default_factory=GateOptions)
    audit: AuditLog | None = None
    observers: Observers = field(default_factory=Observers)
    webhooks: Webhooks = field(default_factory=Webhooks)
    judges: Mapping[str, ApprovalJudge[Any]] = field(default_factory=load_judges)
    redactor: Redactor = field(default_factory=lambda: Redactor(()))
    subject_records: SubjectRecords | None = None
    turn_rates: WeakValueDictionary[str, TokenBucket] = field(default_factory=WeakValueDictionary)
    budget: DailyBudget | None = None
    admission: Admission = field(default_factory=Admission)
    inspect: Literal["local", "on", "off"] = "off"
    catalog_name: str = "none"

    @cached_property
    def conduct(self) -> Conduct:
        """The settings that decide how a conversation goes."""
        limits = self.limits
        return Conduct(
            cancels=self.interruption_mode == "cancel",
            failures=self.failures,
            history_tokens=self.history_tokens,
            window_tokens=self.window_tokens,
            turn_ms=round(limits.turn_timeout * 1000),
            question_ms=round(limits.approval_timeout * 1000),
            window_ms=round(limits.heard_window * 1000),
            floor_ms=round(limits.floor_timeout * 1000),
            pause_ms=round(limits.pause_timeout * 1000),
            hold_ms=round(limits.hold_unfinished * 1000),
            max_turns=limits.max_turns,
            max_tool_rounds=limits.max_tool_rounds,
            max_calls_per_turn=limits.max_calls_per_turn,
        )

    @cached_property
    def executor(self) -> ToolExecutor:
        """The server's own tools, as the operator's rules offer them; sessions share it by `scoped`."""
        gate = Gate(rules=self.policies.rules, options=self.gate_options, preset=self.policies.preset)
        return ToolExecutor(self.toolsets, self.limits, gate, self.redactor)

    def turn_rate(self, subject: str, now: float) -> SharedRate:
        """Make the rate limit of a session's turns, shared with the other sessions of its person."""
        limits = self.limits
        own = TokenBucket(limits.turns_per_minute / 60, limits.turns_per_minute, now)
        # Without tokens all people have one subject: a subject's limit would be the server's.
        if subject == ANONYMOUS:
            return SharedRate(own)
        most = limits.subject_turns_per_minute
        return SharedRate(own, self.turn_rates.setdefault(subject, TokenBucket(most / 60, most, now)))

    @property
    def choices(self) -> list[str]:
        """The models that a client may choose."""
        return list(self.provider.profiles.allowed) if isinstance(self.provider, ModelRouter) else []

    def serving(self, model: str | None) -> str | None:
        """Name the profile that replies to sessions that chose ``model``; None without profiles."""
        return self.provider.serving(model) if isinstance(self.provider, ModelRouter) else None

    def may_inspect(self, transport: Transport) -> bool:
        """Return whether a client may read the tools and the prompt of its session."""
        return self.inspect == "on" or (self.inspect == "local" and not transport.is_forwarded)

    def capabilities(self, transport: Transport) -> Sequence[str]:
        """List the extensions that a client may use."""
        return [name for name in CAPABILITIES if name != "inspect" or self.may_inspect(transport)]

    @property
    def history_tokens(self) -> int:
        """The tokens of history in a request: at most half of a model's context window."""
        window = self.window_tokens
        return HISTORY_TOKENS if window is None else min(HISTORY_TOKENS, window // 2)

    @property
    def window_tokens(self) -> int | None:
        """The tokens of the smallest context window, None if it is unknown."""
        return self.provider.context_window if isinstance(self.provider, ModelRouter) else None

    def provider_for(self, subject: str) -> ModelProvider:
        """Return the model, within the budget of the person if one is set."""
        return self.provider if self.budget is None else BudgetedProvider(self.provider, self.budget, subject)
