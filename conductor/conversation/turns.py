"""The beginning of a turn, the model's replies, and the end of a turn, as pure functions."""

from __future__ import annotations

from conductor.conversation import records as r
from conductor.conversation.heard import CUT_BEFORE_SPEECH, CUT_SOMEWHERE, marked
from conductor.conversation.history import cut_point
from conductor.conversation.phrases import CUT_OFF, SpokenFailure, name_for_the_ear
from conductor.conversation.state import Call, Cause, Input, Notice, Speech, Turn
from conductor.conversation.view import View, finish, finish_without_result
from conductor.errors import ErrorCode
from conductor.events.server import EndReason
from conductor.images import MAX_IMAGES
from conductor.messages import AssistantMessage, Image, UserMessage
from conductor.speech import for_the_ear
from conductor.tools.outcomes import interrupted_outcome, not_answered

# Halves of a sentence that have more characters, or more images than one transcript, do not go on.
_MAX_HALF_CHARS = 2_000


def remembered(view: View, text: str) -> list[r.Record]:
    """Record, with the person's first words, a notice with the memories of the person."""
    state = view.state
    if state.log_start or any(isinstance(message, UserMessage) for message in state.log):
        return []
    memories = view.gate.memories(text)
    return [r.NoticeTaken("", Notice(text=memories, untrusted=True, late=True))] if memories else []


def turn_started(
    view: View,
    cause: Cause,
    event_id: str = "",
    text: str = "",
    *,
    tool: str = "",
    lang: str = "",
    images: tuple[Image, ...] = (),
    shown: int = 0,
) -> r.TurnStarted:
    """Make the start of a turn; it drops the old part of a long history."""
    state = view.state
    trim = state.log_start + cut_point(state.log, view.conduct.max_turns - 1, view.live.model.history.tokens)
    ready = view.live.summary.ready
    summary = None
    # An interruption, or a history that was too long, may have dropped the summarised messages.
    if ready is not None and ready[0] > state.log_start:
        trim, summary = max(trim, ready[0]), ready[1]
    trim = trim if trim > state.log_start else 0
    return r.TurnStarted(
        cause=cause,
        limit_ms=view.conduct.turn_ms,
        event_id=event_id,
        text=text,
        tool=tool,
        trim=trim,
        summary=summary,
        lang=lang,
        images=images,
        shown=shown,
    )


def turn_about(view: View, words: Input) -> r.TurnStarted:
    """Make the start of a turn about the person's words."""
    return turn_started(
        view,
        "transcript",
        words.event_id,
        words.text,
        lang=words.lang,
        images=words.images,
        shown=words.shown,
    )


def may_go_on(words: Input) -> bool:
    """Return whether words are few enough to wait for more."""
    return len(words.text) <= _MAX_HALF_CHARS and len(words.images) <= MAX_IMAGES


def continued(view: View) -> Input | None:
    """Return the words of the running turn if the next ones began soon after, and it has brought nothing yet.

    Both are then one sentence, wherever the recogniser has ended its transcript.
    """
    turn, words, hold_ms = view.state.turn, view.state.unanswered, view.hold_ms
    if turn is None or words is None or not hold_ms or not view.conduct.cancels or not may_go_on(words):
        return None
    is_soon = view.live.speech.utterance_began < turn.started_at + hold_ms
    return words if is_soon else None


def goes_on_until(view: View) -> int:
    """Return until when the person seems to go on with the sentence that the running turn is about; else 0.

    A reply to half of it would be wrong, and a call more so.
    """
    turn, speech = view.state.turn, view.live.speech
    if turn is None or speech.utterance_began < turn.started_at or continued(view) is None:
        return 0
    longest = speech.utterance_began + view.conduct.max_hold_ms
    return min(speech.speaking_until, speech.heard_at + view.hold_ms, longest)


def spoken(view: View, cause: Cause, sentence: str) -> list[r.Record]:
    """Make a turn that speaks a sentence without the model."""
    end = r.TurnEnded(reason="answered", apology=sentence, speech_text=for_the_ear(sentence))
    return [turn_started(view, cause), end]


def greeted(view: View, greeting: str) -> list[r.Record]:
    """Make the turn of the app's greeting, unless the session has begun."""
    state = view.state
    has_begun = state.greeted or state.log_end or state.queue
    return [] if has_begun or not greeting.strip() else spoken(view, "greeting", greeting.strip())


