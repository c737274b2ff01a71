"""The verb and object of a spoken consent: only words of the tool and of its question."""

from __future__ import annotations

import pytest

from conductor.plugins.judges import Question, make_question
from conductor.tools.base import ToolSpec
from tests.unit.tools.test_grammar import CANCEL, DELETE, DELETE_3, LAMP, MOVE, SEND, ask, kind


@pytest.mark.parametrize(
    ("text", "question", "expected"),
    [
        ("Delete it.", DELETE, "allow"),
        ("Yes, delete the file", DELETE, "allow"),
        ("Yes, delete notes.txt", DELETE, "allow"),
        ("Yes, delete the files", DELETE, "unclear"),
        ("Yes, delete them", DELETE, "unclear"),
        ("Yes, move it", DELETE, "unclear"),
        ("Yes, notes.txt", DELETE, "unclear"),
        ("Yes, delete the three files", DELETE_3, "allow"),
        ("Yes, delete the 4 files", DELETE_3, "unclear"),
        ("Yes, delete the file", DELETE_3, "unclear"),
        ("Yes, delete draft.txt", DELETE_3, "unclear"),
        ("Yes, send it to Anna", SEND, "allow"),
        ("Yes, send it to Ann", SEND, "unclear"),
        ("Yes, send hello there", SEND, "unclear"),
        ("Yes, move it to archive", MOVE, "allow"),
        ("Yes, move it to inbox", MOVE, "unclear"),
        ("Yes, turn it off", LAMP, "allow"),
        ("Turn off the kitchen lamp please", LAMP, "allow"),
        ("Go ahead and cancel the booking", CANCEL, "allow"),
        ("Yes, cancel it", CANCEL, "allow"),
        ("Cancel it", CANCEL, "unclear"),
        ("Yes, cancel that", CANCEL, "unclear"),
        ("Stop.", CANCEL, "deny"),
    ],
)
def test_an_object_is_a_pronoun_or_words_of_the_prompt_that_fit_the_call(
    text: str, question: Question, expected: str
) -> None:
    assert kind(text, question) == expected


THERMOSTAT = make_question(
    ToolSpec("climate.set", "", {}, title="Set", spoken="turn the {room} thermostat to {level}"),
    {"room": "nursery", "level": 24},
)
KEYS = make_question(
    ToolSpec("messages.send", "", {}, title="Send message", spoken="text {to}: {text}"),
    {"to": "Oscar", "text": "the keys are under the mat"},
)
GROCERIES = make_question(
    ToolSpec("groceries.order", "", {}, title="Order groceries", spoken="order {items} from {shop}"),
    {"items": ["milk", "eggs", "bread"], "shop": "Greenfield"},
)
PHOTO = make_question(
    ToolSpec("photo.delete", "", {}, title="Delete photo", spoken="delete the photo {photo}"),
    {"photo": "IMG 2041"},
)
TELL = make_question(
    ToolSpec("messages.send", "", {}, title="Send message", spoken="tell {to} {text}"),
    {"to": "Oscar", "text": "do not wait for me"},
)


@pytest.mark.parametrize(
    ("text", "question", "expected"),
    [
        ("24 is fine, go ahead", THERMOSTAT, "allow"),
        ("24 is fine", THERMOSTAT, "unclear"),
        ("24 is fine if it is cold, go ahead", THERMOSTAT, "unclear"),
        ("23 is fine, go ahead", THERMOSTAT, "unclear"),
        ("Yeah, off please", LAMP, "allow"),
        ("Yes, lamp off", LAMP, "allow"),
        ("Okay, off", LAMP, "unclear"),
        ("Yes, on", LAMP, "unclear"),
        ("Go ahead, tell Oscar the keys are under the mat", KEYS, "allow"),
        ("Yes, let Oscar know the keys are under the mat", KEYS, "allow"),
        ("Tell Oscar the keys are under the mat", KEYS, "unclear"),
        ("Yes, tell Oscar the keys are under the pot", KEYS, "unclear"),
        ("Yes, tell Oscar the keys are under the mat tonight", KEYS, "unclear"),
        ("Yes, order milk eggs bread", GROCERIES, "allow"),
        ("Yes, order all of it", GROCERIES, "allow"),
        ("Yes, order milk and bread", GROCERIES, "unclear"),
        ("Yes, delete the photo", PHOTO, "allow"),
        ("Yes, delete the photos", PHOTO, "unclear"),
        ("Yes, turn the nursery thermostat to 24", THERMOSTAT, "allow"),
        ("Yes, turn it to 24", THERMOSTAT, "allow"),
        ("Yes, turn the nursery thermostat to 25", THERMOSTAT, "unclear"),
        ("Yes, turn the nursery thermostat from 24", THERMOSTAT, "unclear"),
        ("Yes, turn the thermostat to nursery 24", THERMOSTAT, "unclear"),
        ("Yes, turn the nursery thermostat up", THERMOSTAT, "unclear"),
        # What holds a "not" is repeated in full or not at all.
        ("Yes, tell Oscar do not wait for me", TELL, "allow"),
        ("Yes, tell Oscar wait for me", TELL, "unclear"),
        ("Yes, tell Oscar do not", TELL, "unclear"),
        ("Tell Oscar do not wait for me", TELL, "unclear"),
        ("Yes, let Oscar know", TELL, "allow"),
        ("Yes, let Anna know", TELL, "unclear"),
    ],
)
def test_a_consent_may_repeat_the_phrases_of_the_prompt(text: str, question: Question, expected: str) -> None:
    assert kind(text, question) == expected


@pytest.mark.parametrize(
    "value", ["tomorrow", "no", "not", "if", "wait", "later", "do not", "said", "yes but", "me", "Friday"]
)
def test_no_argument_brings_in_a_word_that_changes_an_approval(value: str) -> None:
    question = ask("note.add", {"text": value}, title="Add note")
    for text in ("Yes, {}", "Yes, do it {}", "Yes, add {}", "Yes, add the note {}", "Yes, add it to {}"):
        assert kind(text.format(value), question) != "allow"


@pytest.mark.parametrize(
    "name", ["no", "do_not_do_it", "wait", "never.mind", "if_not", "say_yes", "do_not_disturb"]
)
def test_no_tools_name_brings_in_a_word_that_changes_an_approval(name: str) -> None:
    question, words = ask(name, {}), name.replace("_", " ").replace(".", " ")
    assert kind("Yes", question) == "allow"
    assert kind(f"Yes, {words}", question) != "allow"
    assert kind(f"Yes, {words} it", question) != "allow"


@pytest.mark.parametrize("text", ["Yes, delete the three files.", "Yes, delete both files."])
def test_a_consent_with_a_number_is_unclear_if_the_call_has_two_numbers(text: str) -> None:
    spec = ToolSpec("files.delete", "", {}, spoken="delete {count} files")
    two_of_them = make_question(spec, {"count": 3, "files": ["a.txt", "b.txt"]})
    assert kind(text, two_of_them) == "unclear" and kind("Yes, delete them.", two_of_them) == "allow"
