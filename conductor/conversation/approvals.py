"""The pending approvals of a session: each is presented, and decided once."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import structlog

from conductor.conversation.client_profile import ClientProfile
from conductor.conversation.closed_approvals import ClosedApprovals
from conductor.conversation.commit import Committer
from conductor.conversation.grants import Grants
from conductor.conversation.outbox import Outbox
from conductor.conversation.pending_approvals import (
    NO_UTTERANCE,
    ApprovalBatch,
    Decided,
    PendingApproval,
    SpokenPrompts,
    Utterance,
    make_approval,
    make_pending,
)
from conductor.conversation.snapshot import DECIDED, PROMPT
from conductor.conversation.tasks import Tasks
from conductor.errors import Duplicate, StoreError
from conductor.events.client import Decision
from conductor.events.envelope import IdGenerator, new_call_id
from conductor.events.server import ApprovalResolved, ServerEvent, set_state
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
from conductor.tools.device import PendingCalls
from conductor.tools.executor import ApprovalNeeded, PreparedCall
from conductor.tools.metrics import ToolMetrics
from conductor.tools.permissions import Verdict, grant
from conductor.tools.rules import Rule

log = structlog.get_logger(__name__)


# The source of questions that tools ask while they run: no call is recorded for them.
QUESTION = "question"
# The session field that holds the pending approvals.
FIELD = "approvals"
_batch_ids = IdGenerator("batch")


@dataclass(slots=True)
class Approvals:
    """Asks a person about calls, and takes decisions. A decision is recorded before its call runs.

    ``pending`` is in the order of asking; ``deciding`` holds the ids whose decision is being recorded.
    ``closed_at`` is the loop's time at which the last approval closed.
    """

    limits: Limits
    profile: ClientProfile
    pending_calls: PendingCalls
    committer: Committer
    outbox: Outbox
    prompts: SpokenPrompts
    tasks: Tasks
    grants: Grants
    metrics: ToolMetrics
    audit: SessionAudit
    pending: OrderedDict[str, PendingApproval] = field(default_factory=OrderedDict)
    deciding: set[str] = field(default_factory=set)
    closed: ClosedApprovals = field(init=False)
    closed_at: float = 0.0
    _open: asyncio.Event = field(default_factory=asyncio.Event)
    _settled: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.closed = ClosedApprovals(self.outbox, self.committer.epoch)

    @property
    def open(self) -> bool:
        return bool(self.pending)

    @property
    def focus(self) -> PendingApproval | None:
        return next(iter(self.pending.values()), None)

    async def opened(self) -> None:
        """Wait until an approval is pending."""
        await self._open.wait()

    # -- from a turn

    async def ask(self, turn_id: str, needs: Sequence[ApprovalNeeded]) -> ApprovalBatch:
        """Ask about the calls of one reply. Raises `StoreError`."""
        batch, batch_id = ApprovalBatch(len(needs)), _batch_ids()
        by_card = "approval" in self.profile.capabilities
        questions: list[PendingApproval] = []
        for need in needs:
            await asyncio.sleep(0)  # let other sessions run: 64 KiB of arguments take 30 ms in each step
            arguments = self._redacted(need)
            await asyncio.sleep(0)
            preview = await self.profile.executor.preview(need.ready) if by_card else ""
            timeout_s = self.limits.approval_timeout
            approval = make_approval(need, turn_id, batch_id, self._scopes(need), preview, timeout_s)
            questions.append(make_pending(approval, need, batch, arguments, self.profile.locale))
        for question in questions:
            self.pending[question.approval.approval_id] = question
        try:
            await self.commit([], self.cards(questions) if by_card else self.prompts.present(questions[0]))
        except BaseException:
            self.pending.clear()
            raise
        loop = asyncio.get_running_loop()
        for question in questions:
            question.timer = loop.call_later(self.limits.approval_timeout, self._expire, question)
            self._open.set()
            self.metrics.count_request(question.need.ready.spec.name, question.need.ready.spec.source)
        return batch

    @staticmethod
    def cards(questions: Sequence[PendingApproval]) -> list[ServerEvent]:
        """Make the events that show cards, with the microphone open for an answer."""
        return [*(question.card() for question in questions), set_state(new_call_id(), "idle")]

    def restore(self, standing: Sequence[tuple[ApprovalNeeded, Approval]]) -> ApprovalBatch | None:
        """Restore pending approvals from the store, if there are any.

        `SpokenApprovals.attached` presents them.
        """
        if not standing:
            return None
        batch = ApprovalBatch(len(standing))
        loop = asyncio.get_running_loop()
        for need, approval in standing:
            question = make_pending(approval, need, batch, self._redacted(need), self.profile.locale)
            question.by_card = self.outbox.is_outstanding(approval.approval_id)
            remaining = approval.expires_ms / 1000 - time.time()
            question.timer = loop.call_later(max(0.0, remaining), self._expire, question)
            self.pending[approval.approval_id] = question
            self._open.set()
        self.prompts.restore(self.committer.state.fields.get(PROMPT))
        return batch

    async def withdraw(self) -> tuple[list[Operation], list[ServerEvent]]:
        """Close all approvals because the turn ends; returns the operations and events of its last commit."""
        await self.decisions_recorded()
        if not self.pending:
            return [], []
        events: list[ServerEvent] = []
        for question in list(self.pending.values()):
            self._close(question, "superseded")
            events += self._resolved(question, "superseded")
        return [SetField(FIELD, ""), SetField(DECIDED, self.closed.dump())], events

    def withdraw_cards(self) -> None:
        """Withdraw all cards: the connected client may not support them, or gets new ones."""
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

    # -- from the client

    def card_shown(self, approval_id: str) -> None:
        """Note that a card is visible: a spoken answer counts from now on."""
        question = self.pending.get(approval_id)
        if question is not None and question.by_card and self.outbox.was_written(approval_id):
            question.visible_at = asyncio.get_running_loop().time()

    async def decide(self, decision: Decision, answer: Callable[[ServerEvent], None]) -> None:
        """Take a decision; a decision that is refused is answered. Raises `StoreError`."""
        approval_id = decision.approval_id
        question = self.pending.get(approval_id)
        if question is None or approval_id in self.deciding:
            is_deciding = approval_id in self.deciding
            answer(self.closed.answer(approval_id, decision.decision, is_deciding=is_deciding))
            return
        approval, refusal = question.approval, None
        if decision.arguments_digest != approval.digest:
            refusal = "This decision is about other arguments; decide about the current card."
        elif decision.decision == "deny":
            await self.reject(question, "denied", denied(decision.message))
        elif decision.decision == "edit":
            refusal = await self._edit(question, decision)
        else:
            # A scope that would save no later question is not offered; a decision for it counts once.
            scope = decision.scope if decision.scope in approval.scopes else "once"
            await self.allow(question, question.need.ready, "allowed", scope, decision.message)
        if refusal is not None:
            answer(ApprovalResolved(approval_id, "refused", refusal))

    def _redacted(self, need: ApprovalNeeded) -> dict[str, Any]:
        return dict(self.profile.executor.redacted(need.ready.arguments))

    def _scopes(self, need: ApprovalNeeded) -> tuple[Scope, ...]:
        ready = need.ready
        if ready.spec.source == QUESTION:
            return SCOPES[:1]
        granted = [grant(ready.spec, ready.arguments, scope="session")]
        if self._judge(ready, need.verdict.cautions, granted).effect == "ask":
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

    async def _edit(self, question: PendingApproval, decision: Decision) -> str | None:
        edited = decision.edited_arguments or {}
        # A client may send the card's redacted arguments back unchanged: the placeholder is no value.
        if "[REDACTED:" in str(edited) and "[REDACTED:" not in str(question.need.ready.arguments):
            return "A redacted value must be written out, or allowed without an edit."
        ready = self.profile.executor.edited(question.need.ready, edited)
        if isinstance(ready, str):
            return ready
        verdict = self._judge(ready, ())
        if verdict.effect == "deny":
            return " ".join(verdict.reasons)
        await self.allow(question, ready, "edited", "once", decision.message)
        self.audit.record_answer(ready.spec, ready.arguments, "edited", by_voice=False)  # the call that runs
        return None

    async def allow(
        self,
        question: PendingApproval,
        ready: PreparedCall,
        outcome: Outcome,
        scope: Scope,
        words: str | None,
        utterance: Utterance = NO_UTTERANCE,
    ) -> None:
        """Record a decision and dispatch the call in one commit, so that a decision runs one call once."""
        call_id = ready.call.call_id
        # The model reads the person's words with the result ("yes, but only the first one").
        note = f"The user allowed this call, saying: {words!r}." if words else "The user allowed this call."
        ready = replace(ready, notes=(*ready.notes, note))
        with self._decision(question):
            granted = await self.grants.add(ready.spec, ready.arguments, scope)
            # The tool or the rules may have changed in the meantime.
            forbidden = self.forbidden(ready)
            if forbidden is not None:
                await self._record_rejection(question, "superseded", forbidden, utterance)
                return
            if ready.spec.source == QUESTION:
                await self._commit_decision(question, outcome, [], [], utterance)
                question.batch.put(Decided(question.need, ready, None))
                return
            record = self.committer.state.calls[call_id]
            record = msgspec.structs.replace(
                record,
                notes=ready.notes,
                consent="given",
                # The call's time limit does not include the time that the person took.
                opened_ms=time.time_ns() // 1_000_000,
            )
            operations = [ForgetCall(call_id), OpenCall(record), *granted]
            calls: list[ServerEvent] = []
            if ready.spec.source == "device":
                self.pending_calls.expect(call_id)
                calls.append(self.profile.tool_call(ready))
            try:
                await self._commit_decision(question, outcome, operations, calls, utterance)
            except StoreError:
                self.pending_calls.forget(call_id)
                raise
        question.batch.put(Decided(question.need, ready, None))
        await self._apply_to_others(question, outcome, scope)

    def forbidden(self, ready: PreparedCall) -> ToolOutcome | None:
        """Return the outcome of a call whose tool changed or is denied by now; None if it may run."""
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

    async def _apply_to_others(self, question: PendingApproval, outcome: Outcome, scope: Scope) -> None:
        for key, sibling in list(self.pending.items()):
            if self.pending.get(key) is not sibling or key in self.deciding:
                continue  # it was decided while this waited for a commit
            is_same_call = sibling.approval.digest == question.approval.digest
            cautions = sibling.approval.cautions
            if outcome == "denied" and is_same_call:
                await self.reject(sibling, "denied", denied(None))
            elif scope != "once" and self._judge(sibling.need.ready, cautions).effect == "allow":
                await self.allow(sibling, sibling.need.ready, "allowed", "once", None)

    async def reject(
        self,
        question: PendingApproval,
        outcome: Outcome,
        result: ToolOutcome,
        utterance: Utterance = NO_UTTERANCE,
    ) -> None:
        """Record that a call is not run."""
        with self._decision(question):
            await self._record_rejection(question, outcome, result, utterance)
        await self._apply_to_others(question, outcome, "once")

    async def _record_rejection(
        self, question: PendingApproval, outcome: Outcome, result: ToolOutcome, utterance: Utterance
    ) -> None:
        call_id = question.approval.call_id
        is_call = question.need.ready.spec.source != QUESTION
        finish = [FinishCall(call_id, self.profile.executor.to_result(call_id, result))] if is_call else []
        await self._commit_decision(question, outcome, finish, [], utterance)
        question.batch.put(Decided(question.need, None, result))

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
        utterance: Utterance,
    ) -> None:
        approval_id = question.approval.approval_id
        events = [*utterance.events, *self._resolved(question, outcome)]
        following = next(
            (question_after for key, question_after in self.pending.items() if key != approval_id), None
        )
        # The microphone stays open for the answer to a card. An expiry follows no speech of the person.
        if outcome != "expired" and (following is None or not following.by_card):
            events.append(set_state(new_call_id(), "thinking"))
        events += calls
        if following is not None and not following.by_card:
            events += self.prompts.present(following)
        decided = {approval_id: outcome}
        await self.commit([*utterance.operations, *operations], events, decided)
        self._close(question, outcome, by_voice=utterance is not NO_UTTERANCE)

    async def commit(
        self,
        operations: Sequence[Operation],
        events: Sequence[ServerEvent],
        decided: Mapping[str, Outcome] | None = None,
    ) -> None:
        """Commit with the approvals that are still pending; ``decided`` are the outcomes of this commit."""
        standing = [question.approval for key, question in self.pending.items() if key not in self.deciding]
        pending_field = SetField(FIELD, encode_approvals(standing))
        turn_id = next((question.approval.turn_id for question in self.pending.values()), "")
        prompt_id = self.prompts.unsent
        try:
            snapshots = {PROMPT: self.prompts.dump if standing else str}
            if decided:
                snapshots[DECIDED] = lambda: self.closed.dump(decided)
            await self.committer.commit([*operations, pending_field], events, turn_id, snapshots=snapshots)
        except StoreError:
            self.prompts.forget(prompt_id)
            raise
        finally:
            self.prompts.end_commit(prompt_id)

    def _close(self, question: PendingApproval, outcome: Outcome, *, by_voice: bool = False) -> None:
        approval = question.approval
        self.pending.pop(approval.approval_id, None)
        self.closed_at = asyncio.get_running_loop().time()
        if not self.pending:
            self._open.clear()
        if question.timer is not None:
            question.timer.cancel()
        self.withdraw_card(question)
        self.closed.add(approval.approval_id, outcome, by_card=question.by_card)
        ready = question.need.ready
        seconds = self.closed_at - question.opened_at
        self.metrics.count_decision(ready.spec.name, ready.spec.source, outcome, seconds, by_voice=by_voice)
        self.audit.record_answer(ready.spec, ready.arguments, outcome, by_voice=by_voice)

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
            log.error("approval expiry not recorded", error=type(error).__name__)
            self._close(question, "expired")
            question.batch.put(Decided(question.need, None, result))

    def _resolved(self, question: PendingApproval, outcome: Outcome) -> list[ServerEvent]:
        if "approval" not in self.profile.capabilities:
            return []
        return [ApprovalResolved(question.approval.approval_id, outcome)]
