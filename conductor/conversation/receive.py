"""The meaning of a client's event or of a model's reply for a conversation, as pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from conductor.conversation import approvals
from conductor.conversation.approvals import Refuse, Response
from conductor.conversation.history import cut_point
from conductor.conversation.live import Live, Rules, follows
from conductor.conversation.phrases import CUT_OFF, Failure, agent_notice, late_result
from conductor.conversation.records import (
    CallFinished,
    CallsWithheld,
    EventHandled,
    InputQueued,
    LateFinished,
    NoticeTaken,
    Record,
    ReplyLogged,
    SpeechCut,
    StateShown,
    TurnEnded,
    TurnStarted,
)
from conductor.conversation.speech import (
    CUT_BEFORE_SPEECH,
    CUT_SOMEWHERE,
    heard_of_reply,
    heard_part,
    heard_text,
    interrupted,
    is_pending,
    marked,
)
from conductor.conversation.state import (
    Call,
    Cause,
    Conversation,
    EndReason,
    LateCall,
    Notice,
    Profile,
    Turn,
    UnknownCall,
)
from conductor.errors import ErrorCode
from conductor.events import client
from conductor.events.server import ConversationState
from conductor.messages import AssistantMessage, ToolResult
from conductor.tools.approvals import not_answered
from conductor.tools.base import ToolOutcome
from conductor.tools.executor import (
    cancelled_outcome,
    device_outcome,
    interrupted_outcome,
    job_outcome,
)

_RETRY_S = 2.0


def receive(
    state: Conversation, live: Live, rules: Rules, event_id: str, event: object, turn_id: str
) -> Response:
    """Make the records of one event; no records if it was handled before, or has no meaning now.

    ``turn_id`` is for a turn that the event starts.
    """
    if event_id in state.handled_ids:
        return []
    match event:
        case client.TranscriptFinal():
            return _transcript(state, live, rules, event_id, event.text.strip(), turn_id)
        case client.OutputInterrupted():
            return barge_in(state, live, rules, event_id, event.spoken_text, event.played_ms)
        case client.ResponseCancel() if state.turn is not None:
            return [ended(state, live, rules, "interrupted")]
        case client.ToolResultEvent():
            return device_result(state, live, rules, event.call_id, event.result, event.error)
        case client.ToolCancelled():
            return _cancelled(state, live, rules, event)
        case client.ToolAccepted():
            return _accepted(state, live, rules, event)
        case client.AgentCompleted():
            notice = Notice(agent_notice(event), live.now() + rules.notice_ms)
            return [NoticeTaken(event_id, notice)]
    return []


# -- the person's words


def _transcript(
    state: Conversation, live: Live, rules: Rules, event_id: str, text: str, turn_id: str
) -> Response:
    if not text:
        return Refuse("invalid_transcript", "The transcript is empty.")
    answer = approvals.answer(state, live, rules, event_id, text)
    if answer is not None:
        return answer
    if live.draining and not rules.durable:
        return Refuse("rate_limited", "The server restarts.", _RETRY_S)
    return start(state, live, rules, event_id, text, turn_id)


def start(state: Conversation, live: Live, rules: Rules, event_id: str, text: str, turn_id: str) -> Response:
    """Answer a transcript: at once, in place of the running turn, or after it."""
    started = turn_started(state, live, rules, turn_id, "transcript", event_id, text)
    records: list[Record] = []
    # An unanswered question is superseded in every mode.
    supersedes = state.turn is not None and (rules.cancels or bool(state.questions))
    waits = live.is_suspended(rules) or bool(state.queue) or (state.turn is not None and not supersedes)
    if waits and len(state.queue) >= rules.max_queue:
        message = f"More than {rules.max_queue} transcripts are waiting."
        return Refuse("rate_limited", message, _RETRY_S)
    if supersedes:
        end = ended(state, live, rules, "interrupted", follow=True)
        records = [*withdrawn_speeches(state, live), end]
    if waits:
        return [*records, InputQueued(event_id, text)]
    return [*(records or (withdrawn_speeches(state, live) if rules.cancels else [])), started]


def turn_started(
    state: Conversation,
    live: Live,
    rules: Rules,
    turn_id: str,
    cause: Cause,
    event_id: str = "",
    text: str = "",
    tool: str = "",
) -> TurnStarted:
    """Make the start of a turn; it drops the old part of a long history."""
    trim = state.log_start + cut_point(state.log, rules.limits.max_turns - 1, live.history.tokens)
    summary = None
    # An interruption, or a history that was too long, may have dropped the summarised messages.
    if live.summary is not None and live.summary.before > state.log_start:
        trim, summary = max(trim, live.summary.before), live.summary.summary
    trim = trim if trim > state.log_start else 0
    return TurnStarted(turn_id, cause, rules.turn_ms, event_id, text, tool, trim, summary)


def withdrawn_speeches(state: Conversation, live: Live) -> list[Record]:
    """Withdraw the speeches that no socket took: the next transcript makes them obsolete."""
    unsent = {
        speech.reply_id: speech
        for speech in reversed(state.speeches.values())
        if not (speech.question_id or live.was_sent(speech.id)) and is_pending(state, live, speech)
    }
    cuts: list[Record] = []
    for speech in unsent.values():
        if speech.position >= 0:
            cuts.append(SpeechCut(speech.id, heard_text(speech, "", None, finished=False)))
    return cuts


def barge_in(
    state: Conversation,
    live: Live,
    rules: Rules,
    event_id: str,
    spoken_text: str | None,
    played_ms: float | None,
) -> list[Record]:
    """Take an interruption: it cuts its speech, and ends the turn unless that was another turn's speech."""
    speech = interrupted(state, live, rules)
    if speech is not None and speech.question_id:
        cut = approvals.prompt_cut(state, live, rules, speech.question_id, event_id)
        return cut or [EventHandled(event_id)]
    if speech is None and state.focus is not None and state.focus.repeat_at:
        return [EventHandled(event_id)]  # a tap after the voice: the prompt is cut already
    finished = speech is not None and speech.id in live.finished_speeches
    records: list[Record] = []
    heard_prefix = spoken_text.strip() if spoken_text is not None else None
    if speech is not None and speech.position >= 0:
        text = heard_text(speech, spoken_text, played_ms, finished=finished)
        records.append(SpeechCut(speech.id, text, event_id))
    elif speech is not None:
        heard_prefix = heard_part(speech, spoken_text, played_ms, finished=finished)
    turn = state.turn
    if turn is not None and (speech is None or finished or speech.turn_id == turn.id):
        records.append(ended(state, live, rules, "interrupted", heard_prefix=heard_prefix, event_id=event_id))
    return records or [EventHandled(event_id)]


