"""Questions to the person: asking, and the meaning of words and taps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec.structs import replace

from conductor.conversation import records as r
from conductor.conversation.state import Conversation, Input, Question
from conductor.conversation.view import Edit, View, finish
from conductor.errors import ErrorCode
from conductor.events.server import ApprovalResolved
from conductor.messages import Image
from conductor.tools.outcomes import (
    NoAnswer,
    Outcome,
    Scope,
    ToolOutcome,
    denied,
    marked_untrusted,
    not_answered,
)

if TYPE_CHECKING:  # types only
    from conductor.events.client import Decision
    from conductor.tools.judge import Answer

_OUTCOMES: dict[str, Outcome] = {"allow": "allowed", "deny": "denied", "edit": "edited"}
_DECIDED = "This was decided already."
_GONE = "The question does not stand any more."
_NOTHING_SAID = Input(event_id="", text="")


# -- what a decision answers


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


Response: TypeAlias = list[r.Record] | Later | Refuse | ApprovalResolved


# -- asking


def ask(state: Conversation, questions: Sequence[Question]) -> list[r.Record]:
    """Ask about the calls of a reply: by cards at once, or the first one by voice."""
    card = "approval" in state.profile.capabilities
    record = r.QuestionsAsked(tuple(replace(question, card=card) for question in questions))
    if card:
        return [record]
    return [record, r.PromptSpoken(questions[0].id, questions[0].prompt)]


# -- words


def answer(view: View, said: Input) -> Response | None:
    """Handle a transcript as an answer to the question in focus; None if it is no answer."""
    focus = view.state.focus
    if focus is None:
        return None
    answer = view.gate.classify(focus, said.text, said.lang)
    if focus.card:
        return _answer_cards(view, said, answer)
    if answer.kind == "other":
        return None
    if answer.kind == "deny":
        return decided(view, focus, "denied", said=said, words=answer.words)
    if answer.kind == "wait" and focus.presented_at:
        return [_unclear(focus, said, waits=True)]
    if answer.kind != "allow" or not focus.presented_at:
        language = view.gate.language_of(said.lang) if said.lang else ""
        is_asked_for = answer.kind == "repeat"
        return present_again(view, focus, said, language=language, is_asked_for=is_asked_for)
    if view.now() < focus.presented_at + view.conduct.window_ms:  # it may be an echo of the prompt
        return Later(focus.presented_at + view.conduct.window_ms, focus.id)
    return _allowed(view, focus, answer, said)


def _allowed(view: View, question: Question, answer: Answer, said: Input) -> list[r.Record]:
    lasts = answer.scope == "session" and question.risk != "high" and "session" in question.scopes
    scope: Scope = "session" if lasts else "once"
    return decided(view, question, "allowed", said=said, words=answer.words, scope=scope)


def _unclear(
    question: Question, said: Input, *, counts: bool = False, waits: bool = False
) -> r.AnswerUnclear:
    return r.AnswerUnclear(
        question_id=question.id,
        event_id=said.event_id,
        text=said.text,
        counts=counts,
        waits=waits,
        images=said.images,
    )


def _answer_cards(view: View, said: Input, answer: Answer) -> list[r.Record] | None:
    """Count a yes for a single card that was visible before the person spoke, a no for all cards.

    The cards stand while the person only listens, or asks for time.
    """
    cards = list(view.state.questions.values())
    if answer.kind in ("allow", "yes"):
        visible_at = view.live.cards.visible.get(cards[0].id)
        if answer.kind == "allow" and len(cards) == 1 and visible_at is not None:
            since = max(visible_at, view.state.question_closed_at)
            if view.live.speech.utterance_began >= since + view.conduct.window_ms:
                return _allowed(view, cards[0], answer, said)
        return [_unclear(cards[0], said)]
    is_listening = answer.kind == "unclear" and not said.images
    if answer.kind == "wait" or (is_listening and view.gate.is_backchannel(said.text, said.lang)):
        return [_unclear(cards[0], said, waits=answer.kind == "wait")]
    if answer.kind != "deny":
        return None
    records: list[r.Record] = []
    for card in cards:
        decisions = (record for record in records if isinstance(record, r.QuestionDecided))
        if all(decision.question_id != card.id for decision in decisions):
            records += decided(view, card, "denied", said=said, words=answer.words)
            said = _NOTHING_SAID
    return records


def present_again(
    view: View,
    question: Question,
    said: Input = _NOTHING_SAID,
    *,
    language: str = "",
    is_asked_for: bool = False,
) -> list[r.Record]:
    """Repeat a question that was not heard, or was answered unclearly, a limited number of times.

    Where the person asks for it (``is_asked_for``), the whole question is repeated, and no try is used up.
    From now on it is in the ``language`` in which the person has spoken.
    """
    counts = bool(question.presented_at) and not is_asked_for
    if counts and not view.gate.by_voice(question):
        return decided(view, question, "expired", said=said, missing="screen")
    unclear = question.unclear + counts
    if unclear > view.conduct.max_unclear or question.presentations >= view.conduct.max_presentations:
        return decided(view, question, "expired", said=said, missing="unclear")
    asked = replace(question, language=language or question.language)
    words = view.gate.prompt(asked, 0 if is_asked_for else 1 + unclear)
    prompt = r.PromptSpoken(question.id, words, language=language)
    return [_unclear(question, said, counts=counts), prompt] if said.text else [prompt]


def prompt_heard(state: Conversation, speech_id: str) -> list[r.Record]:
    """Handle the end of a prompt's speech: it is heard unless it was cut before."""
    question = next(
        (question for question in state.questions.values() if question.speech_id == speech_id), None
    )
    if question is None or question.card or question.presented_at or question.repeat_at:
        return []
    return [r.PromptHeard(question.id)]


