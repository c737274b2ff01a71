"""How people and models write arithmetic, turned into the one spelling that the calculator evaluates.

What leaves this module consists of numbers, known names, brackets, commas and Python's arithmetic operators,
so that Python's own parser can do the rest.
"""

from __future__ import annotations

import re
from collections.abc import Collection

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
    """Rewrite an expression in Python's spelling. Raises `CalculationError`.

    ``^`` is power. ``%`` between two operands is the remainder; at the end of an operand it is per cent, and
    becomes the call ``percent(x)``; ``of`` after it multiplies. Names other than ``names`` are refused, and
    what people read in two ways is too.
    """
    if len(expression) > MAX_CHARS:
        raise CalculationError(f"The expression is longer than {MAX_CHARS} characters.")
    tokens = _tokens(expression.translate(_SIGNS).strip(), names)
    written: list[str] = []
    opened: list[int] = []
    for token, following in zip(tokens, [*tokens[1:], ""], strict=True):
        if token == "(":
            opened.append(len(written))
            if len(opened) > MAX_DEPTH:
                raise CalculationError(f"The brackets are nested more than {MAX_DEPTH} deep.")
        if token == "%" and _is_percent(following):
            _make_percent(written, following)
        elif token == "of":
            if not written or written[-1] != _PERCENT_END:
                raise CalculationError('"of" is understood only after a percentage, as in "17% of 2340".')
            written.append("*")
        else:
            written.append("**" if token == "^" else token)
        if token == ")" and opened:
            opened.pop()
    return " ".join(written)


_PERCENT_END = " )"  # told apart from a bracket that was written by its blank


def _tokens(text: str, names: Collection[str]) -> list[str]:
    tokens: list[str] = []
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise CalculationError(f"{text[at:].strip()[:1]!r} is not understood.")
        token = found[0].strip()
        if found["name"] and token != "of" and token not in names:
            raise CalculationError(f"{token[:40]!r} is not known here. Known: {', '.join(sorted(names))}.")
        # Python takes no leading zeros, and 007 is no octal for people.
        tokens.append(re.sub(r"^0+(?=\d)", "", token) if found["number"] else token)
        at = found.end()
    if not tokens:
        raise CalculationError("The expression is empty.")
    return tokens


def _is_percent(following: str) -> bool:
    if following in "+-" and following:
        raise CalculationError(
            "% before + or - may mean per cent or remainder: write (20/100) for 20 per cent, or 20 % (-3) "
            "for the remainder."
        )
    return following in _AFTER_PERCENT or following in ("of", "^")


def _make_percent(written: list[str], following: str) -> None:
    """Put the operand that stands at the end into ``percent( )``."""
    start = len(written) - 1
    if start < 0 or written[start] in ("+", "-", "*", "/", "//", "**", "%", "(", ","):
        raise CalculationError("There is nothing before %.")
    depth = 0
    for start in range(len(written) - 1, -1, -1):
        depth += written[start].count(")") - written[start].count("(")
        if depth <= 0:
            break
    if start > 0 and written[start] == "(" and written[start - 1][0].isalpha():
        start -= 1  # a function's name
    if following == "of" and start > 0 and written[start - 1] in ("/", "//", "%", "**"):
        raise CalculationError(f'Put the "{following}" part in brackets, as in 100 / (10% of 50).')
    written[start:] = ["percent(", *written[start:], _PERCENT_END]
