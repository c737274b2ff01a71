"""``calculator``: the syntax, correct results, and an answer within milliseconds."""

from __future__ import annotations

import contextlib
import math
import re
import sys
from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from conductor.plugins.tools.calculator import CalculationError, calculate, calculator
from conductor.tools.base import CallContext
from tests.cpu import least_cpu_s
from tests.unit.tools.builtin.conftest import run


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("3 × 4 ÷ 2 − 1", "5"),
        ("007.50", "7.5"),
        ("2^10%", "1.07177346253629"),
        ("10%(3) + 10%pi - 10 % pi", "1"),
        ("50%%", "0.005"),
        ("(2 + 3)% of 10 + sqrt(16)% / 2", "0.52"),
        ("5% of 20% of 1000", "10"),
        ("2 * -10% of 50", "-10"),
        ("17% of 2340", "397.8"),
        ("12 % * 5", "0.6"),
        ("-17 % 5", "3"),
        ("2^3^2", "512"),
        ("-2^2", "-4"),
        ("2**-1", "0.5"),
        ("0.1 + 0.2", "0.3"),
        ("0.1 + 0.2 - 0.3", "0"),
        ("1.1 * 1.1 - 1.21", "0"),
        ("0.3 % 0.1 + 1 / 3 * 3 - 1", "0"),
        ("round(2.675, 2)", "2.68"),
        ("10 / 2", "5"),
        ("7 // 2", "3"),
        ("1 / 3", "0.333333333333333"),
        ("-0.0", "0"),
        ("1e22", "1e+22"),
        ("2^4095", str(2**4095)),
        ("factorial(400)", str(math.factorial(400))),
        ("factorial(3.0)", "6"),
        ("log(8, 2)", "3"),
        ("ln(e^2) + log10(1000) + log2(8) + log(e)", "9"),
        ("sin(pi / 2) + cos(0) + tan(0)", "2"),
        ("round(1234.567, 2)", "1234.57"),
        ("round(1234.567, -2)", "1200"),
        ("round(123456789012345678944, -2)", "123456789012345678900"),
        ("7\N{NO-BREAK SPACE}+\N{NO-BREAK SPACE}3", "10"),
        ("(2 * 5)% of 50 + 100 / (10% of 50)", "25"),
        ("1" + " // 1" * 100, "1"),
        ("floor(-1.5) + ceil(1.2) + abs(-3)", "3"),
        ("min(3, 1, 2) + max(3, 1, 2)", "4"),
        ("+".join(["1"] * 256), "256"),
        ("(" * 64 + "1" + ")" * 64, "1"),
    ],
)
def test_results_are_correct(expression: str, result: str) -> None:
    assert calculate(expression) == result


HOSTILE = [
    ("20% - 3", "may mean per cent or remainder"),
    ("100 / 10% of 50", "in brackets"),
    ("2 ^ 10% of 50", "in brackets"),
    ("% of 3", "nothing before %"),
    ("(%)", "nothing before %"),
    ("17 of 3", "only after a percentage"),
    ("(17%) of 3", "only after a percentage"),
    ("percent(3)", "'percent' is not known"),
    ("'a'", '"\'" is not understood'),
    ("٣ + 1", "is not understood"),
    ("1" * 513, "longer than 512"),
    ("9**9**9", "too large"),
    ("-(2^4096)", "too large"),
    ("2**2**2**2**2**2", "too large"),
    ("*".join(["9**1200"] * 60), "too large"),
    ("10.0 ** 400", "too large"),
    ("1e999", "too large"),
    ("1e308 * 10", "too large"),
    ("exp(1000)", "too large"),
    ("(2^4000) * 1.5", "too large"),
    ("factorial(factorial(10))", "from 0 to 400"),
    ("factorial(-1)", "from 0 to 400"),
    ("factorial(2.5)", "from 0 to 400"),
    ("round(5, -1000000000)", "up to 400"),
    ("1 << 999999999", "not understood"),
    ("(" * 255 + "1" + ")" * 255, "64 deep"),
    ("-" * 511 + "1", "64 deep"),
    ("(1+2*" * 70 + "1" + ")" * 70, "64 deep"),
    ("abs(1+" * 70 + "1" + ")" * 70, "64 deep"),
    ("2" + "^1" * 200, "64 deep"),
    ("1 / 0", "divides by zero"),
    ("0 ** -1", "divides by zero"),
    ("5 % 0", "divides by zero"),
    ("(-8) ^ (1/3)", "not a real number"),
    ("sqrt(-1)", "no result"),
    ("log(0)", "no result"),
    ("1,234 * 2", "write 1234, not 1,234"),
    ("2(3)", "operator or a bracket is missing"),
    ("pi(2)", "operator or a bracket is missing"),
    ("sqrt + 1", "needs its value in brackets"),
    ("sqrt()", "takes 1 value."),
    ("log(1, 2, 3)", "takes 1 to 2 values."),
    ("max(**3)", "not well formed"),
    ("200 - 10%", "ambiguous"),
    ("__import__('os')", "not known"),
    ("(1).__class__", "not understood"),
    ("1 if 1 else 2", "not known"),
    ("1 +", "not well formed"),
    ("", "is empty"),
]


