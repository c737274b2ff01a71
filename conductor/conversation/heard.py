"""What a person heard of a speech that was cut, and how the history says so; all of it is pure."""

from __future__ import annotations

from dataclasses import dataclass

CHARS_PER_SECOND = 15.0
"""How fast a synthetic voice reads English, for cutting by ``playedMs``; 12 to 18 is what voices do."""

CUT_HERE = "[The user interrupted here and did not hear the rest.]"
CUT_SOMEWHERE = "[The user interrupted this speech; it is not known how much of it was heard.]"
CUT_BEFORE_SPEECH = "[The user interrupted here, before any of this was spoken.]"
HEARD_NOTHING = "[The user interrupted before any of this was heard.]"


@dataclass(slots=True)
class Speech:
    """A ``tts.speak`` that was sent, or will be.

    ``position`` is its message's place in the log, ``text`` the message's text, ``spoken`` the text made for
    the ear, ``actions`` the tools that had changed something in its turn and that it may have told of.
    ``over_at`` is the loop's time of its acknowledgement.
    """

    call_id: str
    turn_id: str
    position: int
    text: str
    spoken: str
    actions: tuple[str, ...] = ()
    interrupted: bool = False
    over_at: float | None = None


def heard_text(speech: Speech, spoken_text: str | None, played_ms: float | None) -> str:
    """Say what the history should hold of an interrupted speech, best knowledge first.

    That is the text the client says was spoken; else as much as fits into the milliseconds played; else the
    whole text, marked as cut at an unknown place (protocol, "Honest outcomes").
    """
    if spoken_text is not None:
        text = marked(spoken_text.strip()[: len(speech.spoken)])
    elif played_ms is not None:
        text = marked(_prefix(speech.spoken, int(played_ms / 1000 * CHARS_PER_SECOND)))
    else:
        text = f"{speech.text} {CUT_SOMEWHERE}".strip()
    if speech.actions:
        text += f" [Done, though the user may not have heard so: {', '.join(speech.actions)}.]"
    return text


def marked(heard: str) -> str:
    """Mark a text as cut at its end."""
    return f"{heard} {CUT_HERE}" if heard else HEARD_NOTHING


def _prefix(text: str, length: int) -> str:
    """Cut at the last word that was begun before ``length``."""
    if length >= len(text):
        return text
    return text[:length].rpartition(" ")[0]
