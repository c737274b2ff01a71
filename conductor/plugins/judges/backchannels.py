"""Backchannels: words and sounds that only show that a person listens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, TypeAlias

from conductor.plugins.judges.page import Page, Words

# "okaaay" is "okay", and "hmmmm" is "hmm".
_LONG_DRAWN = re.compile(r"([^\W\d_])\1{2,}")
_SHORT = (r"\1\1", r"\1")
# Hums, cries and laughs of any length, in every language: "mhmm", "ohh", "huh", "ehm", "aha", "hehe", "uff".
_SOUND = re.compile(r"[hm]{2,}|h*([aou])\1*h+|[aeo]h+m+|([ao])h+\2h*|a?h+u+h+|(?:h+[aeio]+){2,}|a+w+|[pu]+f+")
_MAX_PARTS = 4
# Who only listens says little.
_MAX_CHARS = 120

_Part: TypeAlias = Literal["cry", "heard", "frame"]


def is_backchannel(utterance: str, page: Page) -> bool:
    """Return whether an utterance only shows that the person listens.

    It consists of sounds and of phrases of the list, with words before them ("that is") and behind them
    ("man") that mean nothing alone. Behind a cry few words are enough ("ah so"), and some questions ask for
    no answer ("oh, really?").
    """
    if len(utterance) > _MAX_CHARS:
        return False
    return any(_only_listens(page.words(_LONG_DRAWN.sub(short, utterance)), page) for short in _SHORT)


def _only_listens(words: Words, page: Page) -> bool:
    if any(page.phrase_at("enough", words, at) for at in range(len(words))):
        return False
    reached: list[set[_Part]] = [{"frame"}, *(set() for _ in words)]
    for at, before in enumerate(reached[:-1]):
        for part, length in _parts_at(words, at, before, page) if before else ():
            reached[at + length].add(part)
    return bool(words) and not reached[-1].isdisjoint({"cry", "heard"})


def _parts_at(words: Words, at: int, before: set[_Part], page: Page) -> Iterator[tuple[_Part, int]]:
    """List what may stand at a place behind the parts before, with its length in words."""
    heard = [_news_at(words, at, page), page.phrase_at("backchannels", words, at)]
    heard += [page.phrase_at("receipts", words, at)] if "cry" in before else []
    heard += [page.phrase_at("tails", words, at)] if before != {"frame"} else []
    cries = (_sound_at(words, at), page.phrase_at("openers", words, at))
    yield from (("heard", length) for length in heard if length)
    yield from (("cry", length) for length in cries if length)
    if frame := page.phrase_at("frames", words, at):
        yield "frame", frame


def _sound_at(words: Words, at: int) -> int:
    """Return how many words are a sound, which recognisers write in parts: "a ha", "mm hm"."""
    ends = range(min(len(words), at + _MAX_PARTS), at, -1)
    return next((end - at for end in ends if _SOUND.fullmatch("".join(words[at:end]))), 0)


def _news_at(words: Words, at: int, page: Page) -> int:
    """Return the length of a question that asks for no answer, with its mark."""
    length = page.phrase_at("newsmarks", words, at)
    return length + 1 if length and words[at + length : at + length + 1] == ("?",) else 0


def is_credit(utterance: str, page: Page) -> bool:
    """Return whether an utterance is the credits of a film, which recognisers hear in silence."""
    return page.credits.match(utterance) is not None
