"""Decodes frames: size, form and depth are checked first."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, NoReturn, get_args

import msgspec

from conductor import possessive
from conductor.errors import ConductorError, ErrorCode
from conductor.events import client
from conductor.events.client import ClientEvent
from conductor.events.envelope import PROTOCOL_VERSION
from conductor.events.unreadable import read_texts, repaired
from conductor.images import MAX_IMAGES

# Levels and values of an event: each value becomes an object, many times as large as its text.
MAX_DEPTH = 32
MAX_NODES = 5_000
MAX_INTEGER = 2**53 - 1
"""Larger integers lose digits in JavaScript and in doubles."""

BINARY_MARK = b"\x00"
"""The first byte of a frame that came as binary; no JSON text begins with it."""

_NO_CHOICE = "Invalid enum value"
_SESSION_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}", re.ASCII)
# Ends at the string's end or at the frame's, so that each byte is read once.
_STRING = possessive.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\Z)', re.DOTALL)
_TYPES: dict[str, type[ClientEvent]] = {event.TYPE: event for event in get_args(ClientEvent)}
# Reports of calls, which hold a value of any form.
_REPORTS = (client.ToolResultEvent.TYPE, client.ToolCancelled.TYPE)
# Events that may be long: by a result, and by images.
_LONG = (client.ToolResultEvent.TYPE, client.TranscriptFinal.TYPE)
_ILLUSTRATED = (client.ToolResultEvent, client.TranscriptFinal)
# In place of an image that has not the form of one; it is refused in words where images are read.
_NO_IMAGE = {"mimeType": "", "data": ""}
_FAULTS_OF_VALUES = {
    "invalid_json": "it is not valid JSON",
    "invalid_utf8": "it is not UTF-8",
    "duplicate_key": "it has a key twice",
    "too_deep": f"it is nested more than {MAX_DEPTH} levels deep",
    "too_many_values": f"it has more than {MAX_NODES:,} values",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Inbound:
    """An accepted frame. ``event`` is None for an unknown type."""

    id: str
    type: str
    session_id: str
    size: int
    event: ClientEvent | None


class InvalidFrame(ConductorError):
    """A frame that is refused: answered by an ``error`` event, never by a close.

    ``event_id``, ``session_id`` and ``event_type`` are None if they cannot be read.
    """

    def __init__(self, code: ErrorCode, message: str, head: _Head) -> None:
        super().__init__(message)
        self.code = code
        self.event_id, self.session_id, self.event_type = head.id, head.session_id, head.type


class _Head(msgspec.Struct, rename="camel"):
    # The readable fields of a frame, for the error about it. They can be read before other values are built.
    id: str | None = None
    type: str | None = None
    session_id: str | None = None

    def __post_init__(self) -> None:
        if not (isinstance(self.id, str) and 0 < len(self.id) <= 128):
            self.id = None
        if not isinstance(self.type, str):
            self.type = None
        if not (isinstance(self.session_id, str) and _SESSION_ID.fullmatch(self.session_id)):
            self.session_id = None


# msgspec's own conversion of floats such as 1e308 takes 100 times as long.
_decode = msgspec.json.Decoder(float_hook=float).decode
_decode_head = msgspec.json.Decoder(_Head).decode
_encode = msgspec.json.Encoder().encode


def decode_event(frame: bytes, max_bytes: int = 65_536, *, takes_images: bool = False) -> Inbound:
    """Decode one frame.

    ``max_bytes`` is the limit of an event; a ``tool.result`` may be larger, up to the transport's limit, and,
    with ``takes_images``, so may a final transcript by its images. A
    ``tool.result`` whose result cannot be read becomes an `UnreadableResult`; in a ``session.start`` half a
    character is replaced. Raises `InvalidFrame`.
    """
    try:
        return _decode_event(frame, max_bytes, takes_images=takes_images)
    except InvalidFrame as error:
        report = _report_without_result(frame, str(error))
        if report is not None:
            return report
        # An app that resumes would send the same results again and again.
        if (
            str(error) not in ("invalid_json", "invalid_utf8")
            or client.SessionStart.TYPE.encode() not in frame
        ):
            raise
    return replace(_decode_event(repaired(frame), max_bytes), size=len(frame))


def _report_without_result(frame: bytes, fault: str) -> Inbound | None:
    """Read a report of a call without its result: the call has ended, whatever its result is."""
    if fault not in _FAULTS_OF_VALUES or not any(kind.encode() in frame for kind in _REPORTS):
        return None
    fields = read_texts(frame)
    if fields is None or fields.get("type") not in _REPORTS:
        return None
    head = _Head(fields.get("id"), fields["type"], fields.get("sessionId"))
    payload = {**fields["payload"], "result": None}
    try:
        _check_envelope(fields, head)
        event = _convert(payload, _TYPES[fields["type"]], head)
    except InvalidFrame:
        return None
    if isinstance(event, client.ToolResultEvent) and event.error is None:
        event = client.UnreadableResult(event.call_id, why=_FAULTS_OF_VALUES[fault])
    assert head.id is not None and head.session_id is not None
    return Inbound(id=head.id, type=fields["type"], session_id=head.session_id, size=len(frame), event=event)


def _decode_event(frame: bytes, max_bytes: int, *, takes_images: bool = False) -> Inbound:
    if frame.startswith(BINARY_MARK):
        _refuse("binary_frame")
    if len(frame) > max_bytes:
        head = _read_head(frame)
        event_type = head.type or (read_texts(frame) or {}).get("type")
        if event_type not in (_LONG if takes_images else _LONG[:1]):
            _refuse(f"event_too_large:{len(frame)}", head)
    if _has_too_many_values(frame):
        _refuse("too_many_values", _read_head(frame))
    value = _parse(frame)
    head = _Head(value.get("id"), value.get("type"), value.get("sessionId"))
    _check_values(value, head)
    # A frame that encodes to itself has no duplicate key. The search for one costs seven times as much as
    # parsing.
    if _encode(value) != frame:
        _check_keys(frame, head)
    payload = _check_envelope(value, head)
    assert head.id is not None and head.type is not None and head.session_id is not None
    # An unknown type is no error: the app may be newer than the server.
    struct = _TYPES.get(head.type)
    event = None if struct is None else _convert(payload, struct, head)
    if isinstance(event, client.TranscriptFinal) and len(event.text) > max_bytes:
        _refuse(f"event_too_large:{len(frame)}", head)  # for its words
    return Inbound(id=head.id, type=head.type, session_id=head.session_id, size=len(frame), event=event)


def _has_too_many_values(frame: bytes) -> bool:
    # Counting commas costs a hundredth of building the values between them.
    if frame.count(b",") <= MAX_NODES:
        return False
    # A value has at most four quotes, its key's included; fewer strings are soon taken out.
    quotes = frame.count(b'"') - frame.count(b'\\"')
    return quotes > 4 * MAX_NODES or _STRING.sub(b"", frame).count(b",") > MAX_NODES


def _refuse(message: str, head: _Head | None = None, code: ErrorCode = "invalid_event") -> NoReturn:
    raise InvalidFrame(code, message, head or _Head()) from None


def _read_head(frame: bytes) -> _Head:
    try:
        return _decode_head(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _Head()


def _parse(frame: bytes) -> dict[str, Any]:
    # Parse strictly: UTF-8, no NaN, no lone surrogates.
    try:
        value = _decode(frame)
    except UnicodeDecodeError:
        _refuse("invalid_utf8")
    except RecursionError:
        _refuse("too_deep")
    except msgspec.MsgspecError:
        _refuse("invalid_json")
    if not isinstance(value, dict):
        _refuse("not_an_object")
    return value


def _check_values(value: dict[str, Any], head: _Head) -> None:
    nodes = 0
    # Level by level, without recursion: the sender chooses the depth.
    level: list[Any] = [value]
    depth = 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            _refuse("too_deep", head)
        nodes += len(level)
        if nodes > MAX_NODES:
            _refuse("too_many_values", head)
        below: list[Any] = []
        for item in level:
            if type(item) is dict:
                below.extend(item.values())
            elif type(item) is list:
                below.extend(item)
            elif type(item) is int and not -MAX_INTEGER <= item <= MAX_INTEGER and head.type not in _REPORTS:
                _refuse("number_out_of_range", head)
            elif type(item) is float and not isfinite(item):
                _refuse("invalid_json", head)
        level = below


class _DuplicateKeyError(ValueError):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> None:
    if len({key for key, _ in pairs}) != len(pairs):
        raise _DuplicateKeyError


_scan_keys = json.JSONDecoder(object_pairs_hook=_unique).decode


def _check_keys(frame: bytes, head: _Head) -> None:
    try:
        _scan_keys(frame.decode())
    except _DuplicateKeyError:
        _refuse("duplicate_key", head)
    except (ValueError, RecursionError):
        _refuse("invalid_json", head)


def _check_envelope(value: dict[str, Any], head: _Head) -> dict[str, Any]:
    # In this order: the client gets the first fault.
    for key in ("id", "type", "timestamp", "sessionId", "payload"):
        if value.get(key) is None or (value[key] == "" and key in ("id", "sessionId")):
            _refuse(f"missing_{'session_id' if key == 'sessionId' else key}", head)
    if head.id is None:
        _refuse("invalid_id", head)
    if head.type is None:
        _refuse("invalid_type", head)
    if not isinstance(value["timestamp"], str):
        _refuse("invalid_timestamp", head)
    if head.session_id is None:
        _refuse("invalid_session_id", head)
    payload = value["payload"]
    if not isinstance(payload, dict):
        _refuse("invalid_payload", head)
    version = value.get("protocolVersion")
    version = PROTOCOL_VERSION if version is None else version
    if type(version) is not int or version < 1:
        _refuse("invalid_protocol_version", head)
    if version > PROTOCOL_VERSION:
        message = f"This server speaks protocol version {PROTOCOL_VERSION}."
        _refuse(message, head, "unsupported_protocol_version")
    return payload


def _convert(payload: dict[str, Any], struct: type[ClientEvent], head: _Head) -> ClientEvent:
    try:
        event = msgspec.convert(_with_formed_images(payload, struct), struct)
    except msgspec.ValidationError as error:
        _refuse(f"invalid_payload: {_with_name(_without_value(str(error)), payload)}", head)
    if isinstance(event, client.SessionStart) and event.instructions is not None:
        if len(event.instructions.encode()) > client.MAX_INSTRUCTIONS_BYTES:
            _refuse(f"instructions_too_large:{client.MAX_INSTRUCTIONS_BYTES}", head)
    return event


def _with_formed_images(payload: dict[str, Any], struct: type[ClientEvent]) -> dict[str, Any]:
    """Replace images of another form, which an app may mean otherwise: the words and the result count.

    Null is no image.
    """
    if struct in _ILLUSTRATED and "images" in payload:
        images = payload["images"]
        given = [] if images is None else images if isinstance(images, list) else [images]
        # One more than are taken, so that it is refused; a frame may list hundreds of thousands.
        looked_at = given[: MAX_IMAGES + 1]
        return {
            **payload,
            "images": [image if _fits(image, client.WirePicture) else _NO_IMAGE for image in looked_at],
        }
    match payload:
        case {"resume": {"done": list(done), **resume}} if struct is client.SessionStart:
            reports = [
                _with_formed_images(report, client.ToolResultEvent) if isinstance(report, dict) else report
                for report in done
            ]
            return {**payload, "resume": {**resume, "done": reports}}
    return payload


def _fits(value: Any, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def _with_name(message: str, payload: dict[str, Any]) -> str:
    """Name the variable whose value is refused, which msgspec does not."""
    place = "$.variables[...]"
    if place not in message:
        return message
    refused = next(name for name, value in payload["variables"].items() if not _fits(value, client.Value))
    return message.replace(place, f"$.variables[{refused!r}]")


def _without_value(message: str) -> str:
    # msgspec quotes a value that is not one of a field's choices; it may be confidential.
    if not message.startswith(_NO_CHOICE):
        return message
    _, at, path = message.rpartition(" - at `")
    return f"{_NO_CHOICE}{at}{path}" if at else _NO_CHOICE
