"""The context that the turns of a session share: its collaborators, and steps that involve several."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import structlog

from conductor.conversation.approvals import Approvals
from conductor.conversation.client_profile import ClientProfile
from conductor.conversation.commit import Committer, EventEncoder
from conductor.conversation.device_calls import CancelReason, DeviceCalls
from conductor.conversation.history import HistoryBudget, repair
from conductor.conversation.services import Services
from conductor.conversation.snapshot import SPEECH, SUMMARY, TURN, SummarySnapshot, decode
from conductor.conversation.speech import PartialThrottle, ReplyBuffer, Speech, SpeechTracker
from conductor.conversation.tool_round import CallResults
from conductor.conversation.turn_state import EndReason, Step, TurnState
from conductor.errors import ErrorCode
from conductor.events.envelope import new_call_id
from conductor.events.server import (
    ServerEvent,
    SpeechPartial,
    ToolActivity,
    TurnEnded,
    TurnMetrics,
    set_state,
)
from conductor.messages import Message, Note, ToolResult
from conductor.models.base import Finished, ModelRequest
from conductor.speech import for_the_ear
from conductor.stores.base import CallRecord, ForgetCall, Operation
from conductor.tools.audit import SessionAudit
from conductor.tools.base import ToolOutcome, ToolSpec
from conductor.tools.device import PendingCalls
from conductor.tools.executor import PreparedCall, ToolExecutor
from conductor.tools.permissions import Verdict
from conductor.tools.rules import arguments_digest

log = structlog.get_logger(__name__)

_CANCEL_REASONS: Mapping[str, CancelReason] = {"timed_out": "timeout", "session_end": "session_end"}

# Clears the turn's snapshot.
ENDED: Mapping[str, Callable[[], str]] = {TURN: str}


class TurnContext:
    """The collaborators of one session's turns; ``turn`` is the running one."""

    def __init__(
        self,
        services: Services,
        profile: ClientProfile,
        pending: PendingCalls,
        committer: Committer,
        encoder: EventEncoder,
        results: CallResults,
        device: DeviceCalls,
        approvals: Approvals,
        speeches: SpeechTracker,
        audit: SessionAudit,
    ) -> None:
        self.limits = services.limits
        self.provider = services.provider_for(committer.key.subject)
        self.turn: TurnState | None = None
        self.profile = profile
        self.pending = pending
        self.committer = committer
        self.encoder = encoder
        self.outbox = encoder.outbox
        self.results = results
        self.device = device
        self.approvals = approvals
        self.speeches = speeches
        self.history = HistoryBudget(services.history_tokens)
        self.bridge_phrases = services.bridge_phrases
        self.tracer = services.tracer
        # Does not reveal the subject.
        key = f"{committer.key.subject} {committer.key.session_id}".encode("utf-8", "replace")
        self.cache_key = hashlib.sha256(key).hexdigest()[:32]
        self._metrics = services.metrics
        self._session_metrics = services.session_metrics
        self._log_content = services.log_content
        self._audit = audit
        self._model_metrics = services.model_metrics
        # By the loop's clock: until then the service's prompt cache holds this session's prompt.
        self.cached_until = float("-inf")
        self._partials = PartialThrottle(self._send_partial, self.limits.partial_interval)
        committer.register(TURN, lambda: "" if self.turn is None else self.turn.dump())

    @property
    def executor(self) -> ToolExecutor:
        return self.profile.executor

    @property
    def summary(self) -> SummarySnapshot | None:
        return decode(self.committer.state.fields.get(SUMMARY), SummarySnapshot)

    @property
    def messages(self) -> list[Message]:
        """The history to send to the model: the summary, if there is one, and the log."""
        summary, messages = self.summary, repair(self.committer.state.log)
        if summary is not None:
            messages.insert(0, Note(f"Summary of the conversation so far: {summary.text}", summary.untrusted))
        return messages

    def messages_after(self, request_messages: Sequence[Message], position: int) -> list[Message]:
        """Return the history of the turn's next request: its last one, and the log from ``position`` on.

        Messages that were sent stay the same, even if an earlier speech was interrupted since.
        """
        state = self.committer.state
        return repair([*request_messages, *state.log[position - state.log_start :]])

    async def commit(
        self,
        operations: Sequence[Operation],
        events: Sequence[ServerEvent] = (),
        snapshots: Mapping[str, Callable[[], str]] | None = None,
        after: Callable[[], None] | None = None,
    ) -> None:
        """Record the operations, then send the events. Raises `StoreError`."""
        cancellations: list[ServerEvent] = []
        stopped = self.turn.stopped_for if self.turn is not None else None
        reason = _CANCEL_REASONS.get(stopped or "interrupted", "barge_in")
        for operation in operations:
            if isinstance(operation, ForgetCall):
                cancellations += self.device.give_up(operation.call_id, reason)
        turn_id = self.turn.id if self.turn is not None else ""
        await self.committer.commit(
            operations, [*cancellations, *events], turn_id, snapshots=snapshots, after=after
        )

    def permit(self, spec: ToolSpec, arguments: Mapping[str, Any]) -> Verdict:
        """Decide whether a call with validated arguments may run."""
        # Untrusted text in the history may influence the model.
        summary = self.summary
        tainted = (summary is not None and summary.untrusted) or any(
            isinstance(message, ToolResult | Note) and message.untrusted
            for message in self.committer.state.log
        )
        now = asyncio.get_running_loop().time()
        unknown = spec.effect != "read" and self.device.unknowns.holds(
            arguments_digest(spec.name, arguments), now
        )
        verdict = self.executor.gate.decide(spec, arguments, tainted=tainted, may_have_happened=unknown)
        self._audit.record_decision(spec, arguments, verdict)
        return verdict

    def begins(self, ready: PreparedCall) -> None:
        """Note that a call starts."""
        if "activity" in self.profile.capabilities:
            name, source = ready.spec.name, ready.spec.source
            event = ToolActivity(ready.call.call_id, name, source, "started", display=f"{name} …")
            self.show_at_once(event)

    def ends(self, ready: PreparedCall, outcome: ToolOutcome) -> None:
        """Record the metrics of a call that ended, and show its end."""
        spec = ready.spec
        seconds = outcome.metadata.execution_time_ms / 1000
        self._metrics.count_call(spec.name, spec.source, outcome.error_type, seconds)
        if self.turn is not None:
            self.turn.stats.tool_s += seconds
            attributes = {"gen_ai.tool.name": spec.name, "gen_ai.tool.call.id": ready.call.call_id}
            start_ns = time.time_ns() - outcome.metadata.execution_time_ms * 1_000_000
            error = "" if outcome.success else outcome.error_type
            self.note_step(
                "execute_tool",
                spec.name,
                start_ns,
                error,
                {**attributes, "conductor.tool.source": spec.source},
            )
        self._audit.record_end(spec, ready.arguments, outcome)
        if outcome.error_type == "unknown" and spec.effect != "read":
            self.device.unknown(ready.call.call_id, arguments_digest(spec.name, ready.arguments))
        if "activity" in self.profile.capabilities:
            self.show_at_once(_finished(ready, outcome))

    def note_step(
        self,
        kind: Literal["chat", "execute_tool", "approval"],
        name: str,
        start_ns: int,
        error: str = "",
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        """Note a step that has just ended for the turn's trace; does nothing without traces."""
        if self.tracer is not None and self.turn is not None:
            step = Step(kind, name, start_ns, time.time_ns(), error, attributes or {})
            self.turn.stats.steps.append(step)

    def count(self, request: ModelRequest, finished: Finished) -> None:
        """Count the tokens and the cost of a reply."""
        self.history.learn(request, finished.usage)
        profile = finished.profile or self.provider.name
        self._model_metrics.count(profile, finished.usage, finished.cost)

    def count_warming(self, finished: Finished) -> None:
        """Count the tokens and the cost of a request that only filled the prompt cache."""
        profile = finished.profile or self.provider.name
        self._model_metrics.warmed(profile, finished.usage, finished.cost)

    def speech(self, turn: TurnState, text: str, text_to_speak: str) -> Speech | None:
        """Make a speech of ``text_to_speak``; None if it has no speakable text.

        ``text`` is the message that is about to be logged; a barge-in truncates it.
        """
        voice_text = for_the_ear(text_to_speak)
        if not voice_text:
            return None
        position = self.committer.state.log_end
        return Speech(new_call_id(), turn.id, position, text, voice_text, tuple(turn.actions))

    def speech_events(self, speech: Speech | None) -> list[ServerEvent]:
        """Make the UI calls that speak a speech."""
        if speech is None:
            return []
        states = [set_state(new_call_id(), "speaking")] if speech.segment == 0 else []
        return [*states, self.profile.speak(speech)]

    def speech_snapshot(self, speech: Speech | None) -> dict[str, Callable[[], str]]:
        """Make the snapshot of the speeches with this one; empty without one."""
        return {} if speech is None else {SPEECH: lambda: self.speeches.dump(speech)}

    def show(self, reply: ReplyBuffer) -> None:
        """Send the text of a reply while it streams, throttled."""
        if self.outbox.transport is not None:
            self._partials.show(reply)

    def stop_partials(self) -> None:
        """Stop sending partials."""
        self._partials.stop()

    def record(self, call_id: str) -> CallRecord | None:
        """Return the recorded state of a call."""
        return self.committer.state.calls.get(call_id)

    def _send_partial(self, text: str) -> None:
        speech_id = self.turn.speech_id if self.turn is not None else ""
        if self.turn is not None:
            self.turn.stats.mark_first("partial")
        in_segments = "segments" in self.profile.capabilities
        self.show_at_once(SpeechPartial(text, (speech_id or None) if in_segments else None))

    def show_at_once(self, event: ServerEvent) -> None:
        """Send an event without recording it."""
        self.outbox.send(self.encoder.frame(event))

    def report(self, turn: TurnState, reason: EndReason, error: ErrorCode | None) -> None:
        """Report a turn that has ended: in the metrics, its trace and the log, and to the client."""
        stats = turn.stats
        self._session_metrics.ended(turn.cause, reason, stats)
        if self.tracer is not None:
            key, traceparent = self.committer.key, self.profile.traceparent
            self.tracer.end_turn(turn, reason, error, key, traceparent)
        content = {"transcript": stats.transcript, "reply": stats.reply} if self._log_content else {}
        log.info(
            "turn",
            session=self.committer.key.session_id,
            turn=turn.id,
            end=reason,
            error=error,
            ms=_ms(time.monotonic() - stats.started),
            first_token_ms=_ms(stats.first_s.get("token")),
            rounds=stats.rounds,
            subject=self.committer.key.subject,
            models=",".join(stats.models) or None,
            cost=round(stats.cost, 6),
            input_tokens=stats.usage.read_tokens,
            output_tokens=stats.usage.output_tokens,
            trace=" -> ".join(stats.trace),
            **content,
        )
        if "metrics" not in self.profile.capabilities:
            return
        self.show_at_once(TurnEnded(turn.id, reason))
        self.show_at_once(
            TurnMetrics(
                turn.id,
                round(stats.tool_s * 1000),
                stats.usage.read_tokens,
                stats.usage.output_tokens,
                reason == "interrupted",
                _ms(stats.first_s.get("token")),
                _ms(stats.first_s.get("speech")),
            )
        )


def _finished(ready: PreparedCall, outcome: ToolOutcome) -> ToolActivity:
    name, metadata = ready.spec.name, outcome.metadata
    status = "done" if outcome.success else outcome.error_type.replace("_", " ")
    if metadata.reason == "device_error":
        status = "failed on the device"
    size, ms = metadata.data_size_bytes, metadata.execution_time_ms
    return ToolActivity(
        ready.call.call_id,
        name,
        ready.spec.source,
        "finished",
        outcome.error_type,
        ms,
        size,
        f"{name}: {status}, {size} bytes, {ms} ms",
    )


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)
