"""The grammar of spoken answers: only a complete approval approves, in the language of the question."""

from __future__ import annotations

from importlib import resources
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from conductor.plugins import judges
from conductor.plugins.judges import LANGUAGES, QuestionWords, classify, make_question, prompt
from conductor.plugins.judges.grammar import MAX_CHARS
from conductor.plugins.judges.page import LISTS, PHRASES, TURN_PHRASES, load_page
from conductor.tools.base import ToolSpec
from conductor.tools.judge import Answer, AnswerKind
from conductor.tools.outcomes import Risk
from tests.cpu import least_cpu_s
from tests.seeds import seeded


def ask(
    name: str,
    arguments: dict[str, Any],
    risk: Risk = "medium",
    *,
    language: str = "en",
    title: str | None = None,
    spoken: str | None = None,
) -> QuestionWords:
    return make_question(
        language,
        ToolSpec(name=name, description="", input_schema={}, risk=risk, title=title, spoken=spoken),
        arguments,
    )


PATHS = {"paths": ["draft.txt", "old.txt", "spare.txt"]}
DELETE = ask("files.delete_file", {"path": "notes.txt"})
DELETE_3 = ask("files.delete", PATHS)
SEND = ask("send_message", {"recipient": "Anna Smith", "text": "see you there at noon"})
MOVE = ask("move_file", {"source": "inbox", "destination": "archive"})
LAMP = ask("lamp.switch", {"room": "kitchen", "on": False}, title="Switch lamp")
CANCEL = ask("booking.cancel", {"id": "hotel"}, title="Cancel booking")
PAY = ask("pay", {"amount": 250, "currency": "EUR"}, spoken="pay {amount} to Eve")
BOOK = ask("table.book", {"from": "7 pm", "people": 4}, spoken="book a table for {people} from {from}")
HIGH = ask("files.delete", PATHS, "high")
MEDIUM_QUESTIONS = [DELETE, DELETE_3, SEND, MOVE, LAMP, CANCEL, BOOK]
OF: dict[str, tuple[str, dict[str, Any]]] = {
    "en": ("Send message", {"to": "Anna"}),
    "de": ("Nachricht senden", {"an": "Anna"}),
    "es": ("Enviar mensaje", {"para": "Ana"}),
    "fr": ("Envoyer le message", {"\u00e0": "Anne"}),
}


def of(language: str, risk: Risk = "medium") -> QuestionWords:
    title, arguments = OF[language]
    return ask("x", arguments, risk, language=language, title=title)


def kind(utterance: str, question: QuestionWords = DELETE, lang: str | None = None) -> AnswerKind:
    return classify(utterance, question, LANGUAGES, lang).kind


# -- the pages


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_language_is_two_pages(language: str) -> None:
    for kind in ("", ".turns"):
        text = resources.files(judges).joinpath(f"{language}{kind}.toml").read_text("utf-8")
        # The page of turns has what closed classes of words a language has.
        assert len(text.encode()) <= 24 * 1024 and text.count("\n") <= 400, kind
    page, english = load_page(language), load_page("en")
    assert set(page.sentences) == set(english.sentences) and set(page.names) >= {
        *"<>=*~/\\@#%&+|^_.:-",
        "minus",
    }
    assert set(page.phrases) == {*PHRASES, *TURN_PHRASES} and set(page.lists) == {*LISTS}


@pytest.mark.parametrize("language", LANGUAGES)
def test_each_phrase_means_what_its_list_says(language: str) -> None:
    page, question = load_page(language), of(language)
    for phrase in page.phrases["consents"]:
        text = " ".join(phrase)
        assert classify(text, question, LANGUAGES) == Answer("allow", "once", text), phrase
        assert kind(text, of(language, "high")) == "yes", phrase
    for name in ("weak", "leads", "courtesies", "hesitations", "pronouns", "session", "no_refusals"):
        for phrase in page.phrases[name] - page.phrases["consents"]:
            assert kind(" ".join(phrase), question) not in ("allow", "deny"), (name, phrase)
    for phrase in page.phrases["refusals"] - page.phrases["no_refusals"]:
        assert kind(" ".join(phrase), question) == "deny", phrase
    for name, meaning in (("waits", "wait"), ("repeats", "repeat")):
        for phrase in page.phrases[name]:
            assert kind(" ".join(phrase), question) == meaning, phrase


