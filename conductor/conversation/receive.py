"""The meaning of a client's event for a conversation, as pure functions."""

from __future__ import annotations

import re
from dataclasses import dataclass

from msgspec.structs import replace

from conductor.conversation import consent
from conductor.conversation import records as r
from conductor.conversation.consent import Refuse, Response
from conductor.conversation.interruptions import (
    backchannel,
    barge_in,
    cut_paused,
    pause_over,
    paused,
    withdrawn_speeches,
)
from conductor.conversation.phrases import (
    agent_notice,
    app_words,
    late_result,
)
from conductor.conversation.state import (
    MAX_NOTICES,
    AppFact,
    Call,
    Conversation,
    Input,
    Notice,
    Profile,
    UnknownCall,
)
from conductor.conversation.turns import continued, ended, may_go_on, remembered, turn_about
from conductor.conversation.view import Replay, View, finish, finish_without_result, late_call
from conductor.events import client
from conductor.images import NONE_TAKEN, Taken
from conductor.tools.outcomes import (
    ToolOutcome,
    cancelled_outcome,
    device_outcome,
    job_outcome,
    timeout_outcome,
    with_images,
    without_result,
)

_RETRY_S = 2.0


@dataclass(frozen=True, slots=True)
class AppWords:
    """Words of the app's backend for the person."""

    text: str


def receive(view: View, event_id: str, event: object, taken: Taken = NONE_TAKEN) -> Response:
    """Make the records of one event with the images that were ``taken`` of it.

    There are none if it was handled before, or has no meaning now.

    A transcript has words: `wordless` refuses a noise before.
    """
    if was_handled(view.state, event_id, event):
        return []
    match event:
        case client.TranscriptFinal():
            return _transcript(view, event_id, event, taken)
        case client.OutputInterrupted():
            return barge_in(view, event_id, event)
        case client.OutputPaused():
            return paused(view, event_id, event)
        case client.ResponseCancel():
            return _stopped(view)
        case client.ToolResultEvent() | client.ToolCancelled() | client.ToolAccepted():
            return _report(view, event, taken)
        case client.AgentCompleted():
            notice = Notice(text=agent_notice(event), expires_at=view.now() + view.conduct.notice_ms)
            return [r.NoticeTaken(event_id, notice)]
        case client.ContextAdd():
            expires_at = view.now() + round(event.ttl_s * 1000) if event.ttl_s is not None else 0
            fact = AppFact(
                text=event.text.strip(),
                key=event.key or "",
                expires_at=expires_at,
                untrusted=event.untrusted,
            )
            _, dropped = view.state.facts_with(fact, view.now())
            return [r.ContextAdded(event_id, fact, dropped)]
        case AppWords() if len(view.state.notices) >= MAX_NOTICES:
            return Refuse("rate_limited", "Too many texts wait in this session.", _RETRY_S)
        case AppWords():
            expires_at = view.now() + view.conduct.notice_ms
            # The app may say what others have written, such as a message.
            notice = Notice(
                text=app_words(event.text), expires_at=expires_at, untrusted=True, words=event.text
            )
            return [r.NoticeTaken(event_id, notice)]
    return []


def _stopped(view: View) -> list[r.Record]:
    cut, half = cut_paused(view), view.state.half
    if view.state.turn is not None:
        return [*cut.records, ended(view, "interrupted", heard_prefix=cut.heard_prefix)]
    if half is None:
        return cut.records
    # It stays in the history, without an answer.
    return [*cut.records, turn_about(view, half), r.TurnEnded(reason="interrupted")]


def was_handled(state: Conversation, event_id: str, event: object) -> bool:
    """Return whether an event repeats one that was handled."""
    return state.has_handled(
        event_id, event.text.strip() if isinstance(event, client.TranscriptFinal) else ""
    )


# -- the person's words


def wordless(view: View, text: str) -> Refuse | None:
    """Refuse the transcript of a noise: no letter or digit outside brackets, or the credits of a film."""
    if not text.strip():
        return Refuse("invalid_transcript", "The transcript is empty.")
    if any(map(str.isalnum, _BRACKETED.sub("", text))) and not view.gate.is_credit(text):
        return None
    return Refuse("invalid_transcript", "The transcript has no words.")


# A recogniser writes a song that it hears between notes.
_BRACKETED = re.compile(
    r"[♪♫🎵🎶][^♪♫🎵🎶]*+[♪♫🎵🎶]|\([^()]*+\)|\[[^\[\]]*+\]|\{[^{}]*+\}|<[^<>]*+>|\*[^*]*+\*|\uff08[^\uff08\uff09]*+\uff09|\u3010[^\u3010\u3011]*+\u3011"
)


def _transcript(view: View, event_id: str, event: client.TranscriptFinal, taken: Taken) -> Response:
    text, lang = event.text.strip(), event.lang or ""
    images = taken.with_refused  # a bad picture takes nothing from the words
    # Somebody who shows something does more than listen.
    if not images and (listened := backchannel(view, event_id, text, lang)):
        return listened
    words = Input(event_id=event_id, text=text, lang=lang, images=images)
    answer = consent.answer(view, words)
    if answer is not None:
        return [*cut_paused(view).records, *answer] if isinstance(answer, list) else answer
    stop = view.live.stop
    if stop.draining and not stop.is_suspended:
        return Refuse("rate_limited", "The server restarts.", _RETRY_S)
    return _start(view, words)


