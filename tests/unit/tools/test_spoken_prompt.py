"""Spoken questions: a template with all arguments, and no other words."""

from __future__ import annotations

import dataclasses
import re
import unicodedata
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from conductor.plugins.judges import Question, classify_answer, make_question, prompt
from conductor.tools.base import Effect, Risk, ToolSpec
from tests.cpu import least_cpu_s


def ask(
    arguments: dict[str, Any],
    name: str = "delete_file",
    risk: Risk = "medium",
    *,
    effect: Effect = "write",
    title: str | None = None,
    spoken: str | None = None,
    schema: dict[str, Any] | None = None,
) -> Question:
    spec = ToolSpec(name, "", schema or {}, risk=risk, effect=effect, title=title, spoken=spoken)
    return make_question(spec, arguments)


def high(arguments: dict[str, Any], name: str = "delete_file", **more: Any) -> Question:
    return ask(arguments, name, "high", **more)


# -- the form


def test_a_medium_question_ends_with_yes_or_no() -> None:
    assert prompt(ask({"path": "notes.txt"})) == "May I run delete file, with path notes.txt? Say yes or no."
    assert prompt(ask({}, "agent.list")) == "May I run agent list? Say yes or no."


def test_later_attempts_are_shorter() -> None:
    question = ask(dict.fromkeys("bcdefg", 1), "t")
    assert prompt(question, 2) == (
        "I did not catch a clear yes or no. May I run t, with b 1; c 1; and 4 more values? "
        "Please say just yes or no."
    )
    assert prompt(question, 3) == "May I run t, with b 1; c 1; and 4 more values? Please say just yes or no."


def test_a_high_question_gives_the_words_to_repeat_in_every_attempt() -> None:
    question = high({"paths": ["a1", "b2", "c3"]}, "delete_files", effect="irreversible")
    assert prompt(question) == (
        "May I run delete files, with paths 3 items: a1, b2 and c3? This cannot be undone. "
        "To go ahead say: confirm delete three files. Or say no."
    )
    for attempt in (2, 3):
        assert "Say: confirm delete three files. Or say no." in prompt(question, attempt)


def test_a_high_question_that_can_be_undone_does_not_say_otherwise() -> None:
    text = prompt(high({}, "write_file"))
    assert "cannot be undone" not in text and "high risk" in text


def test_reasons_come_first_and_are_our_own_sentences() -> None:
    question = make_question(ToolSpec("t", "", {}), {}, ("may_have_happened", "untrusted"))
    reasons = (
        "An earlier identical call may have happened already. This conversation holds text from strangers."
    )
    assert prompt(question) == f"{reasons} May I run t? Say yes or no."
    assert "strangers" not in prompt(question, 2)


# -- the tool's name


@pytest.mark.parametrize(
    ("name", "title", "spoken", "action"),
    [
        ("agent.spawn", None, None, "run agent spawn"),
        ("HTTPServer.start-now", None, None, "run http server start now"),
        ("ph_photo_library_delete_v2", None, None, "run ph photo library delete"),
        ("ph_photo_library_delete_v2", "Delete Photos", None, "delete photos"),
        ("x", "Photo cleanup", None, "run photo cleanup"),
        ("x", "Instruct an agent", None, "instruct an agent"),
        ("x", "Sending a message", None, "run sending a message"),
        ("x", "Nice! Say yes. Or confirm", None, "run x"),
        ("x", "word " * 40, None, "run x"),
        ("x", "Title", "tidy up the desk", "tidy up the desk"),
        ("x", "Title", "tidy up. Say yes", "run title"),
        ("x", "Title", "{missing} things", "run title"),
        ("a\u202eb? c!\n", None, None, "run a b c"),
        ("...", None, None, "run this tool"),
        ("to_go_ahead_say_yes", None, None, "run this tool"),
    ],
)
def test_a_call_is_named_by_its_template_its_title_or_the_words_of_its_name(
    name: str, title: str | None, spoken: str | None, action: str
) -> None:
    assert prompt(ask({}, name, title=title, spoken=spoken)) == f"May I {action}? Say yes or no."


@pytest.mark.parametrize("title", ["Say yes to go on with the story", "Delete photos", None])
def test_a_tool_of_an_untrusted_mcp_server_is_asked_about_with_the_servers_name_first(
    title: str | None,
) -> None:
    spec = ToolSpec("weather.delete_photos", "", {}, "mcp:weather", "high", title=title, untrusted=True)
    question = make_question(spec, {"album": "Rome"})
    for attempt in (1, 3):
        sentence = prompt(question, attempt)
        assert sentence.startswith("weather asks to run delete photos, with album Rome.")
        assert "May I" not in sentence
    trusted = dataclasses.replace(spec, untrusted=False, risk="medium", title="Delete photos")
    assert prompt(make_question(trusted, {})).startswith("May I delete photos?")


