"""A person who speaks over a speech: its pause, and what ends it or the speech, as pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from conductor.conversation import consent
from conductor.conversation import records as r
from conductor.conversation.heard import begun_part, heard_part, heard_text
from conductor.conversation.state import Conversation, Speech
from conductor.conversation.turns import ended, is_pending
from conductor.conversation.view import View
from conductor.messages import AssistantMessage, UserMessage

if TYPE_CHECKING:  # a type only
    from conductor.events.client import OutputInterrupted, OutputPaused

_QUESTION_MARK = re.compile(r"[?؟][\"')\]»”’*_]*(?:\s+|$)|？")
_LAST_QUESTION = re.compile(r"[?؟？]\W*$")


@dataclass(frozen=True, slots=True)
class Cut:
    """What an interruption cuts.

    ``ends_turn``: nothing else is spoken, or the running turn spoke. ``heard_prefix`` is the heard part of a
    reply that is not in the log yet, None if it is not known.
    """

    records: list[r.Record] = field(default_factory=list)
    ends_turn: bool = False
    heard_prefix: str | None = None


def cut_speech(
    view: View, event_id: str = "", spoken_text: str | None = None, played_ms: float | None = None
) -> Cut:
    """Cut the speech that an interruption concerns; of a paused one is heard at least what its pause told."""
    state, pause = view.state, view.state.pause
    records: list[r.Record] = [r.PauseEnded(resumes=False, event_id=event_id)] if pause is not None else []
    if pause is not None and spoken_text is None and played_ms is None:
        spoken_text, played_ms = pause.spoken_text, pause.played_ms
    speech = _interrupted(view)
    if speech is not None and speech.question_id:
        return Cut([*records, *consent.prompt_cut(view, speech.question_id, event_id)])
    if speech is None and state.focus is not None and state.focus.repeat_at:
        return Cut(records)  # a tap after the voice: the prompt is cut already
    finished = speech is not None and speech.id in view.live.outbox.finished_speeches
    heard_prefix = spoken_text.strip() if spoken_text is not None else None
    if speech is not None and speech.position >= 0:
        text = heard_text(speech, spoken_text, played_ms, finished=finished)
        records.append(r.SpeechCut(speech.id, text, event_id))
        heard_prefix = None
    elif speech is not None:
        heard_prefix = heard_part(speech, spoken_text, played_ms, finished=finished)
    turn = state.turn
    ends_turn = turn is not None and (speech is None or finished or speech.turn_id == turn.id)
    return Cut(records, ends_turn, heard_prefix)


def cut_paused(view: View) -> Cut:
    """Cut the paused speech, if there is one, and a question that is held behind it."""
    focus = view.state.focus
    if view.state.pause is None:
        return Cut()
    cut = cut_speech(view)
    if focus is not None and not focus.card and not view.was_sent(focus.speech_id):
        return replace(cut, records=[*cut.records, *consent.prompt_cut(view, focus.id, "")])
    return cut


def barge_in(view: View, event_id: str, event: OutputInterrupted) -> list[r.Record]:
    """Handle an interruption: it cuts its speech, and ends the turn unless that was another turn's speech."""
    cut = cut_speech(view, event_id, event.spoken_text, event.played_ms)
    records = cut.records
    if cut.ends_turn:
        end = ended(view, "interrupted", heard_prefix=cut.heard_prefix, event_id=event_id)
        records = [*records, end]
    return records or [r.EventHandled(event_id)]


def withdrawn_speeches(view: View) -> list[r.Record]:
    """Withdraw the speeches that no socket took, besides a paused one: the next transcript outdates them."""
    unsent = {
        speech.reply_id: speech
        for speech in reversed(view.state.speeches.values())
        if is_pending(view, speech) and (not view.was_sent(speech.id) or _is_of_pause(view.state, speech))
    }
    if (paused := _paused_speech(view)) is not None:
        unsent.pop(paused.reply_id, None)
    return [
        r.SpeechCut(speech.id, heard_text(speech, "", None, finished=False))
        for speech in unsent.values()
        if speech.position >= 0
    ]


def _is_of_pause(state: Conversation, speech: Speech) -> bool:
    """Return whether a speech was made in the pause, so that no socket took it, in any process."""
    events = (event for event in state.outbound.values() if event.call_id == speech.id)
    return state.pause is not None and any(event.at > state.pause.at for event in events)


