"""Slows down clients that keep taking one session from each other (durability, "Faults")."""

from __future__ import annotations

import time
from collections.abc import Mapping

from conductor.conversation.memos import ClaimsMemo, decode, encode

FIELD = "claims"
WINDOW_S = 30.0
FREE = 6
"""So many claims in the window are what phones do; each one more waits."""
_FIRST_S = 0.5
_MOST_S = 5.0


def delay_s(fields: Mapping[str, str]) -> float:
    """Say how long a claimant has to wait, in seconds, by the claims before its own."""
    count = len(_recent(fields))
    return 0.0 if count < FREE else min(_MOST_S, _FIRST_S * 2.0 ** (count - FREE))


def noted(fields: Mapping[str, str]) -> str:
    """Write down the recent claims, with one of now."""
    return encode(ClaimsMemo((*_recent(fields), time.time())[-2 * FREE :]))


def _recent(fields: Mapping[str, str]) -> tuple[float, ...]:
    memo = decode(fields.get(FIELD), ClaimsMemo)
    now = time.time()
    return tuple(at for at in memo.times if abs(now - at) < WINDOW_S) if memo is not None else ()