# -- the end of a turn


def ended(
    state: Conversation,
    live: Live,
    rules: Rules,
    reason: EndReason,
    *,
    heard_prefix: str | None = None,
    error: ErrorCode | None = None,
    failure: Failure | None = None,
    event_id: str = "",
    follow: bool | None = None,
) -> TurnEnded:
    """Make the end of the running turn: an honest result for each open call, the rest of a reply.

    ``failure`` names the apology, if it is not that of the code ``error``.
    """
    turn = state.turn
    assert turn is not None
    cause = {"timed_out": "turn_timeout", "session_end": "session_end"}.get(reason, reason)
    open_calls = [call for call in turn.calls if call.is_open]
    results = tuple(_abandoned(call, live, rules, cause) for call in open_calls)
    # Only a call that was on the wire is cancelled there.
    cancelled = tuple(
        call.id
        for call in open_calls
        if call.is_device
        and call.started_at
        and live.was_sent(call.id)
        and (reason == "timed_out" or call.on_interrupt == "cancel")
    )
    is_writing = not turn.calls and live.request == (turn.id, turn.rounds, turn.retries)
    draft = (live.draft.strip() if is_writing else "") or turn.reply_text.strip()
    text, apology, speech_text = "", "", ""
    if reason in ("interrupted", "session_end"):
        text = _heard_draft(state, live, turn, draft, heard_prefix)
    elif turn.cause != "request":
        text = f"{draft} {CUT_OFF}" if draft else ""
        cause_of = failure or error
        apology = rules.failures.get(cause_of, "") if cause_of is not None else ""
        speech_text = live.decisions.for_the_ear(apology) if apology else ""
    return TurnEnded(
        reason,
        event_id,
        text,
        results,
        cancelled,
        tuple(state.questions),
        error if turn.cause != "request" else None,
        apology,
        speech_text,
        follows(state, live, rules) if follow is None else follow,
    )


