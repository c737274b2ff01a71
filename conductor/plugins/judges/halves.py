"""Half sentences: the end of an utterance, by the lists of a language's page of turns."""

from __future__ import annotations

import re

from conductor.plugins.judges.page import Page, Words, fold

# Characters at the end of an utterance that are read.
_MAX_CHARS = 200
# How a recogniser marks the end of a sentence, and a sentence that goes on.
_CLOSED = re.compile(r"[?!]\W*$")
_OPEN = re.compile(r"(?:,|\u2026|\.\.\.?|[-\u2013\u2014])[\s\"'\u201d\u00bb]*$")
# A contracted verb never ends a sentence: "and that I'll".
_CONTRACTED = re.compile(r"\w['\u2019](?:ll|re|ve|m|d)\W*$", re.IGNORECASE)
# A word after another one: of a sentence's first word the capital says nothing.
_LATER_WORD = re.compile(r"(?<=[^\W_][\s,]|, )[^\W\d_]+")
_WORD = re.compile(r"[^\W\d_]+")
# Words of a subject with its article, such as "my next appointment".
_MAX_SUBJECT = 3


def is_unfinished(utterance: str, page: Page) -> bool:
    """Return whether an utterance ends in the middle of a sentence."""
    text = utterance[-_MAX_CHARS:].strip()
    words = page.words(text)
    if not words or _CLOSED.search(text):
        return False
    if _OPEN.search(text) and (len(words) > 1 or words[0] in page.lists["requests"]):
        return True
    if len(words) > 1 and _CONTRACTED.search(text):
        return True
    if _begins_only(words, page):
        return not any(_ends_whole(said, page) for said in (words, _without_fillers(words, page)))
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


def _ends_whole(words: Words, page: Page) -> bool:
    return page.ending("no_unfinished", words) > page.ending("unfinished", words)


def _ends_inside(words: Words, text: str, page: Page) -> bool:
    """Return whether the last words need another one after them, or the ones before fillers at the end do."""
    length, complete = (page.ending(name, words) for name in ("unfinished", "no_unfinished"))
    if length > complete:
        return length > 1 or not _is_stressed(text, page)
    before = () if complete else _without_fillers(words, page)
    return page.ending("unfinished", before) > max(1, page.ending("no_unfinished", before))


# -- halves that end in a word of any meaning


def _lacks_a_part(words: Words, text: str, page: Page) -> bool:
    """Return whether a sentence that has begun lacks a part that it cannot do without."""
    if page.ending("no_unfinished", words):
        return False
    spoken, plain = {*_WORD.findall(text.casefold())}, _without_fillers(words, page)
    asks = not page.asking.isdisjoint(spoken)  # the end of a question may be whole
    return (
        _lacks_its_promise(words, page)
        or _lacks_its_gift(words, page)
        or _lacks_its_relative_clause(words, page)
        or _lacks_its_second_part(plain, page)
        or _lacks_its_last_verb(plain, text, page)
        or (not asks and _lacks_its_complement(plain, page))
        or _lacks_its_verb(plain, text, spoken, page)
    )


def _lacks_its_promise(words: Words, page: Page) -> bool:
    """Return whether a word promises another clause: "if it rains tomorrow, then"."""
    is_linked = words[-2] in page.lists["links"]
    return not is_linked and any((word, words[-1]) in page.phrases["correlatives"] for word in words[:-2])


def _lacks_its_second_part(words: Words, page: Page) -> bool:
    """Return whether a verb and its object have come without the verb's second part: "turn the light"."""
    begin = next((at for at in range(len(words)) if page.phrase_at("split", words, at)), len(words))
    behind = words[begin + 1 :]
    if any(page.phrase_at("second", behind, at) for at in range(len(behind))):
        return False
    return _has_article(behind[-3:-1], page) and not page.ending("adverbs", behind)


