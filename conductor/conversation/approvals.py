"""The pending approvals of a session: each is presented, and decided once."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

import msgspec
import structlog

from conductor.conversation.client_profile import ClientProfile
from conductor.conversation.commit import Committer
from conductor.conversation.grants import Grants
from conductor.conversation.outbox import Outbox
from conductor.conversation.snapshot import DECIDED, PROMPT, DecidedSnapshot, PromptSnapshot, decode, encode
from conductor.conversation.speech import Speech, SpeechTracker
from conductor.conversation.tasks import Tasks
from conductor.conversation.transport import Transport
from conductor.errors import Duplicate, StoreError
from conductor.events.client import Decision
from conductor.events.envelope import IdGenerator, new_call_id
from conductor.events.server import (
    ApprovalRequest,
    ApprovalResolved,
    ServerEvent,
    set_state,
)
from conductor.settings import Limits
from conductor.stores.base import FinishCall, ForgetCall, OpenCall, Operation, SetField
from conductor.tools.approvals import (
    DEFINITION_CHANGED,
    SCOPES,
    Approval,
    Outcome,
    Scope,
    denied,
    encode_approvals,
    not_answered,
)
from conductor.tools.audit import SessionAudit
from conductor.tools.base import Caution, ToolOutcome, failed
from conductor.tools.executor import ApprovalNeeded, PreparedCall
from conductor.tools.metrics import ToolMetrics
from conductor.tools.pending import PendingCalls
from conductor.tools.permissions import Verdict, grant
from conductor.tools.rules import Rule, arguments_digest
from conductor.tools.spoken import Question, make_question, prompt

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Decided:
    """A decided approval: run ``ready``, or record ``outcome`` as the call's result."""

    asked: ApprovalNeeded
    ready: PreparedCall | None
    outcome: ToolOutcome | None


# The source of questions that tools ask while they run: no call is recorded for them.
QUESTION = "question"


class ApprovalBatch:
    """The approvals for one model reply; the turn reads their decisions one by one."""

    def __init__(self, count: int = 0) -> None:
        self._undecided = count
        self._decided: asyncio.Queue[Decided] = asyncio.Queue()

    @property
    def open(self) -> bool:
        return self._undecided > 0

    async def next(self) -> Decided:
        """Wait for the next decision."""
        decided = await self._decided.get()
        self._undecided -= 1
        return decided

    def put(self, decided: Decided) -> None:
        """Queue a decision for the turn."""
        self._decided.put_nowait(decided)

    def rest(self) -> list[Decided]:
        """Return the queued decisions that the turn has not read."""
        taken = []
        while not self._decided.empty():
            taken.append(self._decided.get_nowait())
        return taken


@dataclass(slots=True)
class PendingApproval:
    """An approval that a person has not decided yet.

    ``by_card``: the client shows it, else it is spoken. ``arguments`` are those that may be shown.
    ``opened_at``, ``presented_at`` and ``shown_at`` are the loop's times; ``shown_at`` is None until the
    client that is connected now has reported that the card is visible.
    """

    approval: Approval
    asked: ApprovalNeeded
    batch: ApprovalBatch
    question: Question
    arguments: dict[str, Any]
    by_card: bool
    opened_at: float
    timer: asyncio.TimerHandle | None = None
    presented_at: float = 0.0
    shown_at: float | None = None

    def text(self, attempt: int = 1) -> str:
        """Return the question's text, the same on a card and in speech."""
        return prompt(self.question, attempt)

    def card(self) -> ApprovalRequest:
        """Make the event that shows the card."""
        self.by_card, self.shown_at = True, None
        approval = self.approval
        return ApprovalRequest(
            approval.approval_id,
            approval.batch_id,
            approval.call_id,
            approval.tool,
            self.arguments,
            approval.digest,
            approval.risk,
            approval.reasons,
            self.text(),
            approval.scopes,
            approval.expires_at,
            approval.preview,
        )


