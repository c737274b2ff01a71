"""Text made for the ear: what a model wrote, without the marks that only an eye can use.

It reads the Markdown that models write (CommonMark's names and rules, loosely), not all of Markdown, and
prefers to leave a mark in rather than to lose a word. Time grows linearly with the text, whatever it
holds: patterns have one way to match, and pairs are found by a single scan.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence

CODE_PHRASE = "The code is on the screen."
TABLE_PHRASE = "The table is on the screen."

_NEWLINES = re.compile(r"\r\n?|[\u0085\u2028\u2029\v\f]")
_FENCE = re.compile(r"[ \t]*+(`{3,}+|~{3,}+)([^\n]*+)")
_HEADING = re.compile(r"[ \t]*+#{1,6}+(?:[ \t]++|$)")
_BULLET = re.compile(r"[ \t]*+[-*\u2022](?:[ \t]++|$)(?:\[[ xX]\][ \t]++)?")
_NUMBERED = re.compile(r"[ \t]*+\d{1,3}+[.)][ \t]++(?:\[[ xX]\][ \t]++)?")
_REFERENCE = re.compile(r"[ \t]*+\[[^\[\]]++\]:[ \t]")

_ESCAPE = re.compile(r"\\([!-/:-@\[-`{-~])")
_TICKS = re.compile(r"`++")
_HELD = re.compile(r"\ue000(\d++)\ue001")
_UNSPEAKABLE = re.compile(r"[\x00-\x08\x0e-\x1f\x7f\u200b\ufeff\ue000-\uf8ff\ud800-\udfff]")
_IMAGE_OR_LINK = re.compile(
    r"!?\[([^\[\]\n]*+)\]"
    r"(?:\([ \t]*+(?:<[^<>\n]*+>|[^()\s]*+(?:\([^()\s]*+\)[^()\s]*+)*+)"
    r"(?:\s++(?:\"[^\"\n]*+\"|'[^'\n]*+'))?\s*+\))"
)
_REFERENCED = re.compile(r"(?<!\w)!?\[([^\[\]\n]++)\]\[[^\[\]\n]*+\]")
_FOOTNOTE = re.compile(r"\[\^[^\[\]\s]++\]")
_URL = re.compile(
    r"<?(?:(?:https?|ftp|wss?)://|mailto:|\bwww\.(?=\w))([!-;=?-~\u00a1-\u024f]*+)>?", re.IGNORECASE
)
_URL_END = ".,;:!?)]}'\"*_~>"
_TAG = re.compile(r"</?([a-zA-Z][a-zA-Z0-9]*+)(\s[^<>]*+)?/?>")
_TAGS = frozenset(
    "a abbr b big blockquote body br center cite code dd del details div dl dt em font h1 h2 h3 h4 h5 h6 "
    "head hr html i img ins kbd li mark ol p pre q s samp section small span strike strong sub summary sup "
    "table tbody td tfoot th thead tr tt u ul var".split()
)
_SOUNDLESS_TAGS = frozenset(
    "a abbr b big cite code del em font i ins kbd mark s small span strike strong u var".split()
)
_ENTITIES = {
    "&nbsp;": " ",
    "&lt;": "<",
    "&gt;": ">",
    "&quot;": '"',
    "&#39;": "'",
    "&apos;": "'",
    "&amp;": "&",
}
_ENTITY = re.compile("|".join(_ENTITIES))
_WORD_CATEGORIES = ("Mn", "Mc", "Me", "Co")
_RUN = re.compile(r"\*++|_++|~++")

# Unicode's pictographic blocks. Signs that are words to a voice (degree, copyright) are not in them.
_PICTOGRAPH = (
    "\u231a-\u231b\u2328\u23cf\u23e9-\u23fa\u2500-\u25ff\u2600-\u27bf\u2b00-\u2bff"
    "\U0001f000-\U0001faff\U000e0020-\U000e007f\ufe0e\ufe0f\u20e3"
)
_EMOJI = re.compile(rf" ?[{_PICTOGRAPH}][{_PICTOGRAPH}\u200d ]*+")
_ENDS = ".!?:;,\u2026\u3002\uff01\uff1f\uff1a\u3001\u061f\u061b\u060c\u06d4\u0964"
_CLOSERS = "\"')]}\u201d\u2019\u00bb\u300d\u300f\uff09"


def for_the_ear(text: str) -> str:
    """Return ``text`` as a voice should say it: one line of plain prose, perhaps empty.

    Headings, emphasis, list and quote marks, HTML tags, rules, emoji and link targets are taken out; a bare
    address becomes its host; a block of code or a table becomes one short sentence that says where it is.
    Paragraphs, headings and list items that end without punctuation get a full stop when more follows, so
    that the voice pauses. Prose that holds none of this comes back with its white space made single.
    """
    text = _UNSPEAKABLE.sub("", _NEWLINES.sub("\n", text))
    spoken = [said for block in _blocks(_without_comments(text).split("\n")) if (said := _inline(block))]
    return " ".join(" ".join(_with_pauses(spoken)).split())


def _with_pauses(blocks: Sequence[str]) -> Iterator[str]:
    for number, block in enumerate(blocks, start=1):
        ended = block.rstrip(_CLOSERS).endswith(tuple(_ENDS))
        yield block if ended or number == len(blocks) else block + "."


def _without_comments(text: str) -> str:
    kept: list[str] = []
    start = 0
    while (begin := text.find("<!--", start)) >= 0 and (end := text.find("-->", begin + 4)) >= 0:
        kept.append(text[start:begin])
        start = end + 3
    return "".join(kept) + text[start:]


# -- blocks: lines to headings, paragraphs, list items


def _blocks(lines: list[str]) -> Iterator[str]:
    """Yield the text of each block, code and tables as their phrase the first time."""
    # One lone "3. …" is more likely a sentence that begins with a number than a list.
    listed = sum(1 for line in lines if _NUMBERED.match(line)) > 1
    said: set[str] = set()
    paragraph: list[str] = []
    for kind, line in _lines(lines):
        body = _body(line, listed) if kind == "text" else None
        if kind == "text" and body is None and line.strip() and not _is_rule(line):
            paragraph.append(line)
            continue
        if paragraph:
            yield "\n".join(paragraph)
            paragraph = []
        if kind == "text" and body is not None:
            if body[0]:
                yield body[1]
            else:
                paragraph = [body[1]]
        elif kind != "text" and kind not in said:
            said.add(kind)
            yield kind
    if paragraph:
        yield "\n".join(paragraph)


def _body(line: str, listed: bool) -> tuple[bool, str] | None:
    """Return whether the block ends with its line, and its words; None if the line opens no block."""
    if match := _HEADING.match(line):
        words = line[match.end() :].rstrip()
        bare = words.rstrip("#")
        closing = bare != words and (not bare or bare[-1].isspace())
        return True, bare if closing else words
    if _is_rule(line):
        return None
    if match := _BULLET.match(line) or (_NUMBERED.match(line) if listed else None):
        return False, line[match.end() :]
    return (True, "") if _REFERENCE.match(line) else None


def _lines(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Yield ("text", line) without quote marks; a fenced block or a table is one (phrase, "")."""
    fence = ""
    in_table = False
    for index, raw in enumerate(lines):
        line = _unquoted(raw)
        match = _FENCE.match(line)
        if fence:
            if match and match[1].startswith(fence) and not match[2].strip():
                fence = ""
            continue
        if match and not (match[1][0] == "`" and "`" in match[2]):
            fence, in_table = match[1], False
            yield CODE_PHRASE, ""
            continue
        following = _unquoted(lines[index + 1]) if index + 1 < len(lines) else ""
        in_table = "|" in line and (in_table or _is_delimiter_row(following))
        yield (TABLE_PHRASE, "") if in_table else ("text", line)


