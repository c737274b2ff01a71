"""Backchannels: words and sounds that only show that a person listens."""

from __future__ import annotations

import re

from conductor.plugins.judges.page import Page, Words

# "okaaay" is "okay", and "hmmmm" is "hmm".
_LONG_DRAWN = re.compile(r"([^\W\d_])\1{2,}")
_SHORT = (r"\1\1", r"\1")
# Hums, cries and laughs of any length, in every language: "mhmm", "ohh", "huh", "ehm", "aha", "hehe", "uff".
_SOUND = re.compile(r"[hm]{2,}|h*([aou])\1*h+|[aeo]h+m+|([ao])h+\2h*|a?h+u+h+|(?:h+[aeio]+){2,}|a+w+|[pu]+f+")
_MAX_PARTS = 4


def is_backchannel(utterance: str, page: Page) -> bool:
    """Return whether an utterance only shows that the person listens.

    It consists of sounds and of phrases of the list, with words before them ("that is") and behind them
    ("man") that mean nothing alone. Behind a cry few words are enough ("ah so"), and some questions ask for
    no answer ("oh, really?").
    """
    return any(_only_listens(page.words(_LONG_DRAWN.sub(short, utterance)), page) for short in _SHORT)


def _only_listens(words: Words, page: Page) -> bool:
    at, listens, is_cry = 0, False, False
    while at < len(words):
        cry = max(_sound_at(words, at), page.phrase_at("openers", words, at))
        receipt = page.phrase_at("receipts", words, at) if is_cry else 0
        tail = page.phrase_at("tails", words, at) if listens else 0
        heard = max(cry, receipt, tail, _news_at(words, at, page), page.phrase_at("backchannels", words, at))
        length = max(heard, page.phrase_at("frames", words, at))
        if not length or page.phrase_at("enough", words, at):
            return False
        at, listens, is_cry = at + length, heard == length, cry == length
    return listens


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
