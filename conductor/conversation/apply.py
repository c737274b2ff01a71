"""The only place that changes a `Conversation`.

Total: a record about a part that no longer exists does nothing, so every stored record can be applied. Reads
no clock, no chance and no settings: these values are in the record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from conductor.conversation import records as r
from conductor.conversation.events import events
from conductor.conversation.ids import reply_id, segments_id, slot_id, speech_id, ui_call_id
from conductor.conversation.phrases import CONTINUE, GREETED, NOTHING_CAME, app_facts
from conductor.conversation.state import (
    MAX_NOTICES,
    Conversation,
    Event,
    Input,
    Notice,
    Pause,
    Question,
    Speech,
    Turn,
    TurnFacts,
    checksum,
    former_id,
)
from conductor.conversation.webhook_events import webhook_events
from conductor.messages import AssistantMessage, Illustrated, Image, Message, Note, UserMessage
from conductor.tools.outcomes import Outcome, truncate

MAX_CLAIMS, MAX_CLAIM_TIMES, MAX_HANDLED, MAX_DECIDED = 8, 12, 512, 128
MAX_LATE, MAX_OUTBOUND = 64, 256
# Milliseconds that a question stands after a takeover: its client has to come back first.
RETURN_MS = 60_000
MAX_TRANSCRIPTS = 128  # of a turn: each has a slot for its event
# Bytes of all notices of a turn together.
MAX_NOTICES_BYTES = 16_384
# Turns that see an image, the first one included, and images that are kept besides the ones that wait.
IMAGE_TURNS = 2
MAX_KEPT_IMAGES = 9
# Kinds that are never evicted: they are few, and a turn waits for each.
_LASTING = ("call", "approval")
# Kinds of events that only a client with the capability knows.
_CAPABILITIES = {"approval": "approval", "resolved": "approval", "resume": "pause", "ended": "turns"}


def advance(state: Conversation, commit: r.Commit) -> list[Event]:
    """Apply a commit; returns the client's events, in order."""
    begin(state, commit)
    client_events: list[Event] = []
    for record in commit.records:
        client_events += apply(state, record, commit.at)
    return client_events


def begin(state: Conversation, commit: r.Commit) -> None:
    """Apply a commit without its records, which `apply` takes one by one."""
    for event_id in commit.acked:
        state.outbound.pop(event_id, None)
        state.webhook_events.pop(event_id, None)
    state.dropped_images = []  # as this commit's attachments tell the store
    state.revision += 1
    state.at = max(state.at, commit.at)
    state.claims[commit.claim or state.claim] = state.revision
    _bound(state.claims, MAX_CLAIMS)


def apply(state: Conversation, record: r.Record, at: int) -> list[Event]:
    """Apply one record; returns its events, which are in ``outbound`` unless they are flashes."""
    state.record_count += 1
    if event_id := getattr(record, "event_id", ""):
        words = record.text if isinstance(record, r.TranscriptRecord) else ""
        # One from the queue may be of a former client, whose id another event may have by now.
        if (event_id, words) not in ((waiting.event_id, waiting.text) for waiting in state.queue):
            state.handled_ids[event_id] = checksum(words)
            _bound(state.handled_ids, MAX_HANDLED)
    turn = state.turn
    for told in webhook_events(state, record, at):
        state.webhook_events[told.id] = told
    _change(state, record, at)
    _run_clock(state, at)
    record_events = events(state, record, at, turn)
    for event in record_events:
        if event.kind != "flash":
            state.outbound[event.id] = event
    while len(state.outbound) > MAX_OUTBOUND:
        oldest = next((event for event in state.outbound.values() if event.kind not in _LASTING), None)
        if oldest is None:
            break
        del state.outbound[oldest.id]
    return record_events


