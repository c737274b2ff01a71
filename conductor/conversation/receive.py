"""The meaning of a client's event for a conversation, as pure functions."""

from __future__ import annotations

import re
from dataclasses import dataclass

from msgspec.structs import replace

from conductor.conversation import consent
from conductor.conversation import records as r
from conductor.conversation.consent import Refuse, Response
from conductor.conversation.heard import heard_part, heard_text
from conductor.conversation.phrases import (
    agent_notice,
    app_facts,
    app_words,
    late_result,
)
from conductor.conversation.state import (
    MAX_NOTICES,
    Call,
    Conversation,
    Notice,
    Profile,
    Speech,
)
from conductor.conversation.turns import ended, is_pending, remembered, turn_started
from conductor.conversation.view import Replay, View, finish, finish_without_result, late_call
from conductor.events import client
from conductor.tools.outcomes import (
    ToolOutcome,
    cancelled_outcome,
    device_outcome,
    job_outcome,
    timeout_outcome,
    without_result,
)

_RETRY_S = 2.0


@dataclass(frozen=True, slots=True)
class AppText:
    """A text of the app's backend: words for the person, or facts for the model's next turn."""

    text: str
    is_spoken: bool


def receive(view: View, event_id: str, event: object) -> Response:
    """Make the records of one event; no records if it was handled before, or has no meaning now.

    A transcript has words: `wordless` refuses a noise before.
    """
    if was_handled(view.state, event_id, event):
        return []
    match event:
        case client.TranscriptFinal():
            return _transcript(view, event_id, event.text.strip(), event.lang or "")
        case client.OutputInterrupted():
            return barge_in(view, event_id, event.spoken_text, event.played_ms)
        case client.ResponseCancel() if view.state.turn is not None:
            return [ended(view, "interrupted")]
        case client.ToolResultEvent() | client.ToolCancelled() | client.ToolAccepted():
            return _report(view, event)
        case client.AgentCompleted():
            notice = Notice(text=agent_notice(event), expires_at=view.now() + view.conduct.notice_ms)
            return [r.NoticeTaken(event_id, notice)]
        case AppText() if len(view.state.notices) >= MAX_NOTICES:
            return Refuse("rate_limited", "Too many texts wait in this session.", _RETRY_S)
        case AppText():
            # The app reports what others have written, such as a message.
            notice = Notice(text=app_facts(event.text), untrusted=True)
            if event.is_spoken:
                expires_at = view.now() + view.conduct.notice_ms
                notice = Notice(
                    text=app_words(event.text), expires_at=expires_at, untrusted=True, words=event.text
                )
            return [r.NoticeTaken(event_id, notice)]
    return []


def was_handled(state: Conversation, event_id: str, event: object) -> bool:
    """Return whether an event repeats one that was handled."""
    return state.has_handled(
        event_id, event.text.strip() if isinstance(event, client.TranscriptFinal) else ""
    )


# -- the person's words


def wordless(view: View, text: str) -> Refuse | None:
    """Refuse the transcript of a noise, such as ``[BLANK_AUDIO]``: no letter or digit outside brackets.

    While a question stands, words in brackets may be an answer.
    """
    if not text.strip():
        return Refuse("invalid_transcript", "The transcript is empty.")
    spoken = text if view.state.questions else _BRACKETED.sub("", text)
    if any(map(str.isalnum, spoken)):
        return None
    return Refuse("invalid_transcript", "The transcript has no words.")


_BRACKETED = re.compile(
    r"\([^()]*+\)|\[[^\[\]]*+\]|\{[^{}]*+\}|<[^<>]*+>|\*[^*]*+\*|\uff08[^\uff08\uff09]*+\uff09|\u3010[^\u3010\u3011]*+\u3011"
)


def _transcript(view: View, event_id: str, text: str, lang: str) -> Response:
    answer = consent.answer(view, event_id, text, lang)
    if answer is not None:
        return answer
    stop = view.live.stop
    if stop.draining and not stop.is_suspended:
        return Refuse("rate_limited", "The server restarts.", _RETRY_S)
    return start(view, event_id, text, lang)


def starts_turn(response: Response) -> bool:
    """Return whether words start a turn, now or after a wait in the queue: it counts against the rate."""
    return isinstance(response, list) and any(
        isinstance(record, r.TurnStarted | r.InputQueued) for record in response
    )


