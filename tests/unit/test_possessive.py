"""Possessive repetitions of groups, as Python before 3.11.5 gets them."""

from __future__ import annotations

import re

import pytest

from conductor import possessive
from conductor.speech import for_the_ear


@pytest.mark.parametrize(
    ("pattern", "atomic"),
    [
        (r"(?:a|ab)*+c", r"(?>(?:a|ab)*)c"),
        (r"((?:x[ >]*+|(?:y)[ >]++)?+)z", r"((?>(?:x[ >]*+|(?:y)[ >]++)?))z"),
        (r"(?:(?:a)++b){2,}+", r"(?>(?:(?>(?:a)+)b){2,})"),
        (r"\((?:[()*+]\)++)*[^\])*+]++", r"\((?:[()*+]\)++)*[^\])*+]++"),
    ],
)
def test_a_possessive_group_is_an_atomic_one_of_a_greedy_one(pattern: str, atomic: str) -> None:
    assert possessive.as_atomic(pattern) == atomic
    assert possessive.as_atomic(pattern.encode()) == atomic.encode()
    re.compile(atomic)


def test_a_number_keeps_its_first_digit() -> None:
    assert for_the_ear("17% of 2340 is 397.8.") == "17% of 2340 is 397.8."
    line = possessive.compile(r"^((?:\d{1,9}[.)][ ]++)*+)", re.MULTILINE)
    assert [line.match(text).span() for text in ("17% of", "1. one")] == [(0, 0), (0, 3)]  # type: ignore[union-attr] # it matches any text