@pytest.mark.parametrize(
    ("language", "text", "words"),
    [
        ("en", "Twenty-five files, one hundred; 1,000. Don\u2019t!", "25 files 100 1000 do not"),
        ("en", "two hundred and fifty euros, two and three", "250 euros 2 and 3"),
        ("en", "ninety-nine thousand nine hundred ninety nine, a thousand", "99999 a 1000"),
        ("en", "one two, 3.50 50%? twelve point five", "1 2 3.50 50 percent ? 12.5"),
        ("en", "\u20ac1,200.00 or twelve pounds fifty or 7 EUR", "1200 euros or 12.5 pounds or 7 euros"),
        (
            "en",
            "notes.txt and anna@example.com at 7:30 p.m.",
            "notes dot txt and anna at example dot com at 7 30 pm",
        ),
        ("en", "It's what we'll see, Siobh\u00e1n; the 3rd", "it is what we will see siobhan the 3"),
        (
            "de",
            "einundzwanzig oder zweihundertf\u00fcnfzig oder tausendzweihundert oder siebenundneunzig",
            "21 oder 250 oder 1200 oder 97",
        ),
        (
            "de",
            "1.200,50 \u20ac, zw\u00f6lf Euro f\u00fcnfzig, drei Komma f\u00fcnf, M\u00fcller",
            "1200.5 euro 12.5 euro 3.5 muller",
        ),
        (
            "es",
            "veintid\u00f3s o treinta y cinco o doscientos cincuenta o dos mil trescientos o cien",
            "22 o 35 o 250 o 2300 o 100",
        ),
        (
            "fr",
            "soixante et onze ou quatre-vingt-dix-sept ou deux cents ou vingt et un ou mille",
            "71 ou 97 ou 200 ou 21 ou 1000",
        ),
    ],
)
def test_numbers_signs_and_contractions_have_one_form(language: str, text: str, words: str) -> None:
    assert " ".join(load_page(language).words(text)) == words


# -- approval


