"""The table of ``conductor sessions replay``: a row for each record, and indented ones for its events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from conductor.commands.output import write_table
from conductor.conversation.playback import Moment
from conductor.conversation.state import Event

_HEADINGS = ("time", "number", "record", "fields")
# Fields of records and of the client's events that are printed. The others are in the output of ``--json``.
_PLAIN = frozenset(
    "event_id turn_id call_id question_id speech_id tool name source effect cause reason consent outcome"
    " state error_type error late unknown is_error took_ms starts_turn event_ids cancelled superseded trim"
    " before capabilities locale model counts probe claim follows paused"
    " id callId approvalId batchId code errorType status durationMs timeoutMs".split()
)
# Fields with words of people or of the model; only ``--text`` prints them.
_WORDS = frozenset(
    "text speech_text content arguments value apology notes instructions prompt message preview"
    " summary".split()
)
# Parts whose own fields are printed.
_PARTS = frozenset("message result calls questions notice results profile late unknown summary".split())


def write_moments(moments: Iterable[Moment], *, text: bool) -> None:
    """Write the table; ``text``: with texts and arguments."""
    write_table(_HEADINGS, rows(moments, text=text), ("number",))


def rows(moments: Iterable[Moment], *, text: bool) -> Iterator[tuple[str, str, str, str]]:
    """Make the rows: time, number, name and fields."""
    for moment in moments:
        if moment.record is not None:
            fields = _fields(msgspec.to_builtins(moment.record), text)
        elif moment.acked:
            fields = " ".join(f"id={event_id}" for event_id in moment.acked)
        else:
            fields = f"messages={len(moment.state.log)}"
        yield moment.time, str(moment.number), moment.name, fields
        for event in moment.events:
            yield "", "", f"  {event.type}", _event_fields(event, text)


def _event_fields(event: Event, text: bool) -> str:
    values: dict[str, Any] = msgspec.json.decode(event.payload)
    # The arguments of a state are no words of people.
    return _fields({"id": event.id, **values}, text or event.kind == "state")


def _fields(values: dict[str, Any], text: bool) -> str:
    return " ".join(field for name, value in values.items() if value for field in _field(name, value, text))


def _field(name: str, value: Any, text: bool) -> Iterator[str]:
    match value:
        case dict() if name in _PARTS:
            if name == "message":  # its calls follow as parts of the record
                value = {key: item for key, item in value.items() if key != "calls"}
            if inner := _fields(value, text):
                yield f"{name}=({inner})"
        case [dict(), *_] if name in _PARTS:
            yield from (f"{name}=({_fields(item, text)})" for item in value)
        case _ if name in _WORDS:
            words = value if isinstance(value, str) else str(msgspec.json.encode(value), "utf-8")
            yield f"{name}={words}" if text else f"{name}=({len(words)} characters)"
        case list() | tuple() if name in _PLAIN:
            yield f"{name}={','.join(map(str, value))}"
        case str() | int() if name in _PLAIN:
            yield f"{name}={str(value).lower() if isinstance(value, bool) else value}"
