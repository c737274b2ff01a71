"""The tool ``calculator``: arithmetic by simpleeval, behind guards for per cent, infinity and size.

Decimals and quotients are fractions: 0.1 + 0.2 - 0.3 is 0. simpleeval alone takes long for ``9**9**9``: here
the size of a power is estimated before it is computed.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Annotated, Any, TypeAlias

from pydantic import Field
from simpleeval import InvalidExpression, SimpleEval

from conductor.tools import ToolError, tool

# Characters of an expression, and its nesting: it is evaluated recursively.
MAX_CHARS = 512
MAX_DEPTH = 64
# Bits of a whole number, the largest factorial, and digits of a rounding: each takes under a millisecond.
MAX_BITS = 4096
MAX_FACTORIAL = 400
MAX_ROUND_DIGITS = 400

Number: TypeAlias = int | Fraction | float

_TOKEN = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[A-Za-z_][A-Za-z0-9_]*|\*\*|//|\S")
_SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "^": "**"})
_TOO_LARGE = f"A result is too large: whole numbers have at most {MAX_BITS} bits, others at most 308 digits."
_TOO_DEEP = f"The expression is nested more than {MAX_DEPTH} deep."
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
        value: Number = _Evaluator().eval(_python(expression))
        # The rest is for the ear; no -0.
        return str(value) if isinstance(value, int) else f"{float(value):.15g}" if value else "0"
    except CalculationError:
        raise
    except SyntaxError as error:
        raise CalculationError(_TOO_DEEP if "nested" in error.msg else _MALFORMED) from None
    except InvalidExpression:
        raise CalculationError(_MALFORMED) from None
    except ZeroDivisionError:
        raise CalculationError("It divides by zero.") from None
    except OverflowError:
        raise CalculationError(_TOO_LARGE) from None
    except (ValueError, TypeError):
        raise CalculationError("A function has no result for this value.") from None


def _python(text: str) -> str:
    """Write an expression in Python's syntax: ``%`` as ``.percent``, ``of`` as ``@``, 007 as 7."""
    if len(text) > MAX_CHARS:
        raise CalculationError(f"The expression is longer than {MAX_CHARS} characters.")
    tokens = _TOKEN.findall(text.translate(_SIGNS))
    if not tokens:
        raise CalculationError("The expression is empty.")
    written = [""]
    for token, following in zip(tokens, [*tokens[1:], ""], strict=True):
        _check_known(token)
        if token == "%" and _is_percent_sign(following):
            if written[-1][-1:] in "(,@*/+-%":
                raise CalculationError("There is nothing before %.")
            token = ".percent"
        elif token == "of":
            if written[-1] != ".percent":
                raise CalculationError('"of" is understood only after a percentage, as in "17% of 2340".')
            token = "@"
        written.append(str(int(token)) if token.isdigit() else token)
    return " ".join(written)


def _check_known(token: str) -> None:
    names = _FUNCTIONS.keys() | _CONSTANTS.keys()
    if re.match("[A-Za-z_]", token):
        if token not in names and token != "of":
            raise CalculationError(f"{token[:40]!r} is not known here. Known: {', '.join(sorted(names))}.")
    elif not re.match(r"[0-9.+*/%(),-]", token) or token == ".":
        raise CalculationError(f"{token!r} is not understood.")


def _is_percent_sign(following: str) -> bool:
    if following in ("+", "-"):
        raise CalculationError(
            "% before + or - may mean per cent or remainder: write (20/100) for 20 per cent, or 20 % "
            "(-3) for the remainder."
        )
    return following in ("", ")", ",", "*", "of", "/", "//", "%", "**")


class _Percentage(Fraction):
    """The value of ``5%``; in any operation it becomes another number."""