def _heard_draft(state: Conversation, live: Live, turn: Turn, draft: str, heard_prefix: str | None) -> str:
    if not draft:
        return ""
    if heard_prefix is None:
        heard_prefix = heard_of_reply(state, live, turn.reply_id)
    if heard_prefix is not None:
        return marked(heard_prefix[: len(draft)])
    if turn.reply_text:
        return f"{turn.reply_text.strip()} {CUT_SOMEWHERE}"
    return f"{draft} {CUT_BEFORE_SPEECH}"


def _abandoned(call: Call, live: Live, rules: Rules, cause: str) -> CallFinished:
    """Make the honest result of a call whose turn ends."""
    if call.consent in ("needed", "asked"):
        superseded = cause == "interrupted"
        return finish(call, live, not_answered("superseded" if superseded else "interrupted"))
    was_sent = bool(call.started_at) and (not call.is_device or live.was_sent(call.id))
    outcome = interrupted_outcome(call.effect, was_sent=was_sent, reason=cause)
    return finish_without_result(call, live, rules, outcome, starts_turn=call.effect != "read")


def finish_without_result(
    call: Call, live: Live, rules: Rules, outcome: ToolOutcome, *, starts_turn: bool
) -> CallFinished:
    """Close a call without its result; the true one of a device call may still come."""
    late = late_call(call, live.now() + rules.late_ms, starts_turn=starts_turn) if call.is_device else None
    unknown = None
    if outcome.error_type == "unknown" and call.effect != "read":
        unknown = UnknownCall(call.digest, live.now() + rules.late_ms)
    return finish(call, live, outcome, late=late, unknown=unknown)


def late_call(call: Call, expires_at: int, *, starts_turn: bool = True, job: bool = False) -> LateCall:
    """Make the memory of a call whose result may come later."""
    return LateCall(
        call.id, call.name, call.effect, expires_at, call.started_at, call.untrusted, starts_turn, job
    )


def finish(
    call: Call,
    live: Live,
    outcome: ToolOutcome,
    *,
    late: LateCall | None = None,
    unknown: UnknownCall | None = None,
) -> CallFinished:
    """Make the record of a call's result."""
    finished = live.decisions.result(call, outcome)
    ran = bool(call.started_at)
    return CallFinished(
        ToolResult(call.id, finished.content, finished.is_error, call.untrusted),
        call.name if ran else "",
        call.source if ran else "",
        outcome.error_type,
        finished.reason,
        finished.took_ms,
        finished.size,
        late,
        unknown,
    )


# -- the model's replies


def replied(
    state: Conversation,
    live: Live,
    rules: Rules,
    message: AssistantMessage,
    calls: tuple[Call, ...],
    speech_text: str,
    *,
    paused: bool = False,
) -> list[Record]:
    """Make the records of a whole reply: with calls it opens a round, without calls it ends the turn."""
    # A device that answers a speech before it reads the next call would start the call late.
    has_device_call = any(call.is_device and call.consent == "free" and call.is_open for call in calls)
    in_segments = state.turn is not None and bool(state.turn.reply_id)
    reply = ReplyLogged(message, calls, "" if has_device_call and not in_segments else speech_text, paused)
    if calls or paused:
        return [reply]
    return [reply, TurnEnded("answered", follows=follows(state, live, rules))]


# -- results


def device_result(
    state: Conversation, live: Live, rules: Rules, call_id: str, result: str | None, error: str | None
) -> list[Record]:
    """Take a device's result: in time, late, or the end of a prompt's speech."""
    call = state.open_call(call_id)
    if call is not None and call.is_device and call.started_at:
        return [finish(call, live, device_outcome(result, error, _seconds_since(call.started_at, live)))]
    late = state.late_calls.get(call_id)
    if late is None or late.expires_at <= live.now():
        return approvals.prompt_heard(state, call_id)
    outcome = device_outcome(result, error, _seconds_since(late.started_at, live))
    return [_late(state, live, rules, late, outcome)]


