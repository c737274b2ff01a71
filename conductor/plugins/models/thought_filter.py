"""Remove thoughts and the marks of a chat template from a model's text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from conductor.errors import ModelError

# Beginnings and ends of thoughts. The templates of R1 and Qwen write the beginning themselves.
PAIRS: Mapping[str, str] = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<thought>": "</thought>",
    "<reasoning>": "</reasoning>",
    "<seed:think>": "</seed:think>",
    "[THINK]": "[/THINK]",
    "◁think▷": "◁/think▷",
    "<|START_THINKING|>": "<|END_THINKING|>",
}
# Beginnings and ends of headers, which name a role and, with gpt-oss, a channel.
_HEADERS: Mapping[str, str] = {
    "<|channel|>": "<|message|>",
    "<|start|>": "<|message|>",
    "<|start_header_id|>": "<|end_header_id|>",
    "<|im_start|>": "\n",
}
# After words these end the reply: an invented turn follows.
_ENDS = frozenset(
    {
        *("<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|eot_id|>", "<|eom_id|>", "<|return|>"),
        *("<|endoftext|>", "<|end_of_text|>", "<|user|>", "<｜User｜>", "<｜end▁of▁sentence｜>"),
    }
)
# The channels of thoughts and of calls.
_HIDDEN = re.compile(r"analysis|\bto=")
_CHANNEL = "<|channel|>analysis"
# Sessions whose habits are kept.
_SESSIONS = 64
_LONGEST_MARK, _LONGEST_HEADER = 40, 200

_TAGS = (*PAIRS, *PAIRS.values())
_CLOSERS = frozenset(PAIRS.values())
_START = re.compile(r"[<\[◁]")
_MARK = re.compile("|".join((*map(re.escape, _TAGS), rf"<[|｜][\w▁.:/-]{{1,{_LONGEST_MARK}}}[|｜]>")))
_BEGUN_MARK = re.compile(rf"<(?:[|｜][\w▁.:/-]{{0,{_LONGEST_MARK}}}[|｜]?)?\Z")
# A mark that is spoken of stands in quotes, brackets or emphasis, a tag also in the middle of a sentence.
_QUOTE = re.compile("[*`\"'“”„‘’«(\\[]\\Z")
_MID_SENTENCE = re.compile(r"[\w,;:)\]`\"'”’»-][ \t]+\Z")
_SENTENCE_GOES_ON = tuple(" \t,.;:!?)]`\"'”’»")
_LONGEST_BEFORE = 8
_CUT_MARK = re.compile(r"<[|｜][\w▁].*\Z")
_UNTIL: Mapping[str, re.Pattern[str]] = {
    **{begin: re.compile(re.escape(end)) for begin, end in {**PAIRS, **_HEADERS}.items()},
    _CHANNEL: re.compile(r"<\|(?:end|call|return|start|channel)\|>"),
}


@dataclass
class ThoughtHabit:
    """A habit of replies.

    ``unopened``: their thoughts end without a beginning, so text is held back until that end; ``times``
    counts such replies in a row.
    """

    unopened: bool = False
    times: int = 0

    def note(self, *, unopened: bool) -> None:
        """Take the end of a reply's thought."""
        self.unopened, self.times = unopened, self.times + 1 if unopened else 0


class ThoughtHabits:
    """The habits of a model, which its provider keeps.

    One reply with an unopened thought may only speak of such marks: it counts for its session. Two in a row
    count for all.
    """

    def __init__(self) -> None:
        self._by_session: dict[str | None, ThoughtHabit] = {}

    def of(self, session: str | None) -> ThoughtHabit:
        """Return the habit of the next reply of a session."""
        for habit in self._by_session.values():
            if habit.times > 1:
                return habit
        if session not in self._by_session and len(self._by_session) >= _SESSIONS:
            del self._by_session[next(iter(self._by_session))]
        return self._by_session.setdefault(session, ThoughtHabit())


