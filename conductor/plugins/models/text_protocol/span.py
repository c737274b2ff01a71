"""Find the end of a notation, and give the words of an answer, while they arrive in pieces; pure."""

from __future__ import annotations

import json
import re

# The deepest nesting of brackets.
MAX_DEPTH = 64

# Brackets outside strings. An apostrophe opens a string only where a value may begin.
_QUOTE = r""""|(?<=[{\[(,:=])'|(?<=[{\[(,:=][ ])'"""
_MARKS = {
    "": re.compile(rf"[{{}}\[\]]|{_QUOTE}"),
    "(": re.compile(rf"[{{}}\[\]()]|{_QUOTE}"),
    '"': re.compile(r'\\.?|"', re.DOTALL),
    "'": re.compile(r"\\.?|'", re.DOTALL),
}

_HIGH, _LOW, _HEX = r"[dD][89abAB][0-9a-fA-F]{2}", r"[dD][c-fC-F][0-9a-fA-F]{2}", r"[0-9a-fA-F]{4}"
_PAIR = rf"\\u{_HIGH}\\u{_LOW}"
# The text of a string up to its quote or an incomplete escape.
_TEXT = re.compile(
    rf'(?:[^"\\]|\\[^u]|{_PAIR}|\\u{_HIGH}(?!\\?\Z|\\u.{{0,3}}\Z)|\\u(?!{_HIGH}){_HEX}'
    r"|\\u(?![0-9a-fA-F]{0,3}\Z|[0-9a-fA-F]{4}))*",
    re.DOTALL,
)
_ESCAPE = re.compile(rf"{_PAIR}|\\u{_HEX}|\\.", re.DOTALL)
_PLAIN = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "u": "\ufffd"}
# Some models write quotes inside: a quote ends the string only before more of the object, or its end.
_CLOSING = re.compile(r'"\s*(?:\}|,\s*["\'}])')
_MAY_CLOSE = re.compile(r'"\s*(?:,\s*)?\Z')


class Brackets:
    """The brackets that open at ``start``. ``is_too_deep``: they are nested deeper than `MAX_DEPTH`."""

    def __init__(self, text: str, start: int) -> None:
        self.is_too_deep = False
        self._position = start
        self._depth = 0
        self._outside = "(" if text[start] == "(" else ""
        self._quote = ""

    def skip_string(self, end: int) -> None:
        """Continue after a string of the outermost object."""
        self._position, self._depth, self._quote = end, 1, ""

    def end(self, text: str) -> int | None:
        """Return the end; None if it has not arrived."""
        while not self.is_too_deep:
            match = _MARKS[self._quote or self._outside].search(text, self._position)
            if match is None:
                self._position = len(text)
                break
            mark = match[0]
            if mark == "\\":  # an incomplete escape
                self._position = match.start()
                break
            self._position = match.end()
            if mark in "\"'":
                self._quote = "" if self._quote else mark
            elif mark in "{[(":
                self._depth += 1
                self.is_too_deep = self._depth > MAX_DEPTH
            elif mark in "}])":
                self._depth -= 1
                if self._depth == 0:
                    return self._position
        return None


class AnswerText:
    """The JSON string of an answer, read up to ``position``; ``is_closed`` at its end."""

    def __init__(self, position: int) -> None:
        self.position = position
        self.is_closed = False

    def words(self, text: str) -> str:
        """Return the new words."""
        words: list[str] = []
        while not self.is_closed:
            match = _TEXT.match(text, self.position)
            assert match is not None
            words.append(_ESCAPE.sub(_unescape, match[0]))
            self.position = match.end()
            if not text.startswith('"', self.position) or _MAY_CLOSE.match(text, self.position):
                break
            self.is_closed = _CLOSING.match(text, self.position) is not None
            if not self.is_closed:
                words.append('"')
            self.position += 1
        return "".join(words)


def _unescape(escape: re.Match[str]) -> str:
    if len(escape[0]) == 2:
        return _PLAIN.get(escape[0][1], escape[0][1])
    # Without lone surrogates.
    return str(json.loads(f'"{escape[0]}"')).encode("utf-8", "ignore").decode()
