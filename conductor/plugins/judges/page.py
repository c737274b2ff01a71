"""A language on two pages, of answers and of turns: its words and sentences, and how a text becomes words."""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from functools import cache
from importlib import resources
from itertools import product
from operator import ne
from typing import Any, Literal, TypeAlias

Words: TypeAlias = tuple[str, ...]

# Characters of a text that become words.
MAX_CHARS = 2000

PHRASES = (
    *("hesitations", "consents", "weak", "leads", "courtesies", "pronouns", "session", "refusals"),
    *("before_refusals", "no_refusals", "last_refusals", "waits", "repeats", "before_repeat"),
)
"""The lists of phrases of the page of answers: a phrase with its alternatives a line."""
TURN_PHRASES = (
    *("backchannels", "frames", "tails", "openers", "receipts", "newsmarks", "enough"),
    *("unfinished", "no_unfinished", "conjunctions", "compared", "adverbs", "auxiliaries"),
    *("modals", "transitives", "separable", "split", "second", "giving", "verb_last", "relatives"),
    *("correlatives", "fillers", "openings"),
)
"""The lists of phrases of the page of turns; some are tables of classes there."""
LISTS = (
    "small",
    "final",
    "articles",
    "links",
    "directed",
    "negations",
    "questions",
    "requests",
    "verbs",
    "particles",
)
"""The lists of single words of a page."""

_OWN = ("true", "false", "confirm", "quoted", "answer_medium", "answer_high", "answer_screen", "again_high")
"""The sentences whose words a value must not pass for."""

_APOSTROPHES = dict.fromkeys(map(ord, "\u2018\u2019\u201b\u02bc\u02b9\u00b4\u2032`"), "'")
_TOKEN = re.compile(r"\d+(?:[.,:]\d+)*|[^\W\d_]+|\S")
# Punctuation that separates words. The question mark is a token: a question is no answer.
_SEPARATORS = frozenset(
    ".,!;:\"'_-()\u201c\u201d\u201e\u00ab\u00bb\u00bf\u00a1\u2010\u2011\u2012\u2013\u2014\u2015\u2026"
)
_DOT = re.compile(r"(?<=[^\W_])\.(?=[^\W\d_])|(?<=[^\W\d_])\.(?=\d)")
_MINUS = re.compile(r"(?<![\w-])[-\u2212](?=\d)")


def fold(text: str) -> str:
    """Write a text in small letters, without accents and invisible characters."""
    text = unicodedata.normalize("NFKC", text.translate(_APOSTROPHES)).casefold()
    text = text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]} \ufffd"  # one may become eighteen
    letters = unicodedata.normalize("NFD", text.translate(_APOSTROPHES))
    return "".join(c for c in letters if unicodedata.category(c) not in ("Mn", "Cf"))


