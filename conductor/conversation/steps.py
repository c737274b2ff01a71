"""The next step of a conversation, as pure functions: the loop does only these, also after a takeover."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from conductor.conversation import consent
from conductor.conversation.interruptions import pause_over, resumes_at
from conductor.conversation.records import (
    CallFinished,
    CallReleased,
    DeviceWanted,
    Record,
    ReplyBroken,
    TurnEnded,
)
from conductor.conversation.state import Call
from conductor.conversation.turns import ended, remembered, spoken, turn_about, turn_started
from conductor.conversation.view import View, finish, finish_without_result
from conductor.messages import ToolCall
from conductor.tools.outcomes import interrupted_outcome


@dataclass(frozen=True, slots=True)
class AskModel:
    """The model is to be asked. Its reply counts only while this is still the next step."""

    turn_id: str
    rounds: int
    retries: int
    with_tools: bool


@dataclass(frozen=True, slots=True)
class PrepareRequest:
    """The gate is to decide about the call of a program, which then starts a turn."""

    call: ToolCall


@dataclass(frozen=True, slots=True)
class RunCalls:
    """Server calls are to run."""

    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class AskPerson:
    """Questions are to be worded and asked."""

    calls: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AwaitResults:
    """Nothing is to be done until one of these calls has a result, or the state changes otherwise."""

    calls: tuple[str, ...] = ()


Step: TypeAlias = list[Record] | AskModel | PrepareRequest | RunCalls | AskPerson | AwaitResults


def next_step(view: View) -> Step:
    """Return the records to commit at once, or the work that takes time."""
    turn = view.state.turn
    if turn is None:
        return _begin(view)
    if turn.calls:
        return _round(view, turn.calls)
    if turn.cause == "request":
        return [TurnEnded(reason="answered", follows=view.follows)]
    if turn.attempts > view.conduct.max_attempts:
        return [ended(view, "failed", error="model_provider_failed")]
    if turn.reply_text and view.live.model.request != (turn.id, turn.rounds, turn.retries):
        return [ReplyBroken(turn.reply_text.strip(), by_takeover=True)]  # it was spoken by another process
    conduct = view.conduct
    spent = (
        turn.rounds >= conduct.max_tool_rounds
        or turn.calls_made >= conduct.max_calls_per_turn
        or turn.refused_rounds >= conduct.max_refused_rounds
    )
    return AskModel(turn.id, turn.rounds, turn.retries, not spent)


def _begin(view: View) -> Step:
    state, live = view.state, view.live
    if live.stop.closing or live.stop.is_suspended:
        return AwaitResults()
    if state.queue:
        waiting = state.queue[0]
        if view.is_held(waiting):
            return AwaitResults()
        started = turn_about(view, waiting)
        if view.conduct.cancels and len(state.queue) > 1:
            # The person has spoken again: earlier words stay in the history, and only the last are answered.
            return [started, TurnEnded(reason="interrupted", follows=not view.is_held(state.queue[1]))]
        return [*remembered(view, waiting.text), started]
    if live.openings.refused_input:
        return spoken(view, "refused", view.conduct.failures.get("rate_limited", ""))
    if live.stop.draining:
        return AwaitResults()
    if live.programs.requests:
        return PrepareRequest(live.programs.requests[0])
    floor_at = live.openings.floor_at
    if floor_at is None:
        return AwaitResults()
    now = view.now()
    first = next((notice for notice in state.notices if notice.expires_at > now), None)
    if first is not None and now >= max(floor_at, live.loop.notices_after):
        return spoken(view, "words", first.words) if first.words else [turn_started(view, "news")]
    return AwaitResults()


def _round(view: View, calls: list[Call]) -> Step:
    released = _released(view, calls)
    if released:
        return released
    if "device.wanted" in view.state.webhooks and not view.live.outbox.is_connected:
        device = [call for call in calls if call.is_device and call.is_open and call.started_at]
        if pending := tuple(call.id for call in device if not call.notified):
            return [DeviceWanted(pending)]
    started = [
        call
        for call in calls
        if not call.is_device and call.started_at and call.is_open and call.id not in view.live.loop.calls
    ]
    # A call of another process may have run. A read without consent runs again; no other call does.
    orphans = [
        call
        for call in started
        if call.claim != view.state.claim and (call.effect != "read" or call.consent == "given")
    ]
    if orphans:
        return [_lost(view, call) for call in orphans]
    if started:
        return RunCalls(tuple(started))
    gated = [call for call in calls if call.consent == "needed" and call.is_open]
    running = [call.id for call in calls if call.is_open and call.started_at]
    if gated and not running:
        return AskPerson(tuple(call.id for call in gated))
    return AwaitResults(tuple(call.id for call in calls if call.is_open))


def _lost(view: View, call: Call) -> CallFinished:
    """Make the honest result of a call whose process is gone."""
    outcome = interrupted_outcome(call.effect, was_sent=True, reason="connection_lost")
    return finish_without_result(view, call, outcome, starts_turn=False)


def _released(view: View, calls: list[Call]) -> list[Record]:
    """Let the held writes go whose earlier writes are decided, unless they are forbidden by now."""
    records: list[Record] = []
    for call in calls:
        if call.is_open and call.effect != "read" and call.consent in ("needed", "asked"):
            break
        if call.is_open and call.consent == "held":
            refusal = view.gate.held_refusal(call)
            records.append(CallReleased(call.id) if refusal is None else finish(view, call, refusal))
    return records


def due(view: View) -> list[Record]:
    """Make the records of a deadline that has passed."""
    now, turn, focus = view.now(), view.state.turn, view.state.focus
    for question in view.state.questions.values():
        if question.expires_at <= now:
            return consent.decided(view, question, "expired")
    if focus is not None and not focus.card and focus.repeat_at:
        if now >= max(focus.repeat_at, view.live.speech.speaking_until):
            return consent.present_again(view, focus)
    if (at := resumes_at(view)) is not None and at <= now:
        return pause_over(view)
    if turn is not None and turn.running_since and now >= turn.running_since + turn.left_ms:
        return [ended(view, "timed_out", error="turn_timeout")]
    return []


def deadline(view: View, *limits: int | None) -> int | None:
    """Return the time at which `due` or `next_step` may have something new, or the earliest of ``limits``."""
    state, live = view.state, view.live
    turn, focus, times = state.turn, state.focus, list(filter(None, (*limits, resumes_at(view))))
    times += [question.expires_at for question in state.questions.values()]
    if focus is not None and not focus.card and focus.repeat_at:
        times.append(max(focus.repeat_at, live.speech.speaking_until))
    if turn is not None and turn.running_since:
        times.append(turn.running_since + turn.left_ms)
    if turn is None and state.queue and view.is_held(state.queue[0]):
        times.append(view.held_until(state.queue[0]))
    if turn is None and live.openings.floor_at is not None and not live.stop.draining:
        at, now = max(live.openings.floor_at, live.loop.notices_after), view.now()
        if at > now and any(notice.expires_at > now for notice in state.notices):
            times.append(at)
    return min(times, default=None)
