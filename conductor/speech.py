"""Turns a model's Markdown into text for a voice.

``markdown-it-py`` parses the Markdown. Where CommonMark and prose disagree (2*3*4, a<b and c>d, a lone "3."),
prose wins: a mark may stay, a word is never lost. Parsing is bounded; beyond the bound, only the commonest
marks are removed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token

from conductor import formulas, possessive

CODE_PHRASE = "The code is on the screen."
TABLE_PHRASE = "The table is on the screen."

_CHARS = 64 * 1024
"""An hour's speech; further text is on the screen only."""
_LINES = 250
"""Lines and cells of tables that are parsed separately; further text is one line."""
_EFFORT = 30_000
"""The limit of inline parsing, in units of `_cost`. A reply of 300 words needs 3,000."""

_NEWLINES = re.compile(r"\r\n?|[\u0085\u2028\u2029\v\f]")
_UNSPEAKABLE = re.compile(r"[\x00-\x08\x0e-\x1f\x7f\u200b\ufeff\ue000-\uf8ff\ud800-\udfff]")
# Unicode's pictographic blocks. Signs that are words to a voice (degree, copyright) are not in them.
_PICTOGRAPH = (
    "\u231a-\u231b\u2328\u23cf\u23e9-\u23fa\u2500-\u25ff\u2600-\u27bf\u2b00-\u2bff"
    "\U0001f000-\U0001faff\U000e0020-\U000e007f\ufe0e\ufe0f\u20e3"
)
_BLANKS = re.compile(r"[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")
# Signs of a list's items; the first ones begin an item without a blank, too.
_DOTS = "\\u2022\\u2023\\u25e6\\u2043\\u2219"
_BULLET = rf"[{_DOTS}\u25aa\u25ab\u25cf\u25cb\u25a0\u25a1\u25ba\u25b6\u25b8\u27a2\u27a4]"
_MARKER = re.compile(rf"{_BULLET}|[-*+\u00b7\u2013\u2192]|\d{{1,9}}[.)]")
_LINE_START = possessive.compile(
    rf"^[ \t>]*+((?:(?:{_BULLET}[ \t>]*+|(?:{_MARKER.pattern})[ \t>]++)(?:\[[ xX]\][ \t>]++)?)*+)",
    re.MULTILINE,
)
_AFTER_TABLE = re.compile(r"^(\|.*\n)(?=[^|\n]++$)", re.MULTILINE)
_LINE_OR_CELL = re.compile(r"[\n|]")
_PIECE = re.compile(r".{1,1000}(?!\S)|.{1,1000}", re.DOTALL)
# One line of prose without any mark; most replies are.
_PLAIN = possessive.compile(rf"[^\W\d_{_PICTOGRAPH}](?:[^\W_{_PICTOGRAPH}]|[ ,.;?!'])*+")
_SPECIAL = re.compile(r"www\.|citeturn", re.IGNORECASE)
_MARK = re.compile(rf"[!#$%&*+\-:<=>@\[\\\]^_`{{}}~\n{_PICTOGRAPH}]")
_COMMONEST = re.compile(rf"[*`~{_PICTOGRAPH}]++")

