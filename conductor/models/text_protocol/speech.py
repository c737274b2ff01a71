"""Speak a reply while it is written: the words of an answer, and nothing of a call.

Plain text is spoken as it arrives, and so is the ``content`` of a ``final_answer`` while its JSON string is
still open. What may belong to a call is held back; the parser reads it when the reply is whole.
"""

from __future__ import annotations

import re

_THINK = "<think>"
_THINK_END = "</think>"
# Where plain text may turn into a call, anywhere or at the beginning of a line.
_ANY_OPENER = r'[{<`|]|"(?:t(?:y(?:pe?)?)?)?\Z|"type"'
_LINE_OPENER = r"[ \t]*(?:\[|c(?:a(?:l(?:l:?)?)?)?\Z|call:)"
_OPENER = re.compile(rf"{_ANY_OPENER}|(?<=\n){_LINE_OPENER}")
_OPENER_AT_LINE = re.compile(rf"{_ANY_OPENER}|(?:(?<=\n)|\A){_LINE_OPENER}")
# Words in braces, "{x}", which are no part of a damaged call; or what may become that.
_PLACEHOLDER = re.compile(r"\{\w[\w .-]*\}(?=[^\w\"'])")
_PLACEHOLDER_BEGUN = re.compile(r"\{(?:\w[\w .-]*\}?)?\Z")
_TAG = re.compile(r"</?([A-Za-z_][\w-]*)[^<>]*>")
_FENCE = re.compile(r"```[\w-]*[ \t]*\n?")
# Inside these nothing but JSON is looked at.
_CALL_TAGS = frozenset({"tool", "tool_call", "tool_calls", "function", "function_call"})


class SpokenText:
    """Give the words of a reply that arrives in pieces."""

    def __init__(self) -> None:
        self._rest = ""  # not yet decided about
        self._begun = False
        self._thinking = False
        self._silent = False  # inside a tag or fence that holds calls
        self._object: AnswerObject | None = None
        self._held = False  # for good: the rest is the parser's
        self._at_line = True  # whether the rest begins a line
        self.answered = False

    def feed(self, text: str) -> str:
        """Take the next piece; return what can be said now."""
        self._rest += text
        said: list[str] = []
        while self._rest and not self._held:
            piece = self._step()
            if piece is None:
                break
            said.append(piece)
        return "".join(said)

    def end(self) -> str:
        """Return what was held back, for a reply that held no call."""
        rest, self._rest = self._rest, ""
        is_open = self._object is not None or self._thinking or self._silent or self.answered
        return "" if is_open or rest.startswith(("<", "`")) else rest.partition("{")[0]

    def _step(self) -> str | None:
        """Go on as far as one thing reaches; None if more is needed to decide."""
        if self._object is not None:
            return self._read_object(self._object)
        if not self._begun:
            return self._begin()
        if self._thinking:
            _, end, rest = self._rest.partition(_THINK_END)
            self._rest = rest if end else self._rest[-len(_THINK_END) :]
            self._thinking, self._begun = not end, not end
            return "" if end else None
        return self._read_text()

    def _begin(self) -> str | None:
        start = self._rest.lstrip()
        if _THINK.startswith(start):
            self._thinking = self._begun = start == _THINK
            return None
        self._thinking = start.startswith(_THINK)
        self._rest, self._begun = start.removeprefix(_THINK), True
        return ""

    def _read_text(self) -> str | None:
        found = (_OPENER_AT_LINE if self._at_line else _OPENER).search(self._rest)
        if found is None:
            return self._take(len(self._rest))
        if found.start():
            return self._take(found.start())
        opener = self._rest.lstrip()
        match opener[0]:
            case "{":
                return self._read_brace()
            case "<":
                return self._read_tag()
            case "`":
                return self._read_fence()
            case "|" if opener == "|":
                return None
            case "|" if opener[1] != "|":
                return self._take(1)
            case "c" if not opener.startswith("call:"):
                return None  # the text may end here, or become "call:"
            case '"' if not opener.startswith('"type"'):
                return None
        self._held = True
        return ""

    def _take(self, count: int) -> str:
        piece, self._rest = self._rest[:count], self._rest[count:]
        _, newline, last_line = piece.rpartition("\n")
        self._at_line = not last_line.strip() and (self._at_line or bool(newline))
        return "" if self._silent or self.answered else piece

    def _read_tag(self) -> str | None:
        found = _TAG.match(self._rest)
        if found is None:
            second = self._rest[1:2]
            is_text = second and not (second.isalpha() or second in "/_|")
            return self._take(1) if is_text or len(self._rest) > 200 or "\n" in self._rest else None
        self._rest = self._rest[found.end() :]
        if found[1] in _CALL_TAGS:
            self._silent = not found[0].startswith("</")
        return ""

    def _read_fence(self) -> str | None:
        if not self._rest.startswith("```"):
            return self._take(1) if self._rest.strip("`") else None
        found = _FENCE.match(self._rest)
        if found is None or (found.end() == len(self._rest) and not found[0].endswith("\n")):
            return None
        self._rest = self._rest[found.end() :]
        self._silent = not self._silent
        return ""

    def _read_brace(self) -> str | None:
        found = _PLACEHOLDER.match(self._rest)
        if found is not None:
            return self._take(found.end())
        if _PLACEHOLDER_BEGUN.match(self._rest):
            return None
        self._object = AnswerObject(speaks=not self.answered)
        return ""

    def _read_object(self, reader: AnswerObject) -> str | None:
        said, rest = reader.feed(self._rest)
        is_stuck = rest == self._rest
        self._rest = rest
        if reader.broken:
            self._held = True
        elif reader.closed:
            self._object = None
            self._at_line = False
            self.answered = self.answered or reader.is_answer
            # After a call nothing is said: it would answer a result that is not there yet.
            self._held = not reader.is_answer
        return None if is_stuck else said


