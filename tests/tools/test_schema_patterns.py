"""Patterns of schemas: none that is accepted can hold the process."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conductor.tools.schema_patterns import PatternError, compile_pattern


@pytest.mark.parametrize(
    ("pattern", "fits", "does_not"),
    [
        (r"^[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+$", "octocat/hello-world", "octocat"),
        (r"^(main|master|dev|develop|staging|production|release)$", "develop", "developer"),
        (r"^(\d{1,3}\.){3}\d{1,3}$", "127.0.0.1", "127.0.0"),
        (r"^\d+\.\d+\.\d+(-[a-z.]+)?$", "1.20.3-beta", "1.2"),
        (r"^[^@\s]+@[^@\s]+\.[a-z]{2,}$", "a@example.org", "a@example"),
        (r"^(?:a|b)*$", "abba", "abc"),
        (r"^[]\]]{2}$", "]]", "[["),
        (r"^\/tmp\/", "/tmp/x", "tmp"),
        (r"^x{,2}$", "xx", "xxx"),
        (r"^{}$", "{}", "x"),
        (r"\$$", "5$", "5"),
        (r"^(?!no)[a-z]+$", "yes", "nope"),
    ],
)
def test_usual_patterns_are_accepted_and_match(pattern: str, fits: str, does_not: str) -> None:
    regex = compile_pattern(pattern).regex
    assert regex.search(fits)
    assert not regex.search(does_not)


def test_the_end_of_a_pattern_is_the_very_end() -> None:
    assert not compile_pattern("^a$").regex.search("a\n")


def test_digits_are_ascii_as_in_ecma_262() -> None:
    assert not compile_pattern(r"^\d$").regex.search("٣")


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(a+)+", "nested quantifiers"),
        ("(a*)*", "nested quantifiers"),
        ("(a|a)*", "nested quantifiers"),
        ("(a|ab)*c", "nested quantifiers"),
        ("((a{1,9}){1,9}){1,9}", "nested quantifiers"),
        ("(?:a?){60}a{60}", "too many"),
        ("a?" * 60 + "a" * 60, "too many"),
        (".*" * 9, "too many"),
        ("x" * 257, "longer than 256"),
        ("(", "unmatched"),
        (")", "unmatched"),
        ("[a", "unmatched"),
        ("a**", "does not compile"),
        (r"\p{L}", "does not compile"),
        (r"(a)\1", "reference"),
        ("(?i)a", "not supported"),
        ("(?P<n>a)", "not supported"),
        ("(" * 40 + ")" * 40, "nested too deep"),
        ("a{99999999999}", "does not compile"),
        ("\\", "does not compile"),
    ],
)
def test_other_patterns_are_refused_with_the_reason(pattern: str, reason: str) -> None:
    with pytest.raises(PatternError, match=reason):
        compile_pattern(pattern)


def test_the_cost_of_a_search_grows_with_the_repeats_that_compete() -> None:
    one, three = compile_pattern("^a+$"), compile_pattern("^a+a+a+$")
    assert one.cost(10_000) < 1_000 < three.cost(1_000)


PIECES = st.sampled_from(
    ["a", "b", ".", "[ab]", "a*", "a+", "a?", ".*", "(", ")", "(?:", "|", "*", "+", "{2}", "{1,3}", "^", "$"]
)


@settings(max_examples=600, deadline=None)
@given(st.lists(PIECES, max_size=14).map("".join))
def test_a_search_takes_no_longer_than_its_cost_foretells(pattern: str) -> None:
    try:
        compiled = compile_pattern(pattern)
    except PatternError:
        return
    length = 4
    while length < 4_000 and compiled.cost(length * 2) < 3_000:
        length *= 2
    for text in ("a" * length + "!", "ab" * (length // 2) + "!"):
        started = time.process_time()
        compiled.regex.search(text)
        assert time.process_time() - started < 5, (pattern, length)
