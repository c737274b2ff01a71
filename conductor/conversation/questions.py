"""The open questions of a session: asked, and decided once each."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import cast

import msgspec
import structlog

from conductor.conversation.batch import Batch, Decided
from conductor.conversation.grants import Grants
from conductor.conversation.ids import new_call_id
from conductor.conversation.ledger import Ledger
from conductor.conversation.memos import DECIDED, PROMPT, DecidedMemo, decode, encode
from conductor.conversation.open_question import OpenQuestion, Voice
from conductor.conversation.outbox import Outbox
from conductor.conversation.profile import Profile
from conductor.conversation.tasks import Tasks
from conductor.conversation.transport import Transport
from conductor.errors import Duplicate, StoreError
from conductor.events.client import Decision
from conductor.events.envelope import IdSource
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
from conductor.tools.base import ToolOutcome, failed
from conductor.tools.executor import Asked, Ready
from conductor.tools.figures import Figures
from conductor.tools.gate import MAY_HAVE_HAPPENED
from conductor.tools.pending import Pending
from conductor.tools.permissions import TAINTED, Verdict, grant
from conductor.tools.rules import Rule, arguments_digest
from conductor.tools.spoken_prompt import Reason, make_question

log = structlog.get_logger(__name__)

FIELD = "approvals"
"""The session's field that keeps the open questions."""
MAX_CLOSED = 64
"""Questions whose end is remembered, for decisions that come too late."""

MAX_KEPT = 8
"""So many of them are told to the next process."""
_OUTCOMES: Mapping[str, Outcome] = {"allow": "allowed", "deny": "denied", "edit": "edited"}
_NONE: Mapping[str, Outcome] = {}

_approval_ids = IdSource("appr")
_batch_ids = IdSource("batch")


@dataclass(frozen=True, slots=True)
class Heard:
    """What is recorded and shown of the words that answered a question."""

    operations: Sequence[Operation] = ()
    events: Sequence[ServerEvent] = ()


NOTHING_HEARD = Heard()


@dataclass(slots=True)
class _Closed:
    """What became of a question, and by which connection its client was told of it, if it was here."""

    outcome: Outcome
    told_by: Transport | None = None


