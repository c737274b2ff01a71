"""What the turns of a session are given: its tools and history, and the ways to record, show and say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from conductor.conversation.activity import finished, started
from conductor.conversation.batch import Batch
from conductor.conversation.delivery import Delivery
from conductor.conversation.device_calls import CancelReason, DeviceCalls
from conductor.conversation.heard import Speech
from conductor.conversation.ids import new_call_id
from conductor.conversation.ledger import Ledger
from conductor.conversation.memos import SPEECH, TURN, encode
from conductor.conversation.partials import Partials, Reply
from conductor.conversation.profile import Profile
from conductor.conversation.questions import Questions
from conductor.conversation.round import Round
from conductor.conversation.services import Services
from conductor.conversation.speeches import Speeches
from conductor.events.server import (
    ServerEvent,
    SpeechFinal,
    SpeechPartial,
    append_message,
    set_state,
    speak,
)
from conductor.messages import AssistantMessage, Message, Note, ToolResult
from conductor.speech import for_the_ear
from conductor.stores.base import AppendLog, CallRecord, ForgetCall, Operation
from conductor.tools.base import CallContext, ToolOutcome, ToolSpec
from conductor.tools.executor import Asked, Ready, ToolExecutor
from conductor.tools.pending import Pending
from conductor.tools.permissions import Verdict
from conductor.tools.rules import arguments_digest

if TYPE_CHECKING:
    from conductor.conversation.turn import Turn

_CANCEL_REASONS: Mapping[str, CancelReason] = {"timed_out": "timeout", "session_end": "session_end"}

ENDED: Mapping[str, Callable[[], str]] = {TURN: str}
"""There is no turn any more."""


class Host:
    """The `TurnHost` of one session; ``turn`` is the one that runs.

    ``follows`` says whether another turn follows at once: then the ``idle`` between is left out.
    """

    def __init__(
        self,
        services: Services,
        profile: Profile,
        pending: Pending,
        ledger: Ledger,
        delivery: Delivery,
        device: DeviceCalls,
        questions: Questions,
        speeches: Speeches,
        follows: Callable[[], bool],
    ) -> None:
        self.limits = services.limits
        self.provider = services.provider
        self.turn: Turn | None = None
        self.speeches = speeches
        self._profile = profile
        self.pending = pending
        self.ledger = ledger
        self.delivery = delivery
        self.device = device
        self.questions = questions
        self._figures = services.figures
        self._follows = follows
        self._partials = Partials(self._send_partial, self.limits.partial_interval)
        ledger.keep(TURN, lambda: turn_memo(self.turn))

    @property
    def executor(self) -> ToolExecutor:
        """The session's tools."""
        return self._profile.executor

    @property
    def messages(self) -> Sequence[Message]:
        """The history."""
        return self.ledger.state.log

    @property
    def system_prompt(self) -> str:
        """The prompt for this session."""
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
        await self.ledger.commit(operations, [*told, *events], turn_id)

    async def note_attempt(self) -> None:
        """Record that the model is about to be run anew. Raises `StoreError`."""
        self.ledger.changed(TURN)
        await self.ledger.flush()

    def permit(self, spec: ToolSpec, arguments: Mapping[str, Any]) -> Verdict:
        """Decide about a call with validated arguments."""
        changes = spec.effect != "read"
        tainted = changes and any(
            isinstance(one, ToolResult | Note) and one.untrusted for one in self.messages
        )
        now = asyncio.get_running_loop().time()
        unknown = changes and self.device.unknowns.holds(arguments_digest(spec.name, arguments), now)
        return self.executor.gate.judge(spec, arguments, tainted=tainted, may_have_happened=unknown)

    async def ask(self, turn_id: str, asked: Sequence[Asked]) -> Batch:
        """Ask a person about calls. Raises `StoreError`."""
        return await self.questions.ask(turn_id, asked)

    async def withdraw_questions(self) -> tuple[list[Operation], list[ServerEvent]]:
        """Close the questions that stand; gives what is to be committed and sent for that."""
        return await self.questions.withdraw()

    def begins(self, ready: Ready) -> None:
        """Note that a call is run."""
        if "activity" in self._profile.capabilities:
            self.show_at_once(started(ready))

    def ends(self, ready: Ready, outcome: ToolOutcome) -> None:
        """Note what came of a call that was run."""
        spec = ready.spec
        took = outcome.metadata.execution_time_ms / 1000
        self._figures.called(spec.name, spec.source, outcome.error_type, took)
        if outcome.error_type == "unknown" and spec.effect != "read":
            self.device.unknown(ready.call.call_id, arguments_digest(spec.name, ready.arguments))
        if "activity" in self._profile.capabilities:
            self.show_at_once(finished(ready, outcome))

    async def say(self, turn: Turn, message: AssistantMessage, prepared: Round | None = None) -> None:
        """Commit and send a message of the assistant; without a round of calls it is the turn's last."""
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
        turn.figures.answered = message.text or turn.figures.answered
        memos = ({TURN: lambda: turn_memo(turn)} if prepared is not None else {**ENDED}) | self.spoken_memo(
            speech
        )
        end = turn.end if prepared is None else None
        await self.ledger.commit(operations, events, turn.id, memos=memos, then=end)
        self.speeches.add(speech)

    def speech(self, turn: Turn, text: str, said: str) -> Speech | None:
        """Make a speech of ``said``, if there is anything to hear in it.

        ``text`` is that of the message which is about to be logged, and which a barge-in would cut.
        """
        spoken = for_the_ear(said)
        if not spoken:
            return None
        position = self.ledger.state.log_end
        return Speech(new_call_id(), turn.id, position, text, spoken, tuple(turn.actions))

    def spoken_memo(self, speech: Speech | None) -> dict[str, Callable[[], str]]:
        """Make the memo of the speeches with this one, if there is one."""
        return {} if speech is None else {SPEECH: lambda: self.speeches.kept(speech)}

    def show(self, reply: Reply) -> None:
        """Show the live text of a reply."""
        if self.delivery.outbox.transport is not None:
            self._partials.show(reply)

    def hush(self) -> None:
        """Stop showing it."""
        self._partials.stop()

    def expect(self, call_id: str) -> None:
        """Make ready for the device's answer to a call."""
        self.pending.expect(call_id)

    def forget(self, call_id: str) -> None:
        """Expect no answer any more."""
        self.pending.forget(call_id)

    def record(self, call_id: str) -> CallRecord | None:
        """Look a call up: what was recorded of it decides."""
        return self.ledger.state.calls.get(call_id)

    def withdraw(self, call_id: str) -> bool:
        """Take a call back that no socket has had; False if one has."""
        return self.delivery.outbox.withdraw(call_id)

    def new_call_id(self) -> str:
        """Make an id for a call."""
        return new_call_id()

    def context(self, call_id: str) -> CallContext:
        """Say what a tool may know of the session."""
        return self._profile.context(call_id)

    def _send_partial(self, text: str) -> None:
        self.show_at_once(SpeechPartial(text))

    def show_at_once(self, event: ServerEvent) -> None:
        """Send what need not be recorded."""
        self.delivery.outbox.send(self.delivery.frame(event))


def turn_memo(turn: Turn | None) -> str:
    """Write down what another process would have to know of a turn."""
    return "" if turn is None or turn.over else encode(turn.memo())


def speech_events(speech: Speech | None) -> list[ServerEvent]:
    """Make the UI calls that have a speech spoken."""
    if speech is None:
        return []
    return [set_state(new_call_id(), "speaking"), speak(speech.call_id, speech.spoken)]
