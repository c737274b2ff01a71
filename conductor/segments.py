"""Splits a reply into segments that are spoken while the model still writes."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from sentencex import segment

# Fewer characters sound chopped. A wide (Chinese, Japanese, Korean) character has the weight of three.
_LEAST = 24
# A longer text without an end is cut at a comma or a blank; a listener would wait too long.
_MOST = 200
# A mark that is open for more characters is text, as in "2**3 is 8".
_MARKS_CLOSE_WITHIN = 400
# A longer text without a boundary, which is a block of code or a table, is one segment.
_MOST_SEARCHED = 4_000

_WIDE = re.compile(r"[\u2e80-\u9fff\uac00-\ud7a3\uff00-\uff60]")
_LETTER = re.compile(r"[^\W\d_]")
# The line before a list item, a heading, a block of code, a table or an empty line ends a segment.
_BLOCK = re.compile(r"\n(?=[ \t]*(?:(?:[-*+\u2022]|\d{1,3}[.)])[ \t]|#{1,6}[ \t]|```|\||\n))|(?<=\n```)\n")
_CLAUSE = re.compile(
    r"(?:[,;:\u2014\u061b\u060c][\"')\]\u201d\u2019\u00bb]?\s+|\s[\u2013\u2014-]\s+)(?=\S)"
    r"|[\uff0c\uff1b\uff1a\u3001](?=\S)"
)
_BLANK = re.compile(r"(?<!\s)\s++(?=\S)")
# The next line of a poem or an address; a line that only goes on begins with a small letter.
_LINE = re.compile(r"\n(?=[ \t]*\S)")
# Thai, Lao, Khmer and Burmese have blanks between sentences, and none between words.
_WITHOUT_STOPS = r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]"
_SOUTHEAST = re.compile(rf"(?<={_WITHOUT_STOPS})[ \n]+(?={_WITHOUT_STOPS})")
_WITHOUT_BLANKS = re.compile(rf"{_WITHOUT_STOPS}|{_WIDE.pattern}")
_LONGEST_WORD = 1_000
_OPENED = ("**", "`")
# Sentences end inside of emphasis, too, and not after an initial.
_EMPHASISED = re.compile(r"[.!?\u2026][*_]+\s+(?=\S)")
_INITIAL = re.compile(r"(?<![\w\u00b0])[A-Z]\.\s+$")
# Where a number with a full stop is an ordinal: "Am 3. Mai".
_ORDINAL = re.compile(r"(?<![\d.,:])\d{1,2}\.\s+$")
_ORDINAL_LANGUAGES = frozenset("cs da de et fi hr hu is lv nb nn no pl sk sl sr".split())


class SegmentSplitter:
    """Splits a growing text at ends of sentences and lines, and a text without any after `_MOST` characters.

    ``language`` is a BCP 47 tag, which selects the abbreviations. A sentence is complete when the next one
    begins: before that, "3." may become "3.5". The first segment may be a clause. The segments and the
    ``tail`` together are the whole text.
    """

    def __init__(self, language: str | None = None) -> None:
        self._language = (language or "en").partition("-")[0].lower()
        self._started = False
        self._refused: set[int] = set()
        self.tail = ""

    def feed(self, text: str) -> list[str]:
        """Append ``text``; returns the segments that it completes."""
        segments = []
        for at in range(0, len(text), _LONGEST_WORD):
            self.tail += text[at : at + _LONGEST_WORD]
            while len(self.tail) <= _MOST_SEARCHED and (end := self._end()):
                segments.append(self.tail[:end])
                self.tail = self.tail[end:]
                self._started = True
                self._refused.clear()
        return segments

    def _end(self) -> int:
        if self.tail.startswith("```") and self.tail.count("```") % 2:
            return 0
        natural, most = self._natural_end(), _longest(self.tail)
        if len(self.tail) <= most or 0 < natural <= most:
            return natural
        cut = self._cut(most)
        if not cut or self._is_whole(cut):
            return cut or natural
        may_close = len(self.tail) <= _MARKS_CLOSE_WITHIN or self._is_code(cut)
        return natural if natural or may_close else cut

    def _cut(self, most: int) -> int:
        """Return the last comma, else the last blank in ``most`` characters; later within a long address."""
        for breaks in (_CLAUSE, _BLANK):
            ends = [match.end() for match in breaks.finditer(self.tail, 0, most)]
            if ends and not _is_short(self.tail[: ends[-1]].strip()):
                return ends[-1]
        if not _WITHOUT_BLANKS.match(self.tail, most - 1):
            blank = _BLANK.search(self.tail, most)
            longest = _LONGEST_WORD if len(self.tail) > _LONGEST_WORD else 0
            return blank.end() if blank is not None else longest
        while unicodedata.category(self.tail[most]).startswith("M"):  # a vowel or a tone of the letter before
            most -= 1
        return most

    def _natural_end(self) -> int:
        letter = _LETTER.search(self.tail)
        if letter is None:
            return 0
        first, last = letter.end(), len(self.tail.rstrip())
        ends = {match.end() for match in _BLOCK.finditer(self.tail)}
        ends |= {match.end() for match in _LINE.finditer(self.tail) if not self._goes_on(match.end())}
        ends |= {match.end() for match in _SOUTHEAST.finditer(self.tail)}
        ends |= {end for end in self._sentence_ends() if not self._is_abbreviated(end)}
        clauses = [] if self._started else [match.end() for match in _CLAUSE.finditer(self.tail)]
        for end in sorted({*ends, *clauses}):
            if end in self._refused or not first <= end < last:
                continue
            candidate = self.tail[:end]
            is_code = candidate.endswith("```\n")
            short = _is_short(candidate.strip()) and (self._started or end not in ends) and not is_code
            if short:
                continue
            if self._is_whole(end):
                return end
            self._refused.add(end)
        return 0

    def _sentence_ends(self) -> Iterator[int]:
        yield from (match.end() for match in _EMPHASISED.finditer(self.tail))
        end = 0
        for sentence in segment(self._language, self.tail):
            yield end
            end += len(sentence)

    def _goes_on(self, end: int) -> bool:
        return self.tail[end:].lstrip(" \t")[:1].islower()

    def _is_abbreviated(self, end: int) -> bool:
        before = self.tail[max(0, end - 8) : end]
        if self.tail[end : end + 1].islower() or _INITIAL.search(before):
            return True
        return self._language in _ORDINAL_LANGUAGES and _ORDINAL.search(before) is not None

    def _is_whole(self, end: int) -> bool:
        """Return whether no mark, block of code or table continues beyond ``end``."""
        if self._is_code(end):
            return False
        candidate = self.tail[:end]
        if len(candidate) > _MARKS_CLOSE_WITHIN:
            return True
        marks = all(candidate.count(mark) % 2 == 0 for mark in _OPENED)
        return marks and candidate.count("[") <= candidate.count("]")

    def _is_code(self, end: int) -> bool:
        """Return whether a block of code or a table continues beyond ``end``."""
        candidate = self.tail[:end]
        line = candidate.rstrip("\n").rpartition("\n")[2]
        in_row = line == candidate.rpartition("\n")[2] or self.tail[end : end + 1] == "|"
        return candidate.count("```") % 2 == 1 or (line.lstrip().startswith("|") and in_row)


def _longest(text: str) -> int:
    """Return the characters of the longest segment at the beginning of a text."""
    width = 0
    for count, char in enumerate(text[:_MOST]):
        width += 3 if _WIDE.match(char) else 1
        if width > _MOST:
            return count
    return _MOST


def _is_short(text: str) -> bool:
    return len(text) < _LEAST and len(text) + 2 * len(_WIDE.findall(text)) < _LEAST