@dataclass(slots=True)
class Questions:
    """Asks a person about calls, and takes decisions. A decision is recorded before anything is run.

    ``standing`` are the open questions in the order of asking, ``deciding`` the ids of those whose decision
    is being recorded, ``untold`` what became of cards while no client was there. ``asked`` is set while a
    question stands.
    """

    limits: Limits
    profile: Profile
    pending: Pending
    ledger: Ledger
    outbox: Outbox
    voice: Voice
    tasks: Tasks
    grants: Grants
    figures: Figures
    standing: OrderedDict[str, OpenQuestion] = field(default_factory=OrderedDict)
    deciding: set[str] = field(default_factory=set)
    untold: list[tuple[str, Outcome]] = field(default_factory=list)
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    _settled: asyncio.Event = field(default_factory=asyncio.Event)
    _closed: OrderedDict[str, _Closed] = field(default_factory=OrderedDict)

    @property
    def open(self) -> bool:
        """Whether a question stands."""
        return bool(self.standing)

    @property
    def focus(self) -> OpenQuestion | None:
        """The one question that a spoken answer can be for."""
        return next(iter(self.standing.values()), None)

    @property
    def awaits_voice(self) -> bool:
        """Whether the microphone is to be open for an answer."""
        focus = self.focus
        return focus is not None and not focus.by_card

    async def stands(self) -> None:
        """Wait until a question stands."""
        await self.asked.wait()

    # -- what a turn asks for

    async def ask(self, turn_id: str, asked: Sequence[Asked]) -> Batch:
        """Ask about the calls of one reply. Raises `StoreError`."""
        batch, batch_id = Batch(len(asked)), _batch_ids()
        by_card = "approval" in self.profile.capabilities
        asking = [self._make(one, batch, batch_id, turn_id) for one in asked]
        for question in asking:
            self.standing[question.approval.approval_id] = question
        try:
            events = [one.card() for one in asking] if by_card else self.voice.present(asking[0])
            await self.commit([], events)
        except BaseException:
            self.standing.clear()
            raise
        loop = asyncio.get_running_loop()
        for question in asking:
            question.timer = loop.call_later(self.limits.approval_timeout, self._expire, question)
            self.asked.set()
            self.figures.asked(question.asked.ready.spec.name, question.asked.ready.spec.source)
        return batch

    def _kept(self, decided: Mapping[str, Outcome]) -> str:
        closed = [(key, one.outcome) for key, one in self._closed.items()]
        return encode(DecidedMemo(dict([*closed, *decided.items()][-MAX_KEPT:])))

    def recall(self) -> None:
        """Know what was decided in another process, for decisions that are said again."""
        memo = decode(self.ledger.state.fields.get(DECIDED), DecidedMemo)
        if memo is not None:
            known = [(key, cast(Outcome, outcome)) for key, outcome in memo.outcomes.items()]
            self._closed.update((key, _Closed(outcome)) for key, outcome in known)
            self.untold = known  # the other process may not have been heard

    def restore(self, standing: Sequence[tuple[Asked, Approval]]) -> Batch | None:
        """Let stand what stood in another process; None if nothing did. `Hearing.attached` presents it."""
        if not standing:
            return None
        batch = Batch(len(standing))
        loop = asyncio.get_running_loop()
        for asked, approval in standing:
            question = self._question(asked, approval, batch)
            question.by_card = self.outbox.is_outstanding(approval.approval_id)
            left = approval.expires_ms / 1000 - time.time()
            question.timer = loop.call_later(max(0.0, left), self._expire, question)
            self.standing[approval.approval_id] = question
            self.asked.set()
        self.voice.restore(self.ledger.state.fields.get(PROMPT))
        return batch

    async def withdraw(self) -> tuple[list[Operation], list[ServerEvent]]:
        """Close what stands, since the turn ends: gives what is to be committed and sent with its end."""
        await self.decided()
        if not self.standing:
            return [], []
        events: list[ServerEvent] = []
        for question in list(self.standing.values()):
            self._close(question, "superseded")
            events += self._resolved(question, "superseded")
        return [SetField(FIELD, ""), SetField(DECIDED, self._kept(_NONE))], events

    def take_cards_back(self) -> None:
        """Show no cards any more: the client that is there now may know none, or gets new ones."""
        for question in self.standing.values():
            self.take_card_back(question)
            question.by_card = False

    async def decided(self) -> None:
        """Wait until no decision is being recorded."""
        while self.deciding:
            self._settled.clear()
            await self._settled.wait()

    def close(self) -> None:
        """Let no question run out any more."""
        for question in self.standing.values():
            if question.timer is not None:
                question.timer.cancel()

    # -- what the client says

    async def decide(self, decision: Decision, answer: Callable[[ServerEvent], None]) -> None:
        """Take a decision; one that does not count is answered. Raises `StoreError`."""
        approval_id = decision.approval_id
        question = self.standing.get(approval_id)
        if question is None or approval_id in self.deciding:
            answer(self._too_late(approval_id, decision.decision))
            return
        approval, refusal = question.approval, None
        if decision.arguments_digest != approval.digest:
            refusal = "This decision is about other arguments than those that are asked about."
        elif decision.decision == "deny":
            await self.settle(question, "denied", denied(decision.message))
        elif decision.decision == "edit":
            refusal = await self._edit(question, decision)
        else:
            # Allowed for longer than would change anything is allowed once.
            scope = decision.scope if decision.scope in approval.scopes else "once"
            await self.allow(question, question.asked.ready, "allowed", scope, decision.message)
        if refusal is not None:
            answer(ApprovalResolved(approval_id, "refused", refusal))

    # -- asking

    def _make(self, asked: Asked, batch: Batch, batch_id: str, turn_id: str) -> OpenQuestion:
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
            scopes=self._scopes(asked, _spoken_reasons(asked)),
            expires_ms=time.time_ns() // 1_000_000 + round(self.limits.approval_timeout * 1000),
            fingerprint=spec.fingerprint,
        )
        return self._question(asked, approval, batch)

    def _question(self, asked: Asked, approval: Approval, batch: Batch) -> OpenQuestion:
        spec = asked.ready.spec
        reasons = _spoken_reasons(asked)
        shown = dict(self.profile.executor.redacted(approval.arguments))
        question = make_question(spec.name, spec.risk, spec.effect, shown, reasons, approval.scopes)
        now = asyncio.get_running_loop().time()
        return OpenQuestion(approval, asked, batch, question, reasons, shown, by_card=False, since=now)

    def _scopes(self, asked: Asked, reasons: Sequence[Reason]) -> tuple[Scope, ...]:
        """List the scopes that would change anything: a rule, say, asks each time whatever was granted."""
        ready = asked.ready
        granted = [grant(ready.spec, ready.arguments, scope="session")]
        verdict = self._judge(ready, reasons, granted)
        if verdict.effect == "ask":
            return SCOPES[:1]
        return SCOPES if self.grants.lasting else SCOPES[:2]

    def _judge(self, ready: Ready, reasons: Sequence[Reason], granted: Sequence[Rule] = ()) -> Verdict:
        """Decide about a call as the rules are now."""
        return self.profile.executor.gate.judge(
            ready.spec,
            ready.arguments,
            tainted="untrusted" in reasons,
            may_have_happened="may_have_happened" in reasons,
            granted=granted,
        )

    # -- deciding

    async def _edit(self, question: OpenQuestion, decision: Decision) -> str | None:
        """Run a call with other arguments; a text says why not."""
        edited = decision.edited_arguments or {}
        if "[REDACTED:" in str(edited) and "[REDACTED:" not in str(question.asked.ready.arguments):
            return "What was withheld from the card must be written out, or left to an unedited allow."
        ready = self.profile.executor.edited(question.asked.ready, edited)
        if isinstance(ready, str):
            return ready
        verdict = self._judge(ready, ())
        if verdict.effect == "deny":
            return " ".join(verdict.reasons)
        await self.allow(question, ready, "edited", "once", decision.message)
        return None

    async def allow(
        self,
        question: OpenQuestion,
        ready: Ready,
        outcome: Outcome,
        scope: Scope,
        words: str | None,
        heard: Heard = NOTHING_HEARD,
    ) -> None:
        """Record a decision and dispatch the call in one commit: the decision is used up with that."""
        call_id = ready.call.call_id
        note = f"The user allowed this call, saying: {words!r}." if words else "The user allowed this call."
        ready = replace(ready, notes=(*ready.notes, note))
        with self._decision(question):
            granted = await self.grants.add(ready.spec, ready.arguments, scope)
            forbidden = self._forbidden(ready)
            if forbidden is not None:
                await self._reject(question, "superseded", forbidden, heard)
                return
            record = self.ledger.state.calls[call_id]
            record = msgspec.structs.replace(record, notes=ready.notes, consent="given")
            operations = [ForgetCall(call_id), OpenCall(record), *granted]
            if ready.spec.source != "device":
                await self._decide(question, outcome, operations, [], heard)
            else:
                self.pending.expect(call_id)
                try:
                    await self._decide(question, outcome, operations, [self.profile.tool_call(ready)], heard)
                except StoreError:
                    self.pending.forget(call_id)
                    raise
        question.batch.put(Decided(question.asked, ready, None))
        await self._follow(question, outcome, scope)

    def _forbidden(self, ready: Ready) -> ToolOutcome | None:
        """Say why a call must not run, although it is allowed: what has changed since it was asked about."""
        spec = self.profile.executor.spec(ready.spec.name)
        if spec is None or spec.fingerprint != ready.spec.fingerprint:
            return failed("permission_denied", DEFINITION_CHANGED, reason="definition_changed")
        verdict = self._judge(ready, ())
        if verdict.effect == "deny":
            return failed(
                "permission_denied", f"{' '.join(verdict.reasons)} Nothing was run.", reason="policy"
            )
        return None

    async def _follow(self, question: OpenQuestion, outcome: Outcome, scope: Scope = "once") -> None:
        """Let a decision count for the other questions that it answers as well."""
        for other in list(self.standing.values()):
            same = other.approval.digest == question.approval.digest
            key = other.approval.approval_id
            if self.standing.get(key) is not other or key in self.deciding:
                continue  # somebody else has decided it meanwhile
            if outcome == "denied" and same:
                await self.settle(other, "denied", denied(None))
            elif scope != "once" and self._judge(other.asked.ready, other.reasons).effect == "allow":
                await self.allow(other, other.asked.ready, "allowed", "once", None)

    async def settle(
        self, question: OpenQuestion, outcome: Outcome, result: ToolOutcome, heard: Heard = NOTHING_HEARD
    ) -> None:
        """Record that a call is not run."""
        with self._decision(question):
            await self._reject(question, outcome, result, heard)
        await self._follow(question, outcome)

    async def _reject(
        self, question: OpenQuestion, outcome: Outcome, result: ToolOutcome, heard: Heard
    ) -> None:
        call_id = question.approval.call_id
        finish = FinishCall(call_id, self.profile.executor.settle(call_id, result))
        await self._decide(question, outcome, [finish], [], heard)
        question.batch.put(Decided(question.asked, None, result))

    @contextmanager
    def _decision(self, question: OpenQuestion) -> Iterator[None]:
        """Keep other decisions about a question out while one is recorded."""
        approval_id = question.approval.approval_id
        self.deciding.add(approval_id)
        try:
            yield
        finally:
            self.deciding.discard(approval_id)
            self._settled.set()

    async def _decide(
        self,
        question: OpenQuestion,
        outcome: Outcome,
        operations: Sequence[Operation],
        calls: Sequence[ServerEvent],
        heard: Heard,
    ) -> None:
        """Commit a decision, what follows from it, and the next question that is spoken."""
        approval_id = question.approval.approval_id
        events = [*heard.events, *self._resolved(question, outcome)]
        if not question.by_card:
            events.append(set_state(new_call_id(), "thinking"))
        events += calls
        following = next((one for key, one in self.standing.items() if key != approval_id), None)
        if following is not None and not following.by_card:
            events += self.voice.present(following)
        decided = {approval_id: outcome}
        await self.commit([*heard.operations, *operations], events, decided)
        self._close(question, outcome)

    async def commit(
        self,
        operations: Sequence[Operation],
        events: Sequence[ServerEvent],
        decided: Mapping[str, Outcome] = _NONE,
    ) -> None:
        """Commit, with what stands then, and what was ``decided`` with it."""
        standing = [one.approval for key, one in self.standing.items() if key not in self.deciding]
        field_now = SetField(FIELD, encode_approvals(standing))
        turn_id = next((one.approval.turn_id for one in self.standing.values()), "")
        try:
            memos = {PROMPT: self.voice.kept if standing else str}
            if decided:
                memos[DECIDED] = lambda: self._kept(decided)
            await self.ledger.commit([*operations, field_now], events, turn_id, memos=memos)
        except StoreError:
            self.voice.take_back()  # if it was about to be said, it is not
            raise

    def _close(self, question: OpenQuestion, outcome: Outcome) -> None:
        approval = question.approval
        self.standing.pop(approval.approval_id, None)
        if not self.standing:
            self.asked.clear()
        if question.timer is not None:
            question.timer.cancel()
        self.take_card_back(question)
        if question.by_card and self.outbox.transport is None:
            self.untold = [*self.untold, (approval.approval_id, outcome)][-MAX_CLOSED:]
        self._closed[approval.approval_id] = _Closed(outcome, self.outbox.transport)
        if len(self._closed) > MAX_CLOSED:
            self._closed.popitem(last=False)
        spec = question.asked.ready.spec
        took = asyncio.get_running_loop().time() - question.since
        self.figures.decided(spec.name, spec.source, outcome, took)

    def take_card_back(self, question: OpenQuestion) -> None:
        """Replay a card no more."""
        approval_id = question.approval.approval_id
        if not self.outbox.withdraw(approval_id):
            self.outbox.abandon(approval_id)

    def _expire(self, question: OpenQuestion) -> None:
        if question.approval.approval_id not in self.deciding:
            self.tasks.spawn(self._run_out(question))
            return
        # A decision is on its way into the store; if it fails, the question stands and must end all the same.
        loop = asyncio.get_running_loop()
        question.timer = loop.call_later(self.limits.close_timeout, self._expire, question)

    async def _run_out(self, question: OpenQuestion) -> None:
        result = not_answered("expired")
        try:
            await self.settle(question, "expired", result)
        except Duplicate:
            pass  # the turn ended meanwhile
        except StoreError as error:
            # The turn records it, as soon as that is possible.
            log.error("expiry not recorded", error=type(error).__name__)
            self._close(question, "expired")
            question.batch.put(Decided(question.asked, None, result))

    # -- inside

    def _resolved(self, question: OpenQuestion, outcome: Outcome) -> list[ServerEvent]:
        if "approval" not in self.profile.capabilities:
            return []
        return [ApprovalResolved(question.approval.approval_id, outcome)]

    def _too_late(self, approval_id: str, decision: str) -> ApprovalResolved:
        closed, client = self._closed.get(approval_id), self.outbox.transport
        if closed is not None and closed.outcome in ("expired", "superseded"):
            return ApprovalResolved(approval_id, closed.outcome, "The question does not stand any more.")
        told = closed is not None and client is not None and closed.told_by is client
        if closed is not None and closed.outcome == _OUTCOMES.get(decision) and not told:
            # What came of it may have been lost with the connection, and is said once more.
            closed.told_by = client
            return ApprovalResolved(approval_id, closed.outcome, "This was decided already.")
        known = closed is not None or approval_id in self.deciding
        if not known and self.ledger.epoch > 1:  # another process may have closed it, and not have told
            return ApprovalResolved(approval_id, "superseded", "The question does not stand any more.")
        message = "This was decided already." if known else "There is no such question."
        return ApprovalResolved(approval_id, "refused", message)


def _spoken_reasons(asked: Asked) -> tuple[Reason, ...]:
    """Tell which of the gate's reasons a spoken prompt has to mention."""
    reasons: list[Reason] = ["may_have_happened"] if MAY_HAVE_HAPPENED in asked.verdict.reasons else []
    if TAINTED.get(asked.ready.spec.effect) in asked.verdict.reasons:
        reasons.append("untrusted")
    return tuple(reasons)
