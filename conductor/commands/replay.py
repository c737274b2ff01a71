"""The table of ``conductor sessions replay``: a row for each record, and indented ones for its events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from conductor.commands.output import as_json, write_table
from conductor.conversation.ledger import Moment

# Texts of these fields are printed; others may hold words of people or of the model.
_PLAIN = frozenset(
    "event_id turn_id call_id question_id speech_id tool name source effect cause reason consent outcome"
    " state error_type error event_ids cancelled superseded trim before capabilities locale model probe claim"
    " follows paused id callId approvalId batchId code errorType status".split()
)


def write_moments(moments: Iterable[Moment], *, text: bool) -> None:
    """Write the table; ``text``: with texts and arguments."""
    write_table(("time", "number", "record", "fields"), _rows(moments, text), ("number",))


def _rows(moments: Iterable[Moment], text: bool) -> Iterator[tuple[object, ...]]:
    for moment in moments:
        fields: Any = {"messages": len(moment.state.log)}
        if moment.record is not None:
            fields = msgspec.to_builtins(moment.record)
            fields.get("message", {}).pop("calls", None)  # they follow as parts of the record
        elif moment.acked:
            fields = {"id": moment.acked}
        yield moment.time, moment.number, moment.name, as_json(_plain(fields, text))
        for event in moment.events:
            # The arguments of a state are no words of people.
            values = _plain(
                {"id": event.id, **msgspec.json.decode(event.payload)}, text or event.kind == "state"
            )
            yield "", "", f"  {event.type}", as_json(values)


def _plain(value: Any, text: bool, name: str = "") -> Any:
    # Without empty fields; a text that may be words is replaced by its length.
    match value:
        case dict():
            return {key: _plain(item, text, key) for key, item in value.items() if item and key != "type"}
        case list() | tuple():
            return [_plain(item, text, name) for item in value]
        case str() if not text and name not in _PLAIN:
            return f"({len(value)} characters)"
    return value
