"""Find the calls that a model wrote into its text although its service takes calls; pure."""

from __future__ import annotations

import re

from conductor.messages import ToolCall
from conductor.plugins.models.text_protocol.parser import Tools
from conductor.plugins.models.text_protocol.scanner import MAX_CHARS, ReplyScanner
from conductor.plugins.models.text_protocol.words import words_of

# A tag of calls has a call or its name behind it; a tag that the reply speaks of has words.
_TAGS = ("<tool_call>", "<function_calls>", "[TOOL_CALLS]", "<function=", "<invoke name=")
_CONTENT = r"\s{0,40}(?:[{\[<]|[\w.-]{1,64}[({<\[\n])"
_CALL = re.compile(rf"(?:{'|'.join(map(re.escape, _TAGS[:3]))}){_CONTENT}|<function=[\w.-]|<invoke name=")
_BEGUN_CALL = re.compile(rf"(?:{'|'.join(map(re.escape, _TAGS[:3]))})\s{{0,40}}[\w.-]{{0,64}}\Z")
# An object of calls, or a list of them, stands alone on its line, as a fence of code does.
_MARGIN = r"[ \t]{0,40}"
_BLANK = re.compile(_MARGIN)
_FENCE = re.compile(rf"{_MARGIN}```")
_OBJECT = re.compile(rf'{_MARGIN}(?:\[\s{{0,40}})?\{{\s{{0,40}}"')
_BEGUN_LINE = re.compile(rf"{_MARGIN}(?:`{{0,2}}|\[\s{{0,40}}(?:\{{\s{{0,40}})?|\{{\s{{0,40}})\Z")
_START = re.compile(r"[<\[]")
_QUOTES = tuple("`\"'“”„‘’«(")


class WrittenCalls:
    """Reads the text of one reply: words as they arrive, and the calls at its end.

    Calls count if nothing but calls follows up to the end of the reply, and none in a block of code or in
    quotes does.
    ``is_lost``: the reply has a call that cannot be read, and no words in its place.
    """

    def __init__(self, tools: Tools) -> None:
        self.calls: list[ToolCall] = []
        self.is_lost = False
        self._tools = tools
        self._pending = ""
        self._at_line = True
        self._before = ""  # the last character of the words
        self._in_code = False
        self._is_held = False
        self._is_within = False  # the held text begins in the middle of a line

    def feed(self, text: str) -> str:
        """Return the words of the next piece; from a place that may begin a call on, all is held back."""
        self._pending += text
        words = ""
        while self._pending:
            if self._is_held:
                if len(self._pending) <= MAX_CHARS:
                    break
                self._is_held, self._in_code = False, True  # too long for calls
            count = self._count_words(self._pending.find("\n") + 1 or len(self._pending))
            line, self._pending = self._pending[:count], self._pending[count:]
            if line:
                self._at_line, self._before = line.endswith("\n"), line[-1]
            words += line
            if not (count or self._is_held):
                break
        return words

    def _count_words(self, end: int) -> int:
        """Return how many characters of the line are words: up to a call, or a text that may become one."""
        if self._at_line:
            if fence := _FENCE.match(self._pending):
                self._in_code = not self._in_code
                return fence.end()
            self._is_held = not self._in_code and _OBJECT.match(self._pending) is not None
            if self._is_held or _BEGUN_LINE.match(self._pending):
                self._is_within = False
                return 0
        if self._in_code:
            return end
        for start in (match.start() for match in _START.finditer(self._pending, 0, end)):
            if (self._pending[start - 1] if start else self._before).startswith(_QUOTES):
                continue
            self._is_held = _CALL.match(self._pending, start) is not None
            rest = self._pending[start : start + len(max(_TAGS, key=len))]
            is_begun = any(tag.startswith(rest) for tag in _TAGS) or _BEGUN_CALL.match(self._pending, start)
            if self._is_held or is_begun:
                self._is_within = not self._at_line or _BLANK.fullmatch(self._pending, 0, start) is None
                return start if self._is_within else 0
        return end

    def end(self) -> str:
        """End the reply; give its last words."""
        if not self._is_held:
            return self._pending
        scanner = ReplyScanner(self._tools)
        words = scanner.feed(self._pending) + scanner.end()
        if scanner.problem is None and not (words.strip() or scanner.rest.strip()):
            self.calls = [
                ToolCall(f"written_{number}", call.name, call.arguments, call.repaired)
                for number, call in enumerate(scanner.calls)
            ]
            return ""
        if scanner.problem == "misplaced" and self._is_within:  # a sentence goes on behind the call
            return self._pending
        if not scanner.calls and scanner.problem in (None, "misplaced"):
            return words if scanner.problem is None else self._pending
        words = words_of(self._pending, self._tools, with_prose=scanner.problem in (None, "misplaced"))
        self.is_lost = not words
        return words
