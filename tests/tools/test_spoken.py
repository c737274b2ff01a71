"""The judge of spoken answers: what is no approval from end to end never approves."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from conductor.tools import spoken_words as vocabulary
from conductor.tools.base import Risk
from conductor.tools.spoken import MAX_CHARS, Answer, Question, Scope, judge
from conductor.tools.spoken_prompt import make_question, prompt
from conductor.tools.spoken_words import words_of

CORPUS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("spoken_corpus.json").read_text("utf-8"))

DELETE = make_question("delete_file", "medium", "write", {"path": "notes.txt"})
DELETE_3 = make_question("delete_files", "medium", "write", {"paths": ["draft.txt", "old.txt", "spare.txt"]})
SEND = make_question("send_message", "medium", "write", {"recipient": "Anna Smith", "text": "Hello there"})
MOVE = make_question("move_file", "medium", "write", {"source": "inbox", "destination": "archive"})
HIGH = make_question("delete_files", "high", "irreversible", {"paths": ["draft.txt", "old.txt", "spare.txt"]})
MEDIUM_QUESTIONS = [DELETE, DELETE_3, SEND, MOVE]
QUESTIONS = [*MEDIUM_QUESTIONS, HIGH]


def kind(utterance: str, question: Question = DELETE) -> str:
    return judge(utterance, question).kind


def said(words: tuple[str, ...]) -> str:
    return " ".join(words)


# -- the corpus


def judged(entry: dict[str, Any]) -> Answer:
    question = make_question(entry["tool"], entry["risk"], "write", entry["arguments"])
    return judge(entry["text"], question)


def test_the_corpus_is_large_and_has_no_doubles() -> None:
    keys = {(entry["text"], entry["tool"], entry["risk"]) for entry in CORPUS}
    assert len(keys) == len(CORPUS) >= 220


def test_no_phrase_of_the_corpus_approves_that_should_not() -> None:
    unsafe = [e["text"] for e in CORPUS if e["expected"] != "allow" and judged(e).kind == "allow"]
    assert unsafe == []


@pytest.mark.parametrize(
    ("expected", "least"), [("allow", 1.0), ("deny", 1.0), ("unclear", 1.0), ("other", 1.0)]
)
def test_the_corpus_is_recalled(expected: str, least: float) -> None:
    entries = [entry for entry in CORPUS if entry["expected"] == expected]
    missed = [(judged(e).kind, e["text"]) for e in entries if judged(e).kind != expected]
    assert 1 - len(missed) / len(entries) >= least, missed


def test_scopes_of_the_corpus_are_understood() -> None:
    wrong = [e["text"] for e in CORPUS if "scope" in e and judged(e).scope != e["scope"]]
    assert wrong == []


# -- approvals


@pytest.mark.parametrize("phrase", sorted(vocabulary.YES))
def test_an_approval_phrase_alone_approves_at_medium_risk_only(phrase: tuple[str, ...]) -> None:
    assert kind(said(phrase)) == "allow"
    assert kind(said(phrase), HIGH) == "unclear"


@pytest.mark.parametrize(
    "phrase", sorted(vocabulary.WEAK | vocabulary.FILLERS | vocabulary.POLITE | vocabulary.ALWAYS)
)
def test_what_people_say_to_show_that_they_listen_approves_nothing(phrase: tuple[str, ...]) -> None:
    assert kind(said(phrase)) == "unclear"
    assert kind(f"{said(phrase)}, {said(phrase)}") == "unclear"
    assert kind(said(phrase), HIGH) == "unclear"


@pytest.mark.parametrize(
    "text",
    [
        "ＹＥＳ",
        "yes\u200b",
        "\u202eyes\u202c",
        "“Yes.”",
        "Yes…",
        "\tyes\n",
        "— Yes —",
        "YES!!!",
        "that’s fine, yes",
        "that´s fine, yes",
        "O.K., yes",
    ],
)
def test_the_ways_in_which_transcribers_write_do_not_matter(text: str) -> None:
    assert kind(text) == "allow"


@pytest.mark.parametrize(
    "text", ["Yеs", "y e s", "yes♪", "(yes)", "*yes*", "yes/no", "yés", "ye\u0301s", "yes🙂"]
)
def test_a_word_or_sign_that_is_not_known_is_foreign(text: str) -> None:
    assert kind(text) == "unclear"


@pytest.mark.parametrize(
    ("text", "scope"),
    [
        ("Yes, always.", "always"),
        ("Yes, every time", "always"),
        ("Yes, for this session.", "session"),
        ("Yes, just this once.", "once"),
        ("Approve once.", "once"),
        ("Yes.", "once"),
    ],
)
def test_scope_words_give_the_scope(text: str, scope: Scope) -> None:
    assert judge(text, DELETE) == Answer("allow", scope, text)


def test_a_scope_that_is_not_offered_becomes_once() -> None:
    question = make_question("delete_file", "medium", "write", {}, scopes=("once", "session"))
    assert judge("Yes, always.", question).scope == "once"
    assert judge("Yes, for this session.", question).scope == "session"


def test_two_scopes_contradict_each_other() -> None:
    assert kind("Yes, always, just this once") == "unclear"


def test_at_high_risk_scope_words_remember_nothing() -> None:
    assert judge("Confirm delete three files always", HIGH) == Answer(
        "allow", "once", "Confirm delete three files always"
    )


@pytest.mark.parametrize(
    "text",
    [
        "once approved, do it",
        "every time I approve, do it",
        "do it once confirmed",
        "always approved",
        "once immediately approved",
        "with this approved",
    ],
)
def test_a_condition_made_of_known_words_approves_nothing(text: str) -> None:
    assert kind(text) == "unclear"


@pytest.mark.parametrize(
    "text",
    [
        "Anna approved",
        "the message approved then go ahead",
        "yes Anna approved it",
        "confirmed by Anna",
        "allow Anna",
    ],
)
def test_a_report_made_of_the_arguments_words_approves_nothing(text: str) -> None:
    assert kind(text, SEND) == "unclear"


# -- words of the action


@pytest.mark.parametrize(
    ("text", "question", "expected"),
    [
        ("Yes, move it to archive", MOVE, "allow"),
        ("Yes, from inbox to archive", MOVE, "allow"),
        ("Yes, move it to inbox", MOVE, "unclear"),
        ("Yes, from archive to inbox", MOVE, "unclear"),
        ("Yes, archive inbox", MOVE, "unclear"),
        ("Yes, source archive", MOVE, "unclear"),
        ("Yes, delete draft, old and spare", DELETE_3, "allow"),
        ("Yes, delete draft and old", DELETE_3, "unclear"),
        ("Yes, delete the three files", DELETE_3, "allow"),
        ("Yes, delete the 4 files", DELETE_3, "unclear"),
        ("Yes, delete the file", DELETE_3, "unclear"),
        ("Yes, delete the files", DELETE, "unclear"),
        ("Yes, send it to Anna", SEND, "allow"),
        ("Yes, send it to Ann", SEND, "unclear"),
    ],
)
def test_words_of_the_action_must_fit_it(text: str, question: Question, expected: str) -> None:
    assert kind(text, question) == expected


def test_a_folder_on_the_way_to_a_file_is_not_the_file() -> None:
    question = make_question("delete", "medium", "write", {"path": "/home/documents/old notes.txt"})
    assert kind("Yes, delete old notes", question) == "allow"
    assert kind("Yes, delete documents", question) == "unclear"


def test_the_words_of_a_long_text_are_not_for_an_approval() -> None:
    question = make_question("send_message", "medium", "write", {"text": "the folder and the cake " * 20})
    assert kind("Yes, send it", question) == "allow"
    assert kind("Yes, send the cake", question) == "unclear"


@pytest.mark.parametrize(
    "value",
    ["tomorrow", "no", "not", "if", "wait", "everything", "later", "do not", "said", "yes but", "only"],
)
def test_no_argument_brings_in_a_word_that_changes_an_approval(value: str) -> None:
    question = make_question("note", "medium", "write", {"text": value})
    assert kind(f"Yes, {value}", question) != "allow"
    assert kind(f"Yes, do it {value}", question) != "allow"


@pytest.mark.parametrize("name", ["no", "do_not_do_it", "wait", "never.mind", "if_not", "say_yes"])
def test_no_tools_name_brings_in_a_word_that_changes_an_approval(name: str) -> None:
    question = make_question(name, "medium", "write", {})
    assert kind("Yes", question) == "allow"
    assert kind("Yes, " + name.replace("_", " ").replace(".", " "), question) != "allow"


def test_a_tool_that_stops_something_is_approved_by_naming_what_it_stops() -> None:
    question = make_question("agent.cancel", "medium", "write", {"id": "builder"})
    assert kind("Yes, cancel the agent", question) == "allow"
    assert kind("Yes, cancel it", question) == "unclear"
    assert kind("Cancel the agent", question) == "unclear"


# -- high risk


@pytest.mark.parametrize(
    "text",
    [
        "Confirm delete three files.",
        "confirm delete 3 files",
        "Um, yes, confirm: delete three files, please!",
        "I confirm, delete the three files",
        "Confirmed delete three file",
    ],
)
def test_a_repeat_back_approves_at_high_risk(text: str) -> None:
    assert kind(text, HIGH) == "allow"


@pytest.mark.parametrize("dropped", range(4))
def test_a_repeat_back_without_one_of_its_words_is_unclear(dropped: int) -> None:
    words = HIGH.confirm_phrase.split()
    assert len(words) == 4
    assert kind(" ".join(words[:dropped] + words[dropped + 1 :]), HIGH) == "unclear"


def test_a_repeat_back_may_name_the_value_in_full() -> None:
    question = make_question("delete_file", "high", "write", {"path": "docs/notes.txt"})
    assert question.confirm_phrase == "confirm delete file notes"
    assert kind("Confirm delete file notes dot txt", question) == "allow"
    assert kind("Confirm delete file docs", question) == "unclear"


@given(
    st.lists(st.sampled_from("confirm delete 3 three two files file yes no all the not".split()), max_size=7)
)
@example(["yes", "confirm", "delete", "three", "files"])
def test_at_high_risk_nothing_else_approves(words: list[str]) -> None:
    fits = [word for word in words_of(" ".join(words)) if word != "the"]
    while fits[:1] == ["yes"]:
        del fits[0]
    expected = fits in (["confirm", "delete", "3", "files"], ["confirm", "delete", "3", "file"])
    assert (kind(" ".join(words), HIGH) == "allow") is expected


# -- denials and others


@pytest.mark.parametrize("phrase", sorted(vocabulary.DENIALS))
def test_a_refusal_refuses_at_any_risk(phrase: tuple[str, ...]) -> None:
    assert kind(said(phrase)) == kind(said(phrase) + ", please.", HIGH) == "deny"


def test_a_refusal_carries_the_users_words() -> None:
    text = "  No,\u0007 leave it, \u202e because I  need it. "
    assert judge(text, DELETE) == Answer("deny", "once", "No, leave it, because I need it.")


@pytest.mark.parametrize("word", sorted(vocabulary.NOT_NO - {"1", "other", "such"}))
def test_a_no_that_belongs_to_a_turn_of_speech_refuses_nothing(word: str) -> None:
    assert kind(f"no {word}") == kind(f"no {word}, go ahead") == "unclear"


@pytest.mark.parametrize("verb", ["stop", "worry", "mind", "hesitate", "cancel"])
def test_a_do_not_that_refuses_a_refusal_is_unclear(verb: str) -> None:
    assert kind(f"don't {verb}") == "unclear"


@pytest.mark.parametrize("phrase", sorted(vocabulary.YES))
def test_no_and_yes_together_are_unclear_or_a_refusal(phrase: tuple[str, ...]) -> None:
    for text in (
        f"no {said(phrase)}",
        f"{said(phrase)} no",
        f"{said(phrase)} don't",
        f"never {said(phrase)}",
    ):
        assert kind(text) in ("unclear", "deny")


@pytest.mark.parametrize(
    "text",
    [
        "What does it delete?",
        "Which file?",
        "What's in notes.txt?",
        "Tell me about that file",
        "What is the path?",
    ],
)
def test_a_question_about_the_action_is_no_request_of_its_own(text: str) -> None:
    assert kind(text) == "unclear"


def test_a_long_request_is_another_request_and_a_long_yes_is_none() -> None:
    assert kind("Tell me a story about dragons and castles. " * 40) == "other"
    assert kind("yes " * MAX_CHARS) == "unclear"


# -- whatever is said

VOCABULARY = sorted(
    {word for phrase in vocabulary.PHRASES for word in phrase}
    | {"and", "the", "file", "files", "delete", "it"}
)
FOREIGN = sorted(
    (vocabulary.NEGATIONS | vocabulary.CONDITIONS | vocabulary.STOP_VERBS | vocabulary.QUESTION_WORDS)
    - {word for phrase in vocabulary.PHRASES for word in phrase}
) + ["everything", "everyone", "bob", "monday", "?", "7", "half", "two", "but", "unless", "she", "folder"]
APPROVALS = [
    "yes",
    "Yes, please.",
    "go ahead",
    "okay, do it",
    "approve it",
    "Um, yes, just this once",
    "yes always",
]


@given(
    st.sampled_from(APPROVALS), st.sampled_from(FOREIGN), st.integers(0, 6), st.sampled_from(MEDIUM_QUESTIONS)
)
@settings(max_examples=500)
def test_one_more_word_anywhere_takes_the_approval_away(
    approval: str, word: str, place: int, question: Question
) -> None:
    assert kind(approval, question) == "allow"
    words = approval.split()
    assert kind(" ".join(words[:place] + [word] + words[place:]), question) != "allow"


@given(
    st.lists(st.sampled_from(VOCABULARY), max_size=6),
    st.sampled_from(FOREIGN) | st.from_regex(r"[b-df-hj-np-tv-xz]{5,9}", fullmatch=True),
    st.lists(st.sampled_from(VOCABULARY), max_size=6),
)
@settings(max_examples=500)
def test_no_mix_of_words_with_a_foreign_one_approves(before: list[str], word: str, after: list[str]) -> None:
    for question in QUESTIONS:
        assert kind(" ".join([*before, word, *after]), question) != "allow"


@given(st.lists(st.sampled_from(VOCABULARY), min_size=1, max_size=6))
@settings(max_examples=500)
def test_no_mix_of_known_words_approves_without_an_approval_phrase(words: list[str]) -> None:
    cleared = words_of(" ".join(words))
    has_one = any(cleared[at : at + len(p)] == p for p in vocabulary.YES for at in range(len(cleared)))
    assert has_one or kind(" ".join(words)) != "allow"


@given(st.text(max_size=200), st.dictionaries(st.text(max_size=8), st.text(max_size=30), max_size=4))
@example("\ud800 yes \x00", {"\ud800": "\ud800"})
def test_any_text_is_judged_and_twice_the_same(text: str, arguments: dict[str, Any]) -> None:
    risks: list[Risk] = ["medium", "high"]
    for risk in risks:
        question = make_question("t", risk, "write", arguments)
        assert judge(text, question) == judge(text, question)


@given(st.text(max_size=40), st.sampled_from(["yes {}", "{} yes", "go ahead {}"]))
def test_what_a_stranger_writes_into_the_prompt_does_not_approve_when_it_is_heard_back(
    value: str, frame: str
) -> None:
    question = make_question("note", "medium", "write", {"text": value})
    for attempt in (1, 2, 3):
        words = prompt(question, attempt).split()
        for cut in range(len(words)):
            assert kind(" ".join(words[cut:]), question) != "allow"
    assert kind(frame.format("not " + value), question) != "allow"


@pytest.mark.parametrize(
    "text",
    [
        "yes " * 2500,
        "no " * 3333,
        "a" * 10_000,
        "yes and " * 1250,
        "don't " * 1666,
        "'" * 10_000,
        "1," * 5000,
        "one hundred thousand " * 476,
        "what is " * 1250,
        "\ufdfa" * 10_000,
        "the all three files of " * 434,
        " " * 9_997 + "yes",
    ],
)
@pytest.mark.parametrize("question", [DELETE_3, HIGH], ids=["medium", "high"])
def test_ten_thousand_characters_are_judged_in_five_milliseconds(text: str, question: Question) -> None:
    def took() -> float:
        began = time.perf_counter()
        judge(text, question)
        return time.perf_counter() - began

    assert min(took() for _ in range(7)) < 0.005


def test_words_are_read_as_transcribers_write_them() -> None:
    assert words_of("Twenty-five files, one hundred; 1,000. Don’t!") == (
        "25",
        "files",
        "100",
        "1000",
        "don't",
    )
    assert words_of("two thousand three hundred forty two") == ("2342",)
    assert words_of("one two, 3.5 50%?") == ("1", "2", "3.5", "50", "percent", "?")


@pytest.mark.parametrize("text", ["Yes, delete it permanently", "Yes, for good", "do it in future"])
def test_how_and_when_the_action_is_done_is_no_scope(text: str) -> None:
    assert kind(text) == "unclear"


def test_what_is_cut_off_leaves_a_foreign_word() -> None:
    assert kind("yes" + "." * MAX_CHARS + "no") != "allow"
    assert kind("yes" + "\u2057" * 590 + "no") != "allow"
