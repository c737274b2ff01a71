"""The regular expressions of tool schemas: which are accepted, and how much a search may cost.

Python's ``re`` backtracks, so a pattern that somebody declares could hold the process for ever. A pattern is
read once, and given a *weight* (how many of its repeats may share out a text between them) and a number of
*choices* (ways through its alternatives and optional parts). These bound the cost of one search. Nested
repeats, for which there is no such bound, are refused.
"""

from __future__ import annotations

import math
import re
import warnings
from dataclasses import dataclass
from functools import lru_cache

MAX_PATTERN_CHARS = 256
MAX_WEIGHT = 8
MAX_CHOICES = 4096
MAX_GROUP_DEPTH = 32

_STEPS_PER_UNIT = 100  # steps of the regular expression engine in the time that one schema keyword takes
_QUANTIFIER = re.compile(r"[*+?]|\{(\d*)(,?)(\d*)\}")
_GROUP_OPENINGS = ("(?:", "(?=", "(?!", "(?<=", "(?<!")
_NESTED = "it has a repeat inside a repeat, which can take for ever; write it without nested quantifiers"


class PatternError(ValueError):
    """A pattern that is not accepted; the message says why and completes "the pattern ... "."""


@dataclass(frozen=True, slots=True)
class Pattern:
    r"""A compiled pattern with the figures that bound its cost.

    Read as ECMA-262 would, as JSON Schema asks: ``$`` is the very end, and ``\d`` and ``\w`` are ASCII.
    """

    regex: re.Pattern[str]
    weight: int
    choices: int

    def cost(self, length: int) -> int:
        """Bound the cost of a search in a text of ``length`` characters; 1 is that of any schema keyword."""
        return 1 + math.comb(length + self.weight, self.weight) * self.choices // _STEPS_PER_UNIT


@lru_cache(maxsize=4096)
def compile_pattern(pattern: str) -> Pattern:
    """Compile a pattern of a schema. Raises `PatternError`."""
    if len(pattern) > MAX_PATTERN_CHARS:
        raise PatternError(f"is longer than {MAX_PATTERN_CHARS} characters")
    reader = _Reader(pattern)
    whole = reader.alternatives(0)
    if reader.at < len(pattern):
        raise PatternError("has an unmatched )")
    anchored = pattern.startswith("^") and not reader.divided
    weight = whole.weight + (0 if anchored else 1)  # without an anchor every place is a starting point
    if weight > MAX_WEIGHT or whole.choices > MAX_CHOICES:
        raise PatternError("has too many repeats or alternatives, and could take very long")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # about set operations that Python may get
            regex = re.compile("".join(reader.written), re.ASCII)
    except (re.error, OverflowError, RecursionError) as error:
        raise PatternError(f"does not compile: {error}") from None
    return Pattern(regex, weight, whole.choices)


@dataclass(frozen=True, slots=True)
class _Part:
    """What a part of a pattern adds: its weight, its choices, and the character it surely starts with."""

    weight: int = 0
    choices: int = 1
    start: str | None = None

    @property
    def fixed(self) -> bool:
        return self.weight == 0 and self.choices == 1


class _Reader:
    """Reads a pattern from left to right and writes it as Python's ``re`` wants it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.written: list[str] = []
        self.divided = False  # the pattern has alternatives at its top level

    def alternatives(self, depth: int) -> _Part:
        if depth > MAX_GROUP_DEPTH:
            raise PatternError("has groups nested too deep")
        branches = [self._sequence(depth)]
        while self._peek() == "|":
            self.divided = self.divided or depth == 0
            self._write(1)
            branches.append(self._sequence(depth))
        if len(branches) == 1:
            return branches[0]
        starts = {branch.start for branch in branches}
        weight = max(branch.weight for branch in branches)
        if (
            len(starts) == len(branches) and None not in starts
        ):  # the next character decides, once and for all
            return _Part(weight, max(branch.choices for branch in branches))
        return _Part(weight, sum(branch.choices for branch in branches))

    def _sequence(self, depth: int) -> _Part:
        weight, choices, start = 0, 1, None
        first = True
        while self._peek() not in ("", "|", ")"):
            part = self._quantified(self._atom(depth))
            start = part.start if first else start
            first = False
            weight += part.weight
            choices = min(choices * part.choices, MAX_CHOICES + 1)
        return _Part(weight, choices, start)

    def _atom(self, depth: int) -> _Part:
        char = self._peek()
        if char == "(":
            return self._group(depth)
        if char == "[":
            self._set()
            return _Part()
        if char == "\\":
            escaped = self.text[self.at + 1 : self.at + 2]
            if escaped.isdigit():
                raise PatternError("has a reference to a group, which is not supported")
            self._write(2)
            return _Part(start=None if escaped.isalnum() else escaped)
        if char == "$":
            self.at += 1
            self.written.append(r"\Z")  # Python's own $ also matches before a last line feed
            return _Part()
        self._write(1)
        return _Part(start=None if char in ".^" else char)

    def _group(self, depth: int) -> _Part:
        opening = "("
        if self.text.startswith("(?", self.at):
            opening = next((o for o in _GROUP_OPENINGS if self.text.startswith(o, self.at)), "")
            if not opening:
                raise PatternError("has a flag, a named group or another kind of group that is not supported")
        self._write(len(opening))
        inside = self.alternatives(depth + 1)
        if self._peek() != ")":
            raise PatternError("has an unmatched (")
        self._write(1)
        return _Part(inside.weight, inside.choices)

    def _set(self) -> None:
        self._write(2 if self.text.startswith("[^", self.at) else 1)
        if self._peek() == "]":  # right after the bracket it stands for itself
            self._write(1)
        while self._peek() not in ("", "]"):
            self._write(2 if self._peek() == "\\" else 1)
        if not self._peek():
            raise PatternError("has an unmatched [")
        self._write(1)

    def _quantified(self, part: _Part) -> _Part:
        found = _QUANTIFIER.match(self.text, self.at)
        if found is None or found[0] == "{}" or found[0] == "{,}":
            return part
        self._write(len(found[0]))
        least, most = _bounds(found)
        if self._peek() in ("?", "+"):  # lazy, possessive
            self._write(1)
        start = part.start if least > 0 else None
        if most is not None and most <= 1:
            return _Part(part.weight, part.choices * 2 if most > least else part.choices, start)
        if part.fixed:
            return _Part(0 if most == least else 1, 1, start)
        if most != least or most is None:
            raise PatternError(_NESTED)
        if part.weight * most > MAX_WEIGHT or part.choices > 1 and most > MAX_CHOICES.bit_length():
            raise PatternError("has too many repeats or alternatives, and could take very long")
        return _Part(part.weight * most, part.choices**most, start)

    def _peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def _write(self, count: int) -> None:
        self.written.append(self.text[self.at : self.at + count])
        self.at += count


def _bounds(quantifier: re.Match[str]) -> tuple[int, int | None]:
    """Give the least and the most times that something is repeated; None stands for no end."""
    match quantifier[0]:
        case "*":
            return 0, None
        case "+":
            return 1, None
        case "?":
            return 0, 1
    least = int(quantifier[1] or 0)
    if not quantifier[2]:
        return least, least
    return least, int(quantifier[3]) if quantifier[3] else None
