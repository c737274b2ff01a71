"""The endpoints that read: lists of sessions, a session with its calls, its records."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Iterator
from typing import Literal

import msgspec

from conductor.conversation import records as r
from conductor.conversation.events import approval_card, iso_time
from conductor.conversation.replay import moments, replay
from conductor.conversation.state import Call, Conversation
from conductor.errors import Unreadable
from conductor.messages import AssistantMessage, Note, ToolResult, UserMessage
from conductor.plugins.api.requests import ApiCall, find_session
from conductor.plugins.api.resources import (
    CallReport,
    HistoryMessage,
    ListQuery,
    SessionDetail,
    SessionList,
    SessionSummary,
)
from conductor.plugins.page import read_replay
from conductor.stores.base import NEVER_EXPIRES, SessionKey, Stored
from conductor.tools.outcomes import ToolOutcome

# Of what the person said first: enough to know a session again.
MAX_TITLE_CHARS = 120


async def list_sessions(call: ApiCall) -> SessionList:
    """List sessions, of a person or of all."""
    store, query, sessions = call.listener.services.store, call.query, []
    person, _, session_id = (query.after or "").rpartition("/")
    after = None if query.after is None else SessionKey(person, session_id)
    keys: list[SessionKey] = []
    is_last = False
    while not (keys or is_last):
        found = await store.keys(query.person, None, after, query.limit)
        is_last, after = len(found) < query.limit, found[-1] if found else None
        # Without the server's own records, such as one-time tokens: a page of them would look like the end.
        keys = [k for k in found if not (k.never_expires or k.subject.startswith(NEVER_EXPIRES))]
    for key in keys:
        stored = await store.read(key)  # None: it was deleted after the listing
        if stored is not None and _may_match(query, stored):
            summary = await asyncio.to_thread(_summary_of_any, key, stored)
            if _matches(query, summary):
                sessions.append(summary)
    last = f"{after.subject}/{after.session_id}" if after is not None and not is_last else None
    return SessionList(sessions, last)


async def show_session(call: ApiCall) -> SessionDetail:
    """Show a session: its history, calls, open questions and cost."""
    # In a thread: a long history would block the event loop for too long.
    return await asyncio.to_thread(detail_of, *await find_session(call))


async def show_records(call: ApiCall) -> msgspec.Raw:
    """Show the stored records of a session, for a replay."""
    _, stored = await find_session(call)
    return msgspec.Raw(await asyncio.to_thread(read_replay, stored, call.query.number))


def _may_match(query: ListQuery, stored: Stored) -> bool:
    """Look at what is known without reading the records."""
    day = datetime.datetime.fromtimestamp(stored.meta.updated, datetime.UTC).date()
    return query.open in (None, bool(stored.meta.token)) and (query.since or day) <= day <= (
        query.until or day
    )


def _matches(query: ListQuery, summary: SessionSummary) -> bool:
    wanted = (query.tool or "").lower()
    return query.failed in (None, summary.failures > 0) and (
        not wanted or any(wanted in name.lower() for name in summary.tools)
    )


def summary_of(key: SessionKey, stored: Stored) -> SessionSummary:
    """Describe a session in a list. Raises `Unreadable`."""
    state = replay(stored.commits(), stored.meta.revision)
    said = (message.text for message in state.log if isinstance(message, UserMessage))
    replies = (message for message in state.log if isinstance(message, AssistantMessage))
    called = [call.name for reply in replies for call in reply.calls]
    read, written, cost = state.usage
    return SessionSummary(
        *_head(key, stored),
        messages=len(state.log),
        approvals=len(state.questions),
        title=next(said, "")[:MAX_TITLE_CHARS],
        tools=list(dict.fromkeys(called)),
        failures=sum(isinstance(message, ToolResult) and message.is_error for message in state.log),
        input_tokens=read,
        output_tokens=written,
        cost=cost,
    )


def _summary_of_any(key: SessionKey, stored: Stored) -> SessionSummary:
    # One session must not hide the others.
    try:
        return summary_of(key, stored)
    except Unreadable:
        return SessionSummary(*_head(key, stored), readable=False)


def _head(key: SessionKey, stored: Stored) -> tuple[str, str, str, bool]:
    return key.subject, key.session_id, iso_time(round(stored.meta.updated * 1000)), bool(stored.meta.token)


def detail_of(key: SessionKey, stored: Stored) -> SessionDetail:
    """Describe a session with its history. Raises `Unreadable`."""
    state, calls = Conversation(), dict[str, CallReport]()
    for number, moment in enumerate(moments(stored.commits(), stored.meta.revision)):
        state = moment.state
        if number == 0:
            _take_log(calls, state)
        _take_record(calls, moment.record)
    return SessionDetail(
        *_head(key, stored),
        state.turn is not None,
        len(state.notices) + len(state.queue),
        list(_history(state)),
        list(calls.values()),
        [approval_card(question) for question in state.questions.values()],
        *state.usage,
    )


def _history(state: Conversation) -> Iterator[HistoryMessage]:
    for position, message in enumerate(state.log, state.log_start):
        match message:
            case AssistantMessage():
                calls = [call.call_id for call in message.calls]
                yield HistoryMessage(position, "assistant", message.text, calls)
            case UserMessage():
                yield HistoryMessage(position, "user", message.text)
            case Note():
                yield HistoryMessage(position, "note", message.text)


def _take_log(calls: dict[str, CallReport], state: Conversation) -> None:
    """Take the calls of a snapshot, of which no records are stored."""
    for message in state.log:
        if isinstance(message, AssistantMessage):
            for call in message.calls:
                calls[call.call_id] = CallReport(call.call_id, call.name, call.arguments)
        elif isinstance(message, ToolResult):
            _finish(calls, message)
    for running in state.calls:
        _open(calls, running)


def _take_record(calls: dict[str, CallReport], record: r.Record | None) -> None:
    match record:
        case r.ReplyLogged():
            for call in record.calls:
                _open(calls, call)
        case r.CallFinished():
            _finish(calls, record.result, record.took_ms)
        case r.TurnEnded():
            for finished in record.results:
                _finish(calls, finished.result, finished.took_ms)
        case r.QuestionDecided() if record.call_id in calls:
            is_allowed = record.outcome in ("allowed", "edited")
            calls[record.call_id] = msgspec.structs.replace(
                calls[record.call_id],
                arguments=record.arguments or calls[record.call_id].arguments,
                consent="given" if is_allowed else record.outcome,
                decided_by=record.channel,
            )


def _open(calls: dict[str, CallReport], call: Call) -> None:
    calls[call.id] = CallReport(call.id, call.name, call.arguments, consent=call.consent)
    if call.result is not None:
        _finish(calls, call.result)


def _finish(calls: dict[str, CallReport], result: ToolResult, took_ms: int | None = None) -> None:
    if result.call_id not in calls:
        return
    try:
        error_type = msgspec.json.decode(result.content, type=ToolOutcome).error_type
    except msgspec.MsgspecError:
        error_type = "internal_error" if result.is_error else "none"
    outcome: Literal["succeeded", "failed", "unknown"] = "failed" if result.is_error else "succeeded"
    calls[result.call_id] = msgspec.structs.replace(
        calls[result.call_id],
        outcome="unknown" if error_type == "unknown" else outcome,
        error_type=error_type,
        result=result.content,
        ms=took_ms,
    )
