"""Questions to the person: asking, and the meaning of words and taps, as pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from msgspec.structs import replace

from conductor.conversation.live import Live, Rules
from conductor.conversation.records import (
    AnswerUnclear,
    CallFinished,
    PromptCut,
    PromptHeard,
    PromptSpoken,
    QuestionDecided,
    QuestionsAsked,
    Record,
)
from conductor.conversation.state import Conversation, Profile, Question
from conductor.errors import ErrorCode
from conductor.events.client import Decision
from conductor.events.server import ApprovalResolved, ServerEvent
from conductor.messages import ToolResult
from conductor.tools.approvals import Outcome, denied, not_answered
from conductor.tools.base import ToolOutcome
from conductor.tools.judge import Answer

_OUTCOMES: dict[str, Outcome] = {"allow": "allowed", "deny": "denied", "edit": "edited"}
_DECIDED = "This was decided already."
_GONE = "The question does not stand any more."


@dataclass(frozen=True, slots=True)
class Later:
    """The same words are to be decided again at a time, about the same question or not at all.

    They followed its prompt so soon that they may be its echo.
    """

    at: int
    question_id: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """The event is answered with an error and an ``idle``; nothing is recorded."""

    code: ErrorCode
    message: str
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """Records, and events that answer at once and may be lost."""

    records: list[Record]
    events: Sequence[ServerEvent] = ()


Response: TypeAlias = list[Record] | Reply | Later | Refuse


# -- asking


def ask(state: Conversation, questions: Sequence[Question]) -> list[Record]:
    """Ask about the calls of a reply: by cards at once, or the first one by voice."""
    card = "approval" in state.profile.capabilities
    record = QuestionsAsked(tuple(replace(question, card=card) for question in questions))
    if card:
        return [record]
    return [record, PromptSpoken(questions[0].id, questions[0].prompt)]


def to_client(
    state: Conversation,
    profile: Profile,
    *,
    same_process: bool,
    new: bool,
    replayed_speeches: Sequence[str],
    has_card: Sequence[str],
) -> list[Record]:
    """Ask the open questions of a client that has just connected, unless its replay does.

    ``has_card``: ids of the questions whose cards are replayed, or shown still.
    """
    focus = state.focus
    if focus is None:
        return []
    if "approval" in profile.capabilities:
        missing = [
            question
            for question in state.questions.values()
            if not question.card or question.id not in has_card
        ]
        return (
            [QuestionsAsked(tuple(replace(question, card=True) for question in missing))] if missing else []
        )
    if focus.speech_id in replayed_speeches:
        return []
    if focus.presentations == 0 or (new and not (same_process and focus.presented_at)):
        return [PromptSpoken(focus.id, focus.prompt, counts=False)]
    return []


# -- words


def answer(state: Conversation, live: Live, rules: Rules, event_id: str, text: str) -> Response | None:
    """Take a transcript as an answer to the question in focus; None if it is no answer."""
    focus = state.focus if state.questions else None
    if focus is None:
        return None
    answer = live.decisions.classify(focus, text)
    if focus.card:
        return _answer_cards(state, live, rules, event_id, text, answer)
    if answer.kind == "other":
        return None
    if answer.kind == "deny":
        return decided(
            state, live, focus, "denied", event_id, text, outcome_of=denied(answer.words), voice=True
        )
    if answer.kind != "allow" or not focus.presented_at:
        return present_again(state, live, rules, focus, event_id, text)
    if live.now() < focus.presented_at + rules.window_ms:  # it may be an echo of the prompt
        return Later(focus.presented_at + rules.window_ms, focus.id)
    return _allowed(state, live, focus, answer, event_id, text)


def _allowed(
    state: Conversation, live: Live, question: Question, answer: Answer, event_id: str, text: str
) -> list[Record]:
    lasts = answer.scope == "session" and question.risk != "high" and "session" in question.scopes
    return decided(
        state, live, question, "allowed", event_id, text, words=answer.words, grant=lasts, voice=True
    )


def _answer_cards(
    state: Conversation, live: Live, rules: Rules, event_id: str, text: str, answer: Answer
) -> list[Record] | None:
    """Count a yes for a single card that was visible before the person spoke, a no for all cards."""
    cards = list(state.questions.values())
    if any(live.decisions.is_yes(card, answer.words) for card in cards):
        visible_at = live.visible_cards.get(cards[0].id)
        if answer.kind == "allow" and len(cards) == 1 and visible_at is not None:
            since = max(visible_at, state.question_closed_at)
            if live.utterance_began >= since + rules.window_ms:
                return _allowed(state, live, cards[0], answer, event_id, text)
        return [AnswerUnclear(cards[0].id, event_id, text, counts=False)]
    if answer.kind != "deny":
        return None
    records: list[Record] = []
    for card in cards:
        if not any(
            isinstance(record, QuestionDecided) and record.question_id == card.id for record in records
        ):
            records += decided(
                state,
                live,
                card,
                "denied",
                "" if records else event_id,
                "" if records else text,
                outcome_of=denied(answer.words),
                voice=not records,
            )
    return records


def present_again(
    state: Conversation, live: Live, rules: Rules, question: Question, event_id: str = "", text: str = ""
) -> list[Record]:
    """Repeat a question that was not heard, or was answered unclearly, a limited number of times."""
    presented = bool(question.presented_at)
    if presented and not live.decisions.by_voice(question):
        outcome = not_answered("screen")
        return decided(state, live, question, "expired", event_id, text, outcome_of=outcome, voice=True)
    unclear = question.unclear + presented
    if unclear > rules.max_unclear or question.presentations >= rules.max_presentations:
        outcome = not_answered("unclear")
        return decided(state, live, question, "expired", event_id, text, outcome_of=outcome, voice=bool(text))
    prompt = PromptSpoken(question.id, live.decisions.prompt(question, 1 + unclear))
    return [AnswerUnclear(question.id, event_id, text, presented), prompt] if text else [prompt]


def prompt_heard(state: Conversation, speech_id: str) -> list[Record]:
    """Take the end of a prompt's speech: it counts as heard unless it was cut before."""
    question = next(
        (question for question in state.questions.values() if question.speech_id == speech_id), None
    )
    if question is None or question.card or question.presented_at or question.repeat_at:
        return []
    return [PromptHeard(question.id)]


