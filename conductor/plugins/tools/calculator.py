"""The tool ``calculator``: arithmetic, exact where possible, within milliseconds.

Decimals and quotients are fractions: 0.1 + 0.2 - 0.3 is 0. Ready-made evaluators hang on ``9**9**9`` or on
factorials; this one estimates the size of a result before it computes it.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Annotated, Any, TypeAlias

from pydantic import Field

from conductor.tools import ToolError, tool

# Characters and nesting of an expression, which is read recursively.
MAX_CHARS = 512
MAX_DEPTH = 64
# Bits of a whole number, the largest factorial, and digits of a rounding: each takes under a millisecond.
MAX_BITS = 4096
MAX_FACTORIAL = 400
MAX_ROUND_DIGITS = 400
# Of a decimal such as 1e300.
MAX_EXPONENT = 400

Number: TypeAlias = int | Fraction | float

_TOKEN = re.compile(
    r"\s*((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[A-Za-z_][A-Za-z0-9_]*|\*\*|//|[-+*/%(),])", re.ASCII
)
_SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "^": "**"})
_TOO_LARGE = f"A result is too large: whole numbers have at most {MAX_BITS} bits, others at most 308 digits."
_MALFORMED = "The expression is not complete or not well formed; perhaps an operator or a bracket is missing."


class CalculationError(ValueError):
    """An expression that has no value here; the message is a sentence for a model."""


@tool(
    description="Compute an arithmetic expression. Use it for all but the simplest sums. Operators: + - * "
    "/ // % ^ (power) and brackets; per cent as in 17% of 2340. Functions: sqrt exp log (natural, or "
    "log(x, base)) log2 log10 sin cos tan asin acos atan (radians) degrees radians abs round floor "
    "ceil min max factorial; constants pi and e. Write numbers without thousands separators or units.",
    risk="safe",
    effect="read",
)
async def calculator(
    expression: Annotated[
        str,
        Field(
            min_length=1,
            max_length=MAX_CHARS,
            description="For example: (1250 + 399.9) * 1.19, or 17% of 2340",
        ),
    ],
) -> dict[str, str]:
    """Answer with ``result``, as text: whole numbers in full, others with 15 significant digits."""
    try:
        return {"result": calculate(expression)}
    except CalculationError as error:
        raise ToolError(f"{error} Nothing was computed.", "validation_failed") from None


def calculate(expression: str) -> str:
    """Compute an expression. Raises `CalculationError`, and nothing else, within milliseconds.

    ``^`` is power. ``%`` between two operands is the remainder; at the end of an operand it is per cent, and
    ``of`` after it multiplies.
    """
    try:
        value = _Expression(expression).value()
        # The rest is for the ear; no -0.
        return str(value) if isinstance(value, int) else f"{float(value):.15g}" if value else "0"
    except CalculationError:
        raise
    except ZeroDivisionError:
        raise CalculationError("It divides by zero.") from None
    except OverflowError:
        raise CalculationError(_TOO_LARGE) from None
    except (ValueError, TypeError):
        raise CalculationError("A function has no result for this value.") from None


class _Percentage(Fraction):
    """The value of ``5%``; in any operation it becomes another number."""


class _Expression:
    def __init__(self, text: str) -> None:
        if len(text) > MAX_CHARS:
            raise CalculationError(f"The expression is longer than {MAX_CHARS} characters.")
        self._tokens = _tokens(text.translate(_SIGNS).strip())
        self._position = 0

    def value(self) -> Number:
        value = self._sum(0, 0)
        if self._token == ",":
            raise CalculationError("A comma stands only between a function's values: write 1234, not 1,234.")
        if self._token:
            raise CalculationError(_MALFORMED)
        return value

    @property
    def _token(self) -> str:
        return self._tokens[self._position]

    def _take(self) -> str:
        token = self._token
        self._position += bool(token)
        return token

    def _sum(self, binding: int, depth: int) -> Number:
        # Operators that bind more tightly than `binding`, which is that of the operator before.
        value = self._operand(depth)
        last = ""
        while (level := _LEVELS.get(self._token, 0)) > binding:
            if self._token == "of":
                self._check_of(last)
            last = self._take()
            # A power's exponent may contain powers.
            right = self._sum(_UNARY, depth + 1) if last == "**" else self._sum(level, depth)
            if last in ("+", "-") and isinstance(right, _Percentage):
                raise CalculationError(
                    "Adding per cent is ambiguous: write 200 * 1.1 to raise 200 by a tenth, or 200 + 0.1."
                )
            value = _bounded(_OPERATORS[last](value, right))
        return value

    def _check_of(self, last: str) -> None:
        if self._tokens[self._position - 1] != "%":
            raise CalculationError('"of" is understood only after a percentage, as in "17% of 2340".')
        if last in ("/", "//", "%", "**"):
            raise CalculationError('Put the "of" part in brackets, as in 100 / (10% of 50).')

    def _operand(self, depth: int) -> Number:
        if depth > MAX_DEPTH:
            raise CalculationError(f"The expression is nested more than {MAX_DEPTH} deep.")
        token = self._take()
        value: Number
        if token in ("-", "+"):
            value = self._sum(_UNARY, depth + 1)
            return -value if token == "-" else +value
        if token == "(":
            (value,) = self._values(depth, 1, 1, "A bracket")
        elif token in _CONSTANTS:
            value = _CONSTANTS[token]
        elif token in _FUNCTIONS:
            if self._take() != "(":
                raise CalculationError(f"{token} needs its value in brackets.")
            function, least, most = _FUNCTIONS[token]
            value = _bounded(function(*self._values(depth, least, most, token)))
        elif token[:1].isdigit() or token[:1] == ".":
            value = _bounded(int(token) if token.isdigit() else _decimal(token))
        else:
            raise CalculationError("There is nothing before %." if token == "%" else _MALFORMED)
        while self._token == "%" and self._is_percent_sign():
            self._take()
            value = _Percentage(Fraction(value) / 100)
        return value

    def _values(self, depth: int, least: int, most: int, name: str) -> list[Number]:
        values: list[Number] = []
        if self._token != ")":
            values.append(self._sum(0, depth + 1))
            while self._token == ",":
                self._take()
                values.append(self._sum(0, depth + 1))
        if self._take() != ")":
            raise CalculationError(_MALFORMED)
        if not least <= len(values) <= most:
            count = str(least) if least == most else f"{least} to {most}"
            raise CalculationError(f"{name} takes {count} value{'' if count == '1' else 's'}.")
        return values

    def _is_percent_sign(self) -> bool:
        following = self._tokens[self._position + 1]
        if following in ("+", "-"):
            raise CalculationError(
                "% before + or - may mean per cent or remainder: write (20/100) for 20 per cent, or 20 % "
                "(-3) for the remainder."
            )
        return following in ("", ")", ",") or following in _LEVELS


def _tokens(text: str) -> list[str]:
    # The last one is empty.
    tokens: list[str] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise CalculationError(f"{text[position:].strip()[:1]!r} is not understood.")
        token = match[1]
        if token[0].isalpha() or token[0] == "_":
            names = _FUNCTIONS.keys() | _CONSTANTS.keys()
            if token not in names and token != "of":
                raise CalculationError(
                    f"{token[:40]!r} is not known here. Known: {', '.join(sorted(names))}."
                )
        tokens.append(token)
        position = match.end()
    if not tokens:
        raise CalculationError("The expression is empty.")
    return [*tokens, ""]


def _bounded(value: Number | complex) -> Number:
    if isinstance(value, complex):
        raise CalculationError("The result is not a real number.")
    if isinstance(value, Fraction) and _bits(value) > MAX_BITS:
        value = float(value)
    small = math.isfinite(value) if isinstance(value, float) else _bits(value) <= MAX_BITS
    if not small:
        raise CalculationError(_TOO_LARGE)
    return value


def _bits(value: int | Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _decimal(token: str) -> Number:
    # Of a large exponent only the float is bounded.
    exponent = int(token.lower().partition("e")[2] or 0)
    return Fraction(token) if abs(exponent) <= MAX_EXPONENT else float(token)


def _power(base: Number, exponent: Number) -> Any:
    whole = int(exponent)
    if isinstance(base, float) or exponent != whole:
        return float(base) ** float(exponent)
    # The size of the result is known beforehand: |base| ≥ 2 ** (bits - 1).
    if (_bits(base) - 1) * abs(whole) > MAX_BITS:
        if isinstance(base, int) and whole > 0:
            raise CalculationError(_TOO_LARGE)
        return float(base) ** whole
    return (base if whole >= 0 else Fraction(base)) ** whole


def _divide(value: Number, by: Number) -> Number:
    if isinstance(value, float) or isinstance(by, float):
        return value / by
    return Fraction(value) / by


def _factorial(value: Number) -> int:
    if value != int(value) or not 0 <= value <= MAX_FACTORIAL:
        raise CalculationError(f"factorial takes whole numbers from 0 to {MAX_FACTORIAL}.")
    return math.factorial(int(value))


def _round(value: Number, digits: Number = 0) -> Number:
    places = int(digits)
    if digits != places or abs(places) > MAX_ROUND_DIGITS:
        raise CalculationError(f"round takes whole digits up to {MAX_ROUND_DIGITS}.")
    if not places:
        return round(value)
    return round(value, places) if isinstance(value, float) else Fraction(round(Fraction(value), places))


_OPERATORS: dict[str, Callable[[Number, Number], Any]] = {
    **{"+": operator.add, "-": operator.sub, "*": operator.mul, "of": operator.mul, "**": _power},
    **{"/": _divide, "//": operator.floordiv, "%": operator.mod},
}
# How tightly an operator binds; signs bind less tightly than powers.
_UNARY = 3
_LEVELS = {"+": 1, "-": 1, "*": 2, "of": 2, "/": 2, "//": 2, "%": 2, "**": 4}
_CONSTANTS = {"pi": math.pi, "e": math.e}
_MATH = ("sqrt exp log2 log10 degrees radians sin cos tan asin acos atan sinh cosh tanh floor ceil").split()
_FUNCTIONS: dict[str, tuple[Callable[..., Number], int, int]] = {
    **{name: (getattr(math, name), 1, 1) for name in _MATH},
    "ln": (math.log, 1, 1),
    "abs": (abs, 1, 1),
    "factorial": (_factorial, 1, 1),
    "log": (math.log, 1, 2),
    "round": (_round, 1, 2),
    "min": (lambda *values: min(values), 1, MAX_CHARS),
    "max": (lambda *values: max(values), 1, MAX_CHARS),
}