def starts_turn(response: Response) -> bool:
    """Return whether words start a turn, now or after a wait in the queue: it counts against the rate."""
    return isinstance(response, list) and any(
        isinstance(record, r.TurnStarted | r.InputQueued) for record in response
    )


def too_late(
    view: View,
    event_id: str,
    event: client.TranscriptFinal,
    question_id: str,
    *,
    taken: Taken = NONE_TAKEN,
) -> list[r.Record]:
    """Handle words about a question that is closed: they decide nothing, and the model gets no turn."""
    if was_handled(view.state, event_id, event):
        return []
    text, cut = event.text.strip(), cut_paused(view)
    if view.state.turn is not None:
        unclear = r.AnswerUnclear(question_id=question_id, event_id=event_id, text=text, counts=False)
        return [*cut.records, unclear]
    words = Input(event_id=event_id, text=text, lang=event.lang or "", images=taken.with_refused)
    started = turn_about(view, words)
    return [*cut.records, started, r.TurnEnded(reason="interrupted", follows=view.follows)]


def _start(view: View, words: Input) -> Response:
    """Answer a transcript: at once, in place of the running turn, or after it."""
    state, cut = view.state, cut_paused(view)
    # An unanswered question is superseded in every mode.
    replaces = view.conduct.cancels or bool(state.questions) or cut.ends_turn
    supersedes = state.turn is not None and replaces
    begun = continued(view)
    half = begun or state.half
    whole = half.continued_by(words) if half is not None else words
    until = _hold_until(view, whole)
    others = len(state.queue) - (state.half is not None)
    waits = view.live.stop.is_suspended or others > 0 or (state.turn is not None and not supersedes)
    if others >= view.conduct.max_queue:
        message = f"More than {view.conduct.max_queue} transcripts are waiting."
        return Refuse("rate_limited", message, _RETRY_S)
    queued = r.InputQueued(words.event_id, words.text, words.lang, until=until, images=words.images)
    if state.turn is not None and not supersedes:  # the speech of an earlier turn goes on
        return [*pause_over(view), queued]
    records = cut.records
    if supersedes or view.conduct.cancels:
        records = [*records, *withdrawn_speeches(view)]
    if supersedes:
        end = ended(view, "interrupted", heard_prefix=cut.heard_prefix, follow=True)
        records.append(end if begun is None else replace(end, text="", continues=True))
    if waits or until or half is not None:
        records = [*records, queued]
    if waits or until:
        return records
    return [*records, *remembered(view, whole.text), turn_about(view, whole)]


def _hold_until(view: View, words: Input) -> int:
    """Return until when words wait for their other half; 0 if they are whole, or an answer."""
    if not view.hold_ms or view.state.questions:
        return 0
    is_half = may_go_on(words) and view.gate.is_unfinished(words.text, words.lang)
    return view.now() + view.hold_ms if is_half else 0


# -- results


def _report(
    view: View, event: client.ToolResultEvent | client.ToolCancelled | client.ToolAccepted, taken: Taken
) -> list[r.Record]:
    """Handle a device's report about a call: in time, late, or as the end of a prompt's speech."""
    state, now, is_result = view.state, view.now(), isinstance(event, client.ToolResultEvent)
    call, late = state.open_call(event.call_id), state.late_calls.get(event.call_id)
    if call is not None and call.is_device and call.started_at:
        outcome = with_images(_outcome(event, call.effect, view.seconds_since(call.started_at)), taken)
        is_job = isinstance(event, client.ToolAccepted)
        job = late_call(call, now + view.conduct.job_ms, job=True) if is_job else None
        unknown = (
            UnknownCall(call.digest, now + view.conduct.late_ms) if _is_in_part(event, call.effect) else None
        )
        return [finish(view, call, outcome, late=job, unknown=unknown)]
    if late is None or late.expires_at <= now:
        return consent.prompt_heard(state, event.call_id) if is_result else []
    if isinstance(event, client.ToolAccepted):
        return [r.JobAccepted(replace(late, expires_at=now + view.conduct.job_ms, job=True))]
    if isinstance(event, client.ToolCancelled) and event.effect == "none" and late.effect == "read":
        return []  # the model knows already that it was cancelled
    outcome = with_images(_outcome(event, late.effect, view.seconds_since(late.started_at)), taken)
    result = finish(view, Call(id=late.call_id, name=late.name), outcome).result
    starts_turn = late.job or (late.starts_turn and state.turn is None)
    expires_at = now + view.conduct.notice_ms if starts_turn else 0
    note = late_result(late.name, late.arguments, result.content)
    notice = Notice(
        text=note, expires_at=expires_at, untrusted=late.untrusted, late=True, images=result.images
    )
    return [r.LateFinished(late.call_id, notice, starts_turn, _is_in_part(event, late.effect))]


def _is_in_part(event: object, effect: str) -> bool:
    """Return whether a call has done a part of its work: repeated by mistake, it would do it twice."""
    return isinstance(event, client.ToolCancelled) and event.effect == "partial" and effect != "read"


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
    # Else the pause stands: the words that end it may have been lost with the old socket.
    records: list[r.Record] = [] if "pause" in profile.capabilities else pause_over(view)
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