def _unquoted(line: str) -> str:
    return line.lstrip(" \t>") if line.lstrip(" \t").startswith(">") else line


def _is_rule(line: str) -> bool:
    marks = "".join(line.split())
    return len(marks) >= 3 and marks[0] in "-*_=" and marks == marks[0] * len(marks)


def _is_delimiter_row(line: str) -> bool:
    return "|" in line and "-" in line and not line.strip("|:- \t")


# -- inline marks


def _inline(block: str) -> str:
    """Return one block's words: code and escaped characters are held aside while marks are taken out."""
    held: list[str] = []

    def hold(text: str) -> str:
        held.append(text)
        return f"\ue000{len(held) - 1}\ue001"

    text = _hold_code(block, hold)
    text = _ESCAPE.sub(lambda match: hold(match[1]), text)
    text = _FOOTNOTE.sub("", text)
    text = _IMAGE_OR_LINK.sub(r"\1", text)
    # Twice, for an image inside a link: `[![alt](image)](target)`.
    text = _REFERENCED.sub(r"\1", _IMAGE_OR_LINK.sub(r"\1", text))
    text = _URL.sub(_host, text)
    text = _TAG.sub(_tag, text)
    text = _without_emphasis(text)
    text = _ENTITY.sub(lambda match: _ENTITIES[match[0]], text)
    text = _HELD.sub(lambda match: held[int(match[1])], text)
    return _without_emoji(" ".join(text.split())).strip()


