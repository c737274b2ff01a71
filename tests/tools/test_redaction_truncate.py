"""Shortening: within the limit, between characters, with what is missing."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from conductor.tools.redaction import truncate


def test_a_text_within_the_limit_is_unchanged() -> None:
    assert truncate("ä" * 8192) == "ä" * 8192
    assert truncate("x" * 100, 100) == "x" * 100


def test_a_longer_text_says_how_much_is_missing() -> None:
    marker = "\n[shortened: 9,000 of 20,000 bytes are missing]"
    limit = 11_000 + len(marker) + 1  # room is kept for a marker that says 20,000 of 20,000
    assert truncate("x" * 20_000, limit) == "x" * 11_000 + marker


def test_half_a_surrogate_pair_does_not_hurt() -> None:
    assert truncate("\ud800" * 100, 60).startswith("?")


@given(st.text(max_size=300), st.integers(60, 400))
def test_the_start_is_kept_and_the_figures_are_right(text: str, limit: int) -> None:
    text *= 5
    shortened = truncate(text, limit)
    size = len(text.encode())
    if size <= limit:
        assert shortened == text
        return
    assert len(shortened.encode()) <= limit
    found = re.search(r"\n\[shortened: ([\d,]+) of ([\d,]+) bytes are missing\]\Z", shortened)
    assert found is not None
    kept = shortened[: found.start()]
    assert text.startswith(kept)
    assert int(found[1].replace(",", "")) == size - len(kept.encode())
    assert int(found[2].replace(",", "")) == size
    assert len(kept.encode()) > limit - 70