def _late(
    state: Conversation, live: Live, rules: Rules, late: LateCall, outcome: ToolOutcome
) -> LateFinished:
    call = Call(late.call_id, late.name, source="device", effect=late.effect, untrusted=late.untrusted)
    finished = live.decisions.result(call, outcome)
    starts_turn = late.job or (late.starts_turn and state.turn is None)
    expires_at = live.now() + rules.notice_ms if starts_turn else 0
    text = late_result(late.name, finished.content)
    return LateFinished(late.call_id, Notice(text, expires_at, late.untrusted, late=True), starts_turn)


def _cancelled(state: Conversation, live: Live, rules: Rules, event: client.ToolCancelled) -> list[Record]:
    call, late = state.open_call(event.call_id), state.late_calls.get(event.call_id)
    if call is not None and call.is_device and call.started_at:
        took_s = _seconds_since(call.started_at, live)
        return [finish(call, live, cancelled_outcome(event.effect, event.result, took_s))]
    if late is None or late.expires_at <= live.now():
        return []
    if event.effect == "none" and late.effect == "read":
        return []  # the model knows already that it was cancelled
    took_s = _seconds_since(late.started_at, live)
    return [_late(state, live, rules, late, cancelled_outcome(event.effect, event.result, took_s))]


def _accepted(state: Conversation, live: Live, rules: Rules, event: client.ToolAccepted) -> list[Record]:
    call = state.open_call(event.call_id)
    if call is None or not (call.is_device and call.started_at):
        return []
    outcome = job_outcome(event.job_id, _seconds_since(call.started_at, live))
    late = late_call(call, live.now() + rules.job_ms, job=True)
    return [finish(call, live, outcome, late=late)]


def timed_out(
    state: Conversation, live: Live, rules: Rules, call_id: str, *, was_shown: bool
) -> list[Record]:
    """Take the end of the time limit of a call or a speech; ``was_shown``: the speech's text."""
    call = state.open_call(call_id)
    if call is not None and call.is_device:
        outcome = live.decisions.timed_out(call.effect, _seconds_since(call.started_at, live))
        return [finish_without_result(call, live, rules, outcome, starts_turn=True)]
    return approvals.prompt_heard(state, call_id) if was_shown else []


def _seconds_since(at_ms: int, live: Live) -> float:
    return max(0.0, (live.now() - at_ms) / 1000) if at_ms else 0.0


# -- connections


def connected(
    state: Conversation,
    live: Live,
    profile: Profile,
    *,
    resumed: bool,
    same_process: bool,
    new: bool,
    replayed_speeches: Sequence[str],
    replay_waits: bool,
    has_card: Sequence[str],
    unconfirmed: bool,
    shown_state: ConversationState,
) -> list[Record]:
    """Make the records of a client's connection, before any event is sent to it.

    ``profile`` is its declaration, which is not recorded yet.
    ``replay_waits``: until the end of a speech, for a part of the replay. ``unconfirmed``: the client may
    have handled replayed events. ``shown_state`` is the state that it sees.
    """
    records: list[Record] = []
    if new and not (same_process and "resume" in profile.capabilities):
        # A relaunched app would run them again, now and whenever it reconnects.
        withheld = [
            event.id
            for event in state.outbound.values()
            if event.kind == "call"
            and event.effect != "read"
            and not event.withheld
            and live.was_sent(event.call_id)
        ]
        records += [CallsWithheld(tuple(withheld))] if withheld else []
    # The answer to a probe shows that the replay was handled. Without a turn ``idle`` serves, unless it
    # is held behind a speech.
    if unconfirmed and (replay_waits or state.turn is not None):
        records.append(StateShown(shown_state, probe=True))
    questions = approvals.to_client(
        state,
        profile,
        same_process=same_process,
        new=new,
        replayed_speeches=replayed_speeches,
        has_card=has_card,
    )
    if questions:
        return [*records, *questions]
    # A transcript lost with the old socket has left the app waiting for ``idle``.
    if resumed and (state.turn is None or (state.focus is not None and new)):
        return [*records, StateShown("idle")]
    return records
