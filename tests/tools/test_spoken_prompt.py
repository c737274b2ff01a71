"""Spoken questions: made of a template and the arguments, and nobody else's words."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from conductor.tools.spoken_prompt import (
    FALLBACK_CONFIRM,
    MAX_VALUE_CHARS,
    REASONS,
    clean,
    describe,
    make_question,
    prompt,
    spoken_name,
)
from conductor.tools.spoken_words import words_of


def asked(arguments: dict[str, Any], name: str = "delete_file") -> str:
    return prompt(make_question(name, "medium", "write", arguments))


def test_a_medium_question_ends_with_yes_or_no() -> None:
    assert asked({"path": "notes.txt"}) == "May I run delete file, with path notes.txt? Say yes or no."


def test_a_call_without_arguments_is_named_alone() -> None:
    assert asked({}, "agent.list") == "May I run agent list? Say yes or no."


def test_later_attempts_say_what_is_missing_and_are_shorter() -> None:
    question = make_question("t", "medium", "write", dict.fromkeys("bcdefg", 1))
    assert prompt(question, 2) == (
        "I did not catch a clear yes or no. May I run t, with b 1; c 1; and 4 more arguments? Say yes or no."
    )
    assert (
        prompt(question, 3) == "May I run t, with b 1; c 1; and 4 more arguments? Please say just yes or no."
    )
    assert len(prompt(question, 3)) < len(prompt(question, 1))


def test_a_high_question_gives_the_words_to_repeat_in_every_attempt() -> None:
    question = make_question("delete_files", "high", "irreversible", {"paths": ["a1", "b2", "c3"]})
    assert prompt(question) == (
        "May I run delete files, with paths 3 items: a1, b2 and c3? This cannot be undone. "
        "To go ahead say: confirm delete three files. Or say no."
    )
    for attempt in (2, 3):
        assert "Say: confirm delete three files. Or say no." in prompt(question, attempt)


def test_a_high_question_that_can_be_undone_does_not_say_otherwise() -> None:
    said = prompt(make_question("write_file", "high", "write", {}))
    assert "cannot be undone" not in said and "high risk" in said


def test_reasons_come_first_and_are_our_own_sentences() -> None:
    question = make_question("t", "medium", "write", {}, ("may_have_happened", "untrusted"))
    first = f"{REASONS['may_have_happened']} {REASONS['untrusted']} May I run t? Say yes or no."
    assert prompt(question) == first
    assert REASONS["untrusted"] not in prompt(question, 2)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("agent.spawn", "agent spawn"),
        ("delete_file", "delete file"),
        ("autoCreatePR", "auto create pr"),
        ("HTTPServer.start-now", "http server start now"),
        ("a\u202eb? yes!\n", "ab yes"),
        ("...", "this tool"),
    ],
)
def test_names_are_read_as_words(name: str, said: str) -> None:
    assert spoken_name(name.replace("\u202e", "")) == said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"path": "notes.txt"}, "path notes.txt"),
        ({"title": "Shopping list"}, "title “Shopping list”"),
        ({"force": True}, "force true"),
        ({"limit": 5}, "limit 5"),
        ({"ref": None}, "ref nothing"),
        ({"text": ""}, "text an empty text"),
        ({"text": "x " * 60}, "text a text of 120 characters"),
        ({"text": "x" * 2048}, "text a 2 kilobyte text"),
        ({"paths": [1, 2, 3, 4]}, "paths 4 items"),
        ({"paths": ["a", "b"]}, "paths 2 items: a and b"),
        ({"paths": []}, "paths 0 items"),
        ({"options": {"a": {"b": 1}}}, "options 1 field"),
        ({"steps": [{"a": 1}]}, "steps 1 item"),
        ({"path": "/a" * 40 + "/notes.txt"}, "path a long path that ends in notes.txt"),
        ({"autoCreatePr": False}, "auto create pr false"),
        ({"n": 10**80}, "n a long number"),
        ({"note": "*bold* `code` [x](y) # head"}, "note “bold code x y head”"),
        ({"delta": -5}, "delta -5"),
    ],
)
def test_values_are_said_or_described(arguments: dict[str, Any], said: str) -> None:
    assert describe(arguments) == (said,)


@pytest.mark.parametrize(
    "name", ["token", "apiKey", "user_password", "SECRET", "Authorization", "db.credentials"]
)
@pytest.mark.parametrize("value", ["hunter2", ["hunter2"], {"a": "hunter2"}, 4711])
def test_secrets_are_neither_read_out_nor_asked_for(name: str, value: Any) -> None:
    question = make_question("login", "high", "write", {name: value})
    spoken = " ".join((prompt(question), question.confirm_phrase, *question.action_words))
    assert "a secret" in spoken
    assert "hunter2" not in spoken and "4711" not in spoken


def test_at_most_five_arguments_are_read_and_the_others_counted() -> None:
    assert describe({str(n): n for n in range(6)})[5:] == ("1 more argument",)
    assert len(describe({str(n): n for n in range(100)})) == 6


FAKES = [
    "notes.txt? You already said yes",
    "notes.txt. Say yes or no. Confirm",
    "x? May I go on? Say yes",
    "notes.txt\n\nYou said yes.",
    "a: yes; no",
    "end quote. Yes",
]


@pytest.mark.parametrize("fake", FAKES)
def test_a_value_cannot_pass_for_the_prompt(fake: str) -> None:
    said = asked({"path": fake})
    assert said.startswith("May I run delete file, with path ") and said.endswith("? Say yes or no.")
    middle = said.removeprefix("May I run delete file, with path ").removesuffix("? Say yes or no.")
    assert not re.search(r"[?!;:]|\.(?:\s|$)", middle)
    assert (middle.startswith("quote ") and middle.endswith(" end quote")) or middle.startswith("a text of")


def test_a_value_that_speaks_of_quotes_and_of_yes_is_described() -> None:
    assert describe({"path": "x end quote yes"}) == ("path a text of 15 characters",)


@given(
    st.dictionaries(st.text(max_size=60), st.text(max_size=300) | st.lists(st.text(max_size=30)), max_size=8)
)
@example({"\x00": "\u202e\u200b\x1b[31m"})
@example({"a? Yes.": "b? Yes."})
def test_whatever_the_arguments_the_prompt_is_one_question_of_bounded_length(
    arguments: dict[str, Any],
) -> None:
    for attempt in (1, 2, 3):
        said = prompt(make_question("t", "medium", "write", arguments), attempt)
        assert said.count("?") == 1 and said.count("May I run t") >= 1
        assert len(said) < 1400
        assert not [c for c in said if unicodedata.category(c)[0] == "C"]
        assert len(re.findall(r"[.!?](?=\s|$)", said)) <= 3


@given(st.text(max_size=400))
def test_a_cleaned_value_has_no_end_of_a_sentence(text: str) -> None:
    assert not re.search(r"[.:?!](\s|$)", clean(text))
    assert len(clean(text)) <= 4 * MAX_VALUE_CHARS * 20


@pytest.mark.parametrize(
    ("name", "arguments", "phrase"),
    [
        ("delete_files", {"paths": ["a", "b", "c"]}, "confirm delete three files"),
        ("delete", {"paths": ["a", "b"]}, "confirm delete two paths"),
        ("delete_file", {"path": "/home/user/notes.txt"}, "confirm delete file notes"),
        ("delete_file", {"path": "/tmp/x9q.7"}, "confirm delete file"),
        ("delete_file", {"path": "yes"}, "confirm delete file"),
        ("delete_file", {"paths": ["notes.txt"]}, "confirm delete file notes"),
        ("github.create_pull_request", {"title": "Fix"}, "confirm github create pull request"),
        ("send", {"token": "rosebud", "to": "Anna"}, "confirm send anna"),
        ("delete_items", {"ids": list(range(30))}, "confirm delete 30 items"),
        ("x9", {}, FALLBACK_CONFIRM),
    ],
)
def test_the_words_to_repeat_are_the_tools_name_and_a_count_or_value(
    name: str, arguments: dict[str, Any], phrase: str
) -> None:
    assert make_question(name, "high", "write", arguments).confirm_phrase == phrase


@given(
    st.text(max_size=80),
    st.dictionaries(st.text(max_size=10), st.text(max_size=30) | st.lists(st.integers())),
)
def test_the_words_to_repeat_are_two_to_five_and_can_be_said(name: str, arguments: dict[str, Any]) -> None:
    phrase = make_question(name, "high", "write", arguments).confirm_phrase
    assert 2 <= len(phrase.split()) <= 5
    assert re.fullmatch(r"confirm( [a-z]+| \d+)+", phrase) and words_of(phrase)


def test_a_safe_tool_that_asks_is_asked_about_at_medium_risk() -> None:
    assert make_question("t", "safe", "read", {}).risk == "medium"


def test_the_words_to_repeat_name_what_is_acted_upon_and_not_what_is_written() -> None:
    question = make_question("create_file", "high", "write", {"content": "hello", "path": "notes.txt"})
    assert question.confirm_phrase == "confirm create file notes"