def too_late(view: View, event_id: str, event: object, question_id: str) -> list[r.Record]:
    """Handle words about a question that is closed: they decide nothing, and the model gets no turn."""
    assert isinstance(event, client.TranscriptFinal)
    if was_handled(view.state, event_id, event):
        return []
    if view.state.turn is not None:
        return [
            r.AnswerUnclear(question_id=question_id, event_id=event_id, text=event.text.strip(), counts=False)
        ]
    started = turn_started(view, "transcript", event_id, event.text.strip(), lang=event.lang or "")
    return [started, r.TurnEnded(reason="interrupted", follows=view.follows)]


def start(view: View, event_id: str, text: str, lang: str = "") -> Response:
    """Answer a transcript: at once, in place of the running turn, or after it."""
    state = view.state
    started = turn_started(view, "transcript", event_id, text, lang=lang)
    records: list[r.Record] = []
    # An unanswered question is superseded in every mode.
    supersedes = state.turn is not None and (view.conduct.cancels or bool(state.questions))
    waits = view.live.stop.is_suspended or bool(state.queue) or (state.turn is not None and not supersedes)
    if waits and len(state.queue) >= view.conduct.max_queue:
        message = f"More than {view.conduct.max_queue} transcripts are waiting."
        return Refuse("rate_limited", message, _RETRY_S)
    if supersedes:
        end = ended(view, "interrupted", follow=True)
        records = [*withdrawn_speeches(view), end]
    if waits:
        return [*records, r.InputQueued(event_id, text, lang)]
    return [
        *(records or (withdrawn_speeches(view) if view.conduct.cancels else [])),
        *remembered(view, text),
        started,
    ]


def withdrawn_speeches(view: View) -> list[r.Record]:
    """Withdraw the speeches that no socket took: the next transcript makes them obsolete."""
    unsent = {
        speech.reply_id: speech
        for speech in reversed(view.state.speeches.values())
        if not view.was_sent(speech.id) and is_pending(view, speech)
    }
    cuts: list[r.Record] = []
    for speech in unsent.values():
        if speech.position >= 0:
            cuts.append(r.SpeechCut(speech.id, heard_text(speech, "", None, finished=False)))
    return cuts


def barge_in(
    view: View,
    event_id: str,
    spoken_text: str | None,
    played_ms: float | None,
) -> list[r.Record]:
    """Handle an interruption: it cuts its speech, and ends the turn unless that was another turn's speech."""
    speech = _interrupted(view)
    if speech is not None and speech.question_id:
        cut = consent.prompt_cut(view, speech.question_id, event_id)
        return cut or [r.EventHandled(event_id)]
    if speech is None and view.state.focus is not None and view.state.focus.repeat_at:
        return [r.EventHandled(event_id)]  # a tap after the voice: the prompt is cut already
    finished = speech is not None and speech.id in view.live.outbox.finished_speeches
    records: list[r.Record] = []
    heard_prefix = spoken_text.strip() if spoken_text is not None else None
    if speech is not None and speech.position >= 0:
        text = heard_text(speech, spoken_text, played_ms, finished=finished)
        records.append(r.SpeechCut(speech.id, text, event_id))
    elif speech is not None:
        heard_prefix = heard_part(speech, spoken_text, played_ms, finished=finished)
    turn = view.state.turn
    if turn is not None and (speech is None or finished or speech.turn_id == turn.id):
        records.append(ended(view, "interrupted", heard_prefix=heard_prefix, event_id=event_id))
    return records or [r.EventHandled(event_id)]


def _interrupted(view: View) -> Speech | None:
    """Find the speech that an interruption concerns: the oldest unfinished one, else one that just ended."""
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


# -- results


