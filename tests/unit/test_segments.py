"""Replies are split into segments for a voice."""

from __future__ import annotations

import re
import unicodedata
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
    segments = [segment for piece in pieces for segment in splitter.feed(piece)]
    return [*segments, splitter.tail] if splitter.tail.strip() else segments


def test_replies_are_split_at_sentences() -> None:
    wrong = []
    for language, parts in REPLIES:
        segments = [segment.strip() for segment in split(language, ["".join(parts)])]
        if segments != [part.strip() for part in parts if part.strip()]:
            wrong.append(f"{language}: {'|'.join(segments)}")
    assert wrong == []
    assert sum(len(parts) for _, parts in REPLIES) >= 200


@pytest.mark.parametrize("pattern", [r"\s*\S+", r"\S*\s*", r"(?s)."], ids=["words", "spaces", "characters"])
def test_the_pieces_of_the_text_do_not_matter(pattern: str) -> None:
    for language, parts in REPLIES:
        text = "".join(parts)
        in_pieces, at_once = split(language, re.findall(pattern, text)), split(language, [text])
        assert [part.strip() for part in in_pieces] == [part.strip() for part in at_once]


@given(
    st.lists(st.text(alphabet="ab .,!?\n`*|-#[]1。 ", max_size=30)), st.sampled_from(["en", "de", "xx", None])
)
def test_nothing_is_lost_or_doubled(pieces: list[str], language: str | None) -> None:
    splitter = SegmentSplitter(language)
    segments = [segment for piece in pieces for segment in splitter.feed(piece)]
    assert "".join(segments) + splitter.tail == "".join(pieces)
    assert all(segment.strip() for segment in segments)


def test_a_table_and_a_long_block_of_code_stay_whole() -> None:
    table = "| a | b |\n|---|---|\n| Good. Then go on with it | c |\n| d | e |\n"
    assert split("en", list(table + "\nThat is the whole table.")) == [table, "\nThat is the whole table."]
    code = "Here it is:\n```\n" + "x = 1. Y\n" * 1_000
    assert split("en", [code[at : at + 7] for at in range(0, len(code), 7)]) == ["Here it is:\n", code[12:]]


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("no stops, only words that go on and on and never come to an end " * 40, 200),
        ("commas, and more commas, " * 40, 200),
        ("1 2 3 4 5 6 7 8 9 " * 40, 200),
        ("今天天气很好我们去公园吧" * 40, 66),
        ("ตอนนี้ไฟในโถงทางเดินเปิดอยู่มันใช้ไฟเก้าวัตต์" * 40, 200),
        ("x" * 5_000, 1_000),
        ("https://example.org/" + "a/" * 200 + " has it " + "and more " * 40, 428),
    ],
)
def test_a_text_without_an_end_is_cut(text: str, most: int) -> None:
    segments = split("en", list(text))
    assert segments == split("en", [text]) and max(map(len, segments)) <= most
    assert all(unicodedata.category(segment[0])[0] != "M" for segment in segments), "a letter is cut in two"


def test_unclosed_marks_delay_a_segment_for_a_limited_length() -> None:
    text = "The power 2**3 is 8. " + "That is how it is with numbers. " * 40
    assert len(split("en", [text])) > 10


@pytest.mark.parametrize("piece", ["1. ", "😀. ", "\n"])
def test_text_that_looks_full_of_ends_takes_a_bounded_time(piece: str) -> None:
    def run() -> None:
        split("en", [piece] * 2_000)

    assert least_cpu_s(run, 0.3) < 1.0