class SpokenPrompts:
    """Presents approvals by voice, and tracks the last prompt.

    ``interrupted``: the last prompt was cut off, even if the device acknowledges it. ``unsent`` is its call
    id while the commit that sends it is running.
    """

    def __init__(self, profile: ClientProfile, outbox: Outbox, speeches: SpeechTracker) -> None:
        self._profile = profile
        self._outbox = outbox
        self._speeches = speeches
        self._append_id = ""
        self._speak_id = ""
        self._approval_id = ""
        self.interrupted = False
        self.unsent = ""

    def present(self, question: PendingApproval, *, to_newcomer: bool = False) -> list[ServerEvent]:
        """Make the UI calls that present a question and then open the microphone.

        A newly connected client may have missed the prompt: it gets the whole question, and that does not
        count as another attempt.
        """
        approval = question.approval
        presentations = approval.presentations + (0 if to_newcomer else 1)
        question.by_card = False
        question.approval = msgspec.structs.replace(
            approval, presented=False, presentations=max(1, presentations)
        )
        text = question.text(1 if to_newcomer else 1 + approval.unclear)
        self._append_id, self._speak_id = new_call_id(), new_call_id()
        self._approval_id, self.unsent = approval.approval_id, self._speak_id
        self.interrupted = False
        # No turn and no log position: an interruption of a prompt truncates no message and stops no turn.
        speech = Speech(self._speak_id, "", -1, text, text)
        self._speeches.add(speech)
        return [
            self._profile.append_message("assistant", text, speech.speech_id, self._append_id),
            set_state(new_call_id(), "speaking"),
            self._profile.speak(speech),
            set_state(new_call_id(), "idle"),
        ]

    def dump(self) -> str:
        """Encode the last prompt for the snapshot."""
        if not self._approval_id:
            return ""
        return encode(PromptSnapshot(self._append_id, self._speak_id, self._approval_id))

    def restore(self, stored: str | None) -> None:
        """Restore the last prompt from a snapshot."""
        snapshot = decode(stored, PromptSnapshot)
        if snapshot is not None:
            self._append_id, self._speak_id = snapshot.append_id, snapshot.speak_id
            self._approval_id = snapshot.approval_id
            if self.speaking:
                self._speeches.add(Speech(self._speak_id, "", -1, "", ""))

    def sent(self, speak_id: str) -> None:
        """Note that the commit of a prompt has ended."""
        if speak_id == self.unsent:
            self.unsent = ""

    def forget(self, speak_id: str) -> None:
        """Forget a prompt that could not be sent."""
        self._speeches.forget(speak_id)

    def approval_of(self, speak_id: str) -> str | None:
        """Return the approval id of a speech; None unless it is the last prompt."""
        return self._approval_id if speak_id == self._speak_id else None

    @property
    def text_shown(self) -> bool:
        return not self._outbox.is_outstanding(self._append_id)

    @property
    def speaking(self) -> bool:
        return bool(self.unsent) or self._outbox.is_outstanding(self._speak_id)


# The session field that holds the pending approvals.
FIELD = "approvals"
# Closed approvals kept in memory, to answer late decisions.
MAX_CLOSED = 64

# Closed approvals written to the snapshot. Each decision writes them, so fewer than MAX_CLOSED.
MAX_STORED = 8
_OUTCOMES: Mapping[str, Outcome] = {"allow": "allowed", "deny": "denied", "edit": "edited"}
_NONE: Mapping[str, Outcome] = {}

_approval_ids = IdGenerator("appr")
_batch_ids = IdGenerator("batch")


@dataclass(frozen=True, slots=True)
class SpokenAnswer:
    """The operations and events that record and show a spoken answer."""

    operations: Sequence[Operation] = ()
    events: Sequence[ServerEvent] = ()


NOT_SPOKEN = SpokenAnswer()


@dataclass(slots=True)
class _Closed:
    outcome: Outcome
    # The connection that has had the outcome, None if no client was connected.
    told_by: Transport | None = None


