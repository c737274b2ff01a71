"""What a turn needs of its session: tools, history, commit, approvals, speech."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from conductor.conversation.approvals import ApprovalBatch, Approvals
from conductor.conversation.client_profile import ClientProfile
from conductor.conversation.commit import Committer, EventEncoder
from conductor.conversation.device_calls import CancelReason, DeviceCalls
from conductor.conversation.services import Services
from conductor.conversation.snapshot import SPEECH, TURN, encode
from conductor.conversation.speech import PartialThrottle, ReplyBuffer, Speech, SpeechTracker
from conductor.conversation.tool_round import RunningTurn, ToolRound, finished, started
from conductor.conversation.turn import Turn
from conductor.events.envelope import new_call_id
from conductor.events.server import ServerEvent, SpeechFinal, SpeechPartial, append_message, set_state, speak
from conductor.messages import AssistantMessage, Message, Note, ToolResult
from conductor.speech import for_the_ear
from conductor.stores.base import AppendLog, CallRecord, ForgetCall, Operation, SetField
from conductor.tools.base import CallContext, ToolOutcome, ToolSpec
from conductor.tools.executor import ApprovalNeeded, PreparedCall, ToolExecutor
from conductor.tools.pending import PendingCalls
from conductor.tools.permissions import Verdict
from conductor.tools.rules import arguments_digest

_CANCEL_REASONS: Mapping[str, CancelReason] = {"timed_out": "timeout", "session_end": "session_end"}

# Clears the turn's snapshot.
ENDED: Mapping[str, Callable[[], str]] = {TURN: str}


class Host:
    """The `TurnHost` of one session; ``turn`` is the one that runs.

    ``follows`` tells whether another turn starts at once: then no ``idle`` is sent between them.
    """

    def __init__(
        self,
        services: Services,
        profile: ClientProfile,
        pending: PendingCalls,
        committer: Committer,
        encoder: EventEncoder,
        device: DeviceCalls,
        approvals: Approvals,
        speeches: SpeechTracker,
        follows: Callable[[], bool],
    ) -> None:
        self.limits = services.limits
        self.provider = services.provider_for(committer.key.subject)
        self.turn: Turn | None = None
        self.speeches = speeches
        self._profile = profile
        self.pending = pending
        self.committer = committer
        self.encoder = encoder
        self.device = device
        self.approvals = approvals
        self._metrics = services.metrics
        self._follows = follows
        self._partials = PartialThrottle(self._send_partial, self.limits.partial_interval)
        committer.register(TURN, lambda: turn_snapshot(self.turn))

    @property
    def executor(self) -> ToolExecutor:
        return self._profile.executor

    @property
    def messages(self) -> Sequence[Message]:
        return self.committer.state.log

    @property
    def system_prompt(self) -> str:
        return self._profile.system_prompt

    async def commit(self, operations: Sequence[Operation], events: Sequence[ServerEvent] = ()) -> None:
        """Record the operations, then send the events. Raises `StoreError`."""
        told: list[ServerEvent] = []
        stopped = self.turn.stopped_for if self.turn is not None else None
        reason = _CANCEL_REASONS.get(stopped or "interrupted", "barge_in")
        for operation in operations:
            if isinstance(operation, ForgetCall):
                told += self.device.give_up(operation.call_id, reason)
        turn_id = self.turn.id if self.turn is not None else ""
        await self.committer.commit(operations, [*told, *events], turn_id)

    async def note_attempt(self) -> None:
        """Record that the model is about to be asked again. Raises `StoreError`."""
        self.committer.mark_dirty(TURN)
        await self.committer.flush()

    def permit(self, spec: ToolSpec, arguments: Mapping[str, Any]) -> Verdict:
        """Decide about a call with validated arguments."""
        # Untrusted text in the history may steer the model: a call that changes something is tainted then.
        changes = spec.effect != "read"
        tainted = changes and any(
            isinstance(one, ToolResult | Note) and one.untrusted for one in self.messages
        )
        now = asyncio.get_running_loop().time()
        unknown = changes and self.device.unknowns.holds(arguments_digest(spec.name, arguments), now)
        return self.executor.gate.decide(spec, arguments, tainted=tainted, may_have_happened=unknown)

    async def ask(self, turn_id: str, asked: Sequence[ApprovalNeeded]) -> ApprovalBatch:
        """Ask a person about calls. Raises `StoreError`."""
        return await self.approvals.ask(turn_id, asked)

    async def withdraw_questions(self) -> tuple[list[Operation], list[ServerEvent]]:
        """Close the pending approvals; returns what to commit and send for that."""
        return await self.approvals.withdraw()

    def begins(self, ready: PreparedCall) -> None:
        """Note that a call starts."""
        if "activity" in self._profile.capabilities:
            self.show_at_once(started(ready))

    def ends(self, ready: PreparedCall, outcome: ToolOutcome) -> None:
        """Record the metrics of a call that ended, and show its end."""
        spec = ready.spec
        took = outcome.metadata.execution_time_ms / 1000
        self._metrics.called(spec.name, spec.source, outcome.error_type, took)
        if outcome.error_type == "unknown" and spec.effect != "read":
            self.device.unknown(ready.call.call_id, arguments_digest(spec.name, ready.arguments))
        if "activity" in self._profile.capabilities:
            self.show_at_once(finished(ready, outcome))

    async def say(
        self, turn: RunningTurn, message: AssistantMessage, prepared: ToolRound | None = None
    ) -> None:
        """Commit and send an assistant message; without a tool round it is the turn's last."""
        operations: list[Operation] = [AppendLog(message)]
        events: list[ServerEvent] = []
        device_calls = prepared.device_calls if prepared is not None else []
        if message.text:
            events += [SpeechFinal(message.text), append_message(new_call_id(), "assistant", message.text)]
        speech = self.speech(turn, message.text, "" if device_calls else message.text)
        events += speech_events(speech)
        if speech is not None and prepared is not None and turn.cause != "news":
            events.append(set_state(new_call_id(), "thinking"))
        if prepared is not None:
            operations += prepared.open(turn.id)
            events += [self._profile.tool_call(ready) for ready in device_calls]
        elif not self._follows():
            events.append(set_state(new_call_id(), "idle"))
        turn.stats.answered = message.text or turn.stats.answered
        snapshots = (
            {TURN: lambda: turn_snapshot(turn)} if prepared is not None else {**ENDED}
        ) | self.spoken_snapshot(speech)

        def said() -> None:
            self.speeches.add(speech)
            if prepared is None:
                turn.end()

        await self.committer.commit(operations, events, turn.id, snapshots=snapshots, then=said)

    def speech(self, turn: RunningTurn, text: str, said: str) -> Speech | None:
        """Make a speech of ``said``; None if it has no speakable text.

        ``text`` is the message that is about to be logged, and that a barge-in truncates.
        """
        spoken = for_the_ear(said)
        if not spoken:
            return None
        position = self.committer.state.log_end
        return Speech(new_call_id(), turn.id, position, text, spoken, tuple(turn.actions))

    def spoken_snapshot(self, speech: Speech | None) -> dict[str, Callable[[], str]]:
        """Make the snapshot of the speeches with this one; empty without one."""
        return {} if speech is None else {SPEECH: lambda: self.speeches.dump(speech)}

    def show(self, reply: ReplyBuffer) -> None:
        """Send the text of a reply while it streams, throttled."""
        if self.encoder.outbox.transport is not None:
            self._partials.show(reply)

    def stop_partials(self) -> None:
        """Stop sending partials."""
        self._partials.stop()

    def expect(self, call_id: str) -> None:
        """Register a call before its result can arrive."""
        self.pending.expect(call_id)

    def forget(self, call_id: str) -> None:
        """Drop a call's registration."""
        self.pending.forget(call_id)

    def record(self, call_id: str) -> CallRecord | None:
        """Return the recorded state of a call."""
        return self.committer.state.calls.get(call_id)

    def withdraw(self, call_id: str) -> bool:
        """Withdraw a call that was not written to a socket; False if it was."""
        return self.encoder.outbox.withdraw(call_id)

    def new_call_id(self) -> str:
        """Make a call id."""
        return new_call_id()

    def context(self, call_id: str) -> CallContext:
        """Make the context that a tool gets."""
        return self._profile.context(call_id)

    def _send_partial(self, text: str) -> None:
        self.show_at_once(SpeechPartial(text))

    def show_at_once(self, event: ServerEvent) -> None:
        """Send an event without recording it."""
        self.encoder.outbox.send(self.encoder.frame(event))


def turn_snapshot(turn: RunningTurn | None) -> str:
    """Encode the snapshot from which another process resumes a turn."""
    return "" if turn is None or turn.over else encode(turn.snapshot())


def speech_events(speech: Speech | None) -> list[ServerEvent]:
    """Make the UI calls that speak a speech."""
    if speech is None:
        return []
    return [set_state(new_call_id(), "speaking"), speak(speech.call_id, speech.spoken)]


# Prefix of the tools' fields, so that no tool can overwrite a field of the session.
PREFIX = "tool:"


class Fields:
    """The `SessionFields` of one session."""

    def __init__(self, committer: Committer) -> None:
        self._committer = committer
        self._lock = asyncio.Lock()

    def get(self, name: str) -> str | None:
        """Read a field."""
        return self._committer.state.fields.get(PREFIX + name)

    async def update(self, name: str, change: Callable[[str | None], str]) -> None:
        """Replace a field by what ``change`` returns. Raises `StoreError`, and what ``change`` raises."""
        async with self._lock:
            await self._committer.commit([SetField(PREFIX + name, change(self.get(name)))])
