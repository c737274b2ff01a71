"""The heard part of a speech, and the part of its message that stays in the history, as pure functions."""

from __future__ import annotations

from conductor.conversation.state import Speech
from conductor.conversation.view import View

# Characters that a synthetic voice reads per second, to cut by ``playedMs``; voices read 12 to 18.
CHARS_PER_SECOND = 15.0

CUT_HERE = "[The user interrupted here and did not hear the rest.]"
CUT_SOMEWHERE = "[The user interrupted this speech; it is not known how much of it was heard.]"
CUT_BEFORE_SPEECH = "[The user interrupted here, before any of this was spoken.]"
HEARD_NOTHING = "[The user interrupted before any of this was heard.]"


def interrupted(view: View) -> Speech | None:
    """Find the speech that an interruption concerns: the oldest unfinished one, else one that just ended."""
    finished, now = view.finished_speeches, view.now()
    for speech in view.state.speeches.values():
        if is_pending(view, speech):
            return speech
    recent = [
        speech
        for speech in view.state.speeches.values()
        if now - finished.get(speech.id, 0) <= view.rules.window_ms
    ]
    return recent[-1] if recent else None


def is_pending(view: View, speech: Speech) -> bool:
    """Tell whether a speech was not spoken to its end, in this process or an earlier one."""
    is_open = any(
        event.call_id == speech.id for event in view.state.outbound.values() if event.kind == "speak"
    )
    return is_open and speech.id not in view.finished_speeches


def heard_part(
    speech: Speech, spoken_text: str | None, played_ms: float | None, *, finished: bool
) -> str | None:
    """Give the heard part of the message; None if unknown.

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


def heard_text(speech: Speech, spoken_text: str | None, played_ms: float | None, *, finished: bool) -> str:
    """Cut the message of an interrupted speech; the whole stays, marked, if the heard part is unknown."""
    part = heard_part(speech, spoken_text, played_ms, finished=finished)
    text = marked(part) if part is not None else f"{speech.text} {CUT_SOMEWHERE}".strip()
    if speech.actions:
        text += f" [Done, though the user may not have heard so: {', '.join(speech.actions)}.]"
    return text


def heard_of_reply(view: View, reply_id: str) -> str | None:
    """Give the text of a reply's finished segments; None if no segment is known."""
    segments = [speech for speech in view.state.speeches.values() if reply_id and speech.reply_id == reply_id]
    if not segments:
        return None
    unheard = next((speech for speech in segments if is_pending(view, speech)), None)
    return segments[-1].text if unheard is None else unheard.preceding or None


def marked(text: str) -> str:
    """Mark a text as cut at its end."""
    return f"{text} {CUT_HERE}" if text else HEARD_NOTHING


def _prefix(text: str, length: int) -> str:
    return text if length >= len(text) else text[:length].rpartition(" ")[0]