@pytest.mark.parametrize(
    ("text", "question", "expected"),
    [
        # A consent, with what may stand around it.
        ("Yes.", DELETE, "allow"),
        ("Um, yes, please.", DELETE, "allow"),
        ("okay yes go ahead thank you very much", DELETE, "allow"),
        ("No problem, go ahead.", DELETE, "allow"),
        ("y-yes", DELETE, "allow"),
        ("yes", SEND, "allow"),
        # Weak words and leads are none, nor is a yes that goes on.
        ("okay", DELETE, "unclear"),
        ("Yeah.", DELETE, "unclear"),
        ("yes and", DELETE, "unclear"),
        ("yes but", DELETE, "unclear"),
        ("yes if it is empty", DELETE, "unclear"),
        ("Yes?", DELETE, "unclear"),
        ("yes um", DELETE, "unclear"),
        ("will you do it", DELETE, "unclear"),
        ("Yes, Anna.", DELETE, "unclear"),
        # The tool's own verb with an object.
        ("delete it", DELETE, "allow"),
        ("Please delete the file.", DELETE, "allow"),
        ("yes, delete notes dot txt", DELETE, "allow"),
        ("yes, just this once", DELETE, "allow"),
        ("yes, just", DELETE, "unclear"),
        ("delete", DELETE, "unclear"),
        ("yes, delete", DELETE, "unclear"),
        ("remove it", DELETE, "unclear"),
        ("switch the kitchen lamp", LAMP, "allow"),
        ("lamp kitchen", LAMP, "unclear"),
        ("switch the hall lamp", LAMP, "unclear"),
        ("switch it on", LAMP, "other"),
        # A verb that also refuses counts only after a consent.
        ("cancel it", CANCEL, "unclear"),
        ("yes, cancel it", CANCEL, "allow"),
        ("yes, cancel the booking", CANCEL, "allow"),
        # Whole values, in the order of the question.
        ("go ahead, Anna", SEND, "unclear"),
        ("yes, send the message to Bob", SEND, "unclear"),
        ("yes, move the archive", MOVE, "unclear"),
        ("yes, move it to the inbox", MOVE, "unclear"),
        ("yes, delete draft dot txt", DELETE_3, "unclear"),
        ("yes, delete draft dot txt old dot txt and spare dot txt", DELETE_3, "allow"),
        ("yes, delete the file", DELETE_3, "unclear"),
        ("yes, 4 from 7 pm", BOOK, "allow"),
        ("yes, at 7 pm", BOOK, "unclear"),
        ("book a table until 7 pm", BOOK, "unclear"),
        ("book the table for 5", BOOK, "unclear"),
        ("yes pay 250 euros", PAY, "allow"),
        ("yes pay two hundred and fifty euros", PAY, "allow"),
        ("yes pay 205 euros", PAY, "unclear"),
        ("yes pay 2 50 euros", PAY, "unclear"),
        ("yes pay 250", PAY, "unclear"),
        # Nothing after dictated text, which may go on.
        ("yes, send the message see you there at noon", SEND, "allow"),
        ("send the message see you there at noon thanks", SEND, "unclear"),
        ("yes, send see you there at noon yes", SEND, "unclear"),
    ],
)
def test_an_answer_approves_only_as_a_whole(text: str, question: QuestionWords, expected: AnswerKind) -> None:
    assert kind(text, question) == expected


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        ("de", "Ja, sende die Nachricht an Anna", "allow"),
        ("de", "send die Nachricht nicht", "deny"),
        ("de", "das geht ja gar nicht", "deny"),
        ("de", "mach das, ach nein, lass es", "deny"),
        ("de", "kein Problem, mach das", "allow"),
        ("de", "warum nicht", "unclear"),
        ("de", "ja aber nicht an Anna", "deny"),
        ("de", "ja, bitte senden", "allow"),
        ("de", "ja, sende", "unclear"),
        ("de", "Ja, mach nur.", "allow"),
        ("de", "Jo, passt.", "allow"),
        ("de", "ja, darfst du", "allow"),
        ("de", "na ja", "unclear"),
        ("de", "ist ja gut", "unclear"),
        ("es", "s\u00ed, env\u00edalo", "allow"),
        ("es", "si por favor", "allow"),
        ("es", "bueno, dale", "allow"),
        ("es", "no lo env\u00edes", "deny"),
        ("es", "claro que no", "deny"),
        ("es", "no hay problema, adelante", "allow"),
        ("es", "s\u00ed, pero a Luis", "unclear"),
        ("fr", "oui, envoie-le", "allow"),
        ("fr", "envoie le message \u00e0 Anne s'il te pla\u00eet", "allow"),
        ("fr", "oui, envoyer", "allow"),
        ("fr", "touche pas", "deny"),
        ("fr", "n'envoie pas le message", "deny"),
        ("fr", "pas de probl\u00e8me, vas-y", "allow"),
        ("fr", "je ne sais pas", "unclear"),
        ("fr", "oui mais \u00e0 Luc", "unclear"),
    ],
)
def test_each_language_has_its_own_ways(language: str, text: str, expected: AnswerKind) -> None:
    assert kind(text, of(language)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dale, m\u00e1ndasela", "allow"),
        ("dale, m\u00e1ndale la foto a Luc\u00eda", "allow"),
        ("no la mandes", "deny"),
        ("m\u00e1ndasela a Ana", "unclear"),
    ],
)
def test_a_pronoun_that_clings_to_the_action_is_no_part_of_its_verb(text: str, expected: AnswerKind) -> None:
    assert kind(text, ask("x", {}, language="es", spoken="mandarle la foto a Luc\u00eda")) == expected