def prompt_cut(view: View, question_id: str, event_id: str) -> list[r.Record]:
    """Handle the interruption of a prompt: it is unheard, and repeated in the next silence."""
    if question_id not in view.state.questions:
        return []
    return [r.PromptCut(question_id, event_id, view.now() + view.conduct.floor_ms)]


# -- taps


def tapped(view: View, decision: Decision, decided_by: str = "") -> list[r.Record] | ApprovalResolved:
    """Handle a decision about a card, of the client or of the key ``decided_by``, or answer it."""
    question = view.state.questions.get(decision.approval_id)
    if question is None:
        return _closed(view, decision)
    if decision.arguments_digest != question.digest:
        return _refused(question.id, "This decision is about arguments that differ from the question's.")
    edit: Edit | None = None
    if decision.decision == "edit":
        arguments: dict[str, Any] = decision.edited_arguments or {}
        # A client may return the card's redacted arguments unchanged: the placeholder is no value.
        if "[REDACTED:" in str(arguments) and "[REDACTED:" not in question.arguments:
            text = "What was withheld from the card must be written out, or left to an unedited allow."
            return _refused(question.id, text)
        edited = view.gate.edited(question, arguments)
        if isinstance(edited, str):
            return _refused(question.id, edited)
        edit = edited
    # A scope that would save no later question is not offered; a decision for it counts once.
    allows = decision.decision == "allow" and decision.scope in question.scopes
    return decided(
        view,
        question,
        _OUTCOMES[decision.decision],
        words=decision.message,
        edit=edit,
        scope=decision.scope if allows else "once",
        decided_by=decided_by,
    )


def _refused(question_id: str, text: str) -> ApprovalResolved:
    return ApprovalResolved(question_id, "refused", text)


