"""Log lines, metrics, the audit log and traces of a session: functions of its records, and of live marks."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import structlog

from conductor.conversation import records as r
from conductor.conversation.session_metrics import Output, SessionStart, Step, TurnStats
from conductor.conversation.state import Call, Question, Turn
from conductor.errors import ConductorError
from conductor.events.server import TurnEnded as TurnEndedEvent
from conductor.events.server import TurnMetrics
from conductor.models.base import Finished, ModelRequest
from conductor.tools.audit import SessionAudit
from conductor.tools.base import ToolOutcome, ToolSpec
from conductor.tools.permissions import Verdict

if TYPE_CHECKING:
    from conductor.conversation.session import Session

log = structlog.get_logger(__name__)


class Observer:
    """Watches one session; no other code calls metrics, audit or traces."""

    def __init__(self, session: Session) -> None:
        self._session = session
        key = session.key
        self._audit = SessionAudit(session.services.audit, key.subject, key.session_id)
        self._stats = TurnStats()
        self._error: ConductorError | None = None

    # -- live marks

    def token(self) -> None:
        """Note that the model has written."""
        self._mark_first("token")

    def partial(self) -> None:
        """Note that a partial is sent."""
        self._mark_first("partial")

    def _mark_first(self, output: Output) -> None:
        first_s = self._stats.first_s
        if output not in first_s:
            first_s[output] = time.monotonic() - self._stats.started

    def note(self, mark: str) -> None:
        """Add to the trace of the turn's log line."""
        self._stats.trace.append(mark)

    def failed(self, error: ConductorError) -> None:
        """Note that a turn is about to fail."""
        self._error = error
        log.warning(
            "turn failed",
            turn=self._session.state.turn.id if self._session.state.turn is not None else None,
            code=error.code,
            reason=getattr(error, "reason", None),
            profile=getattr(error, "profile", None),
            error=str(error),
        )

    @property
    def has_spoken(self) -> bool:
        """Whether the turn has spoken."""
        return "speech" in self._stats.first_s

    def recovered(self, turn: Turn) -> None:
        """Note that the turn of another process is continued."""
        self._stats = TurnStats([turn.cause, "recovered"])
        self._stats.rounds = turn.rounds

    def replied(self, request: ModelRequest, finished: Finished) -> None:
        """Note that a reply is complete."""
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

    def started(self, result: SessionStart) -> None:
        """Note the answer to a ``session.start``."""
        self._session.services.session_metrics.started(result)

    def decided(self, spec: ToolSpec, arguments: Mapping[str, Any], verdict: Verdict) -> None:
        """Note the gate's verdict about a call."""
        self._audit.record_decision(spec, arguments, verdict)

    def step(
        self,
        kind: Literal["chat", "execute_tool", "approval"],
        name: str,
        start_ns: int,
        error: str = "",
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        """Note that a part of the turn has ended."""
        if self._session.services.tracer is not None:
            self._stats.steps.append(Step(kind, name, start_ns, time.time_ns(), error, attributes or {}))

    # -- records

    def before(self, commit: r.Commit) -> dict[str, Call | Question | Turn]:
        """Take the subjects of the commit's records, before they are applied."""
        state = self._session.state
        about: dict[str, Call | Question | Turn] = {}
        for record in commit.records:
            match record:
                case r.QuestionDecided() if record.question_id in state.questions:
                    about[record.question_id] = msgspec.structs.replace(state.questions[record.question_id])
                case r.TurnEnded():
                    for question_id in record.superseded:
                        if question_id in state.questions:
                            about[question_id] = msgspec.structs.replace(state.questions[question_id])
        if state.turn is not None:
            about["turn"] = state.turn
            about.update({call.id: call for call in state.turn.calls})
        return about

    def after(self, commit: r.Commit, about: dict[str, Call | Question | Turn]) -> None:
        """Observe the records of a commit that was applied."""
        for record in commit.records:
            match record:
                case r.TurnStarted():
                    self._stats = TurnStats([record.cause])
                    self._stats.transcript = record.text
                    self._error = None
                    turn = self._session.state.turn
                    if turn is not None:
                        about["turn"] = turn
                case r.ReplyLogged():
                    self._reply(record, about)
                case r.SegmentSpoken() if record.speech_text:
                    self._mark_first("speech")
                case r.CallFinished():
                    self._finished(record, about)
                case r.QuestionsAsked():
                    for question in record.questions:
                        self._session.services.metrics.count_request(question.tool, question.source)
                case r.QuestionDecided():
                    self._decided(record.question_id, record.outcome, about, by_voice=record.by_voice)
                    if record.outcome == "edited":
                        self._edited(record, about)
                case r.TurnEnded():
                    self._ended(record, about)

    def _reply(self, record: r.ReplyLogged, about: dict[str, Call | Question | Turn]) -> None:
        stats = self._stats
        stats.trace += [f"tool.call:{call.name[:64]}" for call in record.message.calls]
        stats.reply = record.message.text or stats.reply
        if record.speech_text:
            self._mark_first("speech")
        if record.calls:
            stats.rounds += 1
            about.update({call.id: call for call in record.calls})
        else:
            stats.trace.append("final")

    def _finished(self, record: r.CallFinished, about: dict[str, Call | Question | Turn]) -> None:
        if not record.tool:
            return
        took_s = record.took_ms / 1000
        self._session.services.metrics.count_call(record.tool, record.source, record.error_type, took_s)
        self._stats.tool_s += took_s
        call = about.get(record.result.call_id)
        if isinstance(call, Call) and (spec := self._session.tools.spec(call.name)) is not None:
            outcome = msgspec.json.decode(record.result.content, type=ToolOutcome)
            self._audit.record_end(spec, msgspec.json.decode(call.arguments or "{}"), outcome)
        attributes = {
            "gen_ai.tool.name": record.tool,
            "gen_ai.tool.call.id": record.result.call_id,
            "conductor.tool.source": record.source,
        }
        error = "" if record.error_type == "none" else record.error_type
        start_ns = time.time_ns() - record.took_ms * 1_000_000
        self.step("execute_tool", record.tool, start_ns, error, attributes)

    def _decided(
        self, question_id: str, outcome: Any, about: dict[str, Call | Question | Turn], *, by_voice: bool
    ) -> None:
        question = about.get(question_id)
        if not isinstance(question, Question):
            return
        session = self._session
        seconds = max(0.0, (session.view.now() - question.asked_at) / 1000)
        session.services.metrics.count_decision(
            question.tool, question.source, outcome, seconds, by_voice=by_voice
        )
        spec = session.tools.spec_of(question)
        if spec is not None:
            self._audit.record_answer(
                spec, msgspec.json.decode(question.arguments), outcome, by_voice=by_voice
            )
        allowed = "allowed" if outcome in ("allowed", "edited") else "not allowed"
        self._stats.trace.append(allowed)
        attributes = {"gen_ai.tool.name": question.tool, "conductor.approval.outcome": allowed}
        start_ns = time.time_ns() - round(seconds * 1e9)
        self.step("approval", question.tool, start_ns, "", attributes)

    def _edited(self, record: r.QuestionDecided, about: dict[str, Call | Question | Turn]) -> None:
        """Record the arguments that run instead."""
        question = about.get(record.question_id)
        spec = self._session.tools.spec_of(question) if isinstance(question, Question) else None
        if spec is not None:
            arguments = msgspec.json.decode(record.arguments)
            self._audit.record_answer(spec, arguments, "edited", by_voice=False)

    def _ended(self, record: r.TurnEnded, about: dict[str, Call | Question | Turn]) -> None:
        turn = about.get("turn")
        if not isinstance(turn, Turn):
            return
        for question_id in record.superseded:
            self._decided(question_id, "superseded", about, by_voice=False)
        for finished in record.results:
            self._finished(finished, about)
        session, stats, services = self._session, self._stats, self._session.services
        if record.speech_text:
            self._mark_first("speech")
        if record.reason != "answered":
            stats.trace.append(f"error:{record.error}" if record.error else record.reason)
        services.session_metrics.ended(turn.cause, record.reason, stats)
        if services.tracer is not None:
            self._trace(turn, record)
        seconds = time.monotonic() - stats.started
        content = {"transcript": stats.transcript, "reply": stats.reply} if services.log_content else {}
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
            **content,
        )
        if "metrics" in session.state.profile.capabilities:
            session.flash(TurnEndedEvent(turn.id, record.reason))
            session.flash(
                TurnMetrics(
                    turn.id,
                    round(stats.tool_s * 1000),
                    stats.usage.read_tokens,
                    stats.usage.output_tokens,
                    record.reason == "interrupted",
                    _ms(stats.first_s.get("token")),
                    _ms(stats.first_s.get("speech")),
                )
            )

    def _trace(self, turn: Turn, record: r.TurnEnded) -> None:
        session = self._session
        tracer = session.services.tracer
        assert tracer is not None
        tracer.end_turn(
            turn.id,
            turn.cause,
            self._stats,
            record.reason,
            record.error,
            session.key,
            session.state.profile.traceparent,
        )


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)
