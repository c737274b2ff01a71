"""Pending approvals: how each is presented and answered, and the batch that a turn waits for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from conductor.conversation.client_profile import ClientProfile
from conductor.conversation.outbox import Outbox
from conductor.conversation.snapshot import PromptSnapshot, decode, encode
from conductor.conversation.speech import Speech, SpeechTracker
from conductor.events.envelope import IdGenerator, new_call_id
from conductor.events.server import ApprovalRequest, ServerEvent, set_state
from conductor.stores.base import Operation
from conductor.tools.approvals import Approval, Scope
from conductor.tools.base import ToolOutcome
from conductor.tools.executor import ApprovalNeeded, PreparedCall
from conductor.tools.rules import arguments_digest
from conductor.tools.spoken import Question, make_question, prompt

_approval_ids = IdGenerator("appr")


@dataclass(frozen=True, slots=True)
class Decided:
    """A decided approval: run ``ready``, or record ``outcome`` as the call's result."""

    need: ApprovalNeeded
    ready: PreparedCall | None
    outcome: ToolOutcome | None


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

    def drain(self) -> list[Decided]:
        """Remove and return the decisions that the turn has not read."""
        return [self._decided.get_nowait() for _ in range(self._decided.qsize())]


@dataclass(slots=True)
class PendingApproval:
    """An approval that a person has not decided yet.

    ``by_card``: the client shows it, else it is spoken. ``arguments`` are redacted. ``opened_at``,
    ``presented_at`` and ``visible_at`` are the loop's times; ``visible_at`` is None until the connected
    client has reported that the card is visible.
    """

    approval: Approval
    need: ApprovalNeeded
    batch: ApprovalBatch
    question: Question
    arguments: dict[str, Any]
    by_card: bool
    opened_at: float
    timer: asyncio.TimerHandle | None = None
    presented_at: float = 0.0
    visible_at: float | None = None

    def text(self, attempt: int = 1) -> str:
        """Return the question's text, the same on a card and in speech."""
        return prompt(self.question, attempt)

    def card(self) -> ApprovalRequest:
        """Make the event that shows the card."""
        self.by_card, self.visible_at = True, None
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


def make_approval(
    need: ApprovalNeeded,
    turn_id: str,
    batch_id: str,
    scopes: tuple[Scope, ...],
    preview: str,
    timeout_s: float,
) -> Approval:
    """Make the approval to store for a call."""
    spec, arguments = need.ready.spec, need.ready.arguments
    return Approval(
        approval_id=_approval_ids(),
        batch_id=batch_id,
        call_id=need.ready.call.call_id,
        turn_id=turn_id,
        tool=spec.name,
        arguments=arguments,
        digest=arguments_digest(spec.name, arguments),
        risk=spec.risk,
        reasons=need.verdict.reasons,
        scopes=scopes,
        expires_ms=time.time_ns() // 1_000_000 + round(timeout_s * 1000),
        fingerprint=spec.fingerprint,
        cautions=need.verdict.cautions,
        preview=preview,
    )


def make_pending(
    approval: Approval,
    need: ApprovalNeeded,
    batch: ApprovalBatch,
    arguments: dict[str, Any],
    locale: str | None,
) -> PendingApproval:
    """Make a pending approval; ``arguments`` are the redacted ones."""
    question = make_question(need.ready.spec, arguments, approval.cautions, approval.scopes, locale)
    now = asyncio.get_running_loop().time()
    return PendingApproval(approval, need, batch, question, arguments, by_card=False, opened_at=now)


@dataclass(frozen=True, slots=True)
class Utterance:
    """The operations and events that record and show a spoken answer."""

    operations: Sequence[Operation] = ()
    events: Sequence[ServerEvent] = ()


NO_UTTERANCE = Utterance()


class SpokenPrompts:
    """Presents approvals by voice, and tracks the last prompt.

    ``interrupted``: the last prompt was cut off, even if the device acknowledges it. ``unsent`` is its call
    id while the commit that sends it is running.
    """

    def __init__(self, profile: ClientProfile, outbox: Outbox, speeches: SpeechTracker) -> None:
        self._profile = profile
        self._outbox = outbox
        self._speeches = speeches
        self._prompt = PromptSnapshot("", "", "")
        self.interrupted = False
        self.unsent = ""

    def present(self, question: PendingApproval, *, is_new_client: bool = False) -> list[ServerEvent]:
        """Make the UI calls that speak a question and then open the microphone.

        A new client may have missed the prompt: it gets the whole question, which does not count as another
        attempt.
        """
        approval = question.approval
        presentations = approval.presentations + (0 if is_new_client else 1)
        question.by_card = False
        question.approval = msgspec.structs.replace(
            approval, presented=False, presentations=max(1, presentations)
        )
        text = question.text(1 if is_new_client else 1 + approval.unclear)
        self._prompt = PromptSnapshot(new_call_id(), new_call_id(), approval.approval_id)
        self.unsent = self._prompt.speak_id
        self.interrupted = False
        # No turn and no log position: an interruption of a prompt truncates no message and stops no turn.
        speech = Speech(self._prompt.speak_id, "", -1, text, text)
        self._speeches.add(speech)
        return [
            self._profile.append_message("assistant", text, speech.speech_id, self._prompt.append_id),
            set_state(new_call_id(), "speaking"),
            self._profile.speak(speech),
            set_state(new_call_id(), "idle"),
        ]

    def dump(self) -> str:
        """Encode the last prompt for the snapshot."""
        return encode(self._prompt) if self._prompt.approval_id else ""

    def restore(self, stored: str | None) -> None:
        """Restore the last prompt from a snapshot."""
        snapshot = decode(stored, PromptSnapshot)
        if snapshot is not None:
            self._prompt = snapshot
            if self.speaking:
                self._speeches.add(Speech(snapshot.speak_id, "", -1, "", ""))

    def end_commit(self, speak_id: str) -> None:
        """Note that the commit of a prompt has ended."""
        if speak_id == self.unsent:
            self.unsent = ""

    def forget(self, speak_id: str) -> None:
        """Forget a prompt that could not be sent."""
        self._speeches.forget(speak_id)

    def approval_of(self, speak_id: str) -> str | None:
        """Return the approval id of a speech; None unless it is the last prompt."""
        return self._prompt.approval_id if speak_id == self._prompt.speak_id else None

    @property
    def is_text_visible(self) -> bool:
        return not self._outbox.is_outstanding(self._prompt.append_id)

    @property
    def speaking(self) -> bool:
        return bool(self.unsent) or self._outbox.is_outstanding(self._prompt.speak_id)