def _closed(view: View, decision: Decision) -> ApprovalResolved:
    """Answer a decision about a question that is not open."""
    question_id = decision.approval_id
    outcome = view.state.decided.get(question_id)
    if outcome in ("expired", "superseded"):
        return ApprovalResolved(question_id, outcome, _GONE)
    is_told = question_id in view.live.cards.told
    if outcome is not None and outcome == _OUTCOMES.get(decision.decision) and not is_told:
        return ApprovalResolved(question_id, outcome, _DECIDED)  # it may have been lost with a connection
    if outcome is not None:
        return _refused(question_id, _DECIDED)
    # Under the first claim no other process has served the session; a later one may lack outcomes.
    if len(view.state.claims) > 1:
        return ApprovalResolved(question_id, "superseded", _GONE)
    return _refused(question_id, "There is no such question.")


# -- deciding


def decided(
    view: View,
    question: Question,
    outcome: Outcome,
    *,
    said: Input = _NOTHING_SAID,
    words: str | None = None,
    missing: NoAnswer = "expired",
    edit: Edit | None = None,
    scope: Scope = "once",
    decided_by: str = "",
) -> list[r.Record]:
    """Make the records of a decision, of the decisions that follow from it, and of the next question.

    ``words`` are the person's, for the model; ``missing`` tells why a question expired. A yes with a lasting
    ``scope`` decides about others, too.
    """
    allows = outcome in ("allowed", "edited")
    refusal = denied(words) if outcome == "denied" else None if allows else not_answered(missing)
    if refusal is not None and decided_by:  # the app's backend may quote others
        refusal = marked_untrusted(refusal)
    if allows and question.expires_at <= view.now():
        outcome, refusal = "expired", not_answered("expired")
    elif allows and (forbidden := view.gate.refusal(question, edit.arguments if edit else "")) is not None:
        outcome, refusal = "superseded", forbidden
    record = r.QuestionDecided(
        question_id=question.id,
        call_id=question.call_id,
        outcome=outcome,
        event_id=said.event_id,
        text=said.text,
        decided_by=decided_by,
        images=said.images,
    )
    grants = ""
    if refusal is None:
        # The model reads the person's words with the result ("yes, but only the first").
        saying = f", saying: {words!r}" if words else ""
        grants = view.gate.granted(question, view.state.grants) if scope != "once" else ""
        record = replace(
            record,
            notes=(*([edit.note] if edit and edit.note else []), f"The user allowed this call{saying}."),
            arguments=edit.arguments if edit else "",
            digest=edit.digest if edit else "",
            grants=grants if scope == "session" else "",
        )
    return [
        record,
        *_result(view, question, refusal, said.images),
        *_following(view, question, outcome, grants),
    ]


def _following(view: View, question: Question, outcome: Outcome, grants: str) -> list[r.Record]:
    """Make the decisions that follow from one about ``question``, and the prompt of the next question."""
    records: list[r.Record] = []
    waiting: list[Question] = []
    for sibling in view.state.questions.values():
        if sibling.id == question.id:
            continue
        if sibling.form is None and outcome == "denied" and sibling.digest == question.digest:
            records.append(
                r.QuestionDecided(question_id=sibling.id, call_id=sibling.call_id, outcome="denied")
            )
            records += _result(view, sibling, denied(None))
        elif grants and _is_granted(view, sibling, grants):
            notes = ("The user allowed this call.",)
            records.append(
                r.QuestionDecided(
                    question_id=sibling.id, call_id=sibling.call_id, outcome="allowed", notes=notes
                )
            )
        else:
            waiting.append(sibling)
    if waiting and not waiting[0].card and waiting[0].presentations == 0:
        records.append(r.PromptSpoken(waiting[0].id, waiting[0].prompt))
    return records


def _is_granted(view: View, question: Question, grants: str) -> bool:
    forbidden = question.form is not None or view.gate.refusal(question, "") is not None
    return not forbidden and view.gate.allows(question, grants)


def _result(
    view: View, question: Question, outcome: ToolOutcome | None, shown: tuple[Image, ...] = ()
) -> list[r.Record]:
    call = view.state.open_call(question.call_id)
    if outcome is None or call is None or question.form is not None:
        return []
    return [finish(view, replace(call, shown=(*call.shown, *shown)), outcome)]
