"""Spellings: what people and models write, in the one that is evaluated."""

from __future__ import annotations

import pytest

from conductor.tools.builtin.calculator import CalculationError, normalise

NAMES = ["sqrt", "pi"]


@pytest.mark.parametrize(
    ("written", "spelt"),
    [
        ("2^3", "2**3"),
        ("3 × 4 ÷ 2 − 1", "3*4/2-1"),
        ("007.50", "7.50"),
        ("10 % 3", "10%3"),
        ("10%(3)", "10%(3)"),
        ("10%pi", "10%pi"),
        ("50%", "percent(50)"),
        ("12 % * 5", "percent(12)*5"),
        ("17% of 2340", "percent(17)*2340"),
        ("(2 + 3)% of 10", "percent((2+3))*10"),
        ("sqrt(16)%", "percent(sqrt(16))"),
        ("pi% / 2", "percent(pi)/2"),
        ("5% of 20% of 1000", "percent(5)*percent(20)*1000"),
        ("50%%", "percent(percent(50))"),
        ("2^10%", "2**percent(10)"),
    ],
)
def test_an_expression_is_spelt_as_python_spells_it(written: str, spelt: str) -> None:
    assert normalise(written, NAMES).replace(" ", "") == spelt


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("", "is empty"),
        ("20% - 3", "may mean per cent or remainder"),
        ("20% + 3", "may mean per cent or remainder"),
        ("100 / 10% of 50", "in brackets"),
        ("% of 3", "nothing before %"),
        ("(%)", "nothing before %"),
        ("17 of 3", "only after a percentage"),
        ("(17) of 3", "only after a percentage"),
        ("of", "only after a percentage"),
        ("percent(3)", "'percent' is not known"),
        ("x + 1", "'x' is not known here. Known: pi, sqrt."),
        ("1 or 2", "'or' is not known"),
        ("1 << 2", "'<' is not understood"),
        ("'a'", '"\'" is not understood'),
        ("٣ + 1", "is not understood"),
        ("1" * 513, "longer than 512"),
        ("(" * 65 + "1" + ")" * 65, "more than 64 deep"),
    ],
)
def test_what_is_not_arithmetic_or_means_two_things_is_refused(written: str, words: str) -> None:
    with pytest.raises(CalculationError) as raised:
        normalise(written, NAMES)
    assert words in str(raised.value)