class _Evaluator(SimpleEval):  # type: ignore[misc]  # simpleeval has no types
    def __init__(self) -> None:
        super().__init__(operators=_OPERATORS, functions=_FUNCTIONS, names=_constant)
        self.nodes: dict[type[ast.AST], Callable[[Any], Any]] = {
            **{kind: self.nodes[kind] for kind in (ast.Expr, ast.UnaryOp, ast.Call, ast.Name)},
            ast.BinOp: self._chain,
            ast.Attribute: self._percentage,
            ast.Constant: _number,
            ast.Tuple: _refuse_comma,
        }
        self._depth = 0

    def _eval(self, node: ast.AST) -> Any:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise CalculationError(_TOO_DEEP)
        value = super()._eval(node)
        self._depth -= 1
        return _bounded(value)

    def _chain(self, node: ast.BinOp) -> Any:
        # A long sum is not nested, although Python reads it so.
        links = [node]
        while isinstance(links[-1].left, ast.BinOp):
            links.append(links[-1].left)
        value = self._eval(links[-1].left)
        for link in reversed(links):
            self._check_percentage(link, right := self._eval(link.right))
            value = _bounded(self.operators[type(link.op)](value, right))
        return value

    def _check_percentage(self, link: ast.BinOp, right: Number) -> None:
        if isinstance(link.op, (ast.Add, ast.Sub)) and isinstance(right, _Percentage):
            raise CalculationError(
                "Adding per cent is ambiguous: write 200 * 1.1 to raise 200 by a tenth, or 200 + 0.1."
            )
        last = link.left.op if isinstance(link.left, ast.BinOp) else link.op
        if isinstance(link.op, ast.MatMult) and not isinstance(last, (ast.Mult, ast.MatMult)):
            raise CalculationError('Put the "of" part in brackets, as in 100 / (10% of 50).')

    def _percentage(self, node: ast.Attribute) -> Number:
        return _Percentage(Fraction(self._eval(node.value)) / 100)


def _constant(node: ast.Name) -> Number:
    if node.id not in _CONSTANTS:
        raise CalculationError(f"{node.id} needs its value in brackets.")
    return _CONSTANTS[node.id]


def _number(node: ast.Constant) -> Any:
    # The shortest text of a float is the decimal that was written.
    return Fraction(repr(_bounded(node.value))) if isinstance(node.value, float) else node.value


def _refuse_comma(node: ast.Tuple) -> Number:
    raise CalculationError("A comma stands only between a function's values: write 1234, not 1,234.")


def _bounded(value: Any) -> Any:
    if isinstance(value, complex):
        raise CalculationError("The result is not a real number.")
    if isinstance(value, Fraction):
        return value if _bits(value) <= MAX_BITS else float(value)
    if not (math.isfinite(value) if isinstance(value, float) else _bits(value) <= MAX_BITS):
        raise OverflowError
    return value


def _bits(value: int | Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _power(base: Number, exponent: Number) -> Any:
    whole = int(exponent)
    if isinstance(base, float) or exponent != whole:
        return float(base) ** float(exponent)
    # The size of the result is known beforehand: |base| ≥ 2 ** (bits - 1).
    if (_bits(base) - 1) * abs(whole) <= MAX_BITS:
        return (base if whole >= 0 else Fraction(base)) ** whole
    if isinstance(base, int) and whole > 0:
        raise OverflowError
    return float(base) ** whole


def _factorial(value: Number) -> int:
    if value != int(value) or not 0 <= value <= MAX_FACTORIAL:
        raise CalculationError(f"factorial takes whole numbers from 0 to {MAX_FACTORIAL}.")
    return math.factorial(int(value))


def _round(value: Number, digits: Number = 0) -> Any:
    places = int(digits)
    if digits != places or abs(places) > MAX_ROUND_DIGITS:
        raise CalculationError(f"round takes whole digits up to {MAX_ROUND_DIGITS}.")
    return round(value, places) if places else round(value)


def _taking(name: str, function: Callable[..., Number], most: int = 1) -> Callable[..., Number]:
    def called(*values: Number) -> Number:
        if not 1 <= len(values) <= most:
            raise CalculationError(f"{name} takes 1 {'value' if most == 1 else f'to {most} values'}.")
        return function(*values)

    return called


_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    **{ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Add: operator.add, ast.Sub: operator.sub},
    **{ast.Mult: operator.mul, ast.MatMult: operator.mul, ast.Div: lambda value, by: Fraction(value) / by},
    **{ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: _power},
}
_CONSTANTS = {"pi": math.pi, "e": math.e}
_MATH = ("sqrt exp log2 log10 degrees radians sin cos tan asin acos atan sinh cosh tanh floor ceil").split()
_FUNCTIONS = {
    **{name: _taking(name, getattr(math, name)) for name in _MATH},
    **{"ln": _taking("ln", math.log), "log": _taking("log", math.log, 2), "abs": _taking("abs", abs)},
    **{"factorial": _taking("factorial", _factorial), "round": _taking("round", _round, 2)},
    "min": _taking("min", lambda *values: min(values), MAX_CHARS),
    "max": _taking("max", lambda *values: max(values), MAX_CHARS),
}
