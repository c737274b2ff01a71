"""The demo model's matching: which tool a sentence speaks of, and the arguments that it names."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, NamedTuple, TypeAlias
from zoneinfo import available_timezones

from conductor.models.base import ToolDefinition

Span: TypeAlias = tuple[int, int]

_NUMBERS = "zero one two three four five six seven eight nine ten eleven twelve".split()
_SUM_WORDS = (
    (r"^.*?\b(?:what(?:'s|\u2019s| is)|how much is|calculate|compute|work out)\s+", ""),
    *((rf"\b{word}\b", str(number)) for number, word in enumerate(_NUMBERS)),
    (r"(?<=\d),(?=\d{3}(?!\d))", ""),
    (r"\bplus\b", " + "),
    (r"\bminus\b", " - "),
    (r"\b(?:times|multiplied by|x)\b", " * "),
    (r"\b(?:divided by|over)\b", " / "),
    (r"\bsquared\b|\u00b2", " ** 2 "),
    (r"\b(?:raised )?to the power of\b|\^", " ** "),
    (r"\b(?:the )?square root of (\d+(?:\.\d+)?)", r"sqrt(\1)"),
    (r" ?\bper ?cent\b", "%"),
)
_OPERATION = re.compile(r"[\d)]%? *(?:[-+*/%\u00d7\u00f7\u2212]|of )[-*/+ (]*[\d.s]|sqrt\(")


def _sum(match: re.Match[str]) -> str | None:
    text = match[0]
    for words, symbol in _SUM_WORDS:
        text = re.sub(words, symbol, text, flags=re.I)
    text = " ".join(text.strip(" ?.=,!").split())
    is_sum = re.fullmatch(r"(?:[\d.+*/%() \u00d7\u00f7\u2212-]|sqrt\(|of\b)*", text)
    return text if is_sum and _OPERATION.search(text) else None


@cache
def _zones() -> Mapping[str, str]:
    return {zone.rpartition("/")[2].replace("_", " ").casefold(): zone for zone in available_timezones()}


def _zone(match: re.Match[str]) -> str | None:
    plain = unicodedata.normalize("NFKD", match[1]).encode("ascii", "ignore").decode().casefold()
    return match[1] if "/" in match[1] else _zones().get(plain)


def _minutes(match: re.Match[str]) -> float:
    number = float(match[1]) if match[1][0].isdigit() else 1.0
    return number * {"s": 1 / 60, "m": 1.0, "h": 60.0, "d": 1440.0}[match[2][0].lower()]


class Value(NamedTuple):
    """A parameter with one of the ``names`` takes only values that ``read`` makes of the ``pattern``."""

    names: str
    pattern: str
    read: Callable[[re.Match[str]], Any]


SUM = Value("expression|formula", r".+", _sum)
VALUES = (
    SUM,
    Value("time_?zone", r"\b(?:in|at|for) ([^\W\d][\w/+-]*(?: [^\W\d]\w*){0,2})", _zone),
    Value("(in_)?minutes", r"\bin (\d{1,6}(?:\.\d{1,6})?|an?) (second|minute|hour|day)s?\b", _minutes),
)

# Words of one meaning. A question word stands for a verb that reads.
_SYNONYMS = (
    "read get fetch list show find search query look lookup tell give check what which how when where who",
    "delete remove erase discard",
    "add create make new save write put",
    "switch turn toggle",
    "start spawn launch run begin",
    "stop cancel end abort",
    "update change edit",
    "lamp light",
    "date day",
)
_CONCEPTS = {word: group.split()[0] for group in _SYNONYMS for word in group.split()}
_IDLE = frozenset(
    "a about all also an and any are at be by called can could current did do does for from hello hey"
    " hi i in into is it its just later me my named now of off ok okay on one or please right s saying"
    " so that the then there these this those titled to today up user users was well whats will with"
    " would you your".split()
)
_LEAD = "to|in|at|for|from|about|of|that|the|a|an|my|me|called|named|titled|saying|with"
_TRAIL = re.compile(r"(?i)(?:[\s,.!?]|\b(?:please|thanks|to|by|of|with)\b(?=\s*\Z))+\Z")
_PARTS = re.compile(
    r"(?i)\b(?:saying|containing|that says|with (?:the )?(?:text|content|words?))\b[\s:,]*|:\s"
)


def spaced(name: str) -> str:
    """Split an identifier: "battery.level" and "batteryLevel" are "battery level"."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", re.sub(r"[._]", " ", name))