@pytest.mark.parametrize(
    ("language", "spoken", "text", "expected"),
    [
        ("es", "cerrar la puerta del garaje", "s\u00ed, ci\u00e9rrala", "allow"),
        ("es", "encender la luz", "enciende la luz", "allow"),
        ("es", "mostrar la foto", "no la muestres", "deny"),
        ("es", "cerrar la puerta", "s\u00ed, c\u00f3rrela", "unclear"),
        ("de", "die Nachricht vorlesen", "ja, lies vor", "unclear"),
        ("de", "den Artikel lesen", "lies den Artikel", "allow"),
    ],
)
def test_the_vowel_of_a_verb_may_change(language: str, spoken: str, text: str, expected: AnswerKind) -> None:
    assert kind(text, ask("x", {}, language=language, spoken=spoken)) == expected


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_consent_counts_only_in_the_language_of_the_question(language: str) -> None:
    yes = {"en": "yes please", "de": "ja bitte", "es": "s\u00ed por favor", "fr": "oui merci"}
    for other in LANGUAGES:
        assert (kind(yes[other], of(language)) == "allow") is (other == language)
        assert (kind(yes[language], of(language), other) == "allow") is (other == language)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    "no", ["no thanks", "nein danke", "lass es", "no gracias", "non merci", "arr\u00eate"]
)
def test_a_refusal_is_heard_in_every_language_and_at_any_risk(language: str, no: str) -> None:
    for question in (of(language), of(language, "high"), ask("x", {"t": "\u7530"}, language=language)):
        assert kind(no, question) == kind(no, question, "ja") == "deny"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("No.", "deny"),
        ("No, wait, go ahead.", "unclear"),
        ("No, don't do that.", "deny"),
        ("Don't delete the file.", "deny"),
        ("Oh no, please don't do it.", "deny"),
        ("Don't worry about it.", "unclear"),
        ("Hmm, actually, never mind.", "deny"),
        ("N-no.", "deny"),
        ("wait", "wait"),
        ("hang on, let me think", "wait"),
        ("What do I have to say?", "repeat"),
        ("pardon?", "repeat"),
        ("Which file?", "repeat"),
        ("what path is that", "repeat"),
        ("What's the weather in Paris?", "other"),
        ("Set a timer for ten minutes", "other"),
        ("Tell me a story about dragons and castles. " * 40, "other"),
    ],
)
def test_what_is_no_approval_has_a_meaning(text: str, expected: AnswerKind) -> None:
    assert kind(text) == expected


# -- scope and high risk


@pytest.mark.parametrize("text", ["Yes, for this session.", "go ahead, just for the rest of this session"])
def test_a_session_scope_is_granted_after_a_consent_at_medium_risk(text: str) -> None:
    assert classify(text, DELETE, LANGUAGES) == Answer("allow", "session", text)
    assert kind(text, HIGH) == "yes"
    once = make_question("en", ToolSpec(name="t", description="", input_schema={}), {}, scopes=("once",))
    assert classify(text, once, LANGUAGES).scope == "once"


@pytest.mark.parametrize(
    "text", ["Yes, always.", "always allow that", "yes from now on", "For this session."]
)
def test_always_is_never_granted_by_voice(text: str) -> None:
    assert kind(text) in ("unclear", "other")


WORDS = "confirm delete files draft dot txt old dot txt and spare dot txt"


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        ("{}", "allow"),
        ("Um, yes, okay, {}.", "allow"),
        ("Please {}, thank you.", "allow"),
        ("I {}.", "allow"),
        ("{} tomorrow", "unclear"),
        ("do not {}", "deny"),
        ("Anna, {}", "unclear"),
        ("{} or not", "unclear"),
    ],
)
def test_a_yes_may_stand_before_the_words_to_repeat_and_a_courtesy_behind(
    frame: str, expected: AnswerKind
) -> None:
    assert HIGH.repeat == WORDS
    assert kind(frame.format(WORDS), HIGH) == expected


def test_an_incomplete_repetition_is_no_approval() -> None:
    words = WORDS.split()
    for dropped in range(len(words)):
        text = " ".join(words[:dropped] + words[dropped + 1 :])
        assert kind(text, HIGH) != "allow", text


@pytest.mark.parametrize(
    "text",
    [
        "confirm pay \u20ac1,000 to Siobhan",
        "confirm pay a thousand euros to Siobh\u00e1n",
        "confirm pay 1000 euro to siobhan",
    ],
)
def test_amounts_and_names_may_be_written_as_transcribers_write_them(text: str) -> None:
    question = ask(
        "pay", {"amount": 1000, "currency": "EUR", "to": "Siobh\u00e1n"}, "high", spoken="pay {amount}"
    )
    assert kind(text, question) == "allow"


