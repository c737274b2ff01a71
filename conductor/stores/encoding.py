"""The text form of what is stored: JSON, which an older and a newer version of the server can both read.

Unknown fields are left out and missing ones have their defaults, so that versions can run side by side while
a fleet is upgraded. A new field therefore needs a default. Characters that no UTF-8 text holds (half of a
surrogate pair) are replaced on the way in. All decoders raise `StoreUnavailable` for what they cannot read.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from conductor.errors import StoreUnavailable
from conductor.stores.base import CallRecord, LogEntry, OutboundRecord

_T = TypeVar("_T")

_encode = msgspec.json.Encoder().encode
_entries: msgspec.json.Decoder[LogEntry] = msgspec.json.Decoder(LogEntry)
_calls = msgspec.json.Decoder(CallRecord)
_outbound = msgspec.json.Decoder(OutboundRecord)


def encode_entry(entry: LogEntry) -> str:
    """Write an entry of the log; a `ToolResult` is one too, so that this writes a call's result as well."""
    return _text(entry)


def decode_entry(text: str | bytes) -> LogEntry:
    """Read what `encode_entry` wrote."""
    return _read(_entries, text)


def encode_call(call: CallRecord) -> str:
    """Write a call, with its result if it has one."""
    return _text(call)


def decode_call(text: str | bytes) -> CallRecord:
    """Read what `encode_call` wrote."""
    return _read(_calls, text)


def encode_outbound(record: OutboundRecord) -> str:
    """Write an outbound event; its frame goes in byte for byte."""
    return _text(record)


def decode_outbound(text: str | bytes) -> OutboundRecord:
    """Read what `encode_outbound` wrote. The frame is a copy, and keeps no larger buffer alive."""
    record = _read(_outbound, text)
    return msgspec.structs.replace(record, frame=record.frame.copy())


def clean(text: str) -> str:
    """Replace what no UTF-8 text holds by ``?``; for ids and values that are stored as they are."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _text(value: LogEntry | CallRecord | OutboundRecord) -> str:
    try:
        return _encode(value).decode()
    except UnicodeEncodeError:
        plain = msgspec.to_builtins(value, builtin_types=(msgspec.Raw,))
        return _encode(_cleaned(plain)).decode()


def _cleaned(value: object) -> object:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list | tuple):
        return [_cleaned(each) for each in value]
    if isinstance(value, dict):
        return {key: _cleaned(each) for key, each in value.items()}
    return value


def _read(decoder: msgspec.json.Decoder[_T], text: str | bytes) -> _T:
    try:
        return decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StoreUnavailable("The store holds something that this version cannot read.") from error