def _change(state: Conversation, record: r.Record, at: int) -> None:  # noqa: C901 -- a branch a record
    match record:
        case r.Claimed():
            _claim(state, record, at)
        case r.SessionOpened() | r.SessionClosed():
            state.opened = isinstance(record, r.SessionOpened)
        case r.DeviceWanted():
            for call in state.calls:
                call.notified = call.notified or call.id in record.calls
        case r.Released():
            state.released = True
        case r.ProfileDeclared():
            state.profile = record.profile
            if "approval" not in record.profile.capabilities:
                for question in state.questions.values():
                    question.card = False
            _forget_unknown(state)
        case r.ClientReplaced():
            state.former_ids |= {former_id(*handled): None for handled in state.handled_ids.items()}
            _bound(state.former_ids, MAX_HANDLED)
            state.handled_ids = {}
        case r.CallsWithheld():
            _withhold(state, record)
        case r.FieldSet():
            state.fields[record.name] = record.value
            if not record.value:
                del state.fields[record.name]
        case r.InputQueued():
            _queue(state, record)
        case r.NoticeTaken():
            _add_notice(state, record.notice)
        case r.ContextAdded():
            state.facts = state.facts_with(record.fact, at)[0]
        case r.SpeechCut() if record.speech_id in state.speeches:
            _cut(state, state.speeches[record.speech_id], record.text)
        case r.SpeechPaused():
            state.pause = Pause(
                speech_id=record.speech_id,
                name=record.name,
                at=at,
                spoken_text=record.spoken_text,
                played_ms=record.played_ms,
            )
        case r.PauseEnded():
            _end_pause(state, record, at)
        case r.JobAccepted() if record.job.call_id in state.late_calls:
            state.late_calls[record.job.call_id] = record.job
        case r.LateFinished() if state.late_calls.pop(record.call_id, None) is not None:
            _finish_late(state, record)
        case r.TurnStarted():
            _start(state, record, at)
        case r.CallFinished():
            _finish(state, record)
            _close_round(state)
        case r.TurnEnded():
            _end(state, record, at)
        case _ if state.turn is not None:
            _change_turn(state, state.turn, record, at)


def _change_turn(state: Conversation, turn: Turn, record: r.Record, at: int) -> None:
    match record:
        case r.SegmentSpoken():
            _speak_segment(state, turn, record)
        case r.BridgeSpoken():
            turn.bridged = True
            _speak(state, turn, record.speech_text, text="", reply_id=reply_id(state))
        case r.ReplyBroken():
            _break(state, turn, record)
        case r.ReplyLogged():
            _reply(state, turn, record, at)
        case r.CallReleased() if (call := state.open_call(record.call_id)) is not None:
            if call.consent == "held":
                call.consent, call.started_at, call.claim = "free", at, state.claim
        case r.QuestionsAsked():
            _ask(state, record, at)
        case _:
            if isinstance(record, r.AnswerUnclear | r.QuestionDecided) and record.event_id:
                turn.transcripts = [*turn.transcripts, record.event_id][-MAX_TRANSCRIPTS:]
            question_id = getattr(record, "question_id", "")
            if question_id in state.questions:
                _change_question(state, state.questions[question_id], record, at)


def _change_question(state: Conversation, question: Question, record: r.Record, at: int) -> None:
    match record:
        case r.PromptSpoken():
            _prompt(state, question, record)
        case r.PromptHeard():
            question.presented_at, question.repeat_at = at, 0
        case r.PromptCut():
            question.presented_at, question.repeat_at = 0, record.repeat_at
            _silence(state, question.speech_id)
        case r.AnswerUnclear():
            question.unclear += record.counts
            question.repeat_at = 0
            _show(state, question, record.images)
        case r.QuestionDecided():
            _decide(state, question, record, at)


# -- owners, clients, fields


