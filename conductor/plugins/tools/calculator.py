"""The tool ``calculator``: arithmetic, exact where possible, within milliseconds.

Ready-made evaluators hang on ``9**9**9`` or on factorials; this one estimates the size of a result before it
computes it.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

from conductor.plugins.tools.definitions import argument, definition
from conductor.tools.base import CallContext, ToolOutcome, failed, succeeded

# Characters and nesting of an expression, which is parsed recursively.
MAX_CHARS = 512
MAX_DEPTH = 64

_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<operator>\*\*|//|[-+*/%^(),]))",
    re.ASCII,
)
_SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-"})
_AFTER_PERCENT = frozenset([")", ",", "*", "/", "//", "**", "%", ""])


class CalculationError(ValueError):
    """An expression that has no value here; the message is a sentence for a model."""


def normalise(expression: str, names: Collection[str]) -> str:
    """Rewrite an expression in Python's syntax.

    ``^`` is power. ``%`` between two operands is the remainder; at the end of an operand it is per cent, and
    becomes the call ``percent(x)``; ``of`` after it multiplies. Raises `CalculationError` for names other
    than ``names``, and for an ambiguous ``%``.
    """
    if len(expression) > MAX_CHARS:
        raise CalculationError(f"The expression is longer than {MAX_CHARS} characters.")
    tokens = _tokens(expression.translate(_SIGNS).strip(), names)
    output: list[str] = []
    brackets = 0
    for token, following in zip(tokens, [*tokens[1:], ""], strict=True):
        brackets += (token == "(") - (token == ")" and brackets > 0)
        if brackets > MAX_DEPTH:
            raise CalculationError(f"The brackets are nested more than {MAX_DEPTH} deep.")
        if token == "%" and _is_percent_sign(following):
            _make_percent(output, following)
        elif token == "of":
            if not output or output[-1] != _PERCENT_END:
                raise CalculationError('"of" is understood only after a percentage, as in "17% of 2340".')
            output.append("*")
        else:
            output.append("**" if token == "^" else token)
    return " ".join(output)


_PERCENT_END = " )"  # the space distinguishes it from a bracket of the expression


def _tokens(text: str, names: Collection[str]) -> list[str]:
    tokens: list[str] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise CalculationError(f"{text[position:].strip()[:1]!r} is not understood.")
        token = match[0].strip()
        if match["name"] and token != "of" and token not in names:
            raise CalculationError(f"{token[:40]!r} is not known here. Known: {', '.join(sorted(names))}.")
        # Python refuses leading zeros, and 007 is not octal here.
        tokens.append(re.sub(r"^0+(?=\d)", "", token) if match["number"] else token)
        position = match.end()
    if not tokens:
        raise CalculationError("The expression is empty.")
    return tokens


def _is_percent_sign(following: str) -> bool:
    if following in "+-" and following:
        raise CalculationError(
            "% before + or - may mean per cent or remainder: write (20/100) for 20 per cent, or 20 % (-3) "
            "for the remainder."
        )
    return following in _AFTER_PERCENT or following in ("of", "^")


def _make_percent(output: list[str], following: str) -> None:
    start = len(output) - 1
    if start < 0 or output[start] in ("+", "-", "*", "/", "//", "**", "%", "(", ","):
        raise CalculationError("There is nothing before %.")
    depth = 0
    for start in range(len(output) - 1, -1, -1):
        depth += output[start].count(")") - output[start].count("(")
        if depth <= 0:
            break
    if start > 0 and output[start] == "(" and output[start - 1][0].isalpha():
        start -= 1  # a function's name
    if following == "of" and start > 0 and output[start - 1] in ("/", "//", "%", "**"):
        raise CalculationError(f'Put the "{following}" part in brackets, as in 100 / (10% of 50).')
    output[start:] = ["percent(", *output[start:], _PERCENT_END]


# Bits of a whole number, the largest factorial, and digits of a rounding: each takes under a millisecond.
MAX_BITS = 4096
MAX_FACTORIAL = 400
MAX_ROUND_DIGITS = 400

Number: TypeAlias = int | float


class Calculator:
    """``calculator``."""

    spec = definition(
        "calculator",
        "Compute an arithmetic expression. Use it for all but the simplest sums. Operators: + - * "
        "/ // % ^ (power) and brackets; per cent as in 17% of 2340. Functions: sqrt exp log (natural, or "
        "log(x, base)) log2 log10 sin cos tan asin acos atan (radians) degrees radians abs round floor "
        "ceil min max factorial; constants pi and e. Write numbers without thousands separators or units.",
        {
            "expression": argument(
                "string",
                "For example: (1250 + 399.9) * 1.19, or 17% of 2340",
                minLength=1,
                maxLength=MAX_CHARS,
            ),
        },
        required=["expression"],
        risk="safe",
        effect="read",
    )

    async def run(self, arguments: Mapping[str, Any], context: CallContext) -> ToolOutcome:
        """Answer with ``result``, as text: whole numbers in full, others with 15 significant digits."""
        try:
            result = calculate(arguments["expression"])
        except CalculationError as error:
            return failed("validation_failed", f"{error} Nothing was computed.")
        return succeeded({"result": result})


def calculate(expression: str) -> str:
    """Compute an expression. Raises `CalculationError`, and nothing else, within milliseconds."""
    text = normalise(expression, _NAMES)
    try:
        # Python only parses it: `_evaluate` accepts the nodes of arithmetic.
        tree = ast.parse(text, mode="eval").body
        return _format(_evaluate(tree, 0))
    except CalculationError:
        raise
    except SyntaxError:
        raise CalculationError("The expression is not complete, or not well formed.") from None
    except ZeroDivisionError:
        raise CalculationError("It divides by zero.") from None
    except OverflowError:
        raise CalculationError(_TOO_LARGE) from None
    except (MemoryError, RecursionError):
        raise CalculationError(_TOO_DEEP) from None
    except (ValueError, TypeError):
        raise CalculationError("A function has no result for this value.") from None


_TOO_LARGE = f"A result is too large: whole numbers have at most {MAX_BITS} bits, others at most 308 digits."
_TOO_DEEP = f"The expression is nested more than {MAX_DEPTH} deep."


def _evaluate(node: ast.expr, depth: int) -> Number:
    if depth > MAX_DEPTH:
        raise CalculationError(_TOO_DEEP)
    match node:
        case ast.Constant(value=int() | float() as value):
            return _bounded(value)
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluate(operand, depth + 1)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _evaluate(operand, depth + 1)
        case ast.BinOp():
            return _chain(node, depth)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            return _call(name, [_evaluate(argument, depth + 1) for argument in arguments])
        case ast.Tuple():
            raise CalculationError("A comma stands only between a function's values: write 1234, not 1,234.")
        case ast.Name(id=name) if name in _FUNCTIONS:
            raise CalculationError(f"{name} needs its value in brackets.")
    raise CalculationError(
        "The expression is not well formed; perhaps an operator is missing before a bracket."
    )


def _chain(node: ast.BinOp, depth: int) -> Number:
    # A loop, not recursion: a long sum is not nested.
    operations: list[ast.BinOp] = []
    first: ast.expr = node
    while isinstance(first, ast.BinOp):
        operations.append(first)
        first = first.left
    value = _evaluate(first, depth + 1)
    for operation in reversed(operations):
        match operation:
            case ast.BinOp(op=ast.Add() | ast.Sub(), right=ast.Call(func=ast.Name(id="percent"))):
                raise CalculationError(
                    "Adding per cent is ambiguous: write 200 * 1.1 to raise 200 by a tenth, or 200 + 0.1."
                )
        right = _evaluate(operation.right, depth + 1)
        compute = _OPERATORS.get(type(operation.op))
        if compute is None:
            raise CalculationError("This operator is not known here.")
        value = _bounded(compute(value, right))
    return value


def _call(name: str, arguments: list[Number]) -> Number:
    function, least, most = _FUNCTIONS[name]
    if not least <= len(arguments) <= most:
        count = str(least) if least == most else f"{least} to {most}"
        raise CalculationError(f"{name} takes {count} value{'' if count == '1' else 's'}.")
    return _bounded(function(*arguments))


def _bounded(value: int | float | complex) -> Number:
    if isinstance(value, complex):
        raise CalculationError("The result is not a real number.")
    small = value.bit_length() <= MAX_BITS if isinstance(value, int) else math.isfinite(value)
    if not small:
        raise CalculationError(_TOO_LARGE)
    return value


def _power(base: Number, exponent: Number) -> Any:
    # The size of the result is known beforehand: |base| ≥ 2 ** (bits - 1).
    if isinstance(base, int) and isinstance(exponent, int) and abs(base) > 1 and exponent > 0:
        if (base.bit_length() - 1) * exponent > MAX_BITS:
            raise CalculationError(_TOO_LARGE)
    return base**exponent


def _factorial(value: Number) -> int:
    if value != int(value) or not 0 <= value <= MAX_FACTORIAL:
        raise CalculationError(f"factorial takes whole numbers from 0 to {MAX_FACTORIAL}.")
    return math.factorial(int(value))


def _round(value: Number, digits: Number = 0) -> Number:
    if digits != int(digits) or abs(digits) > MAX_ROUND_DIGITS:
        raise CalculationError(f"round takes whole digits up to {MAX_ROUND_DIGITS}.")
    return round(value, int(digits)) if digits else round(value)


_OPERATORS: dict[type[ast.operator], Callable[[Number, Number], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
_CONSTANTS = {"pi": math.pi, "e": math.e}
_ONE_VALUE: dict[str, Callable[..., Number]] = {
    **{name: getattr(math, name) for name in ("sqrt", "exp", "log2", "log10", "degrees", "radians")},
    **{name: getattr(math, name) for name in ("sin", "cos", "tan", "asin", "acos", "atan")},
    **{name: getattr(math, name) for name in ("sinh", "cosh", "tanh", "floor", "ceil")},
    "ln": math.log,
    "abs": abs,
    "factorial": _factorial,
    "percent": lambda value: value / 100,  # made by `normalise`; an expression cannot contain it
}
_FUNCTIONS: dict[str, tuple[Callable[..., Number], int, int]] = {
    **{name: (function, 1, 1) for name, function in _ONE_VALUE.items()},
    "log": (math.log, 1, 2),
    "round": (_round, 1, 2),
    "min": (lambda *values: min(values), 1, MAX_CHARS),
    "max": (lambda *values: max(values), 1, MAX_CHARS),
}
_NAMES = (_FUNCTIONS.keys() | _CONSTANTS.keys()) - {"percent"}


def _format(value: Number) -> str:
    if isinstance(value, int):
        return str(value)
    # A float is exact to 15 digits: 0.1 + 0.2 is 0.3.
    return f"{value:.15g}" if value else "0"  # no -0
