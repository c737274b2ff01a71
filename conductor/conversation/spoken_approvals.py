"""Spoken answers to approvals, and when a prompt counts as heard."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace

import msgspec
import structlog

from conductor.conversation.approvals import Approvals
from conductor.conversation.pending_approvals import NO_UTTERANCE, PendingApproval, Utterance
from conductor.errors import Duplicate, Fenced, StoreError
from conductor.events.envelope import new_call_id
from conductor.events.server import ApprovalResolved, set_state
from conductor.stores.base import RememberInbound
from conductor.tools.approvals import Scope, denied, not_answered
from conductor.tools.spoken import Answer, Question, classify_answer

log = structlog.get_logger(__name__)

# Unclear answers to one prompt before the approval expires.
_MAX_UNCLEAR = 2
# Maximum presentations of one approval, including unheard prompts.
_MAX_PRESENTATIONS = 5


class SpokenApprovals:
    """Takes spoken answers to a session's approvals, and repeats prompts that were not heard."""

    def __init__(self, approvals: Approvals) -> None:
        self._approvals = approvals
        self._repeat_timer: asyncio.TimerHandle | None = None
        self._utterance_began = 0.0
        self._partial_until = 0.0

    def utterance_ended(self) -> float:
        """Return the time of the final transcript's first word, estimated from its partials."""
        now = _now()
        began = self._utterance_began if now < self._partial_until else now
        self._partial_until = 0.0
        return began

    async def take_transcript(
        self, text: str, event_id: str, began_at: float, only: PendingApproval | None = None
    ) -> bool:
        """Take a transcript as an answer; False if it is not one. Raises `StoreError`.

        ``began_at`` comes from `utterance_ended`. ``only`` is the approval of a delayed answer.
        """
        await self._approvals.decisions_recorded()
        focus = self._approvals.focus
        if focus is None or (only is not None and focus is not only):
            return False
        self._stop_waiting_for_silence()
        answer = classify_answer(text, focus.question)
        message = self._approvals.profile.append_message("user", text)
        utterance = Utterance([RememberInbound(event_id)], [message])
        if focus.by_card:
            return await self._take_answer_to_cards(focus, answer, utterance, began_at)
        if answer.kind == "other":
            return False
        if answer.kind == "deny":
            await self._approvals.reject(focus, "denied", denied(answer.words), utterance)
        elif answer.kind != "allow" or not focus.approval.presented:
            await self._present_again(focus, utterance)
        elif self._is_early(focus):
            self._take_later(text, event_id, began_at, focus)
        else:
            await self._allow(focus, answer, utterance)
        return True

    async def prompt_spoken(self, call_id: str) -> None:
        """Note that a prompt was presented: spoken, or shown as text. Raises `StoreError`."""
        question = self._prompted(call_id)
        if (
            question is not None
            and not question.approval.presented
            and not self._approvals.prompts.interrupted
        ):
            question.approval = msgspec.structs.replace(question.approval, presented=True)
            question.presented_at = _now()
            await self._approvals.commit([], [])

    def prompt_interrupted(self, call_id: str) -> bool:
        """Note that a prompt was interrupted; False if the speech is not a prompt."""
        question = self._prompted(call_id)
        if question is None:
            return self._approvals.prompts.approval_of(call_id) is not None
        question.approval = msgspec.structs.replace(question.approval, presented=False)
        self._approvals.prompts.interrupted = True
        self._wait_for_silence(question)
        return True

    def prompt_unanswered(self, call_id: str) -> None:
        """Note that a prompt's acknowledgement timed out; it counts as presented if its text is visible."""
        if self._prompted(call_id) is not None and self._approvals.prompts.is_text_visible:
            self._approvals.tasks.spawn(self._logged(self.prompt_spoken(call_id)))

    def person_speaks(self) -> None:
        """Note that the person is speaking: an unheard prompt is repeated in the next silence."""
        now = _now()
        if now >= self._partial_until:
            self._utterance_began = now
        self._partial_until = now + self._approvals.limits.floor_timeout
        focus = self._approvals.focus
        if focus is None or focus.by_card or focus.approval.presented or self._approvals.prompts.speaking:
            return
        self._wait_for_silence(focus)

    @property
    def will_repeat(self) -> bool:
        """Whether the current prompt was interrupted and will be repeated."""
        focus = self._approvals.focus
        voice = self._approvals.prompts
        return focus is not None and not focus.by_card and not focus.approval.presented and voice.interrupted

    def attached(self, *, new: bool, same_process: bool) -> None:
        """Present the pending approvals to an attached client, after the replay.

        ``new``: on another connection. A client that is not the ``same_process`` was relaunched: it shows no
        card and has played no prompt.
        """
        if new:
            self._partial_until = 0.0
            for question in self._approvals.pending.values():
                question.visible_at = None
            self._forget_heard(same_process)
        if self._approvals.pending or self._approvals.closed.undelivered:
            self._approvals.tasks.spawn(self._logged(self._present_pending(new)))

    def close(self) -> None:
        """Cancel the timer that repeats a prompt."""
        self._stop_waiting_for_silence()

    def _forget_heard(self, same_process: bool) -> None:
        focus, prompts = self._approvals.focus, self._approvals.prompts
        if focus is None or focus.by_card or prompts.speaking:
            return
        if not (same_process and focus.approval.presented):
            focus.approval = msgspec.structs.replace(focus.approval, presented=False)
            prompts.interrupted = True

    async def _take_answer_to_cards(
        self, focus: PendingApproval, answer: Answer, utterance: Utterance, began_at: float
    ) -> bool:
        # A yes counts only for a single card that was visible before the person began to speak. A yes that
        # does not count leaves the cards open.
        cards = list(self._approvals.pending.values())
        if any(_is_yes(answer.words, card.question) for card in cards):
            if answer.kind == "allow" and len(cards) == 1 and self._was_visible(focus, before=began_at):
                await self._allow(focus, answer, utterance)
            else:
                idle = set_state(new_call_id(), "idle")
                await self._approvals.commit(utterance.operations, [*utterance.events, idle])
            return True
        if answer.kind != "deny":
            return False
        for card in cards:
            key = card.approval.approval_id
            if self._approvals.pending.get(key) is card and key not in self._approvals.deciding:
                await self._approvals.reject(card, "denied", denied(answer.words), utterance)
                utterance = NO_UTTERANCE
        return True

    def _was_visible(self, card: PendingApproval, *, before: float) -> bool:
        if card.visible_at is None:
            return False
        since = max(card.visible_at, self._approvals.closed_at)
        return before > since + self._approvals.limits.heard_window

    async def _allow(self, question: PendingApproval, answer: Answer, utterance: Utterance) -> None:
        lasts = answer.scope == "session" and question.approval.risk != "high"
        scope: Scope = "session" if lasts and "session" in question.approval.scopes else "once"
        await self._approvals.allow(question, question.need.ready, "allowed", scope, answer.words, utterance)

    def _is_early(self, question: PendingApproval) -> bool:
        # The loop's timers may fire a moment early.
        return _now() + 0.001 < question.presented_at + self._approvals.limits.heard_window

    def _take_later(self, text: str, event_id: str, began_at: float, question: PendingApproval) -> None:
        # A yes so soon after the prompt may be its echo: decide when the window is over.
        when = question.presented_at + self._approvals.limits.heard_window

        def take() -> None:
            self._approvals.tasks.spawn(self._logged(self._take_again(text, event_id, began_at, question)))

        asyncio.get_running_loop().call_at(when, take)

    async def _take_again(self, text: str, event_id: str, began_at: float, question: PendingApproval) -> None:
        try:
            await self.take_transcript(text, event_id, began_at, question)
        except Duplicate:
            pass  # the client sent it twice

    async def _present_again(self, question: PendingApproval, utterance: Utterance = NO_UTTERANCE) -> None:
        approval = question.approval
        if approval.presented and not question.question.by_voice:
            await self._approvals.reject(question, "expired", not_answered("screen"), utterance)
            return
        unclear = approval.unclear + (1 if approval.presented else 0)
        if unclear > _MAX_UNCLEAR or approval.presentations >= _MAX_PRESENTATIONS:
            await self._approvals.reject(question, "expired", not_answered("unclear"), utterance)
            return
        question.approval = msgspec.structs.replace(approval, unclear=unclear)
        prompt = self._approvals.prompts.present(question)
        await self._approvals.commit(utterance.operations, [*utterance.events, *prompt])

    def _repeat_in_silence(self, question: PendingApproval) -> None:
        self._repeat_timer = None
        if (
            self._approvals.pending.get(question.approval.approval_id) is question
            and not question.approval.presented
            and not question.by_card
        ):
            self._approvals.tasks.spawn(self._logged(self._present_again(question)))

    def _wait_for_silence(self, question: PendingApproval) -> None:
        self._stop_waiting_for_silence()
        loop = asyncio.get_running_loop()
        self._repeat_timer = loop.call_later(
            self._approvals.limits.floor_timeout, self._repeat_in_silence, question
        )

    def _stop_waiting_for_silence(self) -> None:
        if self._repeat_timer is not None:
            self._repeat_timer.cancel()
            self._repeat_timer = None

    async def _present_pending(self, new: bool) -> None:
        approvals = self._approvals
        await approvals.decisions_recorded()
        if approvals.closed.undelivered and "approval" in approvals.profile.capabilities:
            outcomes, approvals.closed.undelivered = approvals.closed.undelivered, []
            await approvals.commit([], [ApprovalResolved(key, outcome) for key, outcome in outcomes])
        if approvals.focus is None:
            return
        if "approval" in approvals.profile.capabilities:
            await self._show_cards(new)
        else:
            await self._present_focus(approvals.focus, new)

    async def _show_cards(self, new: bool) -> None:
        approvals = self._approvals
        questions = [question for question in approvals.pending.values() if not question.by_card]
        if not (questions or new):
            return
        for question in questions:
            approvals.withdraw_card(question)
        await approvals.commit([], approvals.cards(questions))
        for question in questions:
            if question.approval.approval_id not in approvals.pending:
                approvals.withdraw_card(question)  # it was closed during the commit

    async def _present_focus(self, focus: PendingApproval, new: bool) -> None:
        approvals = self._approvals
        approvals.withdraw_cards()
        unheard = new and not focus.approval.presented and not approvals.prompts.speaking
        if unheard or focus.approval.presentations == 0:
            await approvals.commit([], approvals.prompts.present(focus, is_new_client=True))
        elif new:
            await approvals.commit([], [set_state(new_call_id(), "idle")])

    def _prompted(self, speak_id: str) -> PendingApproval | None:
        approval_id = self._approvals.prompts.approval_of(speak_id)
        return None if approval_id is None else self._approvals.pending.get(approval_id)

    @staticmethod
    async def _logged(work: Awaitable[None]) -> None:
        try:
            await work
        except Fenced:
            log.warning("session taken over")
        except StoreError as error:
            log.error("approval not recorded", error=type(error).__name__)


def _is_yes(words: str, question: Question) -> bool:
    medium = replace(question, risk="medium", by_voice=True)
    return "allow" in (classify_answer(words, question).kind, classify_answer(words, medium).kind)


def _now() -> float:
    return asyncio.get_running_loop().time()