def replied(
    view: View,
    message: AssistantMessage,
    calls: tuple[Call, ...],
    speech_text: str,
    *,
    paused: bool = False,
    usage: tuple[int, int, float] = (0, 0, 0.0),
) -> list[r.Record]:
    """Make the records of a whole reply: with calls it opens a round, without calls it ends the turn."""
    # A device that answers a speech before it reads the next call would start the call late.
    has_device_call = any(call.is_device and call.consent == "free" and call.is_open for call in calls)
    is_begun = view.state.turn is not None and bool(view.state.turn.reply_id)
    in_segments = is_begun or "segments" in view.state.profile.capabilities
    reply = r.ReplyLogged(
        message=message,
        calls=calls,
        speech_text="" if has_device_call and not in_segments else speech_text,
        paused=paused,
        usage=usage,
    )
    if calls or paused:
        return [reply]
    return [reply, r.TurnEnded(reason="answered", follows=view.follows)]


def ended(
    view: View,
    reason: EndReason,
    *,
    heard_prefix: str | None = None,
    error: ErrorCode | None = None,
    failure: SpokenFailure | None = None,
    back: str = "",
    event_id: str = "",
    follow: bool | None = None,
) -> r.TurnEnded:
    """Make the end of the running turn: an honest result for each open call, the rest of a reply.

    ``failure`` names the apology, if the code ``error`` has another one; ``back`` says when to try again.
    """
    turn = view.state.turn
    assert turn is not None
    cause = "turn_timeout" if reason == "timed_out" else reason
    open_calls = [call for call in turn.calls if call.is_open]
    results = tuple(_abandoned(view, call, cause) for call in open_calls)
    # Only a call that was on the wire is cancelled there.
    cancelled = tuple(
        call.id
        for call in open_calls
        if call.is_device
        and call.started_at
        and view.was_sent(call.id)
        and (reason == "timed_out" or call.on_interrupt == "cancel")
    )
    writing = view.live.model
    is_writing = not turn.calls and writing.request == (turn.id, turn.rounds, turn.retries)
    draft = (writing.draft.strip() if is_writing else "") or turn.reply_text.strip()
    text, apology, speech_text = "", "", ""
    if reason in ("interrupted", "session_end"):
        text = _heard_draft(view, turn, draft, heard_prefix)
    elif turn.cause != "request":
        text = f"{draft} {CUT_OFF}" if draft else ""
        apology = _apology(view, turn, failure or error, back)
        speech_text = for_the_ear(apology) if apology else ""
    return r.TurnEnded(
        reason=reason,
        event_id=event_id,
        text=text,
        results=results,
        cancelled=cancelled,
        superseded=tuple(view.state.questions),
        error=error if turn.cause != "request" else None,
        apology=apology,
        speech_text=speech_text,
        follows=view.follows if follow is None else follow,
    )


def _apology(view: View, turn: Turn, failure: SpokenFailure | None, back: str) -> str:
    """Word a failure. After calls that changed something it says so, and never asks to try again."""
    if failure is None:
        return ""
    apology = view.conduct.failures.get(failure, "").format(back=back)
    if failure == "budget_spent" and AssistantMessage(text=apology) in view.state.log[-2:]:
        apology = ""  # it was said at the turn before
    if not turn.actions:
        return apology
    done = ", ".join(dict.fromkeys(map(name_for_the_ear, turn.actions)))
    ran = view.conduct.failures.get("calls_ran", "").format(done=done)
    return f"{ran} {apology}".strip() if failure == "budget_spent" else ran


def _heard_draft(view: View, turn: Turn, draft: str, heard_prefix: str | None) -> str:
    if not draft:
        return ""
    if heard_prefix is None:
        heard_prefix = _heard_of_reply(view, turn.reply_id)
    if heard_prefix is not None:
        return marked(heard_prefix[: len(draft)])
    if turn.reply_text:
        return f"{turn.reply_text.strip()} {CUT_SOMEWHERE}"
    return f"{draft} {CUT_BEFORE_SPEECH}"


def _abandoned(view: View, call: Call, cause: str) -> r.CallFinished:
    """Make the honest result of a call whose turn ends."""
    if call.consent in ("needed", "asked"):
        superseded = cause == "interrupted"
        return finish(view, call, not_answered("superseded" if superseded else "interrupted"))
    was_sent = bool(call.started_at) and (not call.is_device or view.was_sent(call.id))
    outcome = interrupted_outcome(call.effect, was_sent=was_sent, reason=cause)
    return finish_without_result(view, call, outcome, starts_turn=call.effect != "read")


def is_pending(view: View, speech: Speech) -> bool:
    """Return whether a speech was not spoken to its end, in this process or an earlier one."""
    is_open = any(event.call_id == speech.id for event in view.state.outbound.values())
    return is_open and speech.id not in view.live.outbox.finished_speeches


def _heard_of_reply(view: View, reply_id: str) -> str | None:
    """Return the text of a reply's finished segments; None if no segment is known."""
    segments = [speech for speech in view.state.speeches.values() if reply_id and speech.reply_id == reply_id]
    if not segments:
        return None
    unheard = next((speech for speech in segments if is_pending(view, speech)), None)
    if unheard is None:
        return segments[-1].text
    return unheard.preceding or (None if view.was_sent(unheard.id) else "")