def _concept(word: str) -> str:
    word = re.sub(r"(?<=\w\w)ies\Z", "y", word.casefold())
    word = re.sub(r"(?<=ch|sh|ss)es\Z|(?<=\w\w[^\Ws])s\Z|(?<=\w\we)d\Z", "", word)
    return _CONCEPTS.get(word, word)


def _concepts(text: str) -> list[str]:
    return [_concept(word) for word in re.findall(r"[^\W_]+", spaced(text)) if word.casefold() not in _IDLE]


@dataclass(slots=True)
class Match:
    """A tool as a clause speaks of it. ``missing`` are required parameters that the clause does not name."""

    tool: ToolDefinition
    clause: str
    arguments: dict[str, Any] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    score: int = 0
    _spans: list[Span] = field(default_factory=list)

    @property
    def parameters(self) -> dict[str, Mapping[str, Any]]:
        """The schemas of the tool's parameters, by name; the required ones come first."""
        properties, required = self.tool.input_schema.get("properties"), self._required
        items = properties.items() if isinstance(properties, Mapping) else ()
        schemas = {name: schema if isinstance(schema, Mapping) else {} for name, schema in items}
        return dict(sorted(schemas.items(), key=lambda item: item[0] not in required))

    @property
    def _required(self) -> Sequence[str]:
        required = self.tool.input_schema.get("required")
        return required if isinstance(required, list | tuple) else ()

    def read(self) -> bool:
        """Find the tool's words, then the arguments; False if the clause speaks of something else."""
        for name, schema in self.parameters.items():
            self._read_value(name, schema)
        words = [(word.span(), _concept(word[0])) for word in re.finditer(r"[^\W_]+", self.clause)]
        head = re.split(r"[.,:;(]", self.tool.description)[0]
        names = (self.tool.name, self.tool.title or "")
        places = max((_places(_concepts(name), words) for name in names), key=len)
        places = max(places, _places(_concepts(head), words, is_description=True), key=len)
        is_sum = any(_value(name) is SUM for name in self.arguments)
        if not places and not is_sum:
            return False
        self._read_texts(places)
        self.missing = [name for name in self._required if name not in self.arguments]
        own = {
            "read",
            *_concepts(self.tool.description[:300]),
            *_concepts(" ".join(self.parameters)),
        }
        strange = sum(
            concept not in own
            and self.clause[start:end].casefold() not in _IDLE
            and not any(first <= start < last for first, last in [*places, *self._spans])
            for (start, end), concept in words
        )
        literal = sum(
            self.clause[a:b].casefold() in f"{spaced(names[0])} {head}".casefold() for a, b in places
        )
        understood = len(places) + len(self.arguments)
        self.score = 10 * (understood - strange + 9 * is_sum) + literal
        return is_sum or strange * 3 < understood

    def _take(self, name: str, value: Any, span: Span) -> None:
        self.arguments[name] = value
        self._spans.append(span)

    def _read_value(self, name: str, schema: Mapping[str, Any]) -> None:
        kind, choices, own = _kind(schema), schema.get("enum"), "|".join(map(re.escape, spaced(name).split()))
        candidates: list[tuple[str, Callable[[re.Match[str]], Any]]] = []
        if value := _value(name):
            candidates = [(value.pattern, value.read)]
        elif isinstance(choices, list):
            texts = {re.escape(str(choice)).replace("_", "[ _]"): choice for choice in choices}
            candidates = [(rf"\b{text}\b", partial(_constant, choice)) for text, choice in texts.items()]
        elif kind == "boolean":
            no = "off|false|no"
            candidates = [
                (rf"\b(?:{no}|on|true|yes|{own})\b", lambda word: word[0].lower() not in no.split("|"))
            ]
        elif kind in ("integer", "number") and (
            name in self._required or re.search(rf"(?i)\b{own}", self.clause)
        ):
            candidates = [(rf"(?<![\w.])-?\d+(?:\.\d+)?\b|\b(?:{'|'.join(_NUMBERS)})\b", _number)]
        for pattern, read in candidates:
            for match in re.finditer(pattern, self.clause, re.I):
                argument = None if match.span() in self._spans else read(match)
                if argument is not None and (kind != "integer" or isinstance(argument, int)):
                    return self._take(name, argument, match.span())

    def _read_texts(self, places: Sequence[Span]) -> None:
        # A free text follows the tool's words, or stands between them.
        texts = [
            name
            for name, schema in self.parameters.items()
            if _kind(schema) == "string" and "enum" not in schema and not _value(name)
        ]
        texts = [name for name in texts if name in self._required] or texts[:1]
        starts, ends = [start for start, _ in places], [end for _, end in places]
        pieces = self._pieces(max(ends, default=0), self._spans)
        pieces = pieces or self._pieces(min(starts, default=0), [*self._spans, *places])
        if not texts or not pieces:
            return
        start, end = max(pieces, key=lambda piece: piece[1] - piece[0])
        text = self.clause[start:end]
        parts = _PARTS.split(text, len(texts) - 1) if len(texts) > 1 else [text]
        for name, part in zip(texts, parts, strict=False):
            own = "|".join(map(re.escape, spaced(name).split()))
            text = _TRAIL.sub("", re.sub(rf"(?i)\A(?:[\s,:]|(?:{_LEAD}|{own})\b)+", "", part))
            if text := text.strip("\"'\u201c\u201d "):
                self._take(name, text, (start, end))

    def _pieces(self, start: int, spans: Sequence[Span]) -> list[Span]:
        pieces = []
        for first, last in [*sorted(spans), (len(self.clause), len(self.clause))]:
            if _concepts(self.clause[start:first]):
                pieces.append((start, first))
            start = max(start, last)
        return pieces