@dataclass(slots=True)
class Approvals:
    """Asks a person about calls, and takes decisions. A decision is recorded before its call runs.

    ``pending`` is in the order of asking, ``deciding`` holds the ids whose decision is being recorded,
    ``undelivered`` the outcomes of cards that closed while no client was connected. ``closed_at`` is the
    loop's time at which the last approval closed.
    """

    limits: Limits
    profile: ClientProfile
    pending_calls: PendingCalls
    committer: Committer
    outbox: Outbox
    prompts: SpokenPrompts
    tasks: Tasks
    grants: Grants
    figures: ToolMetrics
    audit: SessionAudit
    pending: OrderedDict[str, PendingApproval] = field(default_factory=OrderedDict)
    deciding: set[str] = field(default_factory=set)
    undelivered: list[tuple[str, Outcome]] = field(default_factory=list)
    closed_at: float = 0.0
    _open: asyncio.Event = field(default_factory=asyncio.Event)
    _settled: asyncio.Event = field(default_factory=asyncio.Event)
    _closed: OrderedDict[str, _Closed] = field(default_factory=OrderedDict)

    @property
    def open(self) -> bool:
        return bool(self.pending)

    @property
    def focus(self) -> PendingApproval | None:
        return next(iter(self.pending.values()), None)

    async def opened(self) -> None:
        """Wait until an approval is pending."""
        await self._open.wait()

    # -- what a turn asks for

    async def ask(self, turn_id: str, asked: Sequence[ApprovalNeeded]) -> ApprovalBatch:
        """Ask about the calls of one reply. Raises `StoreError`."""
        batch, batch_id = ApprovalBatch(len(asked)), _batch_ids()
        by_card = "approval" in self.profile.capabilities
        asking: list[PendingApproval] = []
        for one in asked:
            await asyncio.sleep(0)  # others run between two steps: 64 KiB of arguments take 30 ms in each
            shown = self._shown(one)
            await asyncio.sleep(0)
            preview = await self.profile.executor.preview(one.ready) if by_card else ""
            asking.append(self._make(one, shown, preview, batch, batch_id, turn_id))
        for question in asking:
            self.pending[question.approval.approval_id] = question
        try:
            await self.commit([], self.cards(asking) if by_card else self.prompts.present(asking[0]))
        except BaseException:
            self.pending.clear()
            raise
        loop = asyncio.get_running_loop()
        for question in asking:
            question.timer = loop.call_later(self.limits.approval_timeout, self._expire, question)
            self._open.set()
            self.figures.asked(question.asked.ready.spec.name, question.asked.ready.spec.source)
        return batch

    @staticmethod
    def cards(asking: Sequence[PendingApproval]) -> list[ServerEvent]:
        """Make the events that show cards, with the microphone open for an answer."""
        return [*(one.card() for one in asking), set_state(new_call_id(), "idle")]

    def _dump_outcomes(self, decided: Mapping[str, Outcome]) -> str:
        closed = [(key, one.outcome) for key, one in self._closed.items()]
        return encode(DecidedSnapshot(dict([*closed, *decided.items()][-MAX_STORED:])))

    def restore_outcomes(self) -> None:
        """Restore the outcomes of closed approvals, to answer decisions that a client repeats."""
        snapshot = decode(self.committer.state.fields.get(DECIDED), DecidedSnapshot)
        if snapshot is not None:
            known = [(key, cast(Outcome, outcome)) for key, outcome in snapshot.outcomes.items()]
            self._closed.update((key, _Closed(outcome)) for key, outcome in known)
            self.undelivered = known  # the previous process may have died before its event arrived

    def restore(self, standing: Sequence[tuple[ApprovalNeeded, Approval]]) -> ApprovalBatch | None:
        """Restore pending approvals from the store; None if there are none.

        `SpokenApprovals.attached` presents them.
        """
        if not standing:
            return None
        batch = ApprovalBatch(len(standing))
        loop = asyncio.get_running_loop()
        for asked, approval in standing:
            question = self._question(asked, self._shown(asked), approval, batch)
            question.by_card = self.outbox.is_outstanding(approval.approval_id)
            left = approval.expires_ms / 1000 - time.time()
            question.timer = loop.call_later(max(0.0, left), self._expire, question)
            self.pending[approval.approval_id] = question
            self._open.set()
        self.prompts.restore(self.committer.state.fields.get(PROMPT))
        return batch

    async def withdraw(self) -> tuple[list[Operation], list[ServerEvent]]:
        """Close all approvals because the turn ends; returns what to commit and send with its end."""
        await self.decisions_recorded()
        if not self.pending:
            return [], []
        events: list[ServerEvent] = []
        for question in list(self.pending.values()):
            self._close(question, "superseded")
            events += self._resolved(question, "superseded")
        return [SetField(FIELD, ""), SetField(DECIDED, self._dump_outcomes(_NONE))], events

    def withdraw_cards(self) -> None:
        """Withdraw all cards: the client that is connected now may not support them, or gets new ones."""
        for question in self.pending.values():
            self.withdraw_card(question)
            question.by_card = False

    async def decisions_recorded(self) -> None:
        """Wait until no decision is being recorded."""
        while self.deciding:
            self._settled.clear()
            await self._settled.wait()

    def close(self) -> None:
        """Cancel the timers of all approvals."""
        for question in self.pending.values():
            if question.timer is not None:
                question.timer.cancel()

    # -- what the client says

    def card_shown(self, approval_id: str) -> None:
        """Note that a card is visible: from now on it may be answered by voice."""
        question = self.pending.get(approval_id)
        if question is not None and question.by_card and self.outbox.was_written(approval_id):
            question.shown_at = asyncio.get_running_loop().time()

    def forget_shown(self) -> None:
        """Count no card as visible: another client has connected, or the same one reconnected."""
        for question in self.pending.values():
            question.shown_at = None

    async def decide(self, decision: Decision, answer: Callable[[ServerEvent], None]) -> None:
        """Take a decision; a decision that is refused is answered. Raises `StoreError`."""
        approval_id = decision.approval_id
        question = self.pending.get(approval_id)
        if question is None or approval_id in self.deciding:
            answer(self._too_late(approval_id, decision.decision))
            return
        approval, refusal = question.approval, None
        if decision.arguments_digest != approval.digest:
            refusal = "This decision is about other arguments than those that are asked about."
        elif decision.decision == "deny":
            await self.reject(question, "denied", denied(decision.message))
        elif decision.decision == "edit":
            refusal = await self._edit(question, decision)
        else:
            # A scope that would save no later question is not offered: such a decision counts once.
            scope = decision.scope if decision.scope in approval.scopes else "once"
            await self.allow(question, question.asked.ready, "allowed", scope, decision.message)
        if refusal is not None:
            answer(ApprovalResolved(approval_id, "refused", refusal))

    # -- asking

    def _shown(self, asked: ApprovalNeeded) -> dict[str, Any]:
        return dict(self.profile.executor.redacted(asked.ready.arguments))

    def _make(
        self,
        asked: ApprovalNeeded,
        shown: dict[str, Any],
        preview: str,
        batch: ApprovalBatch,
        batch_id: str,
        turn_id: str,
    ) -> PendingApproval:
        spec, arguments = asked.ready.spec, asked.ready.arguments
        approval = Approval(
            approval_id=_approval_ids(),
            batch_id=batch_id,
            call_id=asked.ready.call.call_id,
            turn_id=turn_id,
            tool=spec.name,
            arguments=arguments,
            digest=arguments_digest(spec.name, arguments),
            risk=spec.risk,
            reasons=asked.verdict.reasons,
            scopes=self._scopes(asked),
            expires_ms=time.time_ns() // 1_000_000 + round(self.limits.approval_timeout * 1000),
            fingerprint=spec.fingerprint,
            cautions=asked.verdict.cautions,
            preview=preview,
        )
        return self._question(asked, shown, approval, batch)

    def _question(
        self, asked: ApprovalNeeded, shown: dict[str, Any], approval: Approval, batch: ApprovalBatch
    ) -> PendingApproval:
        spec = asked.ready.spec
        question = make_question(spec, shown, approval.cautions, approval.scopes, self.profile.locale)
        now = asyncio.get_running_loop().time()
        return PendingApproval(approval, asked, batch, question, shown, by_card=False, opened_at=now)

    def _scopes(self, asked: ApprovalNeeded) -> tuple[Scope, ...]:
        ready = asked.ready
        if ready.spec.source == QUESTION:
            return SCOPES[:1]
        granted = [grant(ready.spec, ready.arguments, scope="session")]
        verdict = self._judge(ready, asked.verdict.cautions, granted)
        if verdict.effect == "ask":
            return SCOPES[:1]
        return SCOPES if self.grants.lasting else SCOPES[:2]

    def _judge(
        self, ready: PreparedCall, cautions: Sequence[Caution], granted: Sequence[Rule] = ()
    ) -> Verdict:
        return self.profile.executor.gate.decide(
            ready.spec,
            ready.arguments,
            tainted="untrusted" in cautions,
            may_have_happened="may_have_happened" in cautions,
            granted=granted,
        )

    # -- deciding

    async def _edit(self, question: PendingApproval, decision: Decision) -> str | None:
        edited = decision.edited_arguments or {}
        # A client may send the card's redacted arguments back unchanged: the placeholder is no value.
        if "[REDACTED:" in str(edited) and "[REDACTED:" not in str(question.asked.ready.arguments):
            return "What was withheld from the card must be written out, or left to an unedited allow."
        ready = self.profile.executor.edited(question.asked.ready, edited)
        if isinstance(ready, str):
            return ready
        verdict = self._judge(ready, ())
        if verdict.effect == "deny":
            return " ".join(verdict.reasons)
        await self.allow(question, ready, "edited", "once", decision.message)
        self.audit.answered(ready.spec, ready.arguments, "edited", by_voice=False)  # what runs instead
        return None

    async def allow(
        self,
        question: PendingApproval,
        ready: PreparedCall,
        outcome: Outcome,
        scope: Scope,
        words: str | None,
        said: SpokenAnswer = NOT_SPOKEN,
    ) -> None:
        """Record a decision and dispatch the call in one commit, so that a decision runs one call once."""
        call_id = ready.call.call_id
        # The model reads the person's words with the result ("yes, but only the first one").
        note = f"The user allowed this call, saying: {words!r}." if words else "The user allowed this call."
        ready = replace(ready, notes=(*ready.notes, note))
        with self._decision(question):
            granted = await self.grants.add(ready.spec, ready.arguments, scope)
            # The tool or the rules may have changed while the person was thinking.
            forbidden = self._forbidden(ready)
            if forbidden is not None:
                await self._record_rejection(question, "superseded", forbidden, said)
                return
            if ready.spec.source == QUESTION:
                await self._commit_decision(question, outcome, [], [], said)
                question.batch.put(Decided(question.asked, ready, None))
                return
            record = self.committer.state.calls[call_id]
            record = msgspec.structs.replace(
                record,
                notes=ready.notes,
                consent="given",
                opened_ms=time.time_ns()
                // 1_000_000,  # the time limit of the call excludes the person's thinking
            )
            operations = [ForgetCall(call_id), OpenCall(record), *granted]
            if ready.spec.source != "device":
                await self._commit_decision(question, outcome, operations, [], said)
            else:
                self.pending_calls.expect(call_id)
                try:
                    await self._commit_decision(
                        question, outcome, operations, [self.profile.tool_call(ready)], said
                    )
                except StoreError:
                    self.pending_calls.forget(call_id)
                    raise
        question.batch.put(Decided(question.asked, ready, None))
        await self._apply_to_others(question, outcome, scope)

    def _forbidden(self, ready: PreparedCall) -> ToolOutcome | None:
        if ready.spec.source == QUESTION:
            return None
        spec = self.profile.executor.spec(ready.spec.name)
        if spec is None or spec.fingerprint != ready.spec.fingerprint:
            return failed("permission_denied", DEFINITION_CHANGED, reason="definition_changed")
        verdict = self._judge(ready, ())
        if verdict.effect == "deny":
            return failed(
                "permission_denied", f"{' '.join(verdict.reasons)} Nothing was run.", reason="policy"
            )
        return None

    async def _apply_to_others(
        self, question: PendingApproval, outcome: Outcome, scope: Scope = "once"
    ) -> None:
        for other in list(self.pending.values()):
            same = other.approval.digest == question.approval.digest
            key = other.approval.approval_id
            if self.pending.get(key) is not other or key in self.deciding:
                continue  # it was decided while this waited for a commit
            if outcome == "denied" and same:
                await self.reject(other, "denied", denied(None))
            elif (
                scope != "once" and self._judge(other.asked.ready, other.approval.cautions).effect == "allow"
            ):
                await self.allow(other, other.asked.ready, "allowed", "once", None)

    async def reject(
        self,
        question: PendingApproval,
        outcome: Outcome,
        result: ToolOutcome,
        said: SpokenAnswer = NOT_SPOKEN,
    ) -> None:
        """Record that a call is not run."""
        with self._decision(question):
            await self._record_rejection(question, outcome, result, said)
        await self._apply_to_others(question, outcome)

    async def _record_rejection(
        self, question: PendingApproval, outcome: Outcome, result: ToolOutcome, said: SpokenAnswer
    ) -> None:
        call_id = question.approval.call_id
        finish = [FinishCall(call_id, self.profile.executor.to_result(call_id, result))]
        if question.asked.ready.spec.source == QUESTION:
            finish = []
        await self._commit_decision(question, outcome, finish, [], said)
        question.batch.put(Decided(question.asked, None, result))

    @contextmanager
    def _decision(self, question: PendingApproval) -> Iterator[None]:
        approval_id = question.approval.approval_id
        self.deciding.add(approval_id)
        try:
            yield
        finally:
            self.deciding.discard(approval_id)
            self._settled.set()

    async def _commit_decision(
        self,
        question: PendingApproval,
        outcome: Outcome,
        operations: Sequence[Operation],
        calls: Sequence[ServerEvent],
        said: SpokenAnswer,
    ) -> None:
        approval_id = question.approval.approval_id
        events = [*said.events, *self._resolved(question, outcome)]
        following = next((one for key, one in self.pending.items() if key != approval_id), None)
        # The microphone stays open for the answer to a card, and no one has spoken where a question expires.
        if outcome != "expired" and (following is None or not following.by_card):
            events.append(set_state(new_call_id(), "thinking"))
        events += calls
        if following is not None and not following.by_card:
            events += self.prompts.present(following)
        decided = {approval_id: outcome}
        await self.commit([*said.operations, *operations], events, decided)
        self._close(question, outcome, by_voice=said is not NOT_SPOKEN)

    async def commit(
        self,
        operations: Sequence[Operation],
        events: Sequence[ServerEvent],
        decided: Mapping[str, Outcome] = _NONE,
    ) -> None:
        """Commit, with the approvals that are pending then and those ``decided`` by this commit."""
        standing = [one.approval for key, one in self.pending.items() if key not in self.deciding]
        field_now = SetField(FIELD, encode_approvals(standing))
        turn_id = next((one.approval.turn_id for one in self.pending.values()), "")
        prompt_id = self.prompts.unsent
        try:
            snapshots = {PROMPT: self.prompts.dump if standing else str}
            if decided:
                snapshots[DECIDED] = lambda: self._dump_outcomes(decided)
            await self.committer.commit([*operations, field_now], events, turn_id, snapshots=snapshots)
        except StoreError:
            self.prompts.forget(prompt_id)
            raise
        finally:
            self.prompts.sent(prompt_id)

    def _close(self, question: PendingApproval, outcome: Outcome, *, by_voice: bool = False) -> None:
        approval = question.approval
        self.pending.pop(approval.approval_id, None)
        self.closed_at = asyncio.get_running_loop().time()
        if not self.pending:
            self._open.clear()
        if question.timer is not None:
            question.timer.cancel()
        self.withdraw_card(question)
        if question.by_card and self.outbox.transport is None:
            self.undelivered = [*self.undelivered, (approval.approval_id, outcome)][-MAX_CLOSED:]
        self._closed[approval.approval_id] = _Closed(outcome, self.outbox.transport)
        if len(self._closed) > MAX_CLOSED:
            self._closed.popitem(last=False)
        ready = question.asked.ready
        waited = self.closed_at - question.opened_at
        self.figures.decided(ready.spec.name, ready.spec.source, outcome, waited, by_voice=by_voice)
        self.audit.answered(ready.spec, ready.arguments, outcome, by_voice=by_voice)

    def withdraw_card(self, question: PendingApproval) -> None:
        """Stop replaying a card."""
        approval_id = question.approval.approval_id
        if not self.outbox.withdraw(approval_id):
            self.outbox.abandon(approval_id)

    def _expire(self, question: PendingApproval) -> None:
        if question.approval.approval_id not in self.deciding:
            self.tasks.spawn(self._record_expiry(question))
            return
        # A decision is being recorded. If that fails, the question stays open and must still expire.
        loop = asyncio.get_running_loop()
        question.timer = loop.call_later(self.limits.close_timeout, self._expire, question)

    async def _record_expiry(self, question: PendingApproval) -> None:
        result = not_answered("expired")
        try:
            await self.reject(question, "expired", result)
        except Duplicate:
            pass  # the turn ended first
        except StoreError as error:
            # The turn records the outcome once the store is back.
            log.error("expiry not recorded", error=type(error).__name__)
            self._close(question, "expired")
            question.batch.put(Decided(question.asked, None, result))

    # -- inside

    def _resolved(self, question: PendingApproval, outcome: Outcome) -> list[ServerEvent]:
        if "approval" not in self.profile.capabilities:
            return []
        return [ApprovalResolved(question.approval.approval_id, outcome)]

    def _too_late(self, approval_id: str, decision: str) -> ApprovalResolved:
        closed, client = self._closed.get(approval_id), self.outbox.transport
        if closed is not None and closed.outcome in ("expired", "superseded"):
            return ApprovalResolved(approval_id, closed.outcome, "The question does not stand any more.")
        told = closed is not None and client is not None and closed.told_by is client
        if closed is not None and closed.outcome == _OUTCOMES.get(decision) and not told:
            # The outcome may have been lost with the connection: send it once more.
            closed.told_by = client
            return ApprovalResolved(approval_id, closed.outcome, "This was decided already.")
        # epoch 1: no other process has served this session, so an unknown id was never asked.
        known = closed is not None or approval_id in self.deciding
        if (
            not known and self.committer.epoch > 1
        ):  # a previous process may have closed it without telling the client
            return ApprovalResolved(approval_id, "superseded", "The question does not stand any more.")
        message = "This was decided already." if known else "There is no such question."
        return ApprovalResolved(approval_id, "refused", message)
