"""Backchannels: words and sounds that only show that a person listens."""

from __future__ import annotations

import re

from conductor.plugins.judges.page import Page, Words

# "okaaay" is "okay", and "hmmmm" is "hmm".
_LONG_DRAWN = re.compile(r"([^\W\d_])\1{2,}")
_SHORT = (r"\1\1", r"\1")
# Hums, cries and laughs of any length, in every language: "mhmm", "ohh", "huh", "ehm", "aha", "hehe", "uff".
_SOUND = re.compile(r"[hm]{2,}|h*([aou])\1*h+|[aeo]h+m+|([ao])h+\2h*|(?:h+[aeio]+){2,}|a+w+|[pu]+f+")


def is_backchannel(utterance: str, page: Page) -> bool:
    """Return whether an utterance only shows that the person listens.

    It consists of sounds and of phrases of the list, with words before them that mean nothing alone
    ("that is").
    """
    return any(_only_listens(page.words(_LONG_DRAWN.sub(short, utterance)), page) for short in _SHORT)


def _only_listens(words: Words, page: Page) -> bool:
    at, length, heard = 0, 0, 0
    while at < len(words):
        heard = page.phrase_at("backchannels", words, at) or int(bool(_SOUND.fullmatch(words[at])))
        length = max(heard, page.phrase_at("frames", words, at))
        if not length:
            return False
        at += length
    return bool(words) and heard == length
