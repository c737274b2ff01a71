"""Regular expressions that repeat groups possessively, on every Python.

Python before 3.11.5 matches ``(…)*+`` wrongly where the group can match a part and fail (CPython issue
106052). There the repetition becomes an atomic group, ``(?>(…)*)``: it means the same, and needs more memory.
"""

from __future__ import annotations

import re
import sys
from typing import AnyStr

_IS_WRONG = sys.version_info < (3, 11, 5)
_TOKEN = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(|(?P<end>\)(?:(?P<count>[*+?]|\{[\d,]*\})\+)?)|.", re.DOTALL
)


def compile(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Compile a pattern, which has no comments."""
    return re.compile(as_atomic(pattern) if _IS_WRONG else pattern, flags)


def as_atomic(pattern: AnyStr) -> AnyStr:
    """Write each possessive repetition of a group as an atomic group of a greedy repetition."""
    if isinstance(pattern, bytes):
        return as_atomic(pattern.decode("latin-1")).encode("latin-1")
    pieces: list[str] = []
    starts: list[int] = []
    for token in _TOKEN.finditer(pattern):
        if token[0] == "(":
            starts.append(len(pieces))
        if token["end"] is None:
            pieces.append(token[0])
            continue
        start = starts.pop()
        if token["count"] is None:
            pieces.append(token[0])
        else:
            pieces[start] = f"(?>{pieces[start]}"
            pieces.append(f"){token['count']})")
    return "".join(pieces)
