"""The part of a speech that was heard, as pure functions."""

from __future__ import annotations

import re

from conductor.conversation.state import Speech

# Characters that a synthetic voice reads per second, to cut by ``playedMs``; voices read 12 to 18.
CHARS_PER_SECOND = 15.0
_FASTEST_PER_SECOND = 18.0

CUT_HERE = "[The user interrupted here and did not hear the rest.]"
CUT_SOMEWHERE = "[The user interrupted this speech; it is not known how much of it was heard.]"
CUT_BEFORE_SPEECH = "[The user interrupted here, before any of this was spoken.]"
HEARD_NOTHING = "[The user interrupted before any of this was heard.]"


def heard_part(
    speech: Speech, spoken_text: str | None, played_ms: float | None, *, finished: bool
) -> str | None:
    """Return the heard part of the message; None if unknown.

    The client's ``spokenText`` wins, else the text that fits into ``playedMs``, else the finished segments.
    """
    if spoken_text is not None:
        part = spoken_text.strip()[: len(speech.speech_text)]
    elif played_ms is not None:
        part = _prefix(speech.speech_text, int(played_ms / 1000 * CHARS_PER_SECOND))
    elif finished and not speech.last:
        return speech.text
    else:
        return speech.preceding or None
    return f"{speech.preceding} {part}" if speech.preceding and part else speech.preceding or part


_SENTENCE_END = re.compile(r"(?<=[.!?…])[\"')\]»”’]*(?=\s|$)|(?<=[。！？])")


def begun_part(speech: Speech, spoken_text: str | None, played_ms: float | None) -> str:
    """Return the message up to the end of the sentence that was being spoken; all of it if unknown."""
    if spoken_text is not None:
        heard = len(spoken_text.strip())
    elif played_ms is not None:
        heard = int(played_ms / 1000 * _FASTEST_PER_SECOND)
    else:
        return speech.text
    end = _SENTENCE_END.search(speech.speech_text, heard)
    return f"{speech.preceding} {speech.speech_text[: end.start() if end else None]}".strip()


def heard_text(speech: Speech, spoken_text: str | None, played_ms: float | None, *, finished: bool) -> str:
    """Cut the message of an interrupted speech; the whole stays, marked, if the heard part is unknown."""
    part = heard_part(speech, spoken_text, played_ms, finished=finished)
    text = marked(part) if part is not None else f"{speech.text} {CUT_SOMEWHERE}".strip()
    if speech.actions:
        text += f" [Done, though the user may not have heard so: {', '.join(speech.actions)}.]"
    return text


def marked(text: str) -> str:
    """Mark a text as cut at its end."""
    return f"{text} {CUT_HERE}" if text else HEARD_NOTHING


def _prefix(text: str, length: int) -> str:
    return text if length >= len(text) else text[:length].rpartition(" ")[0]