class ThoughtFilter:
    """Gives the words of one reply, which arrives in pieces, without leading white space.

    Up to 40 characters that may become a mark are held back. Marks that the reply speaks of are words.
    """

    def __init__(self, habit: ThoughtHabit | None = None) -> None:
        self._habit = habit or ThoughtHabit()
        self._holds = self._habit.unopened
        self._thought: list[str] = []  # words, if no end of a thought follows
        self._words: list[str] = []
        self._pending = ""
        self._before = ""  # the last words, or the beginning of the reply
        self._inside = ""  # the beginning of the thought or header
        self._has_words = False
        self._gave_words = False
        self._is_over = False
        self.has_thoughts = False

    def feed(self, text: str) -> str:
        """Return the words of the next piece.

        Raises `ModelError` (``connection``, to retry) if the words given so far were a thought.
        """
        if self._gave_words and not (self._pending or self._inside or self._is_over or _START.search(text)):
            self._before = (self._before + text)[-_LONGEST_BEFORE:]
            return text
        self._pending += text
        while self._pending and not self._is_over and self._step():
            pass
        return self._give()

    def finish(self, *, is_cut: bool = False) -> str:
        """Return the held-back words at the reply's end; ``is_cut``: its limit may have cut a thought."""
        if not self._inside and not self._is_over:
            self._take(_CUT_MARK.sub("", self._pending))
        if self._holds and self._thought and not is_cut:
            self._habit.note(unopened=False)
            self._open()
        self._pending = ""
        self._is_over = True
        return self._give()

    def _give(self) -> str:
        words = "".join(self._words)
        self._words.clear()
        self._gave_words = self._gave_words or bool(words)
        return words

    def _step(self) -> bool:
        """Read up to the next mark; False if more text is needed."""
        if self._inside:
            return self._skip()
        mark = _MARK.search(self._pending)
        if mark is None:
            end = self._undecided()
            self._take(self._pending[:end])
            self._pending = self._pending[end:]
            return False
        self._take(self._pending[: mark.start()])
        following = self._pending[mark.end() :]
        is_quoted = _QUOTE.search(self._before) is not None
        is_within = not is_quoted and mark[0] in _TAGS and _MID_SENTENCE.search(self._before) is not None
        if is_within and not following:
            self._pending = mark[0]
            return False
        self._pending = following
        if is_quoted or (is_within and following.startswith(_SENTENCE_GOES_ON)):
            self._take(mark[0])
        elif mark[0] in _CLOSERS:
            self._close()
        elif mark[0] in _ENDS and self._has_words:
            self._is_over = True
        elif mark[0] in _UNTIL:
            self._open()
            self._inside = mark[0]
            self.has_thoughts = self.has_thoughts or mark[0] in PAIRS
        return True

    def _skip(self) -> bool:
        end = _UNTIL[self._inside].search(self._pending)
        is_header = self._inside in _HEADERS
        if end is None:
            self._pending = self._pending[-_LONGEST_HEADER:]
            return False
        header = self._pending[: end.start()] if is_header else ""
        self._pending = self._pending[end.end() :]
        if _HIDDEN.search(header):
            self._inside = _CHANNEL
            self.has_thoughts = True
        else:
            self._inside = end[0] if end[0] in _HEADERS else ""
        return True

    def _undecided(self) -> int:
        """Return the start of the text that may become a mark."""
        start = max(map(self._pending.rfind, "<[◁"))
        tail = self._pending[start:]
        if start >= 0 and (_BEGUN_MARK.match(tail) or any(tag.startswith(tail) for tag in _TAGS)):
            return start
        return len(self._pending)

    def _take(self, text: str) -> None:
        if not self._has_words:
            text = text.lstrip()
        if text:
            self._before = (self._before + text)[-_LONGEST_BEFORE:]
            self._has_words = True
            (self._thought if self._holds else self._words).append(text)

    def _open(self) -> None:
        """Return the held-back text as words: thoughts have a beginning in this reply."""
        self._holds = False
        self._words += self._thought
        self._thought.clear()

    def _close(self) -> None:
        if self.has_thoughts:
            return  # a second end
        self.has_thoughts = True
        self._habit.note(unopened=True)
        if self._gave_words:
            raise ModelError("connection", "The model ended a thought without a beginning.")
        self._holds = self._has_words = False
        self._thought.clear()
        self._words.clear()
