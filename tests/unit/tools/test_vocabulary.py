"""The words of an utterance, in one form for numbers, signs and contractions."""

from __future__ import annotations

import pytest

from conductor.plugins.judges.vocabulary import Vocabulary, load_vocabulary


def english() -> Vocabulary:
    vocabulary = load_vocabulary("en")
    assert vocabulary is not None
    return vocabulary


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Twenty-five files, one hundred; 1,000. Don’t!", "25 files 100 1000 do not"),
        ("two thousand three hundred forty two", "2342"),
        ("two hundred and fifty euros, two and three", "250 euros 2 and 3"),
        ("ninety-nine thousand nine hundred ninety nine", "99999"),
        ("one two, ten five, 3.50 50%?", "1 2 10 5 3.5 50 percent ?"),
        ("€1,200.00 or $5 or 7 EUR", "1200 euros or 5 dollars or 7 euros"),
        (
            "notes.txt and anna@example.com at 19:00, O.K.",
            "notes dot txt and anna at example dot com at 19:00 o k",
        ),
        ("zero five", "0 5"),
        ("-5 and e-mail 2024-117", "minus 5 and email 2024 117"),
        ("It's what we'll see, Luigi's", "it is what we will see luigi is"),
    ],
)
def test_numbers_signs_and_contractions_have_one_form(text: str, words: str) -> None:
    assert " ".join(english().words(text)) == words


def test_all_phrases_of_the_data_file_are_in_the_form_that_utterances_get() -> None:
    vocabulary = english()
    for phrase in (*vocabulary.consent, *vocabulary.refusal, *vocabulary.request):
        assert vocabulary.words(" ".join(phrase)) == phrase
