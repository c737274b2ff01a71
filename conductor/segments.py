"""Splits a reply into segments, to be spoken while the rest is still being written."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sentencex import segment

# Fewer characters sound chopped. A wide (Chinese, Japanese, Korean) one says as much as three.
_LEAST = 24
# Marks that are still open after so many characters are none: "2**3 is 8".
_MARKS_CLOSE_WITHIN = 400
# After a stretch without any boundary, such as a long block of code, the rest is one segment.
_MOST_SEARCHED = 4_000

_WIDE = re.compile(r"[\u2e80-\u9fff\uac00-\ud7a3\uff00-\uff60]")
_LETTER = re.compile(r"[^\W\d_]")
# The line before a list item, a heading, a block of code, a table or an empty line ends a segment.
_BLOCK = re.compile(r"\n(?=[ \t]*(?:(?:[-*+\u2022]|\d{1,3}[.)])[ \t]|#{1,6}[ \t]|```|\||\n))|(?<=\n```)\n")
_CLAUSE = re.compile(
    r"(?:[,;:\u2014\u061b\u060c][\"')\]\u201d\u2019\u00bb]?\s+|\s[\u2013\u2014-]\s+)(?=\S)"
    r"|[\uff0c\uff1b\uff1a\u3001](?=\S)"
)
_OPENED = ("**", "`")
# Sentences end inside of emphasis, too, and not after an initial.
_EMPHASISED = re.compile(r"[.!?\u2026][*_]+\s+(?=\S)")
_INITIAL = re.compile(r"(?<![\w\u00b0])[A-Z]\.\s+$")
# Where a number with a full stop is an ordinal: "Am 3. Mai".
_ORDINAL = re.compile(r"(?<![\d.,:])\d{1,2}\.\s+$")
_ORDINAL_LANGUAGES = frozenset("cs da de et fi hr hu is lv nb nn no pl sk sl sr".split())


class SegmentSplitter:
    """Splits a growing text at ends of sentences and lines.

    ``language`` is a BCP 47 tag, which decides what is an abbreviation. A sentence is taken once the next one
    has begun: before that, "3." may become "3.5". Of the first segment a clause is enough. The segments and
    the ``rest`` together are the whole text.
    """

    def __init__(self, language: str | None = None) -> None:
        self._language = (language or "en").partition("-")[0].lower()
        self._started = False
        self._refused: set[int] = set()
        self.rest = ""

    def feed(self, text: str) -> list[str]:
        """Append ``text``; returns the segments that it completes."""
        self.rest += text
        segments = []
        while len(self.rest) <= _MOST_SEARCHED and (end := self._end()):
            segments.append(self.rest[:end])
            self.rest = self.rest[end:]
            self._started = True
            self._refused.clear()
        return segments

    def _end(self) -> int:
        if self.rest.startswith("```") and self.rest.count("```") % 2:
            return 0
        letter = _LETTER.search(self.rest)
        if letter is None:
            return 0
        first, last = letter.end(), len(self.rest.rstrip())
        ends = {found.end() for found in _BLOCK.finditer(self.rest)}
        ends |= {end for end in self._sentence_ends() if not self._is_abbreviated(end)}
        clauses = [] if self._started else [found.end() for found in _CLAUSE.finditer(self.rest)]
        for end in sorted({*ends, *clauses}):
            if end in self._refused or not first <= end < last:
                continue
            candidate = self.rest[:end]
            is_code = candidate.endswith("```\n")
            short = _is_short(candidate.strip()) and (self._started or end not in ends) and not is_code
            if short:
                continue
            if self._is_whole(end):
                return end
            self._refused.add(end)
        return 0

    def _sentence_ends(self) -> Iterator[int]:
        yield from (found.end() for found in _EMPHASISED.finditer(self.rest))
        end = 0
        for sentence in segment(self._language, self.rest):
            yield end
            end += len(sentence)

    def _is_abbreviated(self, end: int) -> bool:
        before = self.rest[max(0, end - 8) : end]
        if self.rest[end : end + 1].islower() or _INITIAL.search(before):
            return True
        return self._language in _ORDINAL_LANGUAGES and _ORDINAL.search(before) is not None

    def _is_whole(self, end: int) -> bool:
        """Tell whether no mark, block of code or table goes on beyond ``end``."""
        candidate = self.rest[:end]
        line = candidate.rstrip("\n").rpartition("\n")[2]
        if candidate.count("```") % 2:
            return False
        if line.lstrip().startswith("|") and (line == candidate.rpartition("\n")[2] or self.rest[end] == "|"):
            return False
        if len(candidate) > _MARKS_CLOSE_WITHIN:
            return True
        marks = all(candidate.count(mark) % 2 == 0 for mark in _OPENED)
        return marks and candidate.count("[") <= candidate.count("]")


def _is_short(text: str) -> bool:
    return len(text) < _LEAST and len(text) + 2 * len(_WIDE.findall(text)) < _LEAST
