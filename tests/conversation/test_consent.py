"""What words, taps and silence mean for a question: `consent` as tables.

A row of `WORDS` or `TAPS`: its name in words, the state, the words or the tap, and the answer: records,
`Later`, a refusal, or None if the words are no answer. Facts of the process stand before the answer. The time
of each row is one second after the last commit.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

import pytest
from msgspec.structs import replace

from conductor.conversation import records as r
from conductor.conversation.apply import advance
from conductor.conversation.consent import (
    Later,
    Response,
    answer,
    ask,
    present_again,
    prompt_cut,
    prompt_heard,
    tapped,
)
from conductor.conversation.state import Call, Conversation, Form, Input, Question
from conductor.conversation.view import View
from conductor.events.client import Decision
from conductor.events.server import ApprovalResolved
from conductor.messages import Image, ToolResult
from conductor.tools import outcomes
from conductor.tools.judge import Answer, AnswerKind
from conductor.tools.outcomes import ErrorType, ToolOutcome, failed
from tests.conversation import build
from tests.conversation.build import CARDS, NOW, STARTED, VOICE, asking, device, fold, question, replied, view

Facts = dict[str, Any]


class Gate(build.Gate):
    """A person of few words; questions and arguments in ``forbids`` may not run, a tool has one grant."""

    KINDS: dict[str, AnswerKind] = {
        "yes": "allow",
        "yes, this session": "allow",
        "indeed": "yes",
        "no": "deny",
        "wait": "wait",
        "pardon?": "repeat",
        "what time is it?": "other",
    }

    def __init__(self, *, forbids: Collection[str] = (), speaks: bool = True) -> None:
        super().__init__(speaks=speaks)
        self.forbidden = forbids

    def classify(self, question: Question, utterance: str, lang: str) -> Answer:
        kind = self.KINDS.get(utterance, "unclear")
        is_foreign = lang not in ("", question.language)
        scope: Literal["once", "session"] = "session" if "session" in utterance else "once"
        return Answer("unclear" if kind == "allow" and is_foreign else kind, scope, utterance)

    def language_of(self, lang: str) -> str:
        return lang[:2] or "fr"

    def prompt(self, question: Question, attempt: int) -> str:
        return f"{question.language} {attempt}: May I?"

    def refusal(self, question: Question, arguments: str) -> ToolOutcome | None:
        return FORBIDDEN if question.id in self.forbidden or arguments in self.forbidden else None

    def result(self, call: Call, outcome: ToolOutcome) -> ToolResult:
        text = f"{call.name}: {outcome.error_message}"
        untrusted = outcome.metadata.untrusted
        return ToolResult(call.id, text, is_error=True, untrusted=untrusted, images=outcome.images)


FORBIDDEN = failed("permission_denied", "The rules changed.", reason="policy")
FORBIDS = {"gate": Gate(forbids=["q1"])}
FORBIDS_OTHER = {"gate": Gate(forbids=["q2"])}
FORBIDS_EDIT = {"gate": Gate(forbids=['{"on":true}'])}
NEEDS_SCREEN = {"gate": Gate(speaks=False)}


# -- states: "heard" is a spoken question whose prompt has ended

UNHEARD = asking(question())
HEARD = fold(r.PromptHeard("q1"), state=UNHEARD)
CUT = fold(r.PromptCut("q1", "e0", NOW + 5_000), state=UNHEARD)
UNCLEAR_TWICE = fold(
    *(r.AnswerUnclear(question_id="q1", event_id="e0", text="hm", counts=True),) * 2, state=HEARD
)
HEARD_FIVE_TIMES = fold(*(r.PromptSpoken("q1", "May I?"),) * 4, r.PromptHeard("q1"), state=UNHEARD)
UNHEARD_FIVE_TIMES = fold(*(r.PromptSpoken("q1", "May I?"),) * 4, state=UNHEARD)
GRANTED = fold(
    r.QuestionDecided(question_id="q0", call_id="c0", outcome="allowed", grants="local.sum;"),
    r.PromptSpoken("q1", "May I?"),
    r.PromptHeard("q1"),
    state=asking(question(0, "c0"), question()),
)


def heard(*questions: Question) -> Conversation:
    return fold(r.PromptHeard("q1"), state=asking(*questions))


def cards(*questions: Question) -> Conversation:
    return asking(*questions, profile=CARDS)


def taken_over() -> Conversation:
    state = fold()
    advance(state, r.Commit(claim="token.2:other", at=NOW, records=(r.Claimed("token.2:other"),)))
    return state


def decided_before(outcome: outcomes.Outcome) -> Conversation:
    return fold(r.QuestionDecided(question_id="q1", call_id="c1", outcome=outcome), state=CARD)


HIGH = heard(replace(question(), risk="high"))
ONLY_ONCE = heard(replace(question(), scopes=("once",)))
OTHER, TWIN = question(2, "c2"), replace(question(2, "c2"), digest="digest c1")
OTHER_TOOL = replace(OTHER, tool="device.paint")
FORM = Form("maps", "Which way?", {})
TWIN_FORM, OTHER_FORM = replace(TWIN, form=FORM), replace(OTHER, form=FORM)
CARD = cards(question())
TWO_CARDS = cards(question(), OTHER)
SHOWS_SIGNS = cards(replace(question(), arguments='{"key":"[REDACTED:key]"}'))
ALWAYS = replace(question(), scopes=("once", "session", "always"))
AFTER_OTHER = fold(
    r.QuestionDecided(question_id="q2", call_id="c2", outcome="denied"), at=NOW + 500, state=TWO_CARDS
)

VISIBLE = {"visible_cards": {"q1": NOW, "q2": NOW}, "utterance_began": NOW + 150}
TOO_SOON = {"visible_cards": {"q1": NOW}, "utterance_began": NOW + 149}
NOT_SEEN = {"visible_cards": {"q2": NOW}, "utterance_began": NOW + 900}


# -- answers


def allowed(
    number: int = 1, *, words: str = "", text: str = "", grants: str = "", **fields: Any
) -> r.QuestionDecided:
    """Make the record of a yes, said with the ``words``, which are a transcript or the ``text`` of none."""
    note = f"The user allowed this call, saying: {words!r}." if words else "The user allowed this call."
    fields = {"notes": (note,), "event_id": "e1" if text else "", **fields}
    return r.QuestionDecided(
        question_id=f"q{number}", call_id=f"c{number}", outcome="allowed", text=text, grants=grants, **fields
    )


def not_run(
    call_id: str, error: ErrorType, reason: str, outcome: ToolOutcome, *, untrusted: bool = False
) -> r.CallFinished:
    """Make the result of a call that never ran."""
    result = ToolResult(call_id, f"device.do: {outcome.error_message}", is_error=True, untrusted=untrusted)
    return r.CallFinished(result=result, tool="", source="", error_type=error, reason=reason)


def denied_call(call_id: str = "c1", words: str | None = None, *, untrusted: bool = False) -> r.CallFinished:
    return not_run(call_id, "permission_denied", "denied", outcomes.denied(words), untrusted=untrusted)


def unanswered(reason: outcomes.NoAnswer) -> r.CallFinished:
    return not_run("c1", "approval_timeout", reason, outcomes.not_answered(reason))


def unclear(text: str, counts: bool, *, waits: bool = False) -> r.AnswerUnclear:
    return r.AnswerUnclear(question_id="q1", event_id="e1", text=text, counts=counts, waits=waits)


def again(attempt: int, language: str = "") -> r.PromptSpoken:
    """Make the record of the repeated question; the ``language`` is another one than before."""
    return r.PromptSpoken("q1", f"{language or 'en'} {attempt}: May I?", language=language)


def spoken(outcome: outcomes.Outcome, text: str) -> r.QuestionDecided:
    return r.QuestionDecided(question_id="q1", call_id="c1", outcome=outcome, event_id="e1", text=text)


YES = allowed(words="yes", text="yes")
NEXT = r.PromptSpoken("q2", "May I?")
NO = [spoken("denied", "no"), denied_call(words="no")]

WORDS: list[tuple[str, Conversation, str, Facts, Response | None]] = [
    ("no question", fold(), "yes", {}, None),
    # A question that was heard.
    ("a yes", HEARD, "yes", {}, [YES]),
    ("a yes to the first of two", heard(question(), OTHER), "yes", {}, [YES, NEXT]),
    ("an echo", HEARD, "yes", {"now": NOW + 149}, Later(NOW + 150, "q1")),
    ("a yes after the echo", HEARD, "yes", {"now": NOW + 150}, [YES]),
    ("a yes that is not enough", HEARD, "indeed", {}, [unclear("indeed", True), again(2)]),
    ("a no", HEARD, "no", {}, NO),
    ("a no to the first of two", heard(question(), OTHER), "no", {}, [*NO, NEXT]),
    ("a no is no echo", HEARD, "no", {"now": NOW}, NO),
    ("an unclear answer", HEARD, "hm", {}, [unclear("hm", True), again(2)]),
    ("a third unclear answer", UNCLEAR_TWICE, "hm", {}, [spoken("expired", "hm"), unanswered("unclear")]),
    ("a sixth prompt", HEARD_FIVE_TIMES, "hm", {}, [spoken("expired", "hm"), unanswered("unclear")]),
    ("a wish for time", HEARD, "wait", {}, [unclear("wait", False, waits=True)]),
    ("a wish for the question", HEARD, "pardon?", {}, [unclear("pardon?", False), again(0)]),
    ("a wish for the question, late", UNCLEAR_TWICE, "pardon?", {}, [unclear("pardon?", False), again(0)]),
    (
        "a wish for the question, too often",
        HEARD_FIVE_TIMES,
        "pardon?",
        {},
        [spoken("expired", "pardon?"), unanswered("unclear")],
    ),
    ("another request", HEARD, "what time is it?", {}, None),
    # A question that cannot be allowed by voice.
    (
        "an answer by voice",
        HEARD,
        "indeed",
        NEEDS_SCREEN,
        [spoken("expired", "indeed"), unanswered("screen")],
    ),
    ("a no by voice", HEARD, "no", NEEDS_SCREEN, NO),
    ("a wish for it", HEARD, "pardon?", NEEDS_SCREEN, [unclear("pardon?", False), again(0)]),
    ("an answer before it is heard", UNHEARD, "indeed", NEEDS_SCREEN, [unclear("indeed", False), again(1)]),
    # A question that was not heard to the end: only a no counts.
    ("a yes over the prompt", UNHEARD, "yes", {}, [unclear("yes", False), again(1)]),
    ("a no over the prompt", UNHEARD, "no", {}, NO),
    ("an unclear answer over the prompt", UNHEARD, "hm", {}, [unclear("hm", False), again(1)]),
    ("a wish for time over the prompt", UNHEARD, "wait", {}, [unclear("wait", False), again(1)]),
    ("another request over the prompt", UNHEARD, "what time is it?", {}, None),
    (
        "a yes over the fifth prompt",
        UNHEARD_FIVE_TIMES,
        "yes",
        {},
        [spoken("expired", "yes"), unanswered("unclear")],
    ),
    # A yes that lasts.
    (
        "for the session",
        HEARD,
        "yes, this session",
        {},
        [allowed(words="yes, this session", text="yes, this session", grants="device.do;")],
    ),
    (
        "for the session, after another grant",
        GRANTED,
        "yes, this session",
        {},
        [allowed(words="yes, this session", text="yes, this session", grants="local.sum;device.do;")],
    ),
    (
        "for the session, at high risk",
        HIGH,
        "yes, this session",
        {},
        [allowed(words="yes, this session", text="yes, this session")],
    ),
    (
        "for the session, which is not offered",
        ONLY_ONCE,
        "yes, this session",
        {},
        [allowed(words="yes, this session", text="yes, this session")],
    ),
    # A card: a yes counts for the only one, if it was visible before the person spoke.
    ("a yes to a card", CARD, "yes", VISIBLE, [YES]),
    (
        "a yes to a card for the session",
        CARD,
        "yes, this session",
        VISIBLE,
        [allowed(words="yes, this session", text="yes, this session", grants="device.do;")],
    ),
    ("a yes that began too soon", CARD, "yes", TOO_SOON, [unclear("yes", False)]),
    ("a yes to a card that is not seen", CARD, "yes", NOT_SEEN, [unclear("yes", False)]),
    ("a yes that is not enough for a card", CARD, "indeed", VISIBLE, [unclear("indeed", False)]),
    ("a yes to two cards", TWO_CARDS, "yes", VISIBLE, [unclear("yes", False)]),
    (
        "a yes after a decision about another card",
        AFTER_OTHER,
        "yes",
        {**VISIBLE, "utterance_began": NOW + 650},
        [YES],
    ),
    (
        "a yes that began before a decision about another card",
        AFTER_OTHER,
        "yes",
        {**VISIBLE, "utterance_began": NOW + 649},
        [unclear("yes", False)],
    ),
    ("a no to a card that is not seen", CARD, "no", {}, NO),
    (
        "a no to two cards",
        TWO_CARDS,
        "no",
        {},
        [*NO, r.QuestionDecided(question_id="q2", call_id="c2", outcome="denied"), denied_call("c2", "no")],
    ),
    (
        "a no to two cards about the same",
        cards(question(), TWIN),
        "no",
        {},
        [*NO, r.QuestionDecided(question_id="q2", call_id="c2", outcome="denied"), denied_call("c2")],
    ),
    ("an unclear answer to a card", CARD, "hm", VISIBLE, None),
    ("a sound of listening before a card", CARD, "mhm", VISIBLE, [unclear("mhm", False)]),
    ("a sound of listening before a card that is not seen", CARD, "mhm", {}, [unclear("mhm", False)]),
    ("a sound of listening before two cards", TWO_CARDS, "mhm", VISIBLE, [unclear("mhm", False)]),
    ("a wish for time before a card", CARD, "wait", VISIBLE, [unclear("wait", False, waits=True)]),
    ("another request before a card", CARD, "what time is it?", VISIBLE, None),
]


@pytest.mark.parametrize(
    ("state", "text", "facts", "response"), [row[1:] for row in WORDS], ids=[row[0] for row in WORDS]
)
def test_words_answer_a_question(
    state: Conversation, text: str, facts: Facts, response: Response | None
) -> None:
    assert answer(seen(state, facts), Input(event_id="e1", text=text)) == response


def seen(state: Conversation, facts: Facts) -> View:
    return view(state, **{"gate": Gate(), "now": NOW + 1_000, **facts})


IN_GERMAN = fold(r.PromptSpoken("q1", "Darf ich?", language="de"), r.PromptHeard("q1"), state=UNHEARD)


@pytest.mark.parametrize(
    ("state", "text", "lang", "response"),
    [
        pytest.param(HEARD, "yes", "en", [YES], id="a yes in the question's language"),
        pytest.param(HEARD, "yes", "de", [unclear("yes", True), again(2, "de")], id="a yes in another one"),
        pytest.param(HEARD, "no", "de", NO, id="a no in another one"),
        pytest.param(
            HEARD,
            "pardon?",
            "de-AT",
            [unclear("pardon?", False), again(0, "de")],
            id="a wish for the question",
        ),
        pytest.param(IN_GERMAN, "yes", "de", [YES], id="a yes in the language of the repeated question"),
        pytest.param(
            IN_GERMAN,
            "hm",
            "",
            [unclear("hm", True), r.PromptSpoken("q1", "de 2: May I?")],
            id="an unclear answer in a language that nobody knows",
        ),
    ],
)
def test_a_question_is_repeated_in_the_language_of_the_answer(
    state: Conversation, text: str, lang: str, response: Response
) -> None:
    assert answer(seen(state, {}), Input(event_id="e1", text=text, lang=lang)) == response


PICTURE = Image(id="p", media_type="image/png", size=9, width=3, height=3)


def showing(*records: r.Record) -> list[r.Record]:
    """Make the records of words with a picture: the first one, and the result of their call, have it."""
    decision, *others = records
    assert isinstance(decision, r.QuestionDecided | r.AnswerUnclear)
    shown = [
        replace(other, result=replace(other.result, images=(PICTURE,))) if at == 0 else other
        for at, other in enumerate(others)
        if isinstance(other, r.CallFinished)
    ]
    rest = [other for other in others if not isinstance(other, r.CallFinished)]
    return [replace(decision, images=(PICTURE,)), *shown, *rest]


@pytest.mark.parametrize(
    ("state", "text", "response"),
    [
        pytest.param(HEARD, "yes", showing(YES), id="a yes: for the result that comes"),
        pytest.param(HEARD, "no", showing(*NO), id="a no: in its result"),
        pytest.param(CARD, "no", showing(*NO), id="a no to a card"),
        pytest.param(HEARD, "hm", showing(unclear("hm", True), again(2)), id="an unclear answer"),
        pytest.param(CARD, "mhm", None, id="more than listening to a card"),
        pytest.param(HEARD, "what time is it?", None, id="another request, which has its own turn"),
    ],
)
def test_a_picture_with_an_answer_is_kept(
    state: Conversation, text: str, response: list[r.Record] | None
) -> None:
    assert answer(seen(state, {}), Input(event_id="e1", text=text, images=(PICTURE,))) == response


# -- presentations


def test_questions_are_asked_by_cards_at_once_and_by_voice_one_after_another() -> None:
    both = (question(), OTHER)
    assert ask(fold(r.ProfileDeclared(VOICE)), both) == [
        r.QuestionsAsked(both),
        r.PromptSpoken("q1", "May I?"),
    ]
    shown = (replace(question(), card=True), replace(OTHER, card=True))
    assert ask(fold(r.ProfileDeclared(CARDS)), both) == [r.QuestionsAsked(shown)]


@pytest.mark.parametrize(
    ("state", "facts", "records"),
    [
        pytest.param(CUT, {}, [again(1)], id="after an interruption"),
        pytest.param(CUT, NEEDS_SCREEN, [again(1)], id="a question for a screen"),
        pytest.param(
            UNHEARD_FIVE_TIMES,
            {},
            [r.QuestionDecided(question_id="q1", call_id="c1", outcome="expired"), unanswered("unclear")],
            id="after five presentations",
        ),
    ],
)
def test_a_question_is_repeated_in_silence(
    state: Conversation, facts: Facts, records: list[r.Record]
) -> None:
    assert present_again(seen(state, facts), state.questions["q1"]) == records


SPEECH = UNHEARD.questions["q1"].speech_id
SHOWN = fold(r.QuestionsAsked((replace(UNHEARD.questions["q1"], card=True),)), state=UNHEARD)


@pytest.mark.parametrize(
    ("state", "speech_id", "records"),
    [
        pytest.param(UNHEARD, SPEECH, [r.PromptHeard("q1")], id="a prompt"),
        pytest.param(UNHEARD, "call_other", [], id="another speech"),
        pytest.param(HEARD, SPEECH, [], id="a prompt that was heard"),
        pytest.param(CUT, SPEECH, [], id="a prompt that was cut"),
        pytest.param(SHOWN, SPEECH, [], id="a prompt whose question is a card by now"),
        pytest.param(fold(), SPEECH, [], id="no question"),
    ],
)
def test_the_end_of_a_speech(state: Conversation, speech_id: str, records: list[r.Record]) -> None:
    assert prompt_heard(state, speech_id) == records


def test_a_prompt_that_is_cut_is_repeated_when_the_person_has_had_the_floor() -> None:
    assert prompt_cut(seen(UNHEARD, {}), "q1", "e1") == [r.PromptCut("q1", "e1", NOW + 6_000)]
    assert prompt_cut(seen(fold(), {}), "q1", "e1") == []


# -- taps


def tap(decision: Literal["allow", "deny", "edit"] = "allow", **fields: Any) -> Decision:
    fields = {"arguments_digest": "digest c1", **fields}
    return Decision(
        approval_id="q1", arguments_digest=fields.pop("arguments_digest"), decision=decision, **fields
    )


def edit(**arguments: Any) -> Decision:
    return tap("edit", edited_arguments=arguments)


def resolved(outcome: Any, text: str) -> ApprovalResolved:
    return ApprovalResolved("q1", outcome, text)


EDITED = r.QuestionDecided(
    question_id="q1",
    call_id="c1",
    outcome="edited",
    arguments='{"on":true}',
    digest='digest {"on":true}',
    notes=("edited", "The user allowed this call."),
)
DENIED = r.QuestionDecided(question_id="q1", call_id="c1", outcome="denied")
EXPIRED = [r.QuestionDecided(question_id="q1", call_id="c1", outcome="expired"), unanswered("expired")]
OVERRULED = [
    r.QuestionDecided(question_id="q1", call_id="c1", outcome="superseded"),
    not_run("c1", "permission_denied", "policy", FORBIDDEN),
]
FOR_SESSION = tap(scope="session")
BOTH: list[r.Record] = [allowed(grants="device.do;"), allowed(2)]
JUST_ONE: list[r.Record] = [allowed(grants="device.do;")]
DECIDED = "This was decided already."
GONE = "The question does not stand any more."
WITHHELD = "What was withheld from the card must be written out, or left to an unedited allow."
OF_OTHER_ARGUMENTS = "This decision is about arguments that differ from the question's."
TOLD = {"told_outcomes": {"q1"}}

TAPS: list[tuple[str, Conversation, Decision, Facts, list[r.Record] | ApprovalResolved]] = [
    ("a yes", CARD, tap(), {}, [allowed()]),
    ("a yes with words", CARD, tap(message="soon"), {}, [allowed(words="soon")]),
    ("a yes of two", TWO_CARDS, tap(), {}, [allowed()]),
    ("a no", CARD, tap("deny"), {}, [DENIED, denied_call()]),
    ("a no with words", CARD, tap("deny", message="too loud"), {}, [DENIED, denied_call(words="too loud")]),
    (
        "a decision about other arguments",
        CARD,
        tap(arguments_digest="x"),
        {},
        resolved("refused", OF_OTHER_ARGUMENTS),
    ),
    ("a yes in the last moment", CARD, tap(), {"now": NOW + 599_999}, [allowed()]),
    ("a yes too late", CARD, tap(), {"now": NOW + 600_000}, EXPIRED),
    ("a no too late", CARD, tap("deny"), {"now": NOW + 600_000}, [DENIED, denied_call()]),
    ("a yes that is forbidden by now", CARD, tap(), FORBIDS, OVERRULED),
    ("a yes too late that is forbidden by now", CARD, tap(), {**FORBIDS, "now": NOW + 600_000}, EXPIRED),
    ("a no to a call that is forbidden by now", CARD, tap("deny"), FORBIDS, [DENIED, denied_call()]),
    # Changed arguments.
    ("an edit", CARD, edit(on=True), {}, [EDITED]),
    (
        "an edit with words",
        CARD,
        tap("edit", edited_arguments={"on": True}, message="so"),
        {},
        [replace(EDITED, notes=("edited", "The user allowed this call, saying: 'so'."))],
    ),
    ("an edit that is not valid", CARD, edit(), {}, resolved("refused", "Nothing is left.")),
    ("an edit that may not run", CARD, edit(on=True), FORBIDS_EDIT, OVERRULED),
    ("an edit too late", CARD, edit(on=True), {"now": NOW + 600_000}, EXPIRED),
    ("an edit with a withheld value", CARD, edit(key="[REDACTED:key]"), {}, resolved("refused", WITHHELD)),
    (
        "an edit of a call that has these signs itself",
        SHOWS_SIGNS,
        edit(key="[REDACTED:key]"),
        {},
        [
            replace(
                EDITED,
                arguments='{"key":"[REDACTED:key]"}',
                digest='digest {"key":"[REDACTED:key]"}',
            )
        ],
    ),
    # A yes that lasts decides about others, too.
    ("a yes for the session", CARD, FOR_SESSION, {}, JUST_ONE),
    ("a yes for always", cards(ALWAYS), tap(scope="always"), {}, [allowed()]),
    ("a yes for always, which is not offered", TWO_CARDS, tap(scope="always"), {}, [allowed()]),
    ("a no for the session", TWO_CARDS, tap("deny", scope="session"), {}, [DENIED, denied_call()]),
    (
        "an edit for the session",
        TWO_CARDS,
        tap("edit", edited_arguments={"on": True}, scope="session"),
        {},
        [EDITED],
    ),
    ("a yes for the session, and another call", TWO_CARDS, FOR_SESSION, {}, BOTH),
    (
        "a yes for always, and another call",
        cards(ALWAYS, OTHER),
        tap(scope="always"),
        {},
        [allowed(), allowed(2)],
    ),
    ("a yes for the session, and another tool", cards(question(), OTHER_TOOL), FOR_SESSION, {}, JUST_ONE),
    ("a yes for the session, and a forbidden call", TWO_CARDS, FOR_SESSION, FORBIDS_OTHER, JUST_ONE),
    ("a yes for the session, and a form", cards(question(), OTHER_FORM), FOR_SESSION, {}, JUST_ONE),
    ("a yes for the session, too late", TWO_CARDS, FOR_SESSION, {"now": NOW + 600_000}, EXPIRED),
    # A no decides about the same call in the same reply, too.
    (
        "a no, and the same call again",
        cards(question(), TWIN),
        tap("deny", message="no"),
        {},
        [
            DENIED,
            denied_call(words="no"),
            r.QuestionDecided(question_id="q2", call_id="c2", outcome="denied"),
            denied_call("c2"),
        ],
    ),
    ("a no, and the same form", cards(question(), TWIN_FORM), tap("deny"), {}, [DENIED, denied_call()]),
    ("a yes, and the same call again", cards(question(), TWIN), tap(), {}, [allowed()]),
    # The call is not decided by a form, nor if it has a result.
    ("a yes to a form", cards(replace(question(), form=FORM)), tap(), {}, [allowed()]),
    ("a no to a form", cards(replace(question(), form=FORM)), tap("deny"), {}, [DENIED]),
    (
        "a no to a call that has ended",
        fold(r.QuestionsAsked((replace(question(), card=True),)), state=fold(STARTED, replied(device("c2")))),
        tap("deny"),
        {},
        [DENIED],
    ),
    # The next question is spoken, unless it was or is a card.
    ("a yes before a spoken question", asking(question(), OTHER), tap(), {}, [allowed(), NEXT]),
    (
        "a yes before the second of three",
        asking(question(), OTHER, question(3, "c3")),
        tap(),
        {},
        [allowed(), NEXT],
    ),
    (
        "a yes before a question that was spoken",
        fold(NEXT, state=asking(question(), OTHER)),
        tap(),
        {},
        [allowed()],
    ),
    (
        "a no to two of three",
        asking(question(), TWIN, question(3, "c3")),
        tap("deny"),
        {},
        [
            DENIED,
            denied_call(),
            r.QuestionDecided(question_id="q2", call_id="c2", outcome="denied"),
            denied_call("c2"),
            r.PromptSpoken("q3", "May I?"),
        ],
    ),
    # A question that is not open.
    ("a yes after a yes", decided_before("allowed"), tap(), {}, resolved("allowed", DECIDED)),
    (
        "a yes after a yes that the client knows",
        decided_before("allowed"),
        tap(),
        TOLD,
        resolved("refused", DECIDED),
    ),
    ("a no after a no", decided_before("denied"), tap("deny"), {}, resolved("denied", DECIDED)),
    ("an edit after an edit", decided_before("edited"), edit(on=True), {}, resolved("edited", DECIDED)),
    ("a no after a yes", decided_before("allowed"), tap("deny"), {}, resolved("refused", DECIDED)),
    ("a yes after an edit", decided_before("edited"), tap(), {}, resolved("refused", DECIDED)),
    ("a yes after the end of its time", decided_before("expired"), tap(), TOLD, resolved("expired", GONE)),
    (
        "a yes to a superseded question",
        decided_before("superseded"),
        tap(),
        TOLD,
        resolved("superseded", GONE),
    ),
    ("a yes to no question", fold(), tap(), {}, resolved("refused", "There is no such question.")),
    (
        "a yes to a question of another process",
        taken_over(),
        tap(),
        {},
        resolved("superseded", GONE),
    ),
]


@pytest.mark.parametrize(
    ("state", "decision", "facts", "response"), [row[1:] for row in TAPS], ids=[row[0] for row in TAPS]
)
def test_taps_decide_a_question(
    state: Conversation, decision: Decision, facts: Facts, response: list[r.Record] | ApprovalResolved
) -> None:
    assert tapped(seen(state, facts), decision) == response


@pytest.mark.parametrize(
    ("decision", "records"),
    [
        pytest.param(tap(message="ok"), [allowed(words="ok", decided_by="backend")], id="a yes"),
        pytest.param(
            tap("deny", message="A guest says no."),
            [
                replace(DENIED, decided_by="backend"),
                denied_call(words="A guest says no.", untrusted=True),
            ],
            id="a no, which may quote others",
        ),
    ],
)
def test_a_key_decides_in_its_name(decision: Decision, records: list[r.Record]) -> None:
    assert tapped(seen(CARD, {}), decision, "backend") == records