def _report(
    view: View, event: client.ToolResultEvent | client.ToolCancelled | client.ToolAccepted
) -> list[r.Record]:
    """Handle a device's report about a call: in time, late, or as the end of a prompt's speech."""
    state, now, is_result = view.state, view.now(), isinstance(event, client.ToolResultEvent)
    call, late = state.open_call(event.call_id), state.late_calls.get(event.call_id)
    if call is not None and call.is_device and call.started_at:
        outcome = _outcome(event, call.effect, view.seconds_since(call.started_at))
        is_job = isinstance(event, client.ToolAccepted)
        job = late_call(call, now + view.conduct.job_ms, job=True) if is_job else None
        return [finish(view, call, outcome, late=job)]
    if late is None or late.expires_at <= now:
        return consent.prompt_heard(state, event.call_id) if is_result else []
    if isinstance(event, client.ToolAccepted):
        return [r.JobAccepted(replace(late, expires_at=now + view.conduct.job_ms, job=True))]
    if isinstance(event, client.ToolCancelled) and event.effect == "none" and late.effect == "read":
        return []  # the model knows already that it was cancelled
    closed = Call(
        id=late.call_id, name=late.name, source="device", effect=late.effect, untrusted=late.untrusted
    )
    result = finish(view, closed, _outcome(event, late.effect, view.seconds_since(late.started_at))).result
    starts_turn = late.job or (late.starts_turn and state.turn is None)
    expires_at = now + view.conduct.notice_ms if starts_turn else 0
    note = late_result(late.name, late.arguments, result.content)
    notice = Notice(text=note, expires_at=expires_at, untrusted=late.untrusted, late=True)
    return [r.LateFinished(late.call_id, notice, starts_turn)]


def _outcome(
    event: client.ToolResultEvent | client.ToolCancelled | client.ToolAccepted, effect: str, took_s: float
) -> ToolOutcome:
    match event:
        case client.UnreadableResult():
            return without_result("ran", event.why, effect=effect, reason="unreadable", took_s=took_s)
        case client.ToolCancelled():
            return cancelled_outcome(event.effect, event.result, took_s)
        case client.ToolAccepted():
            return job_outcome(event.job_id, took_s)
    return device_outcome(event, took_s)


def timed_out(view: View, call_id: str, *, was_shown: bool, was_sent: bool = True) -> list[r.Record]:
    """Handle the end of the time limit of a call or a speech; ``was_shown``: the speech's text."""
    call = view.state.open_call(call_id)
    if call is not None and call.is_device:
        outcome = timeout_outcome(call.effect, view.seconds_since(call.started_at), was_sent=was_sent)
        return [finish_without_result(view, call, outcome, starts_turn=True)]
    return consent.prompt_heard(view.state, call_id) if was_shown else []


# -- connections


def connected(
    view: View, replay: Replay, profile: Profile, *, resumed: bool, same_process: bool, is_new: bool
) -> list[r.Record]:
    """Make the records of a client's connection, before any event is sent to it.

    ``profile`` is its declaration, which is not recorded yet. ``is_new``: it is not the connection before.
    """
    state, focus = view.state, view.state.focus
    records: list[r.Record] = []
    if is_new and not (same_process and "resume" in profile.capabilities):
        records += [r.ClientReplaced()] if state.handled_ids else []
        # A relaunched app would run them again, now and whenever it reconnects.
        withheld = [
            event.id
            for event in state.outbound.values()
            if event.kind == "call"
            and event.effect != "read"
            and not event.withheld
            and view.was_sent(event.call_id)
        ]
        records += [r.CallsWithheld(tuple(withheld))] if withheld else []
    # The answer to a probe shows that the replay was handled. Without a turn ``idle`` serves, unless it
    # is held behind a speech.
    if is_new and replay.unconfirmed and (replay.waits or state.turn is not None):
        records.append(r.StateShown("speaking" if replay.waits else replay.state, probe=True))
    if questions := _questions(view, replay, profile, same_process=same_process, is_new=is_new):
        return [*records, *questions]
    # A transcript lost with the old socket has left the app waiting for ``idle``.
    if resumed and (state.turn is None or (focus is not None and is_new)):
        return [*records, r.StateShown("idle")]
    return records


def _questions(
    view: View, replay: Replay, profile: Profile, *, same_process: bool, is_new: bool
) -> list[r.Record]:
    """Ask the open questions of a client that has just connected, unless it shows them or the replay does."""
    focus, questions = view.state.focus, view.state.questions.values()
    if focus is None:
        return []
    if "approval" in profile.capabilities:
        visible = [q.id for q in questions if q.card and (same_process or q.id in replay.cards)]
        missing = tuple(replace(question, card=True) for question in questions if question.id not in visible)
        return [r.QuestionsAsked(missing)] if missing else []
    is_presented = focus.presentations and not (is_new and not (same_process and focus.presented_at))
    if focus.speech_id in replay.speeches or is_presented:
        return []
    return [r.PromptSpoken(focus.id, focus.prompt, counts=False)]
