"""Log lines, metrics, the audit log and traces of a session: functions of its records, and of live marks."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol

import msgspec
import structlog
from prometheus_client import CollectorRegistry, Counter, Histogram

from conductor.clock import epoch_ns
from conductor.conversation import records as r
from conductor.conversation.state import Turn
from conductor.errors import ConductorError, ErrorCode
from conductor.events.server import EndReason, TurnMetrics
from conductor.models.base import Finished, Usage
from conductor.session.services import Observed, Observers, Output, SessionObserver, StartOutcome
from conductor.stores.base import SessionKey
from conductor.tools.audit import SessionAudit
from conductor.tools.base import ToolSpec
from conductor.tools.outcomes import Outcome, ToolOutcome
from conductor.tools.permissions import Verdict

log = structlog.get_logger(__name__)

BOUNDS_S = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)
COMMIT_BOUNDS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0)
"""Upper bounds of the histograms' buckets in seconds."""


@dataclass(frozen=True, slots=True)
class TurnPart:
    """A part of a turn; times are nanoseconds since the epoch. ``error`` is a code, empty for a success."""

    kind: Literal["chat", "execute_tool", "approval"]
    name: str
    start_ns: int
    end_ns: int
    error: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class TurnStats:
    """The figures of a turn. ``first_s``: seconds until its first outputs."""

    trace: list[str] = field(default_factory=list)
    transcript: str = ""
    reply: str = ""
    rounds: int = 0
    usage: Usage = field(default_factory=Usage)
    cost: float = 0.0
    models: list[str] = field(default_factory=list)
    first_s: dict[Output, float] = field(default_factory=dict)
    steps: list[TurnPart] = field(default_factory=list)
    tool_s: float = 0.0
    started: float = field(default_factory=time.monotonic)


class Tracer(Protocol):
    """Makes traces of turns."""

    def describe_request(self, provider: str, finished: Finished | None) -> tuple[str, Mapping[str, Any]]:
        """Return the model's name and the attributes of its request; ``provider`` is the default one."""
        ...

    def end_turn(
        self,
        turn_id: str,
        cause: str,
        *,
        stats: TurnStats,
        prompt: tuple[str, str],
        reason: EndReason,
        error: ErrorCode | None,
        key: SessionKey,
        traceparent: str | None,
    ) -> None:
        """Make the spans of a turn that has ended."""
        ...

    def close(self) -> None:
        """Send the remaining traces. May block for a few seconds."""
        ...