@pytest.mark.parametrize(("expression", "words"), HOSTILE)
def test_an_expression_without_a_result_is_explained(expression: str, words: str) -> None:
    with pytest.raises(CalculationError) as raised:
        calculate(expression)
    assert words in str(raised.value)
    assert milliseconds(expression) < 50


def milliseconds(expression: str) -> float:
    def run() -> None:
        with contextlib.suppress(CalculationError):
            calculate(expression)

    return least_cpu_s(run, 0.01) * 1000


@pytest.mark.parametrize(
    "expression",
    ["+".join(["factorial(400)"] * 34), "*".join(["1"] * 256), "(2^4095)" + "//3" * 160]
    + ["round(2^4095, -400)", "9" * 512, "(" * 64 + "7%" + ")%" * 64],
)
def test_long_expressions_end_within_fifty_milliseconds(expression: str) -> None:
    assert milliseconds(expression) < 50


def combined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    binary = st.builds(
        lambda first, operator, second: f"({first} {operator} {second})",
        inner,
        st.sampled_from(["+", "-", "*", "/", "//", "%", "**"]),
        inner,
    )
    unary = st.builds(lambda sign, operand: f"({sign}{operand})", st.sampled_from("+-"), inner)
    function = st.builds(
        lambda name, operand: f"{name}({operand})",
        st.sampled_from(["abs", "sqrt", "floor", "round", "cos"]),
        inner,
    )
    return binary | unary | function


NUMBERS = st.integers(0, 60).map(str) | st.floats(0, 1e6, allow_subnormal=False).map(repr)
TREES = st.recursive(NUMBERS, combined, max_leaves=10)


@settings(max_examples=100, deadline=None)
@given(TREES)
@example("((5 ** 13) ** (0 - 35))")
@example("((floor(3) ** 21) ** 31)")
@example("(4 / 2.2250738585072014e-308)")
@example("(5.960464477539063e-08 ** round(733321.5251736968))")
def test_it_agrees_with_python(expression: str) -> None:
    try:
        result = calculate(expression)
    except CalculationError:
        result = None
    # Python may compute a power without end: one that is too large, or so small that it is 0 as a float.
    if "**" in expression and (result is None or Fraction(result) == 0):
        return
    functions = {"abs": abs, "sqrt": math.sqrt, "floor": math.floor, "round": round, "cos": math.cos}
    # A whole number in Python stays one; decimals and quotients are exact.
    exact = re.sub(r"(?<![\w.])\d[\d.]*(?:e[+-]?\d+)?", lambda number: f"Fraction('{number[0]}')", expression)
    try:
        value = eval(exact, {"__builtins__": {}, "Fraction": Fraction}, functions)
    except (ArithmeticError, ValueError, TypeError):
        assert result is None
        return
    if isinstance(value, complex) or (isinstance(value, float) and not math.isfinite(value)):
        assert result is None
    elif result is None:
        assert abs(Fraction(value)) > Fraction(sys.float_info.max)  # a quotient is a float
    else:
        # As fractions: a whole number may be larger than any float, and a tiny one has few digits.
        assert abs(Fraction(result) - Fraction(value)) <= abs(Fraction(value)) / 10**12 + Fraction(1, 10**300)


SYMBOLS = st.sampled_from(
    [*"0123456789.+-*/%^(),! e", "**", "//", "9**9", "sqrt(", "factorial(", "% of ", "pi", "1e300", "√", "x"]
)


@settings(max_examples=150, deadline=None)
@given(st.lists(SYMBOLS, max_size=60).map("".join) | st.text(max_size=40))
@example("1_0")
@example("0x10")
@example("5 % % % 5")
def test_any_text_is_answered_soon(expression: str) -> None:
    try:
        assert float(calculate(expression)) is not None
    except CalculationError as error:
        assert str(error).endswith(".")
    except OverflowError:
        assert len(calculate(expression)) > 308  # an integer too long for a float
    assert milliseconds(expression) < 250


async def test_a_result_and_a_failure_are_outcomes() -> None:
    outcome = await run(calculator, {"expression": "17% of 2340"}, CallContext(session_id="s", call_id="c"))
    assert (outcome.success, outcome.data) == (True, {"result": "397.8"})
    outcome = await run(calculator, {"expression": "1/0"}, CallContext(session_id="s", call_id="c"))
    assert (outcome.success, outcome.error_type) == (False, "validation_failed")
    assert outcome.error_message == "It divides by zero. Nothing was computed."