def _places(
    terms: Sequence[str], words: Sequence[tuple[Span, str]], is_description: bool = False
) -> list[Span]:
    """Find the terms of a tool among the words; empty if a term is missing that tells it from other tools.

    That is every term of a name; of a description the verb, which comes first, and one other.
    """
    places = {term: next((span for span, concept in words if concept == term), None) for term in terms}
    objects = [term for term in terms[1:] if term != "read"] if is_description else []
    named = any(places[term] for term in objects) if objects else True
    verb = terms[:1] if is_description else terms
    return [span for span in places.values() if span] if named and all(places[term] for term in verb) else []


def _constant(value: Any, _: re.Match[str]) -> Any:
    return value


def _value(name: str) -> Value | None:
    return next((value for value in VALUES if re.fullmatch(value.names, name, re.I)), None)


def _number(match: re.Match[str]) -> float:
    word = match[0].lower()
    return _NUMBERS.index(word) if word in _NUMBERS else float(word) if "." in word else int(word)


def _kind(schema: Mapping[str, Any]) -> str:
    """Give a parameter's type, the first one but null; a text without any."""
    for part in (schema, *schema.get("anyOf", ()), *schema.get("oneOf", ())):
        kinds = part.get("type") if isinstance(part, Mapping) else None
        for kind in [kinds] if isinstance(kinds, str) else kinds or ():
            if kind != "null":
                return str(kind)
    return "string"


def best_match(clause: str, tools: Sequence[ToolDefinition]) -> Match | None:
    """Give the tool that the clause fits best, rather one that misses no parameter; None if it fits none."""
    matches = [match for tool in tools if (match := Match(tool, clause)).read()]
    return max(matches, key=lambda match: (not match.missing, match.score), default=None)