def prompt_cut(
    state: Conversation, live: Live, rules: Rules, question_id: str, event_id: str
) -> list[Record]:
    """Take the interruption of a prompt: it is unheard, and repeated in the next silence."""
    if question_id not in state.questions:
        return []
    return [PromptCut(question_id, event_id, live.now() + rules.floor_ms)]


# -- taps


def tapped(state: Conversation, live: Live, decision: Decision) -> Reply:
    """Take a decision about a card; one that is refused is answered."""
    question_id = decision.approval_id
    question = state.questions.get(question_id)
    if question is None:
        return Reply([], [_closed(state, live, decision)])
    if decision.arguments_digest != question.digest:
        text = "This decision is about arguments that differ from the question's."
        return _refused(question_id, text)
    if decision.decision == "deny":
        return Reply(decided(state, live, question, "denied", outcome_of=denied(decision.message)))
    if decision.decision == "edit":
        return _edit(state, live, question, decision)
    # A scope that would save no later question is not offered; a decision for it counts once.
    scope = decision.scope if decision.scope in question.scopes else "once"
    lasts = scope != "once"
    return Reply(
        decided(
            state,
            live,
            question,
            "allowed",
            words=decision.message,
            grant=scope == "session",
            applies_to_others=lasts,
        )
    )


def _edit(state: Conversation, live: Live, question: Question, decision: Decision) -> Reply:
    arguments: dict[str, Any] = decision.edited_arguments or {}
    # A client may return the card's redacted arguments unchanged: the placeholder is no value.
    if "[REDACTED:" in str(arguments) and "[REDACTED:" not in question.arguments:
        text = "What was withheld from the card must be written out, or left to an unedited allow."
        return _refused(question.id, text)
    edit = live.decisions.edited(question, arguments)
    if isinstance(edit, str):
        return _refused(question.id, edit)
    records = decided(
        state,
        live,
        question,
        "edited",
        words=decision.message,
        arguments=edit.arguments,
        digest=edit.digest,
        note=edit.note,
    )
    return Reply(records)