def _claim(state: Conversation, record: r.Claimed, at: int) -> None:
    state.claim, state.visits = record.claim, record.visits
    state.webhooks = record.webhooks
    state.claim_times = [*state.claim_times, at][-MAX_CLAIM_TIMES:]
    turn = state.turn
    if turn is not None:
        turn.running_since = 0  # its clock stood while no process owned it
        turn.attempts += not (turn.calls or state.released)
        turn.retries = 0
    state.released = False
    # The tool that asked ended with its process.
    for question in [question for question in state.questions.values() if question.form is not None]:
        _close(state, question, "superseded", at)
    for question in state.questions.values():
        question.expires_at = max(question.expires_at, at + RETURN_MS)


def _withhold(state: Conversation, record: r.CallsWithheld) -> None:
    for event_id in record.event_ids:
        if event_id in state.outbound:
            state.outbound[event_id].withheld = True


def _add_notice(state: Conversation, notice: Notice) -> None:
    if notice.late or all(notice.text != waiting.text for waiting in state.notices):
        state.notices = [*state.notices, notice]
        _keep_images(state, notice.images, turns=0)
    if len(state.notices) > MAX_NOTICES:
        oldest = next((waiting for waiting in state.notices if not waiting.late), state.notices[0])
        state.notices.remove(oldest)
        _drop_images(state, [image.id for image in oldest.images])


# -- images


def _keep_images(state: Conversation, images: Sequence[Image], *, turns: int = 1) -> None:
    """Keep images that ``turns`` turns have had; one that waits for its turn is at 0."""
    for image in images:
        if not image.gone:
            state.images[image.id] = turns
    shown = [key for key, had in state.images.items() if had]
    _drop_images(state, shown[: max(0, len(shown) - MAX_KEPT_IMAGES)])


def _age_images(state: Conversation) -> None:
    state.images = {key: turns + bool(turns) for key, turns in state.images.items()}
    _drop_images(state, [key for key, turns in state.images.items() if turns > IMAGE_TURNS])


def _drop_images(state: Conversation, dropped: Sequence[str]) -> None:
    """Keep only a line of text of images."""
    gone = [key for key in dropped if state.images.pop(key, None) is not None]
    if not gone:
        return
    state.dropped_images += gone
    for index, message in enumerate(state.log):
        if isinstance(message, Illustrated) and message.images:
            state.log[index] = replace(message, images=_marked(message.images, gone))
    for call in state.calls:
        if call.result is not None and call.result.images:
            call.result = replace(call.result, images=_marked(call.result.images, gone))


def _marked(images: Sequence[Image], gone: Sequence[str]) -> tuple[Image, ...]:
    return tuple(replace(image, gone=True) if image.id in gone else image for image in images)


def _queue(state: Conversation, record: r.InputQueued) -> None:
    waiting = Input(
        event_id=record.event_id,
        text=record.text,
        lang=record.lang,
        until=record.until,
        images=record.images,
    )
    _keep_images(state, record.images, turns=0)
    if (half := state.half) is not None:
        state.queue.remove(half)
        waiting = half.continued_by(waiting)
    state.queue.append(waiting)


# -- a turn


def _start(state: Conversation, record: r.TurnStarted, at: int) -> None:
    _trim(state, record.trim)
    begins = state.log_end
    if record.summary is not None:
        state.summary = record.summary
    state.late_calls = {key: call for key, call in state.late_calls.items() if call.expires_at > at}
    state.unknown_calls = {key: call for key, call in state.unknown_calls.items() if call.expires_at > at}
    begins_anew = bool(record.shown)
    if record.cause in ("transcript", "news") and not begins_anew:
        _age_images(state)
    words = record.event_id, record.text
    waited = [waiting for waiting in state.queue if (waiting.event_id, waiting.text) == words]
    state.queue = [waiting for waiting in state.queue if waiting not in waited]
    state.log += _take_notices(state, record, at)
    if record.cause == "greeting":
        state.greeted = True
        state.log.append(Note(GREETED))
    if record.tool:
        text = f"A program of the user calls {record.tool[:128]}. This is not the user speaking."
        state.log.append(Note(text))
    if record.text:
        state.log.append(UserMessage(record.text, images=record.images))
        _keep_images(state, record.images)
    transcripts = [event_id for waiting in waited for event_id in waiting.earlier]
    transcripts += [record.event_id] if record.event_id else []
    state.facts = tuple(fact for fact in state.facts if fact.stands(at))
    state.turn = Turn(
        id=f"turn_{slot_id(state)}",
        cause=record.cause,
        left_ms=record.limit_ms,
        transcripts=transcripts[-MAX_TRANSCRIPTS:],
        started_at=at,
        lang=record.lang,
        facts=_turn_facts(state, begins) if record.cause in ("transcript", "news") else None,
    )