def _interrupted(view: View) -> Speech | None:
    """Find the interrupted speech: the paused one, the oldest unfinished one, or one that just ended."""
    if (paused := _paused_speech(view)) is not None:
        return paused
    finished, now = view.live.outbox.finished_speeches, view.now()
    for speech in view.state.speeches.values():
        if is_pending(view, speech):
            return speech
    recent = [
        speech
        for speech in view.state.speeches.values()
        if now - finished.get(speech.id, 0) <= view.conduct.window_ms
    ]
    return recent[-1] if recent else None


# -- pauses


def paused(view: View, event_id: str, event: OutputPaused) -> list[r.Record]:
    """Handle a pause: it concerns the speech that the app names, or the one that an interruption would.

    Of a speech that has ended it holds nothing, and the voice goes on; but the words that come may still be a
    backchannel, since a lost connection delays the pause.
    """
    name, speeches = event.speech_id, view.state.speeches.values()
    named = (s for s in speeches if name in (s.id, s.reply_id) and is_pending(view, s))
    speech = next(named, None) if name else _interrupted(view)
    if speech is None and view.state.half is not None:
        return [r.EventHandled(event_id)]  # the half has cut it; the next words are the other half
    if speech is None and name:
        if view.state.pause is not None:
            return [r.EventHandled(event_id)]
        return [r.EventHandled(event_id), r.PauseEnded(resumes=True, name=name)]
    speech_id = speech.id if speech is not None else ""
    return [
        r.SpeechPaused(
            event_id=event_id,
            speech_id=speech_id,
            name=event.speech_id or speech_id,
            spoken_text=event.spoken_text,
            played_ms=event.played_ms,
        )
    ]


def pause_over(view: View) -> list[r.Record]:
    """Let the paused speech go on, if there is one."""
    pause = view.state.pause
    return [] if pause is None else [r.PauseEnded(resumes=True, name=pause.name)]


def backchannel(view: View, event_id: str, text: str, lang: str) -> list[r.Record]:
    """Handle words that only show that the person listens: their speech goes on. No records for other words.

    The words may come when the pause is over already, since a recogniser takes its time.
    """
    pause, late = view.state.pause, view.state.late_pause
    if pause is None and late is not None and view.now() < late.at + view.conduct.pause_ms:
        pause = late
    resumed = (s.resumed_as for s in view.state.speeches.values() if s.resumed_as and is_pending(view, s))
    name = pause.name if pause is not None else next(resumed, None)
    if name is None or question_stands(view) or not view.gate.is_backchannel(text, lang):
        return []
    return [r.PauseEnded(resumes=True, event_id=event_id, text=text, name=name)]


def resumes_at(view: View) -> int | None:
    """Return when a paused speech goes on without a transcript; None without a pause or a client."""
    pause = view.state.pause
    if pause is None or not view.live.outbox.is_connected:
        return None
    return max(pause.at, view.live.speech.heard_at) + view.conduct.pause_ms


def question_stands(view: View) -> bool:
    """Return whether words may be an answer: a call waits for one, or the assistant has asked.

    It has asked if the paused reply ends in a question, or a question was begun since the person spoke last.
    """
    state, pause = view.state, view.state.pause
    if state.questions:
        return True
    speech = _paused_speech(view)
    if pause is not None and speech is not None:
        if _asks(begun_part(speech, pause.spoken_text, pause.played_ms)) or _LAST_QUESTION.search(
            speech.text
        ):
            return True
    own = speech.position if speech is not None else None
    unlogged = state.turn.reply_text if state.turn is not None else ""
    return _LAST_QUESTION.search(unlogged) is not None or any(
        _LAST_QUESTION.search(text) if position == own else _asks(text) for position, text in _replies(state)
    )


def _replies(state: Conversation) -> Iterator[tuple[int, str]]:
    """List the assistant's texts since the person spoke last, with their positions in the log."""
    for position in range(state.log_end - 1, state.log_start - 1, -1):
        message = state.log[position - state.log_start]
        if isinstance(message, UserMessage):
            return
        if isinstance(message, AssistantMessage):
            yield position, message.text


def _asks(text: str) -> bool:
    """Return whether a sentence of a text is a question; a small letter goes on after a quoted one."""
    return any(not text[mark.end() : mark.end() + 1].islower() for mark in _QUESTION_MARK.finditer(text))


def _paused_speech(view: View) -> Speech | None:
    pause = view.state.pause
    return view.state.speeches.get(pause.speech_id) if pause is not None else None