class Page:
    """One language, on a page of answers and one of turns.

    ``phrases`` and ``lists`` have the names above, ``sentences`` are the question's.

    ``names`` of signs are said in place of the signs. ``framing`` are the words of our own sentences, which a
    value must not pass for, and ``framing_runs`` their runs of three. ``endings`` end a verb's forms,
    ``clitics`` are pronouns that cling to it. ``stressed`` words are others without their accent, and words
    of ``asking`` have theirs. ``verbs`` tells by their form the verbs at the end of a clause, in a language
    that has them there. ``credits`` tells the end of a film, which recognisers hear in silence.
    """

    def __init__(self, language: str, data: Mapping[str, Any]) -> None:
        numbers = data["numbers"]
        self.language = language
        self.names: Mapping[str, str] = data["signs"]
        self.sentences: Mapping[str, str] = data["terms"] | data["question"]
        self.dates: Mapping[str, str] = data["dates"]
        self.currencies: Mapping[str, str] = data["currencies"]
        self.decimal, self.thousands = numbers["marks"]
        self.verbs = re.compile(data["verb_shape"] or r"(?!)")
        self.credits = re.compile(rf"\W*(?:{'|'.join(data['credits'])})", re.IGNORECASE)
        self.endings: Sequence[str] = data["endings"].split("|")
        self.stressed: Sequence[str] = data["stressed"].split()
        self.asking: Set[str] = {*data["asking"].split()}
        self.clitics: Set[str] = {*data.get("clitics", "").split()}
        changes = (change.partition("=") for change in data.get("stem_vowels", "").split())
        self._vowels = [(vowel, other) for vowel, _, other in changes]
        self._spellings = [(re.compile(pattern), text) for pattern, text in data["spellings"].items()]
        self._point, self._and = fold(numbers["point"]), fold(numbers["and"])
        self._scales = {
            fold(word): scale
            for scale in (100, 1000)
            for word in numbers["hundred" if scale == 100 else "thousand"].split()
        }
        self._numbers = dict(_numbers(numbers))
        self._units = {fold(unit): str(n) for n, unit in enumerate(numbers.get("units", "").split(), start=1)}
        self._joined = re.compile(f"({'|'.join(self._scales)})(?:{self._and})?")
        self._money = {
            fold(word): fold(name).split()[0]
            for name, codes in self.currencies.items()
            for word in (name.split()[0], *codes.split())
        }
        self.lists: Mapping[str, frozenset[str]] = {
            name: frozenset(word for text in data[name].split() for word in self.words(text))
            for name in LISTS
        }
        self.phrases: Mapping[str, frozenset[Words]] = {
            name: frozenset(self._expand(_lines(data[name]))) for name in (*PHRASES, *TURN_PHRASES)
        }
        self._longest = {name: max(map(len, phrases), default=0) for name, phrases in self.phrases.items()}
        own = (word for key in _OWN for word in self.words(self.sentences[key].replace("{}", "")))
        self.framing = frozenset(own) - self.lists["small"] - self.lists["links"]
        self.quotes = frozenset(self.words(self.sentences["quoted"].replace("{}", " ")))
        self.framing_runs = frozenset(self._runs())

    def currency(self, text: str) -> str:
        """Name a currency by its code, sign or name; empty if the text is none."""
        return self._money.get(fold(text), "")

    def _runs(self) -> Iterator[Words]:
        for text in self.sentences.values():
            words = self.words(text.replace("{}", " \u2022 "))
            for run in zip(words, words[1:], words[2:], strict=False):
                if "\u2022" not in run and not {*run} <= self.lists["small"]:
                    yield run

    def _expand(self, patterns: Iterable[str]) -> Iterator[Words]:
        """Parse phrases: "a|b-c" are alternatives, and "d?" may be left out."""
        read = cache(self.words)
        for pattern in patterns:
            choices = [f"{word[:-1]}|" if word.endswith("?") else word for word in pattern.split()]
            for chosen in product(*([read(part) for part in choice.split("|")] for choice in choices)):
                phrase = tuple(word for words in chosen for word in words)
                if phrase and all(map(ne, phrase, phrase[1:])):  # a word said twice is one word
                    yield phrase

    # -- words

    def words(self, text: str) -> Words:
        """Split a text into words without accents: numbers as digits, amounts as a number and a currency.

        Punctuation between words is dropped except the question mark; any other sign is a word.
        """
        text = fold(text[: MAX_CHARS + 1])
        for pattern, spelling in self._spellings:
            text = pattern.sub(spelling, text)
        text = _DOT.sub(f" {self.names['.']} ", _MINUS.sub(f" {self.names['minus']} ", text))
        tokens = [word for token in _TOKEN.findall(text) for word in self._plain(token)]
        return self._amounts(self._numbered(tokens))

    def _plain(self, token: str) -> Sequence[str]:
        if token[0].isdigit():
            if ":" in token:
                return [part for part in re.split("[:.,]", token) if part]
            number = re.sub(rf"{re.escape(self.thousands)}(?=\d{{3}}\b)", "", token)
            return [number.replace(self.decimal, ".")]
        if token in _SEPARATORS:
            return ()
        if token in self.names and not token.isalnum():
            return [self._money[token]] if token in self._money else fold(self.names[token]).split()
        if token in self._money:
            return [self._money[token]]
        parts = [part for part in self._joined.split(token) if part]
        parts = [part if (part,) in self._numbers else self._units.get(part, part) for part in parts]
        known = (part.isdigit() or (part,) in self._numbers or part in self._scales for part in parts)
        return parts if len(parts) > 1 and all(known) else [token]  # "zweihundertfünfzig"

    def _numbered(self, tokens: Sequence[str]) -> list[str]:
        """Write numbers in words as digits: "twenty five" is 25, "two hundred and five" is 205."""
        words: list[str] = []
        at = 0
        while at < len(tokens):
            number, end = self._number_at(tokens, at)
            words.append(tokens[at] if end == at else str(number))
            at = max(end, at + 1)
        return words

    def _number_at(self, tokens: Sequence[str], at: int) -> tuple[int, int]:
        total, current, end = 0, None, at
        while end < len(tokens):
            after = end + (
                tokens[end] == self._and and current is not None and current % 100 == 0 and current > 0
            )
            small, length = self._small_at(tokens, after)
            scale = self._scales.get(tokens[end])
            if scale and (current is not None or total == 0) and (current or 1) < scale:
                current = (current or 1) * scale
                if scale == 1000:
                    total, current = total + current, 0
                end += 1
            elif length and (current is None or (current % 100 == 0 and (current or total))):
                current, end = (current or 0) + small, after + length
            elif current is None and tokens[end].isdecimal() and self._is_scaled(tokens, end):
                current, end = int(tokens[end]), end + 1
            else:
                break
        return total + (current or 0), end

    def _is_scaled(self, tokens: Sequence[str], at: int) -> bool:
        scale = self._scales.get(tokens[at + 1], 0) if tokens[at + 1 : at + 2] else 0
        return int(tokens[at]) < (10 if scale == 100 else scale)

    def _small_at(self, tokens: Sequence[str], at: int) -> tuple[int, int]:
        for length in (4, 3, 2, 1):
            if (number := self._numbers.get(tuple(tokens[at : at + length]))) is not None:
                return number, min(length, len(tokens) - at)
        return 0, 0

    def _amounts(self, words: Sequence[str]) -> Words:
        """Join "12 point 5" and "12 pounds 50", and put the currency behind its amount."""
        amounts: list[str] = []
        at = 0
        while at < len(words):
            word, after, last = (*words[at : at + 3], "", "", "")[:3]
            if word.isdigit() and after == self._point and last.isdigit():
                amounts.append(f"{word}.{last}")
                at += 3
            elif word.isdigit() and after in self._money.values() and last.isdigit() and len(last) == 2:
                amounts += [f"{word}.{last}", after]
                at += 3
            elif (
                word in self._money.values()
                and after[:1].isdigit()
                and not (at and words[at - 1][:1].isdigit())
            ):
                amounts += [after, word]
                at += 2
            else:
                amounts.append(word)
                at += 1
        # "12.50 pounds" are 12.5, but the version 2.10 is not 2.1.
        followed = zip(amounts, (*amounts[1:], ""), strict=False)
        return tuple(_canonical(word) if after in self._money.values() else word for word, after in followed)

    # -- phrases

    def phrase_at(self, name: str, words: Words, at: int) -> int:
        """Return the length of the longest phrase of a list at a place; 0 without one."""
        phrases = self.phrases[name]
        ends = range(min(len(words), at + self._longest[name]), at, -1)
        return next((end - at for end in ends if words[at:end] in phrases), 0)

    def ending(self, name: str, words: Words) -> int:
        """Return the length of the longest phrase of a list at the end; 0 without one."""
        phrases, longest = self.phrases[name], min(len(words), self._longest[name])
        return next((n for n in range(longest, 0, -1) if words[-n:] in phrases), 0)

    def form_of(self, word: str, verb: str) -> Literal["", "plain", "clinging"]:
        """Return whether a word is a form of a verb, and whether a pronoun clings to it; empty if it is none.

        Two forms differ in no more than an ending of the language, and the vowel before it.
        """
        if word == verb or self._is_form(word, verb):
            return "plain"
        stems = (word.removesuffix(clitic) for clitic in self.clitics if word.endswith(clitic))
        return "clinging" if any(len(stem) > 2 and self._is_form(stem, verb) for stem in stems) else ""

    def _is_form(self, word: str, verb: str) -> bool:
        return word == verb or any(
            len(stem) > 2 and word.startswith(stem) and word[len(stem) :] in self.endings
            for ending in self.endings
            if verb.endswith(ending)
            for stem in self._stems(verb[: len(verb) - len(ending)])
        )

    def _stems(self, stem: str) -> Iterator[str]:
        """Give a stem, and the ones with another vowel: "cierr" of "cerrar"."""
        yield stem
        for vowel, other in self._vowels:
            before, found, behind = stem.rpartition(vowel)
            if found:
                yield f"{before}{other}{behind}"