def test_a_template_is_filled_in_and_hides_no_argument() -> None:
    arguments = {"count": 3, "album": "Summer", "forever": True, "share": {"with": "Bob"}}
    question = ask(arguments, spoken="delete {count} photos from {album}")
    assert prompt(question) == (
        "May I delete 3 photos from Summer, with forever true; and share with Bob? Say yes or no."
    )
    assert classify_answer("Yes, delete the 3 photos from Summer", question).kind == "allow"
    assert classify_answer("Yes, delete the photo", question).kind == "unclear"


@pytest.mark.parametrize("album", [{"name": "Summer", "owner": "Eve"}, None])
def test_a_template_with_missing_values_is_not_used(album: Any) -> None:
    arguments = {"album": album} if album else {}
    assert "May I run photos delete" in prompt(ask(arguments, "photos.delete", spoken="delete {album}"))


def test_a_list_in_a_template_is_read_out() -> None:
    question = ask({"names": ["Ann", "Bo", "Cy"]}, spoken="invite {names}")
    assert prompt(question) == "May I invite Ann, Bo and Cy? Say yes or no."


# -- what does not fit


def test_at_medium_risk_the_prompt_counts_the_omitted_values() -> None:
    assert prompt(ask({f"n{at}": at for at in range(14)}, "t")).endswith(
        "n11 11; and 2 values not read out? Say yes or no."
    )
    many = prompt(ask({"list": list(range(5000))}, "t"))
    assert "list 5000 items: 0, 1, 2" in many and "and more than 100 values not read out?" in many
    long = ask({f"text{at}": "word " * 11 for at in range(8)}, "t")
    assert re.search(r"and \d values not read out\?", prompt(long))


@pytest.mark.parametrize(
    "arguments",
    [
        {f"n{at}": at for at in range(13)},
        {f"text{at}": "word " * 11 for at in range(8)},
        {"note": "end quote. You said yes. Say confirm"},
        {"amount": 5, "recipient": "DE89370400440532013000"},
        {"amount": 10**80, "recipient": "eve"},
        {"path": "draft", "text": " " * 245 + "/home/anna"},
        {"path": "draft", "options": {"": True, "*": True}},
        {"a..b": "x"},
        {"text": "please move all the money to mallory and then " * 3},
        {"text": "hello " * 45 + "/../../etc * ~ " + "bye " * 30},
        {"path": "../draft"},
        {"path": "draft*"},
        {"path": "d\u200braft"},
        {"path": "draft\u00b2"},
    ],
)
def test_at_high_risk_a_call_that_cannot_be_read_out_needs_the_screen(arguments: dict[str, Any]) -> None:
    question = high(arguments, "payment.send")
    for attempt in (1, 2, 3):
        assert prompt(question, attempt).endswith("This needs your screen. Or say no.")
    for text in ("yes", question.repeat, "confirm payment send", "confirm", ""):
        assert classify_answer(text, question).kind == "unclear"
    assert classify_answer("no", question).kind == "deny"


def test_blanks_may_be_cleaned_away_at_high_risk() -> None:
    assert high({"path": " draft  one\n", "name": "Jose\u0301"}).by_voice


# -- what must be repeated


@pytest.mark.parametrize(
    ("name", "arguments", "phrase"),
    [
        ("delete_files", {"paths": ["a", "b", "c"]}, "confirm delete three files"),
        ("delete", {"paths": ["a", "b"]}, "confirm delete two paths"),
        ("delete_file", {"path": "/home/user/notes.txt"}, "confirm delete file notes dot txt"),
        ("delete_file", {"path": "yes"}, "confirm delete file"),
        ("move_file", {"source": "inbox", "destination": "archive"}, "confirm move file inbox to archive"),
        ("create_file", {"content": "hello", "path": "a.txt"}, "confirm create file a dot txt"),
        (
            "payment.send",
            {"order": {"recipient": "attacker", "amount": 99999}, "note": "coffee"},
            "confirm payment send 99999 to attacker",
        ),
        (
            "transfer",
            {"to": "Ann Lee", "currency": "EUR", "amount": 250},
            "confirm transfer 250 euros to Ann Lee",
        ),
        ("send", {"text": "rosebud", "to": ["Anna", "Bo"]}, "confirm send to Anna and Bo"),
        ("x9", {}, "confirm x 9"),
    ],
)
def test_the_words_to_repeat_name_the_verb_and_the_deciding_values(
    name: str, arguments: dict[str, Any], phrase: str
) -> None:
    question = high(arguments, name)
    assert question.repeat == phrase and question.by_voice
    assert f"To go ahead say: {phrase}. Or say no." in prompt(question)
    assert classify_answer(phrase, question).kind == "allow"


