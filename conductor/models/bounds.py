"""The bounds of a reply whose service or model does not end it."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing

import structlog

from conductor.models.base import CHARS_PER_TOKEN, Finished, ModelEvent, ModelRequest, TextDelta, Usage

# Characters of a token; a long reply has fewer on average. Short limits have some characters to spare.
MOST_CHARS_PER_TOKEN = 8
LEAST_MOST_CHARS = 2_000
# Equal phrases in a row that end a reply, and the characters of a phrase without a stop: "ha ha" is laughter.
MOST_EQUAL_PHRASES = 20
SHORTEST_PHRASE, LONGEST_PHRASE = 8, 200
_PROBE = 16
_LETTER = re.compile(r"[^\W\d_]")
_STOP = re.compile(r"[.!?\n\u2026\u3002\uff01\uff1f\u061f\u0964]")

log = structlog.get_logger(__name__)


async def bounded(
    events: AsyncGenerator[ModelEvent, None], request: ModelRequest, max_tokens: int
) -> AsyncGenerator[ModelEvent, None]:
    """Pass a reply on, and end it as its limit does if its service goes on beyond ``max_tokens``."""
    chars, most = 0, max(LEAST_MOST_CHARS, max_tokens * MOST_CHARS_PER_TOKEN)
    async with aclosing(events):
        async for event in events:
            yield event
            chars += len(event.text) if isinstance(event, TextDelta) else 0
            if chars > most:
                log.info("model reply longer than asked for", max_tokens=max_tokens, chars=chars)
                yield Finished("max_tokens", estimate(request, chars))
                return


def estimate(request: ModelRequest, chars: int) -> Usage:
    """Estimate the tokens of a reply of so many characters, whose service has told none."""
    read = len(request.system) + sum(len(str(message)) for message in request.messages)
    return Usage(int(read / CHARS_PER_TOKEN), int(chars / CHARS_PER_TOKEN))


class Phrases:
    """Watches a growing text for `MOST_EQUAL_PHRASES` equal phrases at its end."""

    def __init__(self) -> None:
        self._tail = ""
        self._unread = 0

    def repeat(self, text: str) -> bool:
        """Take the next piece; tell whether the text only repeats itself by now."""
        self._tail = (self._tail + text)[-(MOST_EQUAL_PHRASES + 1) * LONGEST_PHRASE :]
        self._unread += len(text)
        if self._unread < _PROBE:
            return False
        self._unread = 0
        before = self._tail.rfind(self._tail[-_PROBE:], 0, -1)
        phrase = self._tail[before + _PROBE :]
        if before < 0 or not self._tail.endswith(phrase * MOST_EQUAL_PHRASES):
            return False
        is_phrase = len(phrase) >= SHORTEST_PHRASE or _STOP.search(phrase) is not None
        return is_phrase and _LETTER.search(phrase) is not None
