"""A question that stands, and the forms in which it is put: a card, or a spoken prompt."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import msgspec

from conductor.conversation.batch import Batch
from conductor.conversation.heard import Speech
from conductor.conversation.ids import new_call_id
from conductor.conversation.memos import PromptMemo, decode, encode
from conductor.conversation.outbox import Outbox
from conductor.conversation.speeches import Speeches
from conductor.events.server import ApprovalRequest, ServerEvent, append_message, set_state, speak
from conductor.tools.approvals import Approval
from conductor.tools.executor import Asked
from conductor.tools.spoken import Question
from conductor.tools.spoken_prompt import Reason, prompt


@dataclass(slots=True)
class OpenQuestion:
    """A question that stands.

    ``by_card``: the client shows it, else it is spoken. ``arguments`` are those that may be shown. ``since``
    and ``presented_at`` are the loop's times.
    """

    approval: Approval
    asked: Asked
    batch: Batch
    question: Question
    reasons: tuple[Reason, ...]
    arguments: dict[str, Any]
    by_card: bool
    since: float
    timer: asyncio.TimerHandle | None = None
    presented_at: float = 0.0

    def card(self) -> ApprovalRequest:
        """Make the event that has the client show it."""
        self.by_card = True
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
            prompt(self.question, 1),
            approval.scopes,
            approval.expires_at,
        )


class Voice:
    """Presents questions by voice; knows the last prompt, and what became of it.

    ``interrupted``: it was not heard to its end, whatever the device answers.
    """

    def __init__(self, outbox: Outbox, speeches: Speeches) -> None:
        self._outbox = outbox
        self._speeches = speeches
        self._append_id = ""
        self._speak_id = ""
        self._approval_id = ""
        self.interrupted = False

    def present(self, question: OpenQuestion) -> list[ServerEvent]:
        """Make the UI calls that present a question and then open the microphone."""
        approval = question.approval
        attempt = approval.presentations + 1
        question.by_card = False
        question.approval = msgspec.structs.replace(approval, presented=False, presentations=attempt)
        text = prompt(question.question, 1 + approval.unclear)
        self._append_id, self._speak_id, self._approval_id = (
            new_call_id(),
            new_call_id(),
            approval.approval_id,
        )
        self.interrupted = False
        # A speech of no turn's, at no place of the log: its interruption cuts nothing and stops nothing.
        self._speeches.add(Speech(self._speak_id, "", -1, text, text))
        return [
            append_message(self._append_id, "assistant", text),
            set_state(new_call_id(), "speaking"),
            speak(self._speak_id, text),
            set_state(new_call_id(), "idle"),
        ]

    def kept(self) -> str:
        """Write the last prompt down."""
        if not self._approval_id:
            return ""
        return encode(PromptMemo(self._append_id, self._speak_id, self._approval_id))

    def restore(self, kept: str | None) -> None:
        """Know the last prompt of another process."""
        memo = decode(kept, PromptMemo)
        if memo is not None:
            self._append_id, self._speak_id = memo.append_id, memo.speak_id
            self._approval_id = memo.approval_id
            if self.is_being_said:
                self._speeches.add(Speech(self._speak_id, "", -1, "", ""))

    def take_back(self) -> None:
        """Forget the last prompt: it could not be sent."""
        self._speeches.forget(self._speak_id)

    def question_of(self, speak_id: str) -> str | None:
        """Give the approval's id that a speech asks about, if it is the last prompt."""
        return self._approval_id if speak_id == self._speak_id else None

    @property
    def is_shown(self) -> bool:
        """Whether its text was acknowledged, or cannot be waited for any more."""
        return not self._outbox.is_outstanding(self._append_id)

    @property
    def is_being_said(self) -> bool:
        """Whether the device has not answered yet."""
        return self._outbox.is_outstanding(self._speak_id)
