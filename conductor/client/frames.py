"""Reading what the server sends: frames to typed events, and the memory of ids that have been seen."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, TypeAlias, cast, get_args

import msgspec

from conductor.errors import ErrorCode
from conductor.events.server import ErrorEvent, ServerEvent, ToolCallEvent


class UnknownEvent(msgspec.Struct, frozen=True):
    """An event of a type that this library does not know; ``payload`` is its JSON object."""

    type: str
    payload: dict[str, Any]


Event: TypeAlias = ServerEvent | UnknownEvent


@dataclass(frozen=True, slots=True)
class Received:
    """One frame as it came.

    ``connection`` counts the client's sockets from 1, ``number`` the events that were no duplicates from 1
    (a duplicate has that of the event before it). A duplicate is kept for the record and goes nowhere else.
    """

    id: str
    event: Event
    connection: int
    number: int
    duplicate: bool


class _Frame(msgspec.Struct):
    id: str
    type: str
    payload: msgspec.Raw = msgspec.Raw(b"{}")


_decode_frame = msgspec.json.Decoder(_Frame).decode
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode
_DECODERS: dict[str, msgspec.json.Decoder[ServerEvent]] = {
    struct.TYPE: msgspec.json.Decoder(struct) for struct in get_args(ServerEvent)
}


def decode_frame(frame: bytes) -> tuple[str, Event] | None:
    """Read a frame: its envelope id and its event, or None where it is no event at all.

    A payload that its type's struct does not fit comes as an `UnknownEvent`: a newer server is no error.
    """
    try:
        envelope = _decode_frame(frame)
        decoder = _DECODERS.get(envelope.type)
        if decoder is not None:
            try:
                return envelope.id, decoder.decode(envelope.payload)
            except msgspec.ValidationError:
                pass
        payload = _decode_object(envelope.payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if envelope.type == ErrorEvent.TYPE:
        return envelope.id, _lenient_error(payload)
    return envelope.id, UnknownEvent(envelope.type, payload)


def _lenient_error(payload: dict[str, Any]) -> ErrorEvent:
    """Make an error of one whose code is newer than this library: it must not pass unnoticed."""

    def text(key: str) -> str | None:
        value = payload.get(key)
        return value if isinstance(value, str) else None

    code = cast(ErrorCode, text("code") or "internal_error")
    return ErrorEvent(code, text("message") or "", event_id=text("eventId"), call_id=text("callId"))


def wire_type(event: Event) -> str:
    """Say an event's type as it stands on the wire."""
    return event.type if isinstance(event, UnknownEvent) else event.TYPE


class SeenIds:
    """The last ``limit`` envelope ids; it lives as long as the client, over all its sockets."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._ids: OrderedDict[str, None] = OrderedDict()

    def add(self, event_id: str) -> bool:
        """Remember an id; False if it is there already."""
        if event_id in self._ids:
            return False
        self._ids[event_id] = None
        if len(self._ids) > self._limit:
            self._ids.popitem(last=False)
        return True

    def forget(self, event_id: str) -> None:
        """Let an id count as new again."""
        self._ids.pop(event_id, None)


def arguments_of(call: ToolCallEvent) -> dict[str, Any]:
    """Read a call's arguments; empty where they are no JSON object."""
    try:
        return _decode_object(call.arguments)
    except (msgspec.MsgspecError, RecursionError):
        return {}


def state_of(event: Event) -> str | None:
    """Say to what state a ``convo.setState`` sets the app; None for any other event."""
    if isinstance(event, ToolCallEvent) and event.name == "convo.setState":
        return str(arguments_of(event).get("state", ""))
    return None