def _hold_code(text: str, hold: Callable[[str], str]) -> str:
    """Hold the text of each code span: a run of backticks up to the next run of equal length."""
    runs = list(_TICKS.finditer(text))
    partner: dict[int, int] = {}
    latest: dict[int, int] = {}
    for index in range(len(runs) - 1, -1, -1):
        length = runs[index].end() - runs[index].start()
        if length in latest:
            partner[index] = latest[length]
        latest[length] = index
    kept: list[str] = []
    start = index = 0
    while index < len(runs):
        run = runs[index]
        kept.append(text[start : run.start()])
        start = run.end()
        if index in partner:
            index = partner[index]
            kept.append(hold(text[start : runs[index].start()].strip()))
            start = runs[index].end()
        index += 1
    return "".join(kept) + text[start:]


def _host(match: re.Match[str]) -> str:
    """Return the host of an address, and the punctuation that ended the sentence after it."""
    address = match[1].rstrip(_URL_END)
    rest = match[1][len(address) :]
    if rest.startswith(")") and address.count("(") > address.count(")"):
        rest = rest[1:]
    if match[0].startswith("<"):
        rest = ""
    if "mailto:" in match[0][:8].lower():
        return address.partition("?")[0] + rest
    host = re.split(r"[/?#\\]", address, maxsplit=1)[0].rpartition("@")[2].partition(":")[0]
    return host.removeprefix("www.") + rest


def _tag(match: re.Match[str]) -> str:
    """Take out HTML's own tags; `a<b and c>d` and `List<int>` are words."""
    name, rest = match[1].lower(), (match[2] or "").strip(" /")
    if name not in _TAGS or (rest and "=" not in rest):
        return match[0]
    return "" if name in _SOUNDLESS_TAGS else " "


def _without_emphasis(text: str) -> str:
    """Take out paired runs of ``*``, ``_`` and ``~~`` (CommonMark's flanking rules), and stray ``**``."""
    runs = list(_RUN.finditer(text))
    left = [len(run[0]) for run in runs]
    openers: dict[str, list[int]] = {"*": [], "_": [], "~": []}
    for index, run in enumerate(runs):
        before, after = text[run.start() - 1 : run.start()], text[run.end() : run.end() + 1]
        opens, closes = _flanks(run[0], before, after)
        waiting = openers[run[0][0]]
        while closes and waiting and left[index]:
            opener = waiting[-1]
            used = min(left[opener], left[index])
            left[opener] -= used
            left[index] -= used
            if not left[opener]:
                waiting.pop()
        if opens and left[index]:
            waiting.append(index)
        elif run[0][0] == "*" and closes and left[index] > 1:
            left[index] = 0
    for index in openers["*"]:
        left[index] = left[index] if left[index] < 2 else 0
    kept: list[str] = []
    start = 0
    for run, length in zip(runs, left, strict=True):
        kept += [text[start : run.start()], run[0][:length]]
        start = run.end()
    return "".join(kept) + text[start:]


def _flanks(run: str, before: str, after: str) -> tuple[bool, bool]:
    """Say whether a run may open and may close emphasis, given the characters at its sides ("" at an end)."""
    if run[0] == "~" and len(run) != 2:
        return False, False
    left, right = _is_word(before), _is_word(after)
    if left and right and (run[0] == "_" or (before.isdigit() and after.isdigit())):
        return False, False  # snake_case, 2*3
    opens = bool(after) and not after.isspace() and (right or not left)
    closes = bool(before) and not before.isspace() and (left or not right)
    if run[0] == "_":
        return opens and not left, closes and not right
    return opens, closes


def _is_word(character: str) -> bool:
    # Combining marks (vowel signs, tones) belong to the letter before them; what is held aside was words.
    return bool(character) and (character.isalnum() or unicodedata.category(character) in _WORD_CATEGORIES)


def _without_emoji(text: str) -> str:
    def between(match: re.Match[str]) -> str:
        following = text[match.end() : match.end() + 1]
        if not following or following in _ENDS + _CLOSERS:
            return ""
        # "1\ufe0f\u20e3" is a digit in a box: nothing stood between its neighbours that was a space.
        return " " if " " in match[0] else ""

    return _EMOJI.sub(between, text)
