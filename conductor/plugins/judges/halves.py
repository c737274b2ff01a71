"""Half sentences: the end of an utterance, by the lists of a language's page."""

from __future__ import annotations

import re

from conductor.plugins.judges.page import MAX_PHRASE_WORDS, Page, Words, fold

# Characters at the end of an utterance that are read.
_MAX_CHARS = 200
# How a recogniser marks the end of a sentence, and a sentence that goes on.
_CLOSED = re.compile(r"[?!]\W*$")
_OPEN = re.compile(r"(?:,|\u2026|\.\.\.?|[-\u2013\u2014])[\s\"'\u201d\u00bb]*$")
# A contracted verb never ends a sentence: "and that I'll".
_CONTRACTED = re.compile(r"\w['\u2019](?:ll|re|ve|m|d)\W*$", re.IGNORECASE)
# A word after another one: of a sentence's first word the capital says nothing.
_LATER_WORD = re.compile(r"(?<=[^\W_][\s,]|, )[^\W\d_]+")


def is_unfinished(utterance: str, page: Page) -> bool:
    """Return whether an utterance ends in the middle of a sentence."""
    text = utterance[-_MAX_CHARS:].strip()
    words = page.words(text)
    if not words or _CLOSED.search(text):
        return False
    if len(words) > 1 and (_OPEN.search(text) or _CONTRACTED.search(text)):
        return True
    if _begins_only(words, page):
        return not _ending(_without_fillers(words, page), "no_unfinished", page)
    if len(words) == 1 or _is_separable(words, page):
        return False  # a single word, such as "in" or "para", answers or orders
    return _ends_inside(words, text, page) or (text[-1] != "." and _lacks_a_part(words, text, page))


def _begins_only(words: Words, page: Page) -> bool:
    """Return whether an utterance consists of words that begin a sentence, with hesitations and fillers."""
    at, found = 0, False
    while at < len(words):
        opening = page.phrase_at("openings", words, at)
        length = max(opening, *(page.phrase_at(name, words, at) for name in ("hesitations", "fillers")))
        if not length:
            return False
        at, found = at + length, found or opening > 0
    return found


def _ends_inside(words: Words, text: str, page: Page) -> bool:
    """Return whether the last words need another one after them, or the ones before fillers at the end do."""
    length, complete = (_ending(words, name, page) for name in ("unfinished", "no_unfinished"))
    if length > complete:
        return length > 1 or not _is_stressed(text, page)
    before = () if complete else _without_fillers(words, page)
    return _ending(before, "unfinished", page) > max(1, _ending(before, "no_unfinished", page))


def _lacks_a_part(words: Words, text: str, page: Page) -> bool:
    """Return whether a clause has begun whose verb is not there yet, or which promises another clause.

    The verb that is to stand at its end is known by its form: "dass ich zehn Minuten" has none.
    """
    if words[-2] not in page.lists["links"]:
        if any((word, words[-1]) in page.phrases["correlatives"] for word in words[:-2]):
            return True  # "if it rains tomorrow, then"
    words = _without_fillers(words, page)
    ends = (at + page.phrase_at("clauses", words, at) for at in range(len(words)))
    begin = max((end for at, end in enumerate(ends) if end > at), default=len(words))
    nouns = {fold(word) for word in _LATER_WORD.findall(text) if word[0].isupper()}
    others = nouns | page.lists["articles"] | page.lists["links"]
    verbs = (word for word in words[begin:] if word not in others and page.verbs.search(word))
    return begin < len(words) and not any(verbs)


def _without_fillers(words: Words, page: Page) -> Words:
    """Leave out the words that may stand anywhere in a sentence, such as "please"."""
    kept: list[str] = []
    at = 0
    while at < len(words):
        filler = page.phrase_at("fillers", words, at)
        kept += [] if filler else [words[at]]
        at += filler or 1
    return tuple(kept)


def _ending(words: Words, name: str, page: Page) -> int:
    """Return the length of the longest phrase of a list at the end; 0 without one."""
    longest = min(len(words), MAX_PHRASE_WORDS)
    return next((n for n in range(longest, 0, -1) if words[-n:] in page.phrases[name]), 0)


def _is_separable(words: Words, page: Page) -> bool:
    """Return whether the last word belongs to a verb before its object: "turn the light on"."""
    return any((verb, words[-1]) in page.phrases["separable"] for verb in words[:-2])


def _is_stressed(text: str, page: Page) -> bool:
    """Return whether the last word is another one than without its accent: "sí" is no "si"."""
    spoken = re.sub(r"[^\w-]+", " ", text.casefold()).rstrip(" -")
    return any(spoken.endswith(word if word[0] == "-" else f" {word}") for word in page.stressed)