def _turn_facts(state: Conversation, position: int) -> TurnFacts | None:
    if not state.facts:
        return None
    is_untrusted = any(fact.untrusted for fact in state.facts)
    return TurnFacts(Note(app_facts(state.facts), is_untrusted, passing=True), position)


def _take_notices(state: Conversation, record: r.TurnStarted, at: int) -> list[Message]:
    """Remove the notices of a turn: without words, the first with words, or the ones that start none."""
    if record.cause not in ("transcript", "news", "words") or not state.notices:
        return []
    live = [notice for notice in state.notices if notice.expires_at > at and not notice.late]
    if record.cause == "news":
        live = [notice for notice in live if notice.words]
    elif record.cause == "words":
        spoken = next((notice for notice in live if notice.words), None)
        live = [notice for notice in live if notice is not spoken]
    news = [notice for notice in state.notices if notice not in live]
    state.notices = [notice for notice in state.notices if notice not in news]
    notes: list[Message] = [
        Note(notice.text, notice.untrusted, images=notice.images) for notice in news if notice.late
    ]
    for notice in news:
        _keep_images(state, notice.images)
    if others := [notice for notice in news if not notice.late]:
        text = truncate("\n\n".join(notice.text for notice in others), MAX_NOTICES_BYTES)
        notes.append(Note(text, any(notice.untrusted for notice in others)))
    return notes


def _trim(state: Conversation, before: int) -> None:
    del state.log[: max(0, before - state.log_start)]
    state.log_start = max(state.log_start, before)


def _speak_segment(state: Conversation, turn: Turn, record: r.SegmentSpoken) -> None:
    if not turn.reply_id:
        turn.reply_id, turn.segments = segments_id(turn, state.log_end), 0
    preceding = turn.reply_text.strip()
    turn.reply_text += record.text
    if record.speech_text:
        text = turn.reply_text.strip()
        place = {"preceding": preceding, "segment": turn.segments, "last": False}
        _speak(state, turn, record.speech_text, text=text, reply_id=turn.reply_id, **place)
        turn.segments += 1


def _break(state: Conversation, turn: Turn, record: r.ReplyBroken) -> None:
    if record.text:
        state.log += [_written(turn, AssistantMessage(text=record.text)), Note(CONTINUE)]
        _place_segments(state, turn, state.log_end - 2)
    elif record.is_lost:
        state.log.append(Note(NOTHING_CAME))
    turn.retries += not record.by_takeover
    turn.reply_text, turn.reply_id, turn.segments = "", "", 0


def _reply(state: Conversation, turn: Turn, record: r.ReplyLogged, at: int) -> None:
    message = _written(turn, record.message)
    (tokens_in, tokens_out, cost), more = state.usage, record.usage
    state.usage = tokens_in + more[0], tokens_out + more[1], cost + more[2]
    state.log.append(message)
    position = state.log_end - 1
    _place_segments(state, turn, position)
    if not turn.reply_id:
        turn.segments = 0
    if record.speech_text:
        speech_reply = turn.reply_id or segments_id(turn, position)
        preceding = turn.reply_text.strip() if turn.segments else ""
        place = {"preceding": preceding, "position": position, "segment": turn.segments}
        _speak(state, turn, record.speech_text, text=message.text, reply_id=speech_reply, **place)
        turn.segments += 1
    turn.reply_text, turn.reply_id, turn.attempts, turn.retries = "", "", 1, 0
    turn.calls = [replace(call) for call in record.calls]
    turn.calls_made += len(record.calls)
    turn.rounds += record.paused
    for call in turn.calls:
        if call.consent == "free" and call.is_open:
            call.started_at, call.claim = at, state.claim
    _close_round(state)


