"""Replies, split where a person who reads them aloud would pause."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.segments import SegmentSplitter
from tests.cpu import least_cpu_s

LINES = (Path(__file__).parent / "segments.txt").read_text(encoding="utf-8").splitlines()
REPLIES = [
    (language, text.replace("\\n", "\n").split("|"))
    for language, _, text in (line.partition(": ") for line in LINES if not line.startswith("#"))
]


def split(language: str | None, pieces: list[str]) -> list[str]:
    splitter = SegmentSplitter(language)
    found = [segment for piece in pieces for segment in splitter.feed(piece)]
    return [*found, splitter.tail] if splitter.tail.strip() else found


def test_replies_are_split_as_a_person_would() -> None:
    wrong = []
    for language, parts in REPLIES:
        found = [segment.strip() for segment in split(language, ["".join(parts)])]
        if found != [part.strip() for part in parts if part.strip()]:
            wrong.append(f"{language}: {'|'.join(found)}")
    assert wrong == []
    assert sum(len(parts) for _, parts in REPLIES) >= 200


@pytest.mark.parametrize("pattern", [r"\s*\S+", r"\S*\s*", r"(?s)."], ids=["words", "spaces", "characters"])
def test_it_does_not_matter_how_the_text_comes(pattern: str) -> None:
    for language, parts in REPLIES:
        text = "".join(parts)
        found, whole = split(language, re.findall(pattern, text)), split(language, [text])
        assert [part.strip() for part in found] == [part.strip() for part in whole]


@given(
    st.lists(st.text(alphabet="ab .,!?\n`*|-#[]1。 ", max_size=30)), st.sampled_from(["en", "de", "xx", None])
)
def test_nothing_is_lost_or_doubled(pieces: list[str], language: str | None) -> None:
    splitter = SegmentSplitter(language)
    found = [segment for piece in pieces for segment in splitter.feed(piece)]
    assert "".join(found) + splitter.tail == "".join(pieces)
    assert all(segment.strip() for segment in found)


def test_a_table_and_a_long_block_of_code_stay_whole() -> None:
    table = "| a | b |\n|---|---|\n| Good. Then go on with it | c |\n| d | e |\n"
    assert split("en", list(table + "\nThat is the whole table.")) == [table, "\nThat is the whole table."]
    code = "Here it is:\n```\n" + "x = 1. Y\n" * 1_000
    assert split("en", [code[at : at + 7] for at in range(0, len(code), 7)]) == ["Here it is:\n", code[12:]]


def test_marks_that_never_close_hold_the_rest_back_only_for_a_while() -> None:
    text = "The power 2**3 is 8. " + "That is how it is with numbers. " * 40
    assert len(split("en", [text])) > 10


@pytest.mark.parametrize("piece", ["1. ", "😀. ", "\n"])
def test_text_that_looks_full_of_ends_takes_a_bounded_time(piece: str) -> None:
    def run() -> None:
        split("en", [piece] * 2_000)

    assert least_cpu_s(run, 0.3) < 1.0