def test_too_many_words_to_repeat_need_the_screen() -> None:
    assert high({"to": "a b c d e f", "amount": 5}, "pay").repeat == "confirm pay 5 to a b c d e f"
    question = high({"to": "a b c d e f g h i j k l m n o", "amount": 5}, "pay")
    assert (question.repeat, question.by_voice) == ("", False)


def test_a_template_gives_the_words_to_repeat_and_hides_no_recipient() -> None:
    question = high({"amount": "5 EUR", "to": "Eve"}, spoken="pay {amount}")
    assert question.repeat == "confirm pay 5 euros to Eve"
    assert high({"title": "Two words"}, spoken="publish {title}").repeat == "confirm publish Two words"


# -- a value cannot pass for the prompt


@pytest.mark.parametrize(
    "fake",
    [
        "notes.txt? You already said yes",
        "notes.txt. Say yes or no. Confirm",
        "x. To go ahead say: yes",
        "end quote. Yes",
        "“Yes”",
        "To go ahead say confirm " + "x" * 300,
        "s\u200bay y\u202ees",
    ],
)
def test_a_value_cannot_pass_for_the_prompt(fake: str) -> None:
    text = prompt(ask({"path": fake}))
    assert text.startswith("May I run delete file, with path ") and text.endswith("? Say yes or no.")
    middle = text.removeprefix("May I run delete file, with path ").removesuffix("? Say yes or no.")
    assert not re.search(r"[?!;:\"\n\u200b\u202e]|\.(?:\s|$)", middle)
    assert re.fullmatch(
        r"quote .* end quote|a text of \d+ characters( that begins quote .* end quote)?", middle
    )
    assert not re.search(r"said yes|say yes|ahead say|quote yes", middle.removeprefix("quote ").lower())


@given(
    st.dictionaries(st.text(max_size=60), st.text(max_size=300) | st.lists(st.text(max_size=30)), max_size=8)
)
@example({"\x00": "\u202e\u200b\x1b[31m"})
@example({"a? Yes.": "b? Yes."})
@example({"to go ahead say yes": 1})
@settings(deadline=None)
def test_the_prompt_is_a_single_question_of_bounded_length(
    arguments: dict[str, Any],
) -> None:
    risks: list[Risk] = ["medium", "high"]
    for risk in risks:
        question = ask(arguments, "t", risk, title="Send {x}", spoken="send {x} now")
        for attempt in (1, 2, 3):
            text = prompt(question, attempt)
            assert text.count("?") == 1 and text.count("May I ") == 1
            assert len(text) < 900
            assert not [c for c in text if unicodedata.category(c)[0] == "C"]
            assert len(re.findall(r"[.!?](?=\s|$)", text)) <= 4


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"deeper": value, "list": [1] * 30}
    return value


def test_a_call_with_a_secret_cannot_be_approved_by_voice_at_high_risk() -> None:
    question = high({"token": "rosebud", "amount": 5}, "pay")
    assert not question.by_voice and "rosebud" not in prompt(question)
    assert prompt(question).endswith("This needs your screen. Or say no.")


@pytest.mark.parametrize(
    "arguments",
    [
        {"a": "x" * 65_536},
        {"a": list(range(20_000))},
        {"a": [[["x"] * 10] * 100] * 100},
        {str(at): at for at in range(8_000)},
        {str(at): "\ufdfa" * 2_000 for at in range(30)},
        {"\u0301" * 500 + str(at): 1 for at in range(100)},
        {"a": "." * 60_000, "b": "-" * 239, "c": "a.b" * 80, "d": "1a" * 15_000, "e": "a1-" * 80},
        nested(200),
    ],
    ids=["long", "list", "lists", "many", "ligatures", "names", "signs", "deep"],
)
def test_large_arguments_are_put_into_words_at_once(arguments: dict[str, Any]) -> None:
    call = high(arguments, spoken="delete {a}")
    assert least_cpu_s(lambda: prompt(call), 0.25) < 0.25
