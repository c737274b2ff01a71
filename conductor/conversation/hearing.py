"""What a person says to a question, and when a prompt counts as heard (tools, "Spoken approvals")."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import msgspec
import structlog

from conductor.conversation.ids import new_call_id
from conductor.conversation.open_question import OpenQuestion
from conductor.conversation.questions import NOTHING_HEARD, Heard, Questions
from conductor.errors import Duplicate, Fenced, StoreError
from conductor.events.server import ApprovalResolved, append_message, set_state
from conductor.stores.base import RememberInbound
from conductor.tools.approvals import Scope, denied, not_answered
from conductor.tools.spoken import Answer, judge

log = structlog.get_logger(__name__)

MAX_UNCLEAR = 2
MAX_PRESENTATIONS = 5
"""Item 0 there: so often an unclear answer, or a prompt that was not heard, is asked again."""


class Hearing:
    """Takes spoken answers to the questions of a session, and presents again what was not heard."""

    def __init__(self, questions: Questions) -> None:
        self._questions = questions
        self._again: asyncio.TimerHandle | None = None

    async def hear(self, text: str, event_id: str, only: OpenQuestion | None = None) -> bool:
        """Take what the person said for an answer; False if it is none. Raises `StoreError`.

        ``only`` is the question that it was said to, where that was before.
        """
        await self._questions.decided()
        focus = self._questions.focus
        if focus is None or (only is not None and focus is not only):
            return False
        self._stop_waiting_to_ask_again()
        answer = judge(text, focus.question)
        heard = Heard([RememberInbound(event_id)], [append_message(new_call_id(), "user", text)])
        if answer.kind == "other":
            return False
        if focus.by_card:
            return await self._hear_about_cards(focus, answer, heard)
        if answer.kind == "deny":
            await self._questions.settle(focus, "denied", denied(answer.words), heard)
        elif answer.kind == "allow" and focus.approval.presented and self._is_early(focus):
            self._hear_later(text, event_id, focus)
        elif answer.kind == "allow" and focus.approval.presented:
            scope: Scope = answer.scope if focus.approval.risk != "high" else "once"
            scope = scope if scope in focus.approval.scopes else "once"
            await self._questions.allow(focus, focus.asked.ready, "allowed", scope, answer.words, heard)
        else:
            await self._ask_again(focus, heard)
        return True

    async def spoken(self, call_id: str) -> None:
        """Note that a prompt was spoken, or could not be, its text being shown. Raises `StoreError`."""
        question = self._prompted(call_id)
        if question is not None and not question.approval.presented and not self._questions.voice.interrupted:
            question.approval = msgspec.structs.replace(question.approval, presented=True)
            question.presented_at = asyncio.get_running_loop().time()
            await self._questions.commit([], [])

    def unheard(self, call_id: str) -> bool:
        """Note that a prompt was interrupted; False if this speech was none."""
        question = self._prompted(call_id)
        if question is None:
            return self._questions.voice.question_of(call_id) is not None
        question.approval = msgspec.structs.replace(question.approval, presented=False)
        self._questions.voice.interrupted = True
        self._wait_for_silence(question)
        return True

    def unanswered(self, call_id: str) -> None:
        """Note that nobody will say whether a prompt was spoken: then its text must have been shown."""
        if self._prompted(call_id) is not None and self._questions.voice.is_shown:
            self._questions.tasks.spawn(self._guarded(self.spoken(call_id)))

    def person_speaks(self) -> None:
        """Wait until the person has finished, then ask again what they did not hear."""
        focus = self._questions.focus
        if focus is None or focus.by_card or focus.approval.presented or self._questions.voice.is_being_said:
            return
        self._wait_for_silence(focus)

    def prompt_lost(self) -> None:
        """Note that the last prompt went down with its connection: nobody heard its end."""
        self._questions.voice.interrupted = True

    @property
    def is_unheard(self) -> bool:
        """Whether the question that stands was interrupted, and will be said again."""
        focus = self._questions.focus
        voice = self._questions.voice
        return focus is not None and not focus.by_card and not focus.approval.presented and voice.interrupted

    def attached(self, *, new: bool) -> None:
        """Note that a client is there: ask it in its own way what still stands.

        ``new`` means that it has come by another connection.
        """
        if self._questions.standing or self._questions.untold:
            self._questions.tasks.spawn(self._guarded(self._ask_anew(new)))

    def close(self) -> None:
        """Ask nothing again."""
        self._stop_waiting_to_ask_again()

    # -- inside

    async def _hear_about_cards(self, focus: OpenQuestion, answer: Answer, heard: Heard) -> bool:
        """Take a spoken answer to cards: of several, nobody knows which one a yes is for."""
        if answer.kind == "deny":
            for question in list(self._questions.standing.values()):
                key = question.approval.approval_id
                if self._questions.standing.get(key) is question and key not in self._questions.deciding:
                    await self._questions.settle(question, "denied", denied(answer.words), heard)
                    heard = NOTHING_HEARD
            return True
        standing = self._questions.standing.values()
        if all(judge(answer.words, one.question).kind != "allow" for one in standing):
            return False
        shown = self._questions.outbox.was_written(focus.approval.approval_id)
        if len(standing) > 1 or not shown:
            idle = set_state(new_call_id(), "idle")
            await self._questions.commit(heard.operations, [*heard.events, idle])
            return True
        if focus.approval.risk == "high":
            return False
        scope = answer.scope if answer.scope in focus.approval.scopes else "once"
        await self._questions.allow(focus, focus.asked.ready, "allowed", scope, answer.words, heard)
        return True

    def _is_early(self, question: OpenQuestion) -> bool:
        """Whether an interruption may still come that was on its way before this answer."""
        now = asyncio.get_running_loop().time()
        # A timer may come a moment before its time.
        return now + 0.001 < question.presented_at + self._questions.limits.heard_window

    def _hear_later(self, text: str, event_id: str, question: OpenQuestion) -> None:
        """Let a yes count once it is sure that the prompt was heard to its end."""
        when = question.presented_at + self._questions.limits.heard_window

        def hear() -> None:
            self._questions.tasks.spawn(self._guarded(self._hear_again(text, event_id, question)))

        asyncio.get_running_loop().call_at(when, hear)

    async def _hear_again(self, text: str, event_id: str, question: OpenQuestion) -> None:
        try:
            await self.hear(text, event_id, question)
        except Duplicate:
            pass  # the client has said it twice

    async def _ask_again(self, question: OpenQuestion, heard: Heard = NOTHING_HEARD) -> None:
        """Present a question once more, or give it up."""
        approval = question.approval
        unclear = approval.unclear + (1 if approval.presented else 0)
        if unclear > MAX_UNCLEAR or approval.presentations >= MAX_PRESENTATIONS:
            await self._questions.settle(question, "expired", not_answered("unclear"), heard)
            return
        question.approval = msgspec.structs.replace(approval, unclear=unclear)
        prompt = self._questions.voice.present(question)
        await self._questions.commit(heard.operations, [*heard.events, *prompt])

    def _ask_again_in_silence(self, question: OpenQuestion) -> None:
        self._again = None
        if (
            self._questions.standing.get(question.approval.approval_id) is question
            and not question.approval.presented
            and not question.by_card
        ):
            self._questions.tasks.spawn(self._guarded(self._ask_again(question)))

    def _wait_for_silence(self, question: OpenQuestion) -> None:
        self._stop_waiting_to_ask_again()
        loop = asyncio.get_running_loop()
        self._again = loop.call_later(
            self._questions.limits.floor_timeout, self._ask_again_in_silence, question
        )

    def _stop_waiting_to_ask_again(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None

    async def _ask_anew(self, new: bool) -> None:
        questions = self._questions
        await questions.decided()
        if questions.untold and "approval" in questions.profile.capabilities:
            told, questions.untold = questions.untold, []
            await questions.commit([], [ApprovalResolved(key, outcome) for key, outcome in told])
        focus = questions.focus
        if focus is None:
            return
        if "approval" in questions.profile.capabilities:
            unshown = [one for one in questions.standing.values() if not one.by_card]
            if unshown:
                for one in unshown:
                    questions.take_card_back(one)
                await questions.commit([], [one.card() for one in unshown])
                for one in unshown:
                    if one.approval.approval_id not in questions.standing:
                        questions.take_card_back(one)  # it was closed while this waited for the store
            return
        questions.take_cards_back()
        unheard = new and not focus.approval.presented and not questions.voice.is_being_said
        if focus.approval.presentations == 0 or unheard:
            await questions.commit([], questions.voice.present(focus))
        elif new:
            await questions.commit([], [set_state(new_call_id(), "idle")])

    def _prompted(self, speak_id: str) -> OpenQuestion | None:
        """Find the question that stands and whose prompt is this speech."""
        approval_id = self._questions.voice.question_of(speak_id)
        return None if approval_id is None else self._questions.standing.get(approval_id)

    @staticmethod
    async def _guarded(work: Awaitable[None]) -> None:
        try:
            await work
        except Fenced:
            log.warning("session taken over")
        except StoreError as error:
            log.error("question not recorded", error=type(error).__name__)
