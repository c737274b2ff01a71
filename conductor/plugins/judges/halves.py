"""Half sentences: the end of an utterance, by the lists of a language's page."""

from __future__ import annotations

import re

from conductor.plugins.judges.page import MAX_PHRASE_WORDS, Page, Words

# Characters at the end of an utterance that are read.
_MAX_CHARS = 200
# How a recogniser marks the end of a sentence, and a sentence that goes on.
_CLOSED = re.compile(r"[?!]\W*$")
_OPEN = re.compile(r"(?:,|\u2026|\.\.\.?|[-\u2013\u2014])[\s\"'\u201d\u00bb]*$")


def is_unfinished(utterance: str, page: Page) -> bool:
    """Return whether an utterance ends in the middle of a sentence."""
    text = utterance[-_MAX_CHARS:].strip()
    words = page.words(text)
    if not words or _CLOSED.search(text):
        return False
    if len(words) > 1 and _OPEN.search(text):
        return True
    length, complete = (_ending(words, name, page) for name in ("unfinished", "no_unfinished"))
    if _begins_only(words, page):
        return not complete
    if len(words) == 1 or length <= complete or _is_separable(words, page):
        return False  # a single word, such as "in" or "para", answers or orders
    return length > 1 or not _is_stressed(text, page)


def _begins_only(words: Words, page: Page) -> bool:
    """Return whether an utterance consists of words that begin a sentence, with hesitations."""
    at, found = 0, False
    while at < len(words):
        opening = page.phrase_at("openings", words, at)
        length = max(opening, page.phrase_at("hesitations", words, at))
        if not length:
            return False
        at, found = at + length, found or opening > 0
    return found


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