# Marks of CommonMark that are text in prose, and the reverse.
_PROSE = re.compile(r"(?<=\d)\*++(?=\d)|(?<=`)_++(?=`)|(?<=\b[A-Za-z]):\\[^\s`*<>]*+|\\\\\w[^\s`*<>]++")
_STRAY = re.compile(r"(?<!\d)\*{2,}+(?=\S)|(?<=\S)\*{2,}+(?!\d)")
_FOOTNOTE = re.compile(r"\[\^[^\[\]\s]++\]")
_FOOTNOTE_TEXT = re.compile(rf"^{_FOOTNOTE.pattern}:.*", re.MULTILINE)
# "[Anna]: Hello" is a speaker's words, unless an address follows, as in the definition of a link.
_SPEAKER = re.compile(
    r"^([ \t>*+\d.)-]*)\[([^\[\]^\n]{1,80})\]:(?=\s)"
    r"(?!\s*(?:[<#]|[^\s/]*/|[a-zA-Z][\w+.-]+:\S|\S+@\S|\S+\.[a-zA-Z]{2}))",
    re.MULTILINE,
)
_URL = re.compile(
    r"(?:(?:https?|ftp|wss?)://|mailto:|\bwww\.(?=\w))([!-;=?-~\u00a1-\u024f]*+)", re.IGNORECASE
)
_URL_END = ".,;:!?)]}'\"*_~>"
# A path with a query, perhaps behind a host: its query is not read out.
_QUERY = possessive.compile(
    r"(?<![^\s(\"'])((?:[\w-]++\.)*+[\w-]*+)((?:/[\w.~%@:+-]*+)++)\?[\w.%\[\]-]++=([!-;=?-~]*+)"
)
_HOST = re.compile(r"(?:[\w-]+\.)+[a-zA-Z]{2,}")
_TAG = re.compile(r"</?([a-zA-Z][a-zA-Z0-9-]*+)(\s[^<>]*+)?/?>")
# Tags of voices that name their maker, such as <amazon:effect>; addresses in brackets are none.
_VENDOR_TAG = re.compile(r"</?(?!(?:mailto|tel|sms|urn):)[a-z][a-z0-9]*+:[a-z][a-z-]*+(?:\s[^<>]*+)?/?>")
_TAGS = frozenset(
    "a abbr b big blockquote body br center cite code dd del details div dl dt em font h1 h2 h3 h4 h5 h6 "
    "head hr html i img ins kbd li mark ol p pre q s samp section small span strike strong sub summary sup "
    "table tbody td tfoot th thead tr tt u ul var "
    # of SSML
    "audio break desc emphasis lang lexicon media metadata par phoneme prosody say-as seq speak token voice "
    "w".split()
)
_SOUNDLESS_TAGS = frozenset(
    "a abbr b big cite code del em font i ins kbd mark s small span strike strong u var "
    "emphasis lang phoneme prosody say-as sub token voice w".split()
)

# Marks of sources: between private signs, 【4:0†source】, and what is left of them.
_CITATION = possessive.compile(
    r" ?(?:\ue200[^\ue200\ue201]{0,1000}+\ue201"
    r"|[\[\u3010\u3016]\d{1,3}(?::\d{1,3})?\u2020[^\]\u3011\u3017\n]{0,200}+[\]\u3011\u3017]"
    r"|\[cite(?:_start|:[\d,. ]{1,40})\]"
    r"|\[oai_citation[:_]\d{1,4}\u2021[^\]\n]{0,200}+\](?:\([^)\s]{0,1000}+\))?"
    r"|\b(?:file|nav)?cite(?:[\ue202:]?turn\d{1,4}[a-z]{2,12}\d{1,4})++)"
)
# Texts of gateways in place of no text.
_NOTHING = re.compile(r"\*{0,2}[(\[](?:empty|no)[ _]content\.?[)\]]\*{0,2}", re.IGNORECASE)
# Arrows, and bullets within a line: both separate.
_ARROWS = r"\u2190-\u21ff\u2794\u2798-\u27af\u27b1-\u27be\u27f0-\u27ff\u2900-\u297f\u2b00-\u2b11"
_SEPARATOR = possessive.compile(
    rf"(?: ?[{_ARROWS}]\ufe0f?+)++ ?|(?:^| )(?:[{_DOTS}\u00b7]|<?[-=]{{1,2}}>|<--?)(?: |\Z)"
)

_EMOJI = re.compile(rf" ?[{_PICTOGRAPH}][{_PICTOGRAPH}\u200d ]*+")
_ENDS = ".!?:;,\u2026\u3002\uff01\uff1f\uff1a\u3001\u061f\u061b\u060c\u06d4\u0964"
_CLOSERS = "\"')]}\u201d\u2019\u00bb\u300d\u300f\uff09"