def _lines(phrases: str | Mapping[str, str]) -> Iterator[str]:
    """List the lines of a list of phrases, which may be a table of classes."""
    for text in (phrases,) if isinstance(phrases, str) else phrases.values():
        yield from text.splitlines()


def _numbers(data: Mapping[str, str]) -> Iterator[tuple[Words, int]]:
    """Name the numbers below a hundred. A ten without a name ("-") is counted on from the one before."""
    small = [names.split("|") for names in data["small"].split()]
    units = [[], *(unit.split("|") for unit in data["units"].split())] if "units" in data else small
    tens = data["tens"].split()
    for number, names in enumerate(small):
        yield from ((_parts(name), number) for name in names if name != "-")
    for position, ten in enumerate(tens):
        base = 20 + 10 * position
        most = 20 if tens[position + 1 : position + 2] == ["-"] else 10
        for name in [] if ten == "-" else ten.split("|"):
            yield _parts(name), base
            forms = [form.format(ten=name, one="{}") for form in data["between"].split("|")]
            for one in range(1, most):
                for unit in units[one]:
                    yield from ((_parts(form.replace("{}", unit)), base + one) for form in forms)
    for text in data.get("extra", "").split():
        name, _, number_text = text.partition("=")
        yield _parts(name), int(number_text)


def _parts(name: str) -> Words:
    return tuple(fold(name).split("-"))


def _canonical(number: str) -> str:
    return number.rstrip("0").rstrip(".") if number.count(".") == 1 else number


@cache
def load_page(language: str) -> Page:
    """Read the two pages of a language that the package has."""
    answers, turns = (_read(f"{language}{kind}.toml") for kind in ("", ".turns"))
    return Page(language, answers | turns.pop("listening") | turns.pop("clauses") | turns)


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads(resources.files(__package__).joinpath(name).read_text("utf-8"))
