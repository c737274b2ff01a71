"""Read a reply while it arrives: the words to speak, the calls, and the reply's end; pure.

Words are given as they arrive, also from a ``final_answer`` whose JSON string is still open. A possible
call is held back until it is complete. A call must begin a line, a fence or a tag, and only white space or
calls may follow on its line. After a call or an answer anything but another object ends the reply.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from conductor.plugins.models.text_protocol.parser import (
    MalformedCall,
    Tools,
    WrittenCall,
    WrittenCalls,
    read_arguments,
    read_object,
    read_python,
    read_xml,
    resolve,
)
from conductor.plugins.models.text_protocol.span import AnswerText, Brackets

# Characters of one object, and objects of one reply: the time grows with their product.
MAX_CHARS = 32_768
MAX_SPANS = 64
# Brackets without a key in these characters are words.
_MAX_CHARS_TO_KEY = 200

ServiceProblem: TypeAlias = Literal["truncated", "malformed", "misplaced"]

_TAGS = r"(?:tool|tool_calls?|functions?|function_calls?)"
_KEYS = r"(?:type|name|tool|tool_name|function|action|arguments|args|parameters)"
# A possible call in the middle of a line; "{x}" is not a call.
_STOP = re.compile(
    r"""\n|\{(?![^{}"'“”:\n<`\[]{0,80}\})|<(?=/?(?:[A-Za-z_][^<>\n]{0,200}(?:>|\Z)|\Z))|`(?=[{\[<`]|\Z)"""
    r"""|\[(?=TOOL_CALLS\]|/?INST\]|[/A-Z_]{0,10}\Z)"""
    rf"""|"(?=\s*:\s*["{{\[]|{_KEYS}"\s*:|[a-z_]{{0,12}}(?:"\s*)?\Z|\s*(?::\s*)?\Z)"""
)
_DAMAGED = re.compile(rf'"(?:\s*:\s*["{{\[]|{_KEYS}"\s*:)')
# Before a call: white space, the opening of a fence or a tag, a label.
_BEFORE = re.compile(rf"(?:\s+|```\w*\s|`+(?=[{{\[<])|<{_TAGS}>|\[TOOL_CALLS\]|(?:\|\|)?call:|Action:)*")
_MARK = re.compile(rf"<{_TAGS}>|\[TOOL_CALLS\]")
# Behind a call or an answer.
_AFTER = re.compile(rf"(?:[\s,;\]}})]|```\w*(?=\s)|`|</?{_TAGS}>|\[TOOL_CALLS\]|\|\|(?=call:)|call:)*")
_NAME = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
_NAMED = re.compile(rf"({_NAME.pattern})(\s+Action Input:|\[ARGS\])?\s*(?:```(?:json)?\s+)?([({{])", re.ASCII)
_BEFORE_ARGUMENTS = re.compile(r"\s*(?:\[[ARGS]*\]?|A[a-zA-Z ]*:?)?\s*(?:`+[a-z]*\s*)?\Z")
_PYTHON = re.compile(r"\[\s*([A-Za-z_][\w.]*)\(", re.ASCII)
_XML = re.compile(r'<(?:function=|invoke name=")([\w.-]+)"?>')
_XML_END = re.compile("</(?:function|invoke)>")
_TAG = re.compile(r"</?[A-Za-z_][^<>\n]{0,200}>")
_CALL_TAG = re.compile("<(?:tool|function|invoke|parameter)")
# Lines of other speakers, and marks of templates.
_CUT = re.compile(
    r"(?:#{1,6} ?|\*\*)?(?:User|Human|Observation):|</?s>|\[/?INST\]|<(?:start|end)_of_turn>"
    r"|<tool_(?:observation|response|result)\b"
)
_CUT_AFTER_WORDS = re.compile("(?:#{1,6} ?|\\*\\*)?Assistant:")
_CUT_AFTER_ANSWER = re.compile(r"\s*(?:Question|Thought|Action):")
_LABEL = re.compile("Thought:|Final Answer:|Assistant:")
_LITERALS = ("Final Answer:", "[TOOL_CALLS]", "[INST]", "[/INST]", "||call:")
# A possible beginning of one of these.
_UNDECIDED = re.compile(
    r"""(?:\#{1,6}\ ?|\*{1,2})?(?:[A-Za-z_][A-Za-z0-9_.-]{0,80})?\Z"""
    r"""|</?(?:[A-Za-z_][^<>\n]{0,200})?\Z|`{1,20}\w{0,20}\Z|"[a-z_]{0,12}(?:"\s*)?\Z|"\s*(?::\s*)?\Z"""
)
_BEGUN_TAG = re.compile(r"</?[a-z_]*\Z")
_KEY = re.compile(r"""["'“”]\s*:|\b(?:tool_call|final_answer|arguments|parameters)\b(?!\Z)""")
_BEGUN_OBJECT = re.compile(r"""[{\[]\s*(?:["'“\[{]|\Z)""")
_FIELD = r'"(?!content|text|answer)\w+"\s*:\s*"[^"\\]*"\s*,\s*'
_ANSWER = re.compile(
    rf'\{{\s*(?:"final_answer"|(?=(?:{_FIELD})*"type"\s*:\s*"final_answer")(?:{_FIELD})+'
    r'"(?:content|text|answer)")\s*:\s*"'
)


@dataclass(slots=True)
class _Stretch:
    """A possible call, from ``start`` on. ``is_meant``: the text before it says that it is a call."""

    start: int
    brackets: Brackets
    is_own: bool
    is_meant: bool
    name: str = ""
    answer: AnswerText | None = None
    end: int | None = None
    has_key: bool = False


class ReplyScanner:
    """Reads one reply of a model with these ``tools``.

    ``calls`` count only without a ``problem`` at the end. ``is_over``: ignore the remainder of the reply.
    """

    def __init__(self, tools: Tools) -> None:
        self.calls: list[WrittenCall] = []
        self.problem: ServiceProblem | None = None
        self.is_over = False
        self._tools = tools
        self._pending = ""
        self._span: _Stretch | None = None
        self._spans = 0
        self._ended = False
        self._at_line = True  # the pending text begins a line
        self._in_code = False
        self._in_thought = False
        self._has_final_label = False
        self._has_answer = False
        self._has_words = False

    @property
    def rest(self) -> str:
        """The text that was not read."""
        return self._pending

    def feed(self, text: str) -> str:
        """Take the next piece; return the words that can be spoken now."""
        self._pending += text
        words: list[str] = []
        while self._pending and not self.is_over:
            piece = self._step()
            if piece is None:
                break
            words.append(piece)
        speech = "".join(words)
        self._has_words = self._has_words or bool(speech.strip())
        return speech

    def end(self) -> str:
        """End the reply; return the last words."""
        self._ended = True
        return self.feed("")

    def _step(self) -> str | None:
        """Read one part; None if more text is needed."""
        if self._span is not None:
            return self._read_span(self._span)
        if self.calls or self._has_answer:
            return self._read_after()
        if self._at_line:
            return self._read_start()
        if self._in_thought:
            end = self._pending.find("\n")
        else:
            stop = _STOP.search(self._pending)
            end = -1 if stop is None else stop.start()
        if end:
            return self._take(len(self._pending) if end < 0 else end)
        if self._pending[0] == "\n":
            self._at_line = True
            return ""
        return self._read_start()

    def _take(self, count: int) -> str:
        words, self._pending = self._pending[:count], self._pending[count:]
        self._at_line = False
        if not self._has_words:
            words = words.lstrip()
            self._has_words = bool(words) and not self._in_thought
        return "" if self._in_thought else words

    def _fail(self, problem: ServiceProblem) -> str:
        self.problem, self.is_over = problem, True
        return ""

    def _end_reply(self) -> str:
        self.is_over = True
        return ""

    def _read_start(self) -> str | None:
        """Read the beginning of a line, or of a possible call."""
        before = _BEFORE.match(self._pending)
        assert before is not None
        tail = self._pending[before.end() :]
        is_meant = _MARK.search(before[0]) is not None
        is_own = self._at_line or _MARK.match(before[0]) is not None or "\n" in before[0]
        is_cut = _CUT.match(tail) or (self._has_words and is_own and _CUT_AFTER_WORDS.match(tail))
        if is_cut or (self._has_final_label and is_own and _CUT_AFTER_ANSWER.match(self._pending)):
            return self._end_reply()
        if self._at_line and (label := _LABEL.match(tail)):
            self._in_thought = label[0] == "Thought:"
            self._has_final_label = self._has_final_label or label[0] == "Final Answer:"
            self._pending = tail[label.end() :]
            return ""
        is_action = "Action:" in before[0]
        if self._is_undecided(tail, is_call=is_meant or is_action):
            return None
        if xml := _XML.match(tail):
            return self._read_xml(xml[1], before.end() + xml.end(), is_own=is_own or before.end() == 0)
        if self._open_span(before.end(), is_own=is_own, is_meant=is_meant):
            return ""
        name = _NAME.match(tail)
        is_action = is_action and name is not None and resolve(name[0], self._tools) in self._tools
        if _DAMAGED.match(tail):
            return self._fail("malformed")
        if is_meant or is_action or _CALL_TAG.match(tail):
            return self._fail("malformed" if tail else "truncated")
        return self._read_words(before[0], tail)

    def _read_words(self, before: str, tail: str) -> str:
        if before.count("```") % 2:
            self._in_code = not self._in_code
        if tag := _TAG.match(tail):
            words = self._take(len(before))
            self._pending = self._pending[tag.end() :]
            return words
        if not tail and not self._in_code and "`" not in before:
            self._pending = ""  # white space at the end
        elif _BEGUN_TAG.match(tail):
            self._pending = before  # half of a tag at the end
        return self._take(len(before) + len(tail) - len(tail.lstrip(tail[:1]) if tail else ""))

    def _is_undecided(self, tail: str, *, is_call: bool) -> bool:
        if self._ended:
            return False
        if _UNDECIDED.match(tail) or any(literal.startswith(tail) for literal in _LITERALS):
            return True
        name = _NAME.match(tail)
        return (
            name is not None
            and (is_call or resolve(name[0], self._tools) in self._tools)
            and _BEFORE_ARGUMENTS.match(tail, name.end()) is not None
        )

    def _open_span(self, start: int, *, is_own: bool, is_meant: bool) -> bool:
        """Begin to read a call, if one may begin at ``start``."""
        tail = self._pending[start:]
        if tail.startswith("{") or (tail.startswith("[") and is_own):
            self._span = _Stretch(start, Brackets(self._pending, start), is_own, is_meant, has_key=is_meant)
        elif is_own and (call := _NAMED.match(tail)):
            is_react = call[2] is not None and "Action:" in self._pending[:start]
            is_known = is_meant or is_react or resolve(call[1], self._tools) in self._tools
            is_reply = not (
                self._has_words or self._has_answer or self.calls or self._pending[:start].strip()
            )
            if not is_known and not (is_reply and call[0] == f"{call[1]}("):
                return False
            start += call.start(3)
            self._span = _Stretch(
                start, Brackets(self._pending, start), True, is_known, call[1], has_key=is_known
            )
        else:
            return False
        self._spans += 1
        if self._spans > MAX_SPANS:
            self._fail("malformed")
        return True

    def _read_after(self) -> str | None:
        """Read the text after a call or an answer."""
        after = _AFTER.match(self._pending)
        assert after is not None
        tail = self._pending[after.end() :]
        is_meant = _MARK.search(after[0]) is not None
        if self._is_undecided(tail, is_call=is_meant):
            return None
        if xml := _XML.match(tail):
            return self._read_xml(xml[1], after.end() + xml.end(), is_own=True)
        if self._open_span(after.end(), is_own=True, is_meant=is_meant):
            return ""
        if not tail:
            self._pending = ""
        return self._end_reply() if not tail or _CUT.match(tail) else self._end_calls(after[0])

    def _end_calls(self, before: str) -> str:
        """End the reply at other text; a call on the same line does not count."""
        return self._fail("misplaced") if self.calls and "\n" not in before else self._end_reply()

    def _read_xml(self, name: str, start: int, *, is_own: bool) -> str | None:
        """Read ``<function=name>...</function>`` from its body on; None if more text is needed."""
        end = _XML_END.search(self._pending, start)
        if end is None:
            is_long = self._ended or len(self._pending) - start > MAX_CHARS
            return self._fail("truncated") if is_long else None
        self._spans += 1
        if not is_own:
            return self._fail("misplaced")
        try:
            self.calls += read_xml(name, self._pending[start : end.start()], self._tools).calls
        except MalformedCall:
            return self._fail("malformed")
        self._pending = self._pending[end.end() :]
        return "" if self._spans <= MAX_SPANS else self._fail("malformed")

    def _read_span(self, span: _Stretch) -> str | None:
        words = self._answer_words(span)
        if span.end is None and (span.answer is None or span.answer.is_closed):
            span.end = span.brackets.end(self._pending)
        if not (span.has_key or self._find_key(span)):
            return self._release(span, span.end)
        if span.brackets.is_too_deep:
            return self._fail("truncated")
        if span.end is not None:
            closing = self._close(span, self._pending[span.start : span.end], span.end)
            return words + closing if closing is not None else None
        if not self._ended and len(self._pending) - span.start <= MAX_CHARS:
            return words or None
        if span.answer is not None:  # an answer that was cut off
            self._end_reply()
            return words
        is_begun = span.is_own and _BEGUN_OBJECT.match(self._pending, span.start) is not None
        return self._fail("truncated") if span.has_key or is_begun else self._release(span, None)

    def _answer_words(self, span: _Stretch) -> str:
        separator = ""
        if span.answer is None and not self.calls and not self._has_answer:
            match = _ANSWER.match(self._pending, span.start)
            if match is None:
                return ""
            span.answer, span.has_key = AnswerText(match.end()), True
            separator = self._separator(span)
        if span.answer is None:
            return ""
        was_closed = span.answer.is_closed
        words = span.answer.words(self._pending)
        if span.answer.is_closed and not was_closed:
            span.brackets.skip_string(span.answer.position)
        return separator + words

    def _separator(self, span: _Stretch) -> str:
        return " " if self._has_words and self._pending[: span.start].strip("`") != "" else ""

    def _find_key(self, span: _Stretch) -> bool:
        """Look for a key; False if it cannot come."""
        head = self._pending[span.start : span.end][:_MAX_CHARS_TO_KEY]
        python = _PYTHON.match(head)
        is_python = python is not None and resolve(python[1], self._tools) in self._tools
        span.has_key = is_python or _KEY.search(head) is not None
        may_follow = span.end is None and len(head) < _MAX_CHARS_TO_KEY
        return span.has_key or may_follow or (bool(span.name) and len(head) < _MAX_CHARS_TO_KEY)

    def _release(self, span: _Stretch, end: int | None) -> str:
        """Take brackets as words: up to ``end``, or the opening ones."""
        self._span = None
        if self.calls or self._has_answer:
            return self._end_calls(self._pending[: span.start])
        if end is None:
            end = span.start + 1
            while self._pending.startswith(("{", "["), end):
                end += 1
        if self._pending[: span.start].count("```") % 2:
            self._in_code = not self._in_code
        return self._take(end)

    def _close(self, span: _Stretch, text: str, end: int) -> str | None:
        """Read a complete call or answer; None if more text is needed."""
        if text.startswith("(") or _PYTHON.match(text):
            follows = self._pending[end:].lstrip(" \t;`")
            if follows in ("", "<") and not self._ended:
                return None
            # Alone on its line it is a call.
            if follows and not follows.startswith(("\n", "</", "[", ",")):
                return self._fail("misplaced") if _KEY.search(text) else self._release(span, end)
        try:
            meaning = self._read(span, text)
        except MalformedCall:
            return self._fail("malformed")
        if meaning is None:
            if self._in_code or self.calls or self._has_answer:
                return self._release(span, end)
            return self._fail("misplaced")
        if meaning.calls and not span.is_own:
            return self._fail("misplaced")
        if not meaning.calls and (meaning.answer is None or self.calls or self._has_answer):
            return self._end_reply()  # an observation, or an answer to one
        words = ""
        if meaning.answer is not None:
            # Within prose its text takes the object's place.
            self._has_answer = span.is_own or span.answer is not None
            words = "" if span.answer is not None else self._separator(span) + meaning.answer
            self._has_words = True
        self.calls += meaning.calls
        self._pending, self._span = self._pending[end:], None
        return words

    def _read(self, span: _Stretch, text: str) -> WrittenCalls | None:
        if span.name:
            if not span.is_meant:  # an unknown tool
                raise MalformedCall
            return read_arguments(span.name, text, self._tools)
        if _PYTHON.match(text):
            return read_python(text, self._tools)
        return read_object(text, self._tools, is_meant=span.is_meant)