def for_the_ear(text: str) -> str:
    """Return ``text`` as one line of plain prose for a voice, perhaps empty.

    Headings, emphasis, list and quote marks, HTML tags, rules, emoji and link targets are removed. A bare
    address becomes its host, and a block of code or a table a short sentence. Only the first hour of a reply
    is spoken. A paragraph, heading or list item without punctuation at its end gets a full stop if more
    follows, so that the voice pauses. White space becomes single spaces.
    """
    if len(text) <= _CHARS and _PLAIN.fullmatch(text) and not _SPECIAL.search(text):
        return " ".join(text.split())
    # Cut first, because the further steps are linear or worse in the length.
    text = _BLANKS.sub(" ", _NEWLINES.sub("\n", text[:_CHARS]))
    text = _NOTHING.sub("", _CITATION.sub("", text))
    text = _VENDOR_TAG.sub("", formulas.in_words(_UNSPEAKABLE.sub("", text)))
    text = _bounded(text)
    text = _SPEAKER.sub(r"\1\2:", _FOOTNOTE_TEXT.sub("", text))
    text = _LINE_START.sub(_flat, text)
    references: dict[str, Any] = {}
    # GFM takes the line after a table for one of its rows.
    tokens = _READER.parse(_AFTER_TABLE.sub(r"\1\n", text), references)
    effort = _EFFORT
    sentences: list[str] = []
    for block in _blocks(tokens):
        pieces: list[str] = []
        for piece in _PIECE.findall(block):
            cost = _cost(piece)
            if cost > effort:
                pieces.append(_COMMONEST.sub("", piece))
                continue
            effort -= cost
            words = _words(_READER.inline.parse(piece, _READER, references, []))
            words = _URL.sub(_host, words) if ":" in words or "www." in words else words
            words = _QUERY.sub(_without_query, words) if "?" in words else words
            pieces.append(_without_emoji(_SEPARATOR.sub(_pause, " ".join(words.split()))))
        if sentence := " ".join(" ".join(pieces).split()):
            sentences.append(sentence)
    return " ".join(_with_pauses(sentences))


def _with_pauses(blocks: Sequence[str]) -> Iterator[str]:
    for number, block in enumerate(blocks, start=1):
        ended = block.rstrip(_CLOSERS).endswith(tuple(_ENDS))
        yield block if ended or number == len(blocks) else block + "."


# -- blocks


def _bounded(text: str) -> str:
    for number, match in enumerate(_LINE_OR_CELL.finditer(text)):
        if number == _LINES:
            return text[: match.start()] + text[match.start() :].translate({10: " ", 124: " "})
    return text


def _flat(start: re.Match[str]) -> str:
    # Remove quotes, indentation and nested lists.
    markers = _MARKER.findall(start[1][:100])
    numbers = [marker for marker in markers if marker[0].isdigit()]
    if numbers == markers and len(markers) == 1:
        return f"{numbers[0]} "
    escaped = "".join(f"{number[:-1]}\\{number[-1]} " for number in numbers)
    return escaped if numbers == markers else f"- {escaped}"


def _blocks(tokens: Sequence[Token]) -> Iterator[str]:
    # Yield the source of each block; code and tables become their phrase the first time.
    # A lone "3. …" is more likely a sentence that begins with a number than a list.
    listed = sum(1 for token in tokens if token.type == "list_item_open" and token.info) > 1
    phrases = {"fence": CODE_PHRASE, "table_open": TABLE_PHRASE}
    number = ""
    in_table = False
    for token in tokens:
        match token.type:
            case "fence" | "table_open":
                in_table = token.type == "table_open"
                if phrase := phrases.pop(token.type, ""):
                    yield phrase
            case "table_close":
                in_table = False
            case "list_item_open" if token.info and not listed:
                number = f"{token.info}{token.markup} "
            case "inline" if not in_table:
                yield number + token.content
                number = ""
            case "list_item_close" if number:
                yield number
                number = ""