def _written(turn: Turn, message: AssistantMessage) -> AssistantMessage:
    """Mark a reply to untrusted facts: the facts are not in the history, so nothing else marks it."""
    is_untrusted = turn.facts is not None and turn.facts.note.untrusted
    return replace(message, untrusted=True) if is_untrusted else message


def _finish_late(state: Conversation, record: r.LateFinished) -> None:
    if not record.in_part:
        state.unknown_calls.pop(record.call_id, None)
    _add_notice(state, record.notice)


def _finish(state: Conversation, record: r.CallFinished) -> None:
    call = state.open_call(record.result.call_id)
    if call is None:
        return
    call.result = record.result
    _keep_images(state, record.result.images)
    if call.consent == "held" and record.error_type == "permission_denied":
        call.consent = "denied"
    if record.late is not None:
        state.late_calls[call.id] = record.late
        _bound(state.late_calls, MAX_LATE)
    if record.unknown is not None:
        state.unknown_calls[call.id] = record.unknown
        _bound(state.unknown_calls, MAX_LATE)
    if state.turn is not None and not record.result.is_error and record.reason != "accepted":
        state.turn.succeeded = True
        if call.effect != "read":
            state.turn.actions.append(call.name)
    _forget(state, call.id)


def _close_round(state: Conversation) -> None:
    turn = state.turn
    if turn is None or not turn.calls or any(call.result is None for call in turn.calls):
        return
    state.log += [call.result for call in turn.calls if call.result is not None]
    turn.rounds += 1
    refused = all(call.consent == "denied" for call in turn.calls)
    turn.refused_rounds = turn.refused_rounds + 1 if refused else 0
    turn.calls = []


def _end(state: Conversation, record: r.TurnEnded, at: int) -> None:
    for finished in record.results:
        _finish(state, finished)
    for question_id in record.superseded:
        if question_id in state.questions:
            _close(state, state.questions[question_id], "superseded", at)
    _close_round(state)
    if record.continues and (words := state.unanswered) is not None:
        del state.log[-1]
        state.queue.append(words)
    turn, state.turn = state.turn, None
    text = " ".join(part for part in (record.text, record.apology) if part)
    if turn is None or not text:
        return
    state.log.append(_written(turn, AssistantMessage(text=text)))
    position = state.log_end - 1
    _place_segments(state, turn, position)
    if record.speech_text:
        place = {"preceding": record.text if turn.reply_text else "", "position": position}
        _speak(state, turn, record.speech_text, text=text, reply_id=reply_id(state), **place)


def _run_clock(state: Conversation, at: int) -> None:
    """Stop the clock of a turn while a person decides."""
    turn = state.turn
    if turn is None:
        return
    waits = bool(state.questions) or any(
        call.interactive and call.started_at and call.is_open for call in turn.calls
    )
    if waits and turn.running_since:
        turn.left_ms, turn.running_since = turn.left_ms - (at - turn.running_since), 0
    elif not waits and not turn.running_since:
        turn.running_since = at


# -- questions


def _ask(state: Conversation, record: r.QuestionsAsked, at: int) -> None:
    for question in record.questions:
        question = state.questions[question.id] = replace(question)
        question.asked_at = question.asked_at or at
        if (call := state.open_call(question.call_id)) is not None and question.form is None:
            call.consent = "asked"