# -- arbitrary utterances


FOREIGN = {
    "en": "not no if unless when Bob monday ? 7 half but first always instead or never".split(),
    "de": "nicht kein wenn falls Bob montags ? 7 aber erst immer statt oder nie".split(),
    "es": "no nunca cuando Bob lunes ? 7 pero primero siempre o".split(),
    "fr": "pas ne jamais si quand Bob lundi ? 7 sauf toujours ou".split(),
}
APPROVALS = {
    "en": ["yes", "Yes, please.", "go ahead", "okay, do it", "send it to Anna"],
    "de": ["ja", "ja bitte", "mach das", "sende die Nachricht"],
    "es": ["s\u00ed, por favor", "adelante", "env\u00edalo"],
    "fr": ["oui", "vas-y", "envoie le message"],
}


@given(st.sampled_from(LANGUAGES), st.data())
@settings(max_examples=200)
def test_an_extra_word_anywhere_withdraws_the_approval(language: str, data: st.DataObject) -> None:
    approval = data.draw(st.sampled_from(APPROVALS[language]))
    word, position = data.draw(st.sampled_from(FOREIGN[language])), data.draw(st.integers(0, 6))
    assert kind(approval, of(language)) == "allow"
    words = approval.split()
    assert kind(" ".join(words[:position] + [word] + words[position:]), of(language)) != "allow"


@given(st.sampled_from(LANGUAGES), st.data())
@settings(max_examples=200)
def test_no_mix_of_words_with_a_foreign_one_approves(language: str, data: st.DataObject) -> None:
    page = load_page(language)
    known = sorted({word for phrases in page.phrases.values() for phrase in phrases for word in phrase})
    before, after = (data.draw(st.lists(st.sampled_from(known), max_size=6)) for _ in range(2))
    foreign = data.draw(st.from_regex(r"[b-df-hj-np-tv-xz]{6,9}", fullmatch=True))
    assert kind(" ".join([*before, foreign, *after]), of(language)) != "allow"


@given(st.text(max_size=200), st.dictionaries(st.text(max_size=8), st.text(max_size=30), max_size=4))
@example("\ud800 yes \x00", {"\ud800": "\ud800"})
def test_any_text_is_judged_and_twice_the_same(text: str, arguments: dict[str, Any]) -> None:
    risks: list[Risk] = ["medium", "high"]
    for language in LANGUAGES:
        for risk in risks:
            question = ask("t", arguments, risk, language=language)
            assert classify(text, question, LANGUAGES) == classify(text, question, LANGUAGES)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("attempt", [0, 1, 2, 3])
@pytest.mark.parametrize("step", [10, pytest.param(1, marks=pytest.mark.extended)], ids=["tenth", "all"])
def test_no_part_of_a_prompt_that_the_microphone_hears_approves(
    language: str, attempt: int, step: int
) -> None:
    rng = seeded()
    for question in (of(language), of(language, "high"), *MEDIUM_QUESTIONS, HIGH):
        words = prompt(question, attempt).split()
        for cut in range(rng.randrange(step), len(words), step):
            assert kind(" ".join(words[cut:]), question) != "allow"
            assert question.repeat or kind(" ".join(words[: cut + 1]), question) != "allow"


@pytest.mark.parametrize(
    "text",
    [
        "yes ",
        "yes and ",
        "'",
        "one hundred thousand ",
        "what is ",
        "\ufdfa",
        "\u0301",
        "go ahead and delete it ",
    ],
)
@pytest.mark.parametrize("question", [DELETE_3, HIGH], ids=["medium", "high"])
def test_64_kib_are_judged_at_once_and_never_approve(text: str, question: QuestionWords) -> None:
    long = (text * 65_536)[:65_536]
    assert kind(long, question) != "allow"
    assert least_cpu_s(lambda: kind(long, question), 0.1) < 0.1


def test_a_truncated_utterance_never_approves() -> None:
    assert kind("yes" + "." * MAX_CHARS + "no") != "allow"
    assert kind("yes" + "\u2057" * 590 + "no") != "allow"
