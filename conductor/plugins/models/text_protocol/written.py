"""Find the calls that a model wrote into its text although its service takes calls; pure."""

from __future__ import annotations

import re

from conductor.messages import ToolCall
from conductor.plugins.models.text_protocol.parser import Tools
from conductor.plugins.models.text_protocol.scanner import MAX_CHARS, ReplyScanner
from conductor.plugins.models.text_protocol.words import words_of

# A line of calls begins with one of these; "{" may have white space behind it.
_BEGINNINGS = ("<tool_call>", "<function=", "<function_calls>", "<invoke name=", "[TOOL_CALLS]", '{"')
_BEGINNING = re.compile(rf"[ \t]{{0,40}}(?:{'|'.join(map(re.escape, _BEGINNINGS[:-1]))}|\{{\s{{0,40}}\")")
_LONGEST_BEGINNING = 100


class WrittenCalls:
    """Reads the text of one reply: words as they arrive, and the calls at its end.

    Calls count if nothing but calls follows up to the end of the reply, and none in a block of code does.
    ``is_lost``: the reply has a call that cannot be read, and no words in its place.
    """

    def __init__(self, tools: Tools) -> None:
        self.calls: list[ToolCall] = []
        self.is_lost = False
        self._tools = tools
        self._pending = ""
        self._at_line = True
        self._in_code = False
        self._is_held = False

    def feed(self, text: str) -> str:
        """Give the words of the next piece; from a line that may begin a call on, all is held back."""
        self._pending += text
        if self._is_held and len(self._pending) > MAX_CHARS:  # too long for calls
            self._is_held, self._in_code = False, True
        words = ""
        while self._pending and not self._is_held:
            if self._at_line and not self._in_code:
                self._is_held = _BEGINNING.match(self._pending) is not None
                if self._is_held or self._is_undecided():
                    break
            end = self._pending.find("\n") + 1
            line, self._pending = self._pending[: end or None], self._pending[end:] if end else ""
            if self._at_line and line.lstrip().startswith("```"):
                self._in_code = not self._in_code
            self._at_line = bool(end)
            words += line
        return words

    def _is_undecided(self) -> bool:
        if len(self._pending) > _LONGEST_BEGINNING:
            return False
        line = self._pending.lstrip(" \t")
        if not line or "```".startswith(line) or re.fullmatch(r"\{\s*", line):
            return True
        return any(beginning.startswith(line) for beginning in _BEGINNINGS)

    def end(self) -> str:
        """End the reply; give its last words."""
        if not self._is_held:
            return self._pending
        scanner = ReplyScanner(self._tools)
        words = scanner.feed(self._pending[:MAX_CHARS]) + scanner.end()
        if scanner.problem is None and not (words.strip() or scanner.rest.strip()):
            self.calls = [
                ToolCall(f"written_{number}", call.name, call.arguments, call.repaired)
                for number, call in enumerate(scanner.calls)
            ]
            return ""
        if not scanner.calls and scanner.problem in (None, "misplaced"):
            return words if scanner.problem is None else self._pending
        words = words_of(self._pending, self._tools, with_prose=scanner.problem in (None, "misplaced"))
        self.is_lost = not words
        return words
