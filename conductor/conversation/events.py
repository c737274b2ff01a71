"""The events that a record shows to the client, as a pure function."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Literal, TypeAlias

import msgspec

from conductor.conversation import records as r
from conductor.conversation.ids import SLOTS, slot_id, speech_id, ui_call_id
from conductor.conversation.phrases import CUT_OFF, MESSAGES
from conductor.conversation.state import Call, Conversation, Event, Kind, Question, Turn
from conductor.events.server import (
    ApprovalRequest,
    ApprovalResolved,
    ConversationState,
    ErrorEvent,
    OutputResume,
    Segment,
    ServerEvent,
    SpeechFinal,
    ToolActivity,
    ToolCallEvent,
    ToolCancel,
    ToolLate,
    TurnEndedEvent,
    TurnHint,
    append_message,
    set_state,
    speak,
)
from conductor.tools.judge import code_of

encode_payload = msgspec.json.Encoder().encode


def events(state: Conversation, record: r.Record, at: int, turn: Turn | None) -> list[Event]:
    """Make the events of a record, in the order of the wire.

    ``state`` is the one after it, ``turn`` the turn that was running before it.
    """
    record_events = []
    for slot, kind, payload in _payloads(state, record, at, turn):
        event = Event(
            id=f"evt_{slot_id(state, slot)}",
            kind=kind,
            type=payload.TYPE,
            payload=encode_payload(payload),
            at=at,
        )
        match payload:
            case ToolCallEvent():
                event.call_id = payload.call_id
            case ApprovalRequest() | ApprovalResolved():
                event.call_id = payload.approval_id
        if kind == "call" and (call := state.open_call(event.call_id)) is not None:
            event.effect, event.limit_ms = call.effect, call.limit_ms
        event.probe = isinstance(record, r.StateShown) and record.probe
        record_events.append(event)
    return record_events


SlotPayload = tuple[int, Kind, ServerEvent]


def _payloads(  # noqa: C901 -- a branch a record
    state: Conversation, record: r.Record, at: int, turn: Turn | None
) -> Iterator[SlotPayload]:
    match record:
        case r.StateShown():
            yield _state(state, "state", record.state)
        case r.TurnStarted() if record.text:  # in a turn about notices it would stop the transcriber
            yield _state(state, "opening", "thinking")
            yield _message(state, "user", record.text[record.shown :].strip())
        case r.InputQueued() if record.until:
            if state.turn is None:  # the microphone has to be open for the other half
                yield _state(state, "idle", "idle")
            if "hints" in state.profile.capabilities:
                yield SLOTS["hint"], "flash", TurnHint(complete=False)
        case r.SegmentSpoken() if record.speech_text:
            yield from _speech(state)
        case r.BridgeSpoken():
            yield from _speech(state)
            if state.turn is not None and state.turn.cause != "news":
                yield _state(state, "thinking", "thinking")
        case r.ReplyBroken() if record.text:
            yield from _final(state, record.text, "")
        case r.ReplyLogged() if state.turn is not None:
            yield from _reply(state, record)
        case r.CallReleased() if (call := state.open_call(record.call_id)) is not None and call.started_at:
            yield from _call(state, 0, call)
        case r.CallFinished():
            if record.reason == "tool_result_timeout" and record.late is not None:
                yield from _cancel(state, 0, record.result.call_id, "timeout")
            yield from _activity(state, record, 0)
        case r.TurnEnded():
            yield from _end(state, record)
            if turn is not None and not record.continues and "turns" in state.profile.capabilities:
                for number, event_id in enumerate(turn.transcripts):
                    yield SLOTS["ended"] + number, "ended", TurnEndedEvent(turn.id, event_id, record.reason)
        case r.QuestionsAsked():
            yield from _cards(state, record)
        case r.PromptSpoken() if record.question_id in state.questions:
            yield _message(state, "assistant", record.text, _message_id(state))
            yield from _speech(state)
            yield _state(state, "idle", "idle")
        case r.AnswerUnclear():
            yield _message(state, "user", record.text)
            if record.waits or (state.focus is not None and state.focus.card):
                yield _state(state, "idle", "idle")
        case r.QuestionDecided():
            yield from _decision(state, record, at)
        case r.PauseEnded() if record.resumes and "pause" in state.profile.capabilities:
            yield from _resume(state, record, turn)
        case r.LateFinished() if "late" in state.profile.capabilities:
            late = ToolLate(record.call_id, "turn" if record.starts_turn else "context")
            yield SLOTS["late"], "flash", late


def _reply(state: Conversation, record: r.ReplyLogged) -> Iterator[SlotPayload]:
    turn, text = state.turn, record.message.text
    assert turn is not None
    speech = next(reversed(state.speeches.values()), None) if turn.segments else None
    if text:
        yield from _final(state, text, speech.reply_id if speech is not None else "")
    if record.speech_text:
        yield from _speech(state)
    if turn.segments and record.message.calls and turn.cause != "news":
        yield _state(state, "thinking", "thinking")
    for number, call in enumerate(record.calls):
        if call.consent == "free" and call.is_open:
            yield from _call(state, number, call)


def _call(state: Conversation, number: int, call: Call) -> Iterator[SlotPayload]:
    if call.is_device:
        timeout_ms = call.limit_ms if "lease" in state.profile.capabilities else None
        event = ToolCallEvent(call.id, call.name, call.arguments, timeout_ms)
        yield SLOTS["calls"] + 2 * number, "call", event
    if "activity" in state.profile.capabilities:
        started = ToolActivity(
            call_id=call.id, name=call.name, source=call.source, status="started", display=f"{call.name} …"
        )
        yield SLOTS["calls"] + 2 * number + 1, "flash", started


def _activity(state: Conversation, record: r.CallFinished, number: int) -> Iterator[SlotPayload]:
    if "activity" not in state.profile.capabilities or not record.tool:
        return
    status = "done" if record.error_type == "none" else record.error_type.replace("_", " ")
    if record.reason == "device_error":
        status = "failed on the device"
    finished = ToolActivity(
        call_id=record.result.call_id,
        name=record.tool,
        source=record.source,
        status="finished",
        error_type=record.error_type,
        execution_time_ms=record.took_ms,
        data_size_bytes=record.size,
        display=f"{record.tool}: {status}, {record.size} bytes, {record.took_ms} ms",
    )
    yield SLOTS["results"] + number, "flash", finished


_CancelReason: TypeAlias = Literal["barge_in", "timeout", "session_end"]
_CANCEL_REASONS: dict[str, _CancelReason] = {"timed_out": "timeout", "session_end": "session_end"}


def _end(state: Conversation, record: r.TurnEnded) -> Iterator[SlotPayload]:
    for number, call_id in enumerate(record.cancelled):
        yield from _cancel(state, number, call_id, _CANCEL_REASONS.get(record.reason, "barge_in"))
    if "approval" in state.profile.capabilities:
        for number, question_id in enumerate(record.superseded):
            resolved = ApprovalResolved(question_id, "superseded")
            yield SLOTS["resolved"] + number, "resolved", resolved
    for number, finished in enumerate(record.results):
        yield from _activity(state, finished, number)
    if record.error is not None:
        message = MESSAGES.get(record.error, MESSAGES["internal_error"])
        yield SLOTS["error"], "flash", ErrorEvent(code=record.error, message=message)
        text = record.apology or record.text.removesuffix(CUT_OFF).strip()
        if text:
            yield from _final(state, text, _message_id(state))
    elif record.apology:
        yield from _final(state, record.apology, _message_id(state))
    if record.speech_text:
        yield from _speech(state)
    if not record.follows:
        yield _state(state, "idle", "idle")


def _cards(state: Conversation, record: r.QuestionsAsked) -> Iterator[SlotPayload]:
    cards = [question for question in record.questions if question.card]
    for number, question in enumerate(cards):
        yield SLOTS["cards"] + number, "approval", approval_card(question)
    if cards:
        yield _state(state, "cards_idle", "idle")


def approval_card(question: Question) -> ApprovalRequest:
    """Make the card of a question, as an app and the backend read it."""
    return ApprovalRequest(
        approval_id=question.id,
        batch_id=question.batch_id,
        call_id=question.call_id,
        name=question.tool,
        arguments=msgspec.json.decode(question.redacted_arguments),
        arguments_digest=question.digest,
        risk=question.risk,
        reasons=question.reasons,
        prompt=question.prompt,
        scopes=question.scopes,
        expires_at=iso_time(question.expires_at),
        preview=question.preview,
        title=question.title,
    )


def _decision(state: Conversation, record: r.QuestionDecided, at: int) -> Iterator[SlotPayload]:
    if record.text:
        yield _message(state, "user", record.text)
    if "approval" in state.profile.capabilities:
        resolved = ApprovalResolved(record.question_id, record.outcome)
        yield SLOTS["user"] + 1, "resolved", resolved
    # The microphone stays open for the answer to a card, and a question that expires has no answer.
    if record.outcome != "expired" and (state.focus is None or not state.focus.card):
        yield _state(state, "thinking", "thinking")
    call = state.open_call(record.call_id)
    if call is not None and call.started_at == at:  # a call that asks with a form runs already
        yield from _call(state, 0, call)


def _final(state: Conversation, text: str, message_id: str) -> Iterator[SlotPayload]:
    yield SLOTS["final"], "final", SpeechFinal(text)
    yield _message(state, "assistant", text, message_id)


def _speech(state: Conversation) -> Iterator[SlotPayload]:
    speech = state.speeches.get(speech_id(state))  # this record has made it
    if speech is None:
        return
    if speech.segment == 0:
        yield _state(state, "speaking", "speaking")
    segment = None
    if "segments" in state.profile.capabilities:
        segment = Segment(speech.reply_id, speech.segment, speech.last)
    lang = _language(state, speech.question_id)
    yield SLOTS["speak"], "speak", speak(speech.id, speech.speech_text, segment, lang)


def _resume(state: Conversation, record: r.PauseEnded, turn: Turn | None) -> Iterator[SlotPayload]:
    yield SLOTS["resume"], "resume", OutputResume(record.name)
    if turn is None or state.questions:
        yield _state(state, "state", "idle")
    if record.event_id and "turns" in state.profile.capabilities:
        named = (s.turn_id for s in state.speeches.values() if record.name in (s.id, s.reply_id))
        turn_id = turn.id if turn is not None else next(named, "") or f"turn_{slot_id(state)}"
        yield SLOTS["ended"], "ended", TurnEndedEvent(turn_id, record.event_id, "resumed")


def _language(state: Conversation, question_id: str) -> str:
    """Name the language of a question, unless it is the locale's and the app names no languages itself."""
    question, profile = state.questions.get(question_id), state.profile
    if question is None:
        return ""
    has_named = bool(profile.lang or (state.turn is not None and state.turn.lang))
    return question.language if has_named or code_of(profile.locale or "en") != question.language else ""


def _message_id(state: Conversation) -> str:
    """Name the message that this record speaks; empty without a speech."""
    speech = state.speeches.get(speech_id(state))
    return speech.reply_id if speech is not None else ""


def _state(state: Conversation, slot: str, value: ConversationState) -> SlotPayload:
    return SLOTS[slot], "state", set_state(ui_call_id(state, slot), value)


def _message(
    state: Conversation,
    role: Literal["user", "assistant"],
    text: str,
    message_id: str = "",
) -> SlotPayload:
    slot = "message" if role == "assistant" else "user"
    call_id = ui_call_id(state, slot)
    shown_id = (message_id or call_id) if "segments" in state.profile.capabilities else None
    return SLOTS[slot], "message", append_message(call_id, role, text, shown_id)


def _cancel(state: Conversation, number: int, call_id: str, reason: _CancelReason) -> Iterator[SlotPayload]:
    if "cancel" in state.profile.capabilities:
        yield SLOTS["cancel"] + number, "flash", ToolCancel(call_id, reason)


def iso_time(at_ms: int) -> str:
    """Write a time of epoch milliseconds."""
    time = datetime.fromtimestamp(at_ms / 1000, UTC)
    return f"{time:%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03d}Z"