class SessionMetrics:
    """Counters and histograms of turns, starts and delays. Only the event loop's thread may count."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        registry = registry or CollectorRegistry()

        def seconds(name: str, meaning: str, bounds: Sequence[float] = BOUNDS_S) -> Histogram:
            return Histogram(name, meaning, registry=registry, buckets=bounds)

        self.turns = Counter(
            "conductor_turns",
            "Turns by cause (transcript, news, request …) and end.",
            ("cause", "end"),
            registry=registry,
        )
        outputs: dict[Output, str] = {
            "token": "From the start of a turn to the model's first word or call.",
            "partial": "From the start of a turn to the first partial text sent.",
            "speech": "From the start of a turn to the first speech sent.",
        }
        self.first = {
            output: seconds(f"conductor_turn_first_{output}_seconds", meaning)
            for output, meaning in outputs.items()
        }
        self.starts = Counter(
            "conductor_session_starts",
            "Answers to session.start: new, resumed, or not_kept, for a client whose session has expired.",
            ("result",),
            registry=registry,
        )
        self.commits = seconds(
            "conductor_store_commit_seconds", "Time of one commit to the session store.", COMMIT_BOUNDS_S
        )
        self.loop_lag = seconds(
            "conductor_loop_lag_seconds",
            "Delay of the event loop's timers, measured four times a second.",
            COMMIT_BOUNDS_S,
        )


class TurnObservers(Observers):
    """Observes sessions by a log line a turn, by metrics, and by traces.

    ``log_content``: the log line has the transcript and the reply.
    """

    def __init__(
        self,
        metrics: SessionMetrics | None = None,
        tracer: Tracer | None = None,
        *,
        log_content: bool = False,
    ) -> None:
        self.metrics = metrics or SessionMetrics()
        self.tracer = tracer
        self.log_content = log_content

    def observe(self, session: Observed) -> SessionObserver:
        """Make the observer of a session."""
        return TurnObserver(session, self)

    def lagged(self, seconds: float) -> None:
        """Observe how late the event loop ran a timer."""
        self.metrics.loop_lag.observe(max(0.0, seconds))

    def close(self) -> None:
        """Send the remaining traces. Blocks for a few seconds at most."""
        if self.tracer is not None:
            self.tracer.close()


class TurnObserver(SessionObserver):
    """Watches one session; no other code calls metrics, audit or traces."""

    def __init__(self, session: Observed, observers: TurnObservers) -> None:
        self._session = session
        self._observers = observers
        self._ended: tuple[Turn, r.TurnEnded] | None = None
        self._started: TurnStats | None = None
        if (turn := session.state.turn) is not None:
            self._stats = TurnStats([turn.cause, "recovered"], rounds=turn.rounds)

    @cached_property
    def _audit(self) -> SessionAudit:
        key = self._session.key
        return SessionAudit(self._session.services.audit, key.subject, key.session_id)

    @cached_property
    def _stats(self) -> TurnStats:
        return TurnStats()

    # -- live marks

    def first(self, output: Output) -> None:
        """Record an output of the turn; the first one counts."""
        first_s = self._stats.first_s
        if output not in first_s:
            first_s[output] = time.monotonic() - self._stats.started

    def note(self, mark: str) -> None:
        """Add to the trace of the turn's log line."""
        self._stats.trace.append(mark)

    def lost(self, finished: Finished) -> None:
        """Record a reply without words or without its call, such as reasoning alone."""
        self.note("retry:lost")
        log.info(
            "model reply without words or call",
            profile=finished.profile,
            stop=finished.stop,
            output_tokens=finished.usage.output_tokens,
        )

    def failed(self, error: ConductorError) -> None:
        """Record that a turn is about to fail."""
        log.warning(
            "turn failed",
            turn=self._session.state.turn.id if self._session.state.turn is not None else None,
            code=error.code,
            reason=getattr(error, "reason", None),
            profile=getattr(error, "profile", None),
            error=str(error),
        )

    def replied(self, finished: Finished) -> None:
        """Record that a reply is complete."""
        stats, profile = self._stats, finished.profile or self._session.provider.name
        stats.usage += finished.usage
        stats.cost += finished.cost
        if finished.profile is not None and finished.profile not in stats.models:
            stats.models.append(finished.profile)
        self._session.services.model_metrics.count(profile, finished.usage, finished.cost)

    def warmed(self, finished: Finished) -> None:
        """Count a request that has filled the prompt cache."""
        profile = finished.profile or self._session.provider.name
        self._session.services.model_metrics.warmed(profile, finished.usage, finished.cost)

    def started(self, result: StartOutcome) -> None:
        """Record the answer to a ``session.start``."""
        self._observers.metrics.starts.labels(result).inc()

    def decided(self, spec: ToolSpec, arguments: Mapping[str, Any], verdict: Verdict) -> None:
        """Record the gate's verdict about a call."""
        self._audit.record_decision(spec, arguments, verdict)

    def requested(self, start_ns: int, first_ns: int, finished: Finished | None, error: str) -> None:
        """Record the end of a request to the model."""
        if self._observers.tracer is None:
            return
        name, attributes = self._observers.tracer.describe_request(self._session.provider.name, finished)
        if first_ns:
            first_s = (first_ns - start_ns) / 1e9
            attributes = {**attributes, "gen_ai.response.time_to_first_chunk": first_s}
        self._step("chat", name, start_ns, error, attributes)

    def _step(
        self,
        kind: Literal["chat", "execute_tool", "approval"],
        name: str,
        start_ns: int,
        error: str = "",
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        if self._observers.tracer is not None:
            self._stats.steps.append(TurnPart(kind, name, start_ns, epoch_ns(), error, attributes or {}))

    # -- records

    def applying(self, commit: r.Commit) -> None:
        """Observe the records of a commit; the state is the one before them."""
        for record in commit.records:
            match record:
                case r.TurnStarted():
                    self._started = TurnStats([record.cause], record.text)
                case r.ContextAdded() if record.dropped:
                    key = self._session.key
                    log.info("facts dropped", session=key.session_id, dropped=record.dropped)
                case r.ReplyLogged():
                    self._reply(record)
                case r.SegmentSpoken() if record.speech_text:
                    self.first("speech")
                case r.CallFinished():
                    self._finished(record)
                case r.QuestionsAsked():
                    for question in record.questions:
                        self._session.services.metrics.count_request(question.tool, question.source)
                case r.QuestionDecided():
                    self._decided(
                        record.question_id, record.outcome, commit.at, record.channel, record.arguments
                    )
                case r.TurnEnded() if (turn := self._session.state.turn) is not None:
                    self._end(turn, record, commit.at)

    def _end(self, turn: Turn, record: r.TurnEnded, at: int) -> None:
        for question_id in record.superseded:
            self._decided(question_id, "superseded", at)
        for finished in record.results:
            self._finished(finished)
        self._ended = turn, record

    def applied(self) -> None:
        """Report a turn that the commit ended: its request to the model has ended, its events are sent."""
        if self._ended is not None:
            self._report(*self._ended)
            self._ended = None
        # A barge-in ends a turn and starts the next in one commit: the figures until here are the former's.
        if self._started is not None:
            self._stats, self._started = self._started, None

    def _reply(self, record: r.ReplyLogged) -> None:
        stats = self._stats
        stats.trace += [f"tool.call:{call.name[:64]}" for call in record.message.calls]
        stats.reply = record.message.text or stats.reply
        if record.speech_text:
            self.first("speech")
        if record.calls:
            stats.rounds += 1
        else:
            stats.trace.append("final")

    def _finished(self, record: r.CallFinished) -> None:
        if not record.tool:
            return
        took_s = record.took_ms / 1000
        self._session.services.metrics.count_call(record.tool, record.source, record.error_type, took_s)
        self._stats.tool_s += took_s
        audits = self._session.services.audit is not None
        call = self._session.state.open_call(record.result.call_id) if audits else None
        if call is not None and (spec := self._session.spec_of(call)) is not None:
            outcome = msgspec.json.decode(record.result.content, type=ToolOutcome)
            self._audit.record_end(spec, msgspec.json.decode(call.arguments or "{}"), outcome)
        attributes = {
            "gen_ai.tool.name": record.tool,
            "gen_ai.tool.call.id": record.result.call_id,
            "conductor.tool.source": record.source,
        }
        error = "" if record.error_type == "none" else record.error_type
        start_ns = epoch_ns() - record.took_ms * 1_000_000
        self._step("execute_tool", record.tool, start_ns, error, attributes)

    def _decided(
        self, question_id: str, outcome: Outcome, at: int, channel: str = "card", arguments: str = ""
    ) -> None:
        """Record the outcome of a question; ``arguments`` are the edited ones."""
        session = self._session
        question = session.state.questions.get(question_id)
        if question is None:
            return
        seconds = max(0.0, (at - question.asked_at) / 1000)
        session.services.metrics.count_decision(
            question.tool, question.source, outcome, seconds, by_voice=channel == "voice"
        )
        spec = session.spec_of(question)
        if spec is not None:
            versions = [question.arguments, arguments] if outcome == "edited" else [question.arguments]
            for text in versions:
                self._audit.record_answer(spec, msgspec.json.decode(text), outcome, channel)
        allowed = "allowed" if outcome in ("allowed", "edited") else "not allowed"
        self._stats.trace.append(allowed)
        attributes = {"gen_ai.tool.name": question.tool, "conductor.approval.outcome": allowed}
        start_ns = epoch_ns() - round(seconds * 1e9)
        self._step("approval", question.tool, start_ns, "", attributes)

    def _report(self, turn: Turn, record: r.TurnEnded) -> None:
        session, stats = self._session, self._stats
        if record.speech_text:
            self.first("speech")
        if record.reason != "answered":
            stats.trace.append(f"error:{record.error}" if record.error else record.reason)
        self._observers.metrics.turns.labels(turn.cause, record.reason).inc()
        for output, first_s in stats.first_s.items():
            self._observers.metrics.first[output].observe(first_s)
        if self._observers.tracer is not None:
            self._observers.tracer.end_turn(
                turn.id,
                turn.cause,
                stats=stats,
                prompt=self._observers.prompt,
                reason=record.reason,
                error=record.error,
                key=session.key,
                traceparent=session.state.profile.traceparent,
            )
        seconds = time.monotonic() - stats.started
        content = {"transcript": stats.transcript, "reply": stats.reply}
        log.info(
            "turn",
            session=session.key.session_id,
            turn=turn.id,
            end=record.reason,
            error=record.error or None,
            ms=round(seconds * 1000),
            first_token_ms=_ms(stats.first_s.get("token")),
            rounds=stats.rounds,
            subject=session.key.subject,
            models=",".join(stats.models) or None,
            cost=round(stats.cost, 6),
            input_tokens=stats.usage.read_tokens,
            output_tokens=stats.usage.output_tokens,
            trace=" -> ".join(stats.trace),
            **(content if self._observers.log_content else {}),
        )
        if "metrics" in session.state.profile.capabilities:
            session.flash(
                TurnMetrics(
                    turn_id=turn.id,
                    tool_ms=round(stats.tool_s * 1000),
                    input_tokens=stats.usage.read_tokens,
                    output_tokens=stats.usage.output_tokens,
                    interrupted=record.reason == "interrupted",
                    first_token_ms=_ms(stats.first_s.get("token")),
                    first_speech_ms=_ms(stats.first_s.get("speech")),
                    cost=round(stats.cost, 6) or None,
                )
            )


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)