class AnswerObject:
    """Reads one JSON object as it arrives, and gives the ``content`` of a ``final_answer``.

    The keys may come in any order: content before the type is held back until the type is known.
    """

    def __init__(self, *, speaks: bool = True) -> None:
        self.closed = False
        self.broken = False  # no JSON: where a string ends cannot be told
        self.is_answer = False
        self._speaks = speaks
        self._depth = 0
        self._string: list[str] | None = None
        self._last = ""  # the mark before
        self._gap = ""  # what stands between it and the next one
        self._is_key = False
        self._key = ""
        self._content: list[str] = []
        self._high = 0  # the first half of a surrogate pair

    def feed(self, text: str) -> tuple[str, str]:
        """Read on; return what can be said, and what follows the object or is not whole yet."""
        position = 0
        while position < len(text) and not self.closed and not self.broken:
            if self._string is None:
                found = _STRUCTURE.search(text, position)
                self._gap += text[position : found.start() if found is not None else len(text)]
                if found is None:
                    position = len(text)
                    break
                position = found.end()
                self._mark(found[0])
            else:
                end = self._read_string(text, position)
                if end is None:
                    break
                position = end
        said = ""
        if self.is_answer and self._speaks:
            said = "".join(self._content)
            self._content.clear()
        return said, text[position:]

    def _mark(self, mark: str) -> None:
        # A number or a word stands alone between two marks.
        is_alone = self._last != '"' and mark in ",}]"
        self.broken = bool(self._gap.strip()) and not is_alone
        self.broken = self.broken or (self._last == mark == '"')
        self._last, self._gap = mark, ""
        if mark == '"':
            self._string = []
        elif mark in "{[":
            self._depth += 1
            self._is_key = mark == "{" and self._depth == 1
        elif mark in "}]":
            self._depth -= 1
            self.closed = self._depth == 0
        elif self._depth == 1:
            self._is_key = mark == ","

    @property
    def _is_content(self) -> bool:
        return self._depth == 1 and not self._is_key and self._key == "content"

    def _read_string(self, text: str, position: int) -> int | None:
        """Read up to the string's end or the next escape; None if the escape is not whole yet."""
        assert self._string is not None
        found = _STRING_END.search(text, position)
        if found is None:
            self._add(text[position:])
            return len(text)
        if found.start() > position:
            self._add(text[position : found.start()])
            return found.start()
        if found[0] == '"':
            self._end_string("".join(self._string))
            return position + 1
        escape = _ESCAPE.match(text, position)
        if escape is None:
            return None
        self._add(self._unescaped(escape[0]))
        return escape.end()

    def _add(self, text: str) -> None:
        if self._is_content:
            self._content.append(text)
        elif self._string is not None and len(self._string) < 64:
            self._string.append(text)

    def _end_string(self, text: str) -> None:
        self._string = None
        if self._depth == 1:
            if self._is_key:
                self._key = text
            elif self._key == "type":
                self.is_answer = text == "final_answer"

    def _unescaped(self, escape: str) -> str:
        if escape[1] != "u":
            return _PLAIN.get(escape[1], escape[1])
        if len(escape) < 6:
            return "\ufffd"
        code = int(escape[2:], 16)
        if 0xD800 <= code < 0xDC00:
            self._high = code
            return ""
        if 0xDC00 <= code < 0xE000:
            high, self._high = self._high, 0
            return chr(0x10000 + ((high - 0xD800) << 10) + code - 0xDC00) if high else "\ufffd"
        return chr(code)


_STRUCTURE = re.compile(r'["{}\[\]:,]')
_STRING_END = re.compile(r'["\\]')
_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{4}|u(?![0-9a-fA-F]{0,3}\Z)|[^u])", re.DOTALL)
_PLAIN = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