def _refused(question_id: str, text: str) -> Reply:
    return Reply([], [ApprovalResolved(question_id, "refused", text)])


def _closed(state: Conversation, live: Live, decision: Decision) -> ApprovalResolved:
    """Answer a decision about a question that is not open."""
    question_id = decision.approval_id
    outcome = state.decided.get(question_id)
    if outcome in ("expired", "superseded"):
        return ApprovalResolved(question_id, outcome, _GONE)
    is_told = question_id in live.told_outcomes
    if outcome is not None and outcome == _OUTCOMES.get(decision.decision) and not is_told:
        return ApprovalResolved(question_id, outcome, _DECIDED)  # it may have been lost with a connection
    if outcome is not None:
        return ApprovalResolved(question_id, "refused", _DECIDED)
    # Under the first claim no other process has served the session; a later one may lack outcomes.
    if len(state.claims) > 1:
        return ApprovalResolved(question_id, "superseded", _GONE)
    return ApprovalResolved(question_id, "refused", "There is no such question.")


# -- deciding


def decided(
    state: Conversation,
    live: Live,
    question: Question,
    outcome: Outcome,
    event_id: str = "",
    text: str = "",
    *,
    words: str | None = None,
    outcome_of: ToolOutcome | None = None,
    arguments: str = "",
    digest: str = "",
    note: str = "",
    grant: bool = False,
    applies_to_others: bool = False,
    voice: bool = False,
) -> list[Record]:
    """Make the records of a decision, of the decisions that follow from it, and of the next question.

    ``outcome_of`` is the result of a call that does not run. ``grant``: the decision holds for the session.
    """
    grants = live.decisions.granted(question, state.grants) if grant else ""
    allows = outcome in ("allowed", "edited")
    if allows and question.expires_at <= live.now():
        outcome, outcome_of, allows, grants = "expired", not_answered("expired"), False, ""
    if allows and (forbidden := live.decisions.refusal(question, arguments)) is not None:
        outcome, outcome_of, allows, grants = "superseded", forbidden, False, ""
    notes: tuple[str, ...] = ()
    if allows:
        # The model reads the person's words with the result ("yes, but only the first").
        allowed = (
            f"The user allowed this call, saying: {words!r}." if words else "The user allowed this call."
        )
        notes = (*([note] if note else []), allowed)
    decision = QuestionDecided(
        question.id,
        question.call_id,
        outcome,
        event_id,
        text,
        arguments,
        digest,
        notes,
        grants,
        voice,
    )
    records: list[Record] = [decision, *_result(state, live, question, outcome_of)]
    lasts = allows and (grant or applies_to_others)
    return records + _following(state, live, question, outcome, grants or state.grants, lasts=lasts)


def _following(
    state: Conversation, live: Live, question: Question, outcome: Outcome, grants: str, *, lasts: bool
) -> list[Record]:
    """Make the decisions that follow from one about ``question``, and the prompt of the next question."""
    records: list[Record] = []
    closed = {question.id}
    for sibling in state.questions.values():
        if sibling.id in closed or sibling.form is not None:
            continue
        if outcome == "denied" and sibling.digest == question.digest:
            records += [
                QuestionDecided(sibling.id, sibling.call_id, "denied"),
                *_result(state, live, sibling, denied(None)),
            ]
            closed.add(sibling.id)
        elif lasts and live.decisions.refusal(sibling, "") is None and live.decisions.allows(sibling, grants):
            allowed_too = ("The user allowed this call.",)
            records.append(QuestionDecided(sibling.id, sibling.call_id, "allowed", notes=allowed_too))
            closed.add(sibling.id)
    following = next((sibling for sibling in state.questions.values() if sibling.id not in closed), None)
    if following is not None and not following.card and following.presentations == 0:
        records.append(PromptSpoken(following.id, following.prompt))
    return records


def _result(state: Conversation, live: Live, question: Question, outcome: ToolOutcome | None) -> list[Record]:
    call = state.open_call(question.call_id)
    if outcome is None or call is None or question.form is not None:
        return []
    finished = live.decisions.result(call, outcome)
    result = ToolResult(call.id, finished.content, finished.is_error, call.untrusted)
    return [CallFinished(result, error_type=outcome.error_type, reason=outcome.metadata.reason)]