def _lacks_its_gift(words: Words, page: Page) -> bool:
    """Return whether somebody is to be given something of theirs: "give Anna her"."""
    is_linked = words[-2] in page.lists["links"]
    return not is_linked and any((verb, words[-1]) in page.phrases["giving"] for verb in words[:-2])


def _lacks_its_relative_clause(words: Words, page: Page) -> bool:
    """Return whether a relative pronoun behind a noun is the end: "the man who"."""
    return page.ending("relatives", words) > 0 and _has_article(words[-3:-2], page)


def _lacks_its_last_verb(words: Words, text: str, page: Page) -> bool:
    """Return whether a clause has begun whose verb stands at its end: "dass ich zehn Minuten".

    The verb is known by its form, and a noun by its capital.
    """
    ends = (at + page.phrase_at("verb_last", words, at) for at in range(len(words)))
    begin = max((end for at, end in enumerate(ends) if end > at), default=len(words))
    nouns = {fold(word) for word in _LATER_WORD.findall(text) if word[0].isupper()}
    adverbs = {word for phrase in page.phrases["adverbs"] for word in phrase}
    others = nouns | adverbs | page.lists["articles"] | page.lists["links"]
    verbs = (word for word in words[begin:] if word not in others and page.verbs.search(word))
    return begin < len(words) and not any(verbs)


def _lacks_its_complement(words: Words, page: Page) -> bool:
    """Return whether a verb at the end needs more: "my next appointment is", "puedes comprar"."""
    if length := page.ending("transitives", words):
        before = words[:-length]
        modal = page.ending("modals", before)
        return modal > 0 and page.lists["questions"].isdisjoint(before[-modal - 1 : -modal])
    length = page.ending("auxiliaries", words)
    subject = words[:-length][-_MAX_SUBJECT:]
    return length > 0 and _has_article(subject[:-1], page)


def _has_article(words: Words, page: Page) -> bool:
    return not page.lists["articles"].isdisjoint(words)


def _lacks_its_verb(words: Words, text: str, spoken: set[str], page: Page) -> bool:
    """Return whether a clause has a conjunction, and a subject or an adverb at most: "if the doctor".

    A conjunction is no other word with an accent: "sí" is no "si".
    """
    accented = {fold(word) for word in page.stressed if word in spoken}
    names = {fold(word) for word in _LATER_WORD.findall(text) if word[0].isupper()}
    for at in range(len(words) - 1):
        length = page.phrase_at("conjunctions", words, at)
        compares = at > 0 and page.phrase_at("compared", words, at - 1)
        if length and not compares and words[at] not in accented:
            clause = words[at + length :]
            subject = _behind_adverbs(clause, page)
            is_noun = len(subject) == 2 and subject[0] in page.lists["articles"]
            is_name = len(subject) == 1 and subject[0] in names
            if is_noun or is_name or (clause and not subject):
                return True
    return False


def _behind_adverbs(words: Words, page: Page) -> Words:
    while length := page.phrase_at("adverbs", words, 0):
        words = words[length:]
    return words


def _without_fillers(words: Words, page: Page) -> Words:
    """Leave out the words that may stand anywhere in a sentence, such as "please"."""
    kept: list[str] = []
    at = 0
    while at < len(words):
        filler = page.phrase_at("fillers", words, at)
        kept += [] if filler else [words[at]]
        at += filler or 1
    return tuple(kept)


def _is_separable(words: Words, page: Page) -> bool:
    """Return whether the last word belongs to a verb before its object: "turn the light on"."""
    return any((verb, words[-1]) in page.phrases["separable"] for verb in words[:-2])


def _is_stressed(text: str, page: Page) -> bool:
    """Return whether the last word is another one than without its accent: "sí" is no "si"."""
    spoken = re.sub(r"[^\w-]+", " ", text.casefold()).rstrip(" -")
    return any(spoken.endswith(word if word[0] == "-" else f" {word}") for word in page.stressed)
