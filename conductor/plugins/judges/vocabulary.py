"""A language's vocabulary from its data file, and the tokenizer for utterances."""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from itertools import product
from typing import Any, TypeAlias

Words: TypeAlias = tuple[str, ...]

# Characters of an utterance, and words of a phrase.
MAX_CHARS = 2000
MAX_PHRASE_WORDS = 12

_APOSTROPHES = dict.fromkeys(map(ord, "\u2018\u2019\u201b\u02bc\u02b9\u00b4\u2032`"), "'")
# Punctuation that separates words. The question mark is a token: a question is not an answer.
_SEPARATORS = re.escape(" .,!;:\"'_\u201c\u201d\u201e\u00ab\u00bb\u2010\u2011\u2012\u2013\u2014\u2015\u2212-")
_TOKEN = re.compile(rf"\d+(?:[.:,]\d+)*|[^\W\d_]+(?:'[^\W\d_]+)*|[^\s{_SEPARATORS}]")
_DOT = re.compile(r"(?<=\w)\.(?=[^\W\d_]{2})")
_MINUS = re.compile(r"(?<![\w-])[-\u2212](?=\d)")
_PRICE = re.compile(r"([$\u20ac\u00a3])\s?(\d[\d.,]*)")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}\b)")
_ZEROS = re.compile(r"(\.\d*?)0+$")


class Vocabulary:
    """One language: ``data`` is its file, ``sets`` holds the lists of single words in it by their names.

    ``consent``, ``refusal`` and ``request`` map phrases to their kinds. ``known``: all their words.
    """

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.data = data
        tables = [table for table in data.values() if isinstance(table, dict)]
        lists = {key: value for table in tables for key, value in table.items() if isinstance(value, str)}
        self.sets = {key: frozenset(value.split()) for key, value in lists.items()}
        self._small = {word: number for number, word in enumerate(lists["numbers"].split())}
        self._tens = {word: 10 * number for number, word in enumerate(lists["tens"].split(), start=2)}
        self.secrets = frozenset(self.phrases(data["values"]["secrets"]))
        self.mimics = dict.fromkeys(self.phrases(data["values"]["mimics"]), "mimic")
        self.consent, self.refusal, self.request = map(self._kinds, ("consent", "refusal", "request"))
        phrases = (*self.consent, *self.refusal, *self.request)
        self.known = frozenset().union(*self.sets.values(), *phrases)

    def _kinds(self, table: str) -> dict[Words, str]:
        lists = {kind: patterns for kind, patterns in self.data[table].items() if isinstance(patterns, list)}
        return {phrase: kind for kind, patterns in lists.items() for phrase in self.phrases(patterns)}

    def number(self, number: int) -> str:
        """Spell a number, a small one as a word."""
        return next((word for word, small in self._small.items() if small == number), str(number))

    def phrases(self, patterns: Iterable[str]) -> Iterator[Words]:
        """Parse phrases with alternatives and optional words."""
        for pattern in patterns:
            choices = [f"{word[:-1]}|" if word.endswith("?") else word for word in pattern.split()]
            for words in product(*(choice.split("|") for choice in choices)):
                yield tuple(word for word in words if word)

    def spell(self, text: str) -> str:
        """Spell out punctuation: "notes.txt" is "notes dot txt"."""
        words = self.data["words"]
        text = _DOT.sub(f" {words['point']} ", _MINUS.sub(f" {words['minus']} ", text))
        for sign, word in words["signs"].items():
            text = text.replace(sign, f" {word} ")
        return _PRICE.sub(r"\2 \1", text)

    def words(self, text: str) -> Words:
        """Split a text into lower-case words: numbers as digits, contractions expanded.

        Punctuation between words is dropped except the question mark; any other sign is a token. Invisible
        characters are dropped.
        """
        text = unicodedata.normalize("NFKC", text.translate(_APOSTROPHES)).casefold().translate(_APOSTROPHES)
        if len(text) > MAX_CHARS:  # one character may become eighteen; a cut leaves a foreign word
            text = text[:MAX_CHARS] + " \ufffd"
        # Invisible characters could hide or split a word.
        text = "".join(c for c in text if unicodedata.category(c) != "Cf")
        tokens = _TOKEN.findall(self.spell(text))
        return tuple(self._numbered(word for token in tokens for word in self._plain(token)))

    def _plain(self, word: str) -> Sequence[str]:
        words = self.data["words"]
        if word[0].isdigit():
            number = _THOUSANDS.sub("", word)
            return [_ZEROS.sub(r"\1", number).rstrip(".") if number.count(".") == 1 else number]
        if word in words["wholes"]:
            return str(words["wholes"][word]).split()
        for end, expansion in words["endings"].items():
            if stem := word.removesuffix(end) if word.endswith(end) else "":
                return (stem, expansion)
        return (words["currencies"].get(word, word),)

    def _numbered(self, words: Iterable[str]) -> Iterator[str]:
        # "Twenty five" is 25, "two hundred and five" is 205, "one two" is 1 2.
        number: int | None = None
        words, values = (*words, ""), {**self._tens, **self._small}
        for word, after in zip(words, (*words, "")[1:], strict=True):
            free = (number or 0) % 100
            value = values.get(word)
            if word == "and" and number and free == 0 and values.get(after):
                continue
            fits = value and number and (free == 0 or (free >= 20 and free % 10 == 0 and value < 10))
            if number is not None and word == self.data["words"]["hundred"] and 0 < number % 1000 < 10:
                number += number % 1000 * 99
            elif word == self.data["words"]["thousand"] and number and number < 1000:
                number *= 1000
            elif fits:
                number = (number or 0) + (value or 0)
            else:
                if number is not None:
                    yield str(number)
                number = value
                if value is None and word:
                    yield word


def phrase_at(words: Words, start: int, kinds: Mapping[Words, str]) -> Words:
    """Return the longest known phrase at ``start``; empty without one."""
    for end in range(min(len(words), start + MAX_PHRASE_WORDS), start, -1):
        if words[start:end] in kinds:
            return words[start:end]
    return ()


def singular(word: str) -> str:
    """Guess the singular of an English noun; any other word is returned unchanged."""
    for end, replacement in (
        ("ies", "y"),
        ("sses", "ss"),
        ("xes", "x"),
        ("ches", "ch"),
        ("shes", "sh"),
        ("s", ""),
    ):
        if word.endswith(end) and not word.endswith(("ss", "us", "is")) and len(word) > len(end) + 1:
            return word.removesuffix(end) + replacement
    return word


def load_vocabulary(locale: str) -> Vocabulary | None:
    """Load the vocabulary of a locale's language; None disables spoken approvals."""
    # A client's text becomes the name of a file: it is cut and matched.
    language = re.split("[-_]", locale[:10].lower())[0]
    return _read(language) if re.fullmatch("[a-z]{2,3}", language) else None


@cache
def _read(language: str) -> Vocabulary | None:
    file = resources.files(__package__).joinpath(f"{language}.toml")
    return Vocabulary(tomllib.loads(file.read_text("utf-8"))) if file.is_file() else None
