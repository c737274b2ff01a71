"""Bytes to events: size, shape and depth are checked before anything else sees a frame."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from math import isfinite
from typing import Any, NoReturn, get_args

import msgspec

from conductor.errors import ErrorCode, EventError
from conductor.events import client
from conductor.events.client import ClientEvent
from conductor.events.envelope import PROTOCOL_VERSION

# Levels and values of an event: each value becomes an object, many times as large as its text.
MAX_DEPTH = 32
MAX_NODES = 5_000
MAX_INTEGER = 2**53 - 1
"""Larger integers lose digits in JavaScript and in doubles, silently."""

BINARY_MARK = b"\x00"
"""Stands at the head of a frame that came as binary; no JSON text begins so."""

_NO_CHOICE = "Invalid enum value"
_SESSION_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}", re.ASCII)
# To its end, or to the frame's: each byte is looked at once.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\Z)', re.DOTALL)
_TYPES: dict[str, type[ClientEvent]] = {event.TYPE: event for event in get_args(ClientEvent)}


@dataclass(frozen=True, slots=True)
class Inbound:
    """An accepted frame. ``event`` is None where the type is unknown, which is no error."""

    id: str
    type: str
    session_id: str
    size: int
    event: ClientEvent | None


class InvalidFrame(EventError):
    """A frame that cannot be accepted; ``event_type`` is its type, where that could be read."""

    def __init__(self, code: ErrorCode, message: str, found: _Found) -> None:
        super().__init__(code, message, event_id=found.id, session_id=found.session_id)
        self.event_type = found.type


@dataclass(slots=True)
class _Found:
    # What is known of a frame so far, for the error about it.
    id: str | None = None
    type: str | None = None
    session_id: str | None = None


class _Head(msgspec.Struct, rename="camel"):
    # The few fields worth reading of a frame that is too large.
    id: str = ""
    type: str = ""
    session_id: str = ""


# msgspec's own way with floats takes 100 times as long for such as 1e308; Python's does not.
_decode = msgspec.json.Decoder(float_hook=float).decode
_decode_head = msgspec.json.Decoder(_Head).decode
_encode = msgspec.json.Encoder().encode


def decode_event(frame: bytes, max_bytes: int = 65_536) -> Inbound:
    """Read one frame.

    ``max_bytes`` is the soft limit of an event; a ``tool.result`` may be larger, up to the transport's
    own limit. Raises `InvalidFrame` for anything that is not a valid event of protocol version 1.
    """
    found = _Found()
    if frame.startswith(BINARY_MARK):
        _refuse("binary_frame", found)
    if len(frame) > max_bytes:
        return _decode_large(frame, max_bytes, found)
    # Counting commas costs a hundredth of building the values between them.
    if frame.count(b",") > MAX_NODES and _STRING.sub(b"", frame).count(b",") > MAX_NODES:
        _read_head(frame, found)
        _refuse("too_many_values", found)
    value = _parse(frame, found)
    payload = _check_envelope(value, found)
    assert found.id is not None and found.type is not None and found.session_id is not None
    # An unknown type is no error (protocol, "Envelope"): an old server meets a newer app.
    struct = _TYPES.get(found.type)
    event = None if struct is None else _convert(payload, struct, found)
    return Inbound(found.id, found.type, found.session_id, len(frame), event)


def _refuse(message: str, found: _Found, code: ErrorCode = "invalid_event") -> NoReturn:
    raise InvalidFrame(code, message, found) from None


class _LargeResult(msgspec.Struct, rename="camel"):
    # The payload of a `_Large`; the result is not built, whatever it holds.
    call_id: client.Id
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: str | None = None


class _Large(msgspec.Struct, rename="camel"):
    # A large ``tool.result``: other fields are passed over without being built.
    id: str | None = None
    type: str | None = None
    timestamp: str | None = None
    session_id: str | None = None
    protocol_version: int = PROTOCOL_VERSION
    payload: _LargeResult | None = None


_decode_large_result = msgspec.json.Decoder(_Large).decode
_decode_text = msgspec.json.Decoder(str).decode


def _decode_large(frame: bytes, max_bytes: int, found: _Found) -> Inbound:
    # Read a frame above the soft limit: a ``tool.result``, of which only what is needed is looked at.
    # Building all values of a hostile megabyte would hold the loop for longer than everything else together.
    _read_head(frame, found)
    # A result may be large up to the hard limit; no other event has a reason to be (protocol, "Transport").
    if found.type != client.ToolResultEvent.TYPE:
        _refuse(f"event_too_large:{len(frame)}", found)
    try:
        large = _decode_large_result(frame)
        event = None if large.payload is None else _result_of(large.payload)
    except UnicodeDecodeError:
        _refuse("invalid_utf8", found)
    except msgspec.ValidationError as error:
        _refuse(f"invalid_payload: {error}", found)
    except (msgspec.MsgspecError, RecursionError):
        _refuse("invalid_json", found)
    envelope: dict[str, Any] = {
        "id": large.id,
        "type": large.type,
        "timestamp": large.timestamp,
        "sessionId": large.session_id,
        "protocolVersion": large.protocol_version,
        "payload": None if large.payload is None else {},
    }
    _check_envelope(envelope, found)
    # Keys are looked at where the frame is large for its result, not for what surrounds it.
    if large.payload is not None and len(frame) - len(_encode(large.payload)) <= max_bytes:
        _check_keys(frame.replace(bytes(large.payload.result), b"null", 1), found)
    assert found.id is not None and found.session_id is not None
    return Inbound(found.id, found.type, found.session_id, len(frame), event)


def _result_of(large: _LargeResult) -> client.ToolResultEvent:
    raw = bytes(large.result)
    result: str | None
    if raw == b"null":
        result = None
    else:
        result = _decode_text(raw) if raw.startswith(b'"') else raw.decode()
    return client.ToolResultEvent(large.call_id, result, large.error)


def _read_head(frame: bytes, found: _Found) -> None:
    try:
        head = _decode_head(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return
    _note(found, head.id, head.type, head.session_id)


def _note(found: _Found, event_id: Any, event_type: Any, session_id: Any) -> None:
    if isinstance(event_id, str) and 0 < len(event_id) <= 128:
        found.id = event_id
    if isinstance(event_type, str):
        found.type = event_type
    if isinstance(session_id, str) and _SESSION_ID.fullmatch(session_id):
        found.session_id = session_id


def _parse(frame: bytes, found: _Found) -> dict[str, Any]:
    # Parse strictly: UTF-8, no NaN, no lone surrogates, no duplicate keys, bounded depth and size.
    try:
        value = _decode(frame)
    except UnicodeDecodeError:
        _refuse("invalid_utf8", found)
    except RecursionError:
        _refuse("too_deep", found)
    except msgspec.MsgspecError:
        _refuse("invalid_json", found)
    if not isinstance(value, dict):
        _refuse("not_an_object", found)
    _note(found, value.get("id"), value.get("type"), value.get("sessionId"))
    _check_values(value, found)
    # A frame that encodes to itself holds no duplicate key, and most do: looking for one costs
    # seven times as much as parsing.
    if _encode(value) != frame:
        _check_keys(frame, found)
    return value


def _check_values(value: dict[str, Any], found: _Found) -> None:
    nodes = 0
    # Level by level, without recursion: depth is the sender's choice.
    level: list[Any] = [value]
    depth = 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            _refuse("too_deep", found)
        nodes += len(level)
        if nodes > MAX_NODES:
            _refuse("too_many_values", found)
        below: list[Any] = []
        for item in level:
            if type(item) is dict:
                below.extend(item.values())
            elif type(item) is list:
                below.extend(item)
            elif type(item) is int and not -MAX_INTEGER <= item <= MAX_INTEGER:
                _refuse("number_out_of_range", found)
            elif type(item) is float and not isfinite(item):
                _refuse("invalid_json", found)
        level = below


class _DuplicateKeyError(ValueError):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> None:
    if len({key for key, _ in pairs}) != len(pairs):
        raise _DuplicateKeyError


_scan_keys = json.JSONDecoder(object_pairs_hook=_unique).decode


def _check_keys(frame: bytes, found: _Found) -> None:
    try:
        _scan_keys(frame.decode())
    except _DuplicateKeyError:
        _refuse("duplicate_key", found)
    except (ValueError, RecursionError):
        _refuse("invalid_json", found)


def _check_envelope(value: dict[str, Any], found: _Found) -> dict[str, Any]:
    # In the protocol's order: the first fault is the one that the client is told.
    for key, name in _REQUIRED:
        given = value.get(key)
        if given is None or (given == "" and key in ("id", "sessionId")):
            _refuse(f"missing_{name}", found)
    if found.id is None:
        _refuse("invalid_id", found)
    if found.type is None:
        _refuse("invalid_type", found)
    if not isinstance(value["timestamp"], str):
        _refuse("invalid_timestamp", found)
    if found.session_id is None:
        _refuse("invalid_session_id", found)
    payload = value["payload"]
    if not isinstance(payload, dict):
        _refuse("invalid_payload", found)
    version = value.get("protocolVersion")
    version = PROTOCOL_VERSION if version is None else version
    if type(version) is not int or version < 1:
        _refuse("invalid_protocol_version", found)
    if version > PROTOCOL_VERSION:
        message = f"This server speaks protocol version {PROTOCOL_VERSION}."
        _refuse(message, found, "unsupported_protocol_version")
    return payload


_REQUIRED = (
    ("id", "id"),
    ("type", "type"),
    ("timestamp", "timestamp"),
    ("sessionId", "session_id"),
    ("payload", "payload"),
)


def _convert(payload: dict[str, Any], struct: type[ClientEvent], found: _Found) -> ClientEvent:
    try:
        event = msgspec.convert(payload, struct)
    except msgspec.ValidationError as error:
        _refuse(f"invalid_payload: {_without_value(str(error))}", found)
    if isinstance(event, client.SessionStart) and event.instructions is not None:
        if len(event.instructions.encode()) > client.MAX_INSTRUCTIONS_BYTES:
            _refuse(f"instructions_too_large:{client.MAX_INSTRUCTIONS_BYTES}", found)
    return event


def _without_value(message: str) -> str:
    # Take the client's own words out of a message: msgspec quotes only what is none of a field's choices.
    if not message.startswith(_NO_CHOICE):
        return message
    _, at, path = message.rpartition(" - at `")
    return f"{_NO_CHOICE}{at}{path}" if at else _NO_CHOICE