# -- inline marks


def _cost(piece: str) -> int:
    marks = len(_MARK.findall(piece))
    return marks * (marks + 100)  # a link looks at all marks after it


def _words(tokens: Sequence[Token]) -> str:
    return "".join(_token_text(token) for token in tokens)


def _token_text(token: Token) -> str:
    match token.type:
        case "text":
            return _FOOTNOTE.sub(
                "", _STRAY.sub("", token.content) if "**" in token.content else token.content
            )
        case "softbreak" | "hardbreak":
            return " "
        case "html_inline":
            return _tag(token.content)
        case "image":
            return _words(token.children or ())
    return token.content  # of code, an escaped character or an entity


def _prose(state: StateInline, silent: bool) -> bool:
    if match := _PROSE.match(state.src, state.pos):
        state.pos = match.end()
        if not silent:
            state.pending += match[0]
    return match is not None


def _host(match: re.Match[str]) -> str:
    # Return the host of an address, and the punctuation that ended the sentence after it.
    address = match[1].rstrip(_URL_END)
    punctuation = match[1][len(address) :]
    if punctuation.startswith(")") and address.count("(") > address.count(")"):
        punctuation = punctuation[1:]
    if "mailto:" in match[0][:8].lower():
        return address.partition("?")[0] + punctuation
    host = re.split(r"[/?#\\]", address, maxsplit=1)[0].rpartition("@")[2].partition(":")[0]
    return host.removeprefix("www.") + punctuation


def _without_query(match: re.Match[str]) -> str:
    # Return the host or the path, and the punctuation that ended the sentence after it.
    punctuation = match[3][len(match[3].rstrip(_URL_END)) :]
    return (match[1] if _HOST.fullmatch(match[1]) else match[1] + match[2]) + punctuation


def _pause(match: re.Match[str]) -> str:
    # A comma between words; a blank, or nothing, where a sign is.
    before, after = match.string[: match.start()], match.string[match.end() :]
    if not before or not after or after[0] in _ENDS + _CLOSERS:
        return ""
    if before[-1] in "([":
        return ""
    return " " if before[-1] in _ENDS else ", "


def _tag(text: str) -> str:
    # Remove comments and HTML's own tags; `a<b and c>d` and `List<int>` are words.
    if not (match := _TAG.fullmatch(text)):
        return "" if text.startswith(("<!--", "<?")) else text
    name, attributes = match[1].lower(), (match[2] or "").strip(" /")
    if name not in _TAGS or (attributes and "=" not in attributes):
        return text
    return "" if name in _SOUNDLESS_TAGS else " "


def _without_emoji(text: str) -> str:
    def between(match: re.Match[str]) -> str:
        following = text[match.end() : match.end() + 1]
        if not following or following in _ENDS + _CLOSERS:
            return ""
        # "1\ufe0f\u20e3" is a digit in a box, without a space between its neighbours.
        return " " if " " in match[0] else ""

    return _EMOJI.sub(between, text)


class _MarkdownReader(MarkdownIt):
    # Link targets are not spoken, so they are not checked.
    def __init__(self) -> None:
        super().__init__("js-default", {"html": True})
        self.core.ruler.enableOnly(["block"])  # inline parsing is done per block, within bounds
        # Models indent and quote prose, which is not code.
        self.disable(["blockquote", "code", "html_block"])
        # "2*3*4" is a product to people, and emphasis to CommonMark.
        self.inline.ruler.before("escape", "prose", _prose)

    def validateLink(self, url: str) -> bool:
        return True

    def normalizeLink(self, url: str) -> str:
        return url

    def normalizeLinkText(self, link: str) -> str:
        return link


_READER = _MarkdownReader()