def _prompt(state: Conversation, question: Question, record: r.PromptSpoken) -> None:
    question.card, question.presented_at, question.repeat_at = False, 0, 0
    question.language = record.language or question.language
    question.presentations = max(1, question.presentations + record.counts)
    question.speech_id, question.message_id = speech_id(state), ui_call_id(state, "message")
    _speak(state, None, record.text, text=record.text, reply_id=reply_id(state), question_id=question.id)


def _decide(state: Conversation, question: Question, record: r.QuestionDecided, at: int) -> None:
    _close(state, question, record.outcome, at)
    state.grants = record.grants or state.grants
    _show(state, question, record.images)
    call = state.open_call(question.call_id)
    if call is None or question.form is not None:
        return
    call.notes += record.notes
    if record.outcome in ("allowed", "edited"):
        call.consent, call.started_at, call.claim = "given", at, state.claim
        call.arguments, call.digest = record.arguments or call.arguments, record.digest or call.digest
        return
    call.consent = "denied"
    if record.outcome == "denied" and state.turn is not None:
        state.turn.denied.append(question.digest)


def _show(state: Conversation, question: Question, images: Sequence[Image]) -> None:
    """Keep the images of an answer for the result of its call."""
    if (call := state.open_call(question.call_id)) is not None:
        call.shown = (*call.shown, *images)
        _keep_images(state, images, turns=0)


def _close(state: Conversation, question: Question, outcome: Outcome, at: int) -> None:
    state.questions.pop(question.id, None)
    state.decided[question.id] = outcome
    _bound(state.decided, MAX_DECIDED)
    state.question_closed_at = at
    _silence(state, question.speech_id)
    _forget(state, question.id)


# -- speech


def _end_pause(state: Conversation, record: r.PauseEnded, at: int) -> None:
    paused = state.speeches.get(state.pause.speech_id) if state.pause is not None else None
    if record.resumes and not record.event_id:
        if paused is not None:
            paused.resumed_as = record.name
        elif state.pause is None:
            state.late_pause = Pause(speech_id="", name=record.name, at=at)
    state.pause = None


def _speak(state: Conversation, turn: Turn | None, speech_text: str, **fields: Any) -> None:
    """Add the speech of this record, with these ``fields``; the former ones that are acknowledged go."""
    pending = {event.call_id for event in state.outbound.values() if event.kind == "speak"}
    if state.pause is not None:
        pending.add(state.pause.speech_id)
    state.speeches = {key: former for key, former in state.speeches.items() if key in pending}
    turn_id, actions = (turn.id, tuple(turn.actions)) if turn is not None else ("", ())
    key = speech_id(state)
    state.speeches[key] = Speech(id=key, turn_id=turn_id, speech_text=speech_text, actions=actions, **fields)


def _place_segments(state: Conversation, turn: Turn, position: int) -> None:
    """Move the segments of the unfinished reply to the message at ``position``."""
    for speech in state.speeches.values():
        if turn.reply_id and speech.reply_id == turn.reply_id and speech.position < 0:
            speech.position = position


def _cut(state: Conversation, cut: Speech, text: str) -> None:
    index = cut.position - state.log_start
    message = state.log[index] if 0 <= index < len(state.log) else None
    if isinstance(message, AssistantMessage):
        state.log[index] = replace(message, text=text)
    for speech in [speech for speech in state.speeches.values() if speech.reply_id == cut.reply_id]:
        _silence(state, speech.id)


def _silence(state: Conversation, speech: str) -> None:
    state.speeches.pop(speech, None)
    _forget(state, speech)


# -- the client's events


def _forget(state: Conversation, call_id: str) -> None:
    if call_id:
        for event in [event for event in state.outbound.values() if event.call_id == call_id]:
            del state.outbound[event.id]


def _forget_unknown(state: Conversation) -> None:
    known = {None, *state.profile.capabilities}
    for event in list(state.outbound.values()):
        if _CAPABILITIES.get(event.kind) not in known:
            del state.outbound[event.id]


def _bound(table: dict[str, Any], most: int) -> None:
    while len(table) > most:
        del table[next(iter(table))]
