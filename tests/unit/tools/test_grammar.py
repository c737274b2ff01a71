"""The grammar of spoken answers: only a complete approval approves."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from conductor.plugins.judges import Question, classify_answer, make_question, prompt
from conductor.plugins.judges.grammar import MAX_CHARS
from conductor.plugins.judges.vocabulary import Vocabulary, load_vocabulary
from conductor.tools.base import Risk, ToolSpec
from conductor.tools.judge import Answer
from tests.cpu import least_cpu_s


def ask(
    name: str, arguments: dict[str, Any], risk: Risk = "medium", *, title: str | None = None, **more: Any
) -> Question:
    return make_question(ToolSpec(name, "", {}, risk=risk, title=title), arguments, **more)


def english() -> Vocabulary:
    vocabulary = load_vocabulary("en")
    assert vocabulary is not None
    return vocabulary


PATHS = {"paths": ["draft.txt", "old.txt", "spare.txt"]}
DELETE = ask("delete_file", {"path": "notes.txt"})
DELETE_3 = ask("delete_files", PATHS)
SEND = ask("send_message", {"recipient": "Anna Smith", "text": "Hello there"})
MOVE = ask("move_file", {"source": "inbox", "destination": "archive"})
LAMP = ask("lamp.switch", {"room": "kitchen", "state": "off"}, title="Switch lamp")
CANCEL = ask("booking.cancel", {"id": "hotel"}, title="Cancel booking")
HIGH = ask("delete_files", PATHS, "high")
MEDIUM_QUESTIONS = [DELETE, DELETE_3, SEND, MOVE, LAMP, CANCEL]
QUESTIONS = [*MEDIUM_QUESTIONS, HIGH]
PHRASES = english().consent
CORES = sorted(" ".join(phrase) for phrase, kind in PHRASES.items() if kind == "cores")
OTHERS = sorted(" ".join(phrase) for phrase, kind in PHRASES.items() if kind != "cores")


def kind(utterance: str, question: Question = DELETE) -> str:
    return classify_answer(utterance, question).kind


# -- cores and the words around them


def test_a_core_alone_approves_once_at_medium_risk_only() -> None:
    for phrase in CORES:
        for text in (phrase, f"Um, {phrase}.", f"okay, {phrase}, thank you"):
            assert classify_answer(text, DELETE) == Answer("allow", "once", text)
        assert kind(phrase, HIGH) == "unclear", phrase


def test_a_phrase_that_is_not_a_consent_never_approves() -> None:
    for number, phrase in enumerate(OTHERS):
        text = f"{phrase}, {phrase}" if number % 4 == 0 else phrase
        assert kind(text) != "allow", text


JUDGED = {
    # The ways in which transcribers write.
    "allow": ["ＹＥＳ", "\u202eyes\u202c", "“Yes.”", "\tyes\n", "that’s fine, yes", "O.K., yes"],
    "unclear": [
        # An unknown word or sign.
        *("Yеs", "y e s", "yes♪", "(yes)", "*yes*", "yes/no", "yés", "ye\u0301s", "yes🙂", "Yes?", "yes -5"),
        # A scope without a core before it.
        *("For this session.", "For this session, yes.", "Okay, for this session."),
        # A refusal that ends in a consent, or a phrase that begins like a refusal.
        *("No, wait, yes.", "No, go ahead.", "Leave it. No, go ahead."),
        *("No problem.", "No worries, go ahead.", "Don't worry.", "Don't stop.", "Not sure.", "No?"),
        # A question about the call.
        *("What does it delete?", "Which file?", "Tell me about that file", "Can it be undone?"),
    ],
    "deny": ["No, do not just do so.", "No, I did not mean to say go ahead."],
    # A new request, or a correction.
    "other": [
        "What's the weather in Paris?",
        "Could you please translate hello to Spanish?",
        "Okay, remind me to call mum at six.",
        "Send it to Bob instead.",
        "Tell me a story about dragons and castles. " * 40,
    ],
}


@pytest.mark.parametrize(
    ("text", "expected"), [(text, judgement) for judgement, texts in JUDGED.items() for text in texts]
)
def test_an_utterance_is_judged(text: str, expected: str) -> None:
    assert kind(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "Please always confirm.",
        "Confirm.",
        "Accept the call.",
        "Let's do it at ten.",
        "Yes, Anna.",
        "Yes, nevermind.",
        "Yes, check with Tom.",
        "Yes, if it is empty.",
        "Go ahead and",
        "once approved, do it",
    ],
)
def test_wishes_to_be_asked_names_times_and_conditions_are_unclear(text: str) -> None:
    for question in (*MEDIUM_QUESTIONS, ask("note.add", {"text": "nevermind", "at": "ten", "for": "Anna"})):
        assert kind(text, question) == "unclear"


@pytest.mark.parametrize("value", ["Go", "go-live", "Go tutorial"])
def test_a_listed_consent_counts_although_a_value_holds_a_word_of_it(value: str) -> None:
    question = ask("agent.spawn", {"language": value})
    assert kind("Yes, go ahead.", question) == kind("Go ahead.", question) == "allow"


def test_a_consent_that_ends_in_a_value_is_unclear() -> None:
    assert kind("Go ahead.", ask("note.add", {"text": "go ahead"})) == "unclear"
    assert kind("Yes, you may.", ask("event.create", {"guest": "May"})) == "unclear"


@pytest.mark.parametrize(
    "text",
    [
        *("Y-yes, yes.", "D-delete it.", "Yes, I, I want that.", "Yes... yes."),
        *("y yes", "yes del delete it", "delete delete it", "d delete the file please"),
    ],
)
def test_a_stutter_is_left_out(text: str) -> None:
    assert kind(text) == "allow"


@pytest.mark.parametrize(
    "text", ["Y-yesterday.", "N-no, don't.", "Y- no.", "yes or order it", "no no doubt yes"]
)
def test_a_word_after_a_stutter_keeps_its_meaning(text: str) -> None:
    assert kind(text) != "allow"


@pytest.mark.parametrize("reason", ["my hands are full", "because I'm in a hurry", "I don't need it anymore"])
def test_a_reason_follows_more_than_a_bare_yes(reason: str) -> None:
    assert kind(f"Yes please, {reason}.") == kind(f"Yes, delete it, {reason}.") == "allow"
    for text in (
        f"Yes, {reason}.",
        f"{reason}.",
        f"Yes please, {reason} until ten.",
        f"Yes please, not {reason}.",
    ):
        assert kind(text) != "allow", text
    # It could belong to the text of the message.
    assert kind(f"Yes, send it, {reason}.", SEND) == "unclear"


def test_a_reason_with_a_word_of_the_question_is_unclear() -> None:
    assert kind("Yes please, it is cold.") == "allow"
    assert kind("Yes please, it is cold.", ask("delete_file", {"path": "cold"})) == "unclear"


def test_an_address_counts_after_more_than_a_bare_yes_and_after_no_verb_for_people() -> None:
    assert kind("Yes please, sir.") == kind("Delete it, mate.") == "allow"
    call = ask("phone.call", {"contact": "Grace"})
    for text in ("Yes, boss.", "Yes, call mate.", "Yes, call her, mate."):
        assert kind(text, call) == "unclear", text


# -- scopes


@pytest.mark.parametrize(
    "text",
    ["Yes, for this session.", "Yes please, for the rest of this session", "Allow it for this session."],
)
def test_a_session_scope_is_granted_after_a_core_at_medium_risk(text: str) -> None:
    assert classify_answer(text, DELETE) == Answer("allow", "session", text)
    assert classify_answer(text, ask("t", {}, scopes=("once",))) == Answer("allow", "once", text)
    assert kind(text, HIGH) == "unclear"


@pytest.mark.parametrize(
    "text", ["Yes, always.", "Always allow it.", "Yes, every time.", "Yes, from now on."]
)
def test_always_is_never_granted_by_voice(text: str) -> None:
    question = ask("t", {}, scopes=("once", "session", "always"))
    assert kind(text, question) == "unclear"


# -- high risk


@pytest.mark.parametrize(
    "text",
    [
        "Confirm delete three files.",
        "CONFIRM: delete 3 files!",
        "Um, confirm delete three files, please.",
        "Confirm, delete the three files.",
    ],
)
def test_the_words_of_the_prompt_approve_at_high_risk(text: str) -> None:
    assert classify_answer(text, HIGH) == Answer("allow", "once", text)


@pytest.mark.parametrize(
    "frame",
    [
        "yes {}",
        "please always {}",
        "{} now",
        "{} always",
        "{} for this session",
        "{}?",
        "don't {}",
        "{} or say no",
    ],
)
def test_nothing_but_a_courtesy_may_stand_by_the_words_to_repeat(frame: str) -> None:
    assert kind(frame.replace("{}", HIGH.repeat), HIGH) != "allow"


@pytest.mark.parametrize("dropped", range(4))
def test_an_incomplete_repetition_is_unclear(dropped: int) -> None:
    words = HIGH.repeat.split()
    assert len(words) == 4
    assert kind(" ".join(words[:dropped] + words[dropped + 1 :]), HIGH) == "unclear"


@pytest.mark.parametrize(
    "text",
    [
        "confirm pay invoice 84.50 euros to anna at example dot com",
        "Confirm pay invoice €84.50 to anna@example.com.",
        "confirm pay invoice 84.5 EUR to Anna at example.com, thanks",
    ],
)
def test_amounts_and_addresses_may_be_written_as_transcribers_write_them(text: str) -> None:
    question = ask("pay_invoice", {"amount": "84.50 EUR", "to": "anna@example.com"}, "high")
    assert kind(text, question) == "allow"
    assert kind(text.replace("84.5", "48.5"), question) == "unclear"


@given(st.lists(st.sampled_from("confirm delete 3 three two files file yes no all not".split()), max_size=7))
@example(["confirm", "delete", "three", "files"])
def test_at_high_risk_nothing_else_approves(words: list[str]) -> None:
    tokens = english().words(" ".join(words))
    assert (kind(" ".join(words), HIGH) == "allow") is (tokens == ("confirm", "delete", "3", "files"))


# -- refusals


REFUSALS = sorted(
    " ".join(phrase) for phrase, kind in english().refusal.items() if kind in ("starts", "stops")
)


def test_a_refusal_refuses_at_any_risk() -> None:
    for phrase, question in zip(REFUSALS, cycle((DELETE, HIGH)), strict=False):
        for text in (phrase, f"Um, sorry, {phrase}, thanks."):
            assert kind(text, question) == "deny", text


@pytest.mark.parametrize(
    "text",
    [
        "No, I still need it.",
        "No, send it to Bob instead.",
        "Don't, I'll do it myself.",
        "Who is there? No.",
    ],
)
def test_a_refusal_with_its_reasons_or_a_correction_carries_the_users_words(text: str) -> None:
    assert classify_answer(f"  {text}\u0007 \u202e", SEND) == Answer("deny", "once", text)


def test_no_and_yes_together_approve_nothing() -> None:
    frames = cycle(["no {}", "{} no", "{} don't", "never {}", "{} not"])
    for phrase, frame in zip(CORES, frames, strict=False):
        assert kind(frame.format(phrase)) != "allow", (frame, phrase)


# -- languages


@pytest.mark.parametrize("language", ["de-DE", "fr", "../en", "", "x" * 300])
def test_a_language_without_a_data_file_has_no_approvals_by_voice(language: str) -> None:
    question = ask("delete_file", {}, locale=language or "xx")
    assert not question.by_voice
    assert kind("Yes.", question) == kind("Ja.", question) == "unclear"
    assert prompt(question).endswith("This needs your screen. Or say no.")


def test_a_locale_of_a_language_with_a_file_has_them() -> None:
    assert kind("Yes.", ask("delete_file", {}, locale="en-GB")) == "allow"
    assert kind("Yes.", ask("delete_file", {}, locale="EN_us")) == "allow"


# -- arbitrary utterances


FOREIGN = "not no if unless when Bob monday ? 7 half two but with first one always instead or never".split()
APPROVALS = ["yes", "Yes, please.", "go ahead", "okay, do it", "approve it", "Um, yes, just this once"]
KNOWN = sorted({word for phrase in PHRASES for word in phrase} | {"the", "file", "files", "delete", "it"})


@given(
    st.sampled_from(APPROVALS), st.sampled_from(FOREIGN), st.integers(0, 6), st.sampled_from(MEDIUM_QUESTIONS)
)
@settings(max_examples=100)
def test_an_extra_word_anywhere_withdraws_the_approval(
    approval: str, word: str, position: int, question: Question
) -> None:
    assert kind(approval, question) == "allow"
    words = approval.split()
    assert kind(" ".join(words[:position] + [word] + words[position:]), question) != "allow"


@given(
    st.lists(st.sampled_from(KNOWN), max_size=6),
    st.sampled_from(FOREIGN) | st.from_regex(r"[b-df-hj-np-tv-xz]{5,9}", fullmatch=True),
    st.lists(st.sampled_from(KNOWN), max_size=6),
)
@settings(max_examples=100)
def test_no_mix_of_words_with_a_foreign_one_approves(before: list[str], word: str, after: list[str]) -> None:
    for question in QUESTIONS if word not in KNOWN else ():
        assert kind(" ".join([*before, word, *after]), question) != "allow"


@given(st.text(max_size=200), st.dictionaries(st.text(max_size=8), st.text(max_size=30), max_size=4))
@example("\ud800 yes \x00", {"\ud800": "\ud800"})
def test_any_text_is_judged_and_twice_the_same(text: str, arguments: dict[str, Any]) -> None:
    risks: list[Risk] = ["medium", "high"]
    for risk in risks:
        question = ask("t", arguments, risk)
        assert classify_answer(text, question) == classify_answer(text, question)


@settings(deadline=None)  # it judges each end of three prompts
@given(st.text(max_size=40), st.sampled_from(["yes {}", "{} yes", "go ahead {}"]))
def test_an_echo_of_a_value_in_the_prompt_does_not_approve(value: str, frame: str) -> None:
    question = ask("note", {"text": value})
    for attempt in (1, 2, 3):
        words = prompt(question, attempt).split()
        for cut in range(len(words)):
            assert kind(" ".join(words[cut:]), question) != "allow"
    assert kind(frame.format("not " + value), question) != "allow"


@pytest.mark.parametrize("attempt", [1, 2, 3])
def test_no_end_of_a_prompt_that_the_microphone_hears_is_an_answer(attempt: int) -> None:
    for question in QUESTIONS:
        words = prompt(question, attempt).split()
        assert {kind(" ".join(words[cut:]), question) for cut in range(len(words) - 1)} <= {
            "unclear",
            "other",
        }


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
        "go ahead and delete the three files ",
    ],
)
@pytest.mark.parametrize("question", [DELETE_3, HIGH], ids=["medium", "high"])
def test_64_kib_are_judged_at_once_and_never_approve(text: str, question: Question) -> None:
    long = (text * 65_536)[:65_536]
    assert kind(long, question) != "allow"
    assert least_cpu_s(lambda: kind(long, question), 0.25) < 0.25


def test_a_truncated_utterance_never_approves() -> None:
    assert kind("yes" + "." * MAX_CHARS + "no") != "allow"
    assert kind("yes" + "\u2057" * 590 + "no") != "allow"
