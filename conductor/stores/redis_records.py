"""Between what sessions hold and what the scripts in Redis take and give."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, assert_never
from urllib.parse import quote, unquote

import msgspec

from conductor.errors import StoreUnavailable
from conductor.messages import ToolResult
from conductor.stores.base import (
    AckOutbound,
    Amendment,
    AppendLog,
    CallRecord,
    FinishCall,
    ForgetCall,
    OpenCall,
    Operation,
    PutOutbound,
    RememberInbound,
    SessionKey,
    SessionState,
    SetField,
    TrimLog,
)
from conductor.stores.encoding import (
    decode_call,
    decode_entry,
    decode_outbound,
    encode_call,
    encode_entry,
    encode_outbound,
)
from conductor.stores.redis_protocol import Reply
from conductor.stores.redis_scripts import KEYS

_Triple: TypeAlias = tuple[str, str, str]

_FIELD = b"f:"


@dataclass(frozen=True, slots=True)
class Kept:
    """What a script gave of a session. ``whole`` is False if a part of it went missing in the store."""

    whole: bool
    token: str
    epoch: int
    revision: int
    state: SessionState


def key_names(prefix: str, key: SessionKey) -> list[str]:
    """Name a session's keys. What stands in braces alone decides the hash slot; no name can hold one."""
    slot = f"{_escaped(key.subject)}/{_escaped(key.session_id)}"
    return [f"{prefix}:{{{slot}}}:{kind}" for kind in KEYS]


def meta_pattern(prefix: str, subject: str | None = None, session_id: str | None = None) -> str:
    """Write what SCAN matches to find one key of each session: of all, of a subject, of an id."""
    who, which = ("*" if part is None else _escaped(part) for part in (subject, session_id))
    return f"{prefix}:{{{who}/{which}}}:{KEYS[0]}"


def session_of(name: str) -> SessionKey | None:
    """Read back whose session a key belongs to; None for a key that `key_names` did not make."""
    subject, slash, session_id = name.partition("{")[2].partition("}")[0].partition("/")
    if not slash:
        return None
    return SessionKey(*(unquote(part, errors="surrogatepass") for part in (subject, session_id)))


def _escaped(name: str) -> str:
    return quote(name, safe="", errors="surrogatepass")


def written(operations: Sequence[Operation]) -> Iterator[str]:
    """Write operations as the commit script takes them: three arguments each."""
    for operation in operations:
        yield from _triple(operation)


def _triple(operation: Operation) -> _Triple:
    match operation:
        case AppendLog(entry=entry):
            if isinstance(entry, Amendment):
                return "amend", str(entry.position), encode_entry(entry)
            return "append", "", encode_entry(entry)
        case TrimLog(before=before):
            return "trim", str(before), ""
        case OpenCall(call=call):
            return "open" if call.result is None else "opendone", call.call_id, encode_call(call)
        case FinishCall(call_id=call_id, result=result):
            return "finish", call_id, encode_entry(result)
        case ForgetCall(call_id=call_id):
            return "forget", call_id, ""
        case RememberInbound(event_id=event_id):
            return "remember", event_id, ""
        case PutOutbound(event=event):
            return "put", event.event_id, encode_outbound(event)
        case AckOutbound(event_id=event_id):
            return "ack", event_id, ""
        case SetField(name=name, value=value):
            return ("set", name, value) if value else ("drop", name, "")
        case _:
            assert_never(operation)


def read(reply: Reply) -> Kept:
    """Read what a claim gives. Raises `StoreUnavailable` for what this version cannot read."""
    try:
        whole, meta, log, calls, seen, outbound, *_ = _items(reply)
        fields = dict(_pairs(meta))
        state = SessionState(log_start=int(fields.get(b"start", 0)))
        for entry in _texts(log):
            _append(state, entry)
        for call in (_call(value) for value in _placed(calls)):
            state.calls[call.call_id] = call
        state.seen.update((text(event_id), None) for event_id in _texts(seen))
        for value in _placed(outbound):
            record = decode_outbound(value)
            state.outbound[record.event_id] = record
        state.fields.update(
            (text(name[len(_FIELD) :]), text(value))
            for name, value in fields.items()
            if name.startswith(_FIELD)
        )
        epoch, revision = int(fields.get(b"epoch", 0)), int(fields.get(b"revision", 0))
        return Kept(bool(whole), text(fields.get(b"token", b"")), epoch, revision, state)
    except ValueError as error:
        raise StoreUnavailable("The store holds something that this version cannot read.") from error


def _append(state: SessionState, stored: bytes) -> None:
    entry, _, amendment = stored.partition(b"\n")
    state.apply(AppendLog(decode_entry(entry)))
    if amendment:
        state.apply(AppendLog(decode_entry(amendment)))


def _call(stored: bytes) -> CallRecord:
    record, _, finished = stored.partition(b"\n")
    call = decode_call(record)
    if not finished:
        return call
    result = decode_entry(finished)
    if not isinstance(result, ToolResult):
        raise ValueError("A call's result is no result.")
    return msgspec.structs.replace(call, result=result)


def _placed(reply: Reply) -> list[bytes]:
    """Give a hash's values in the order of the places that they begin with."""
    placed = []
    for _, value in _pairs(reply):
        place, _, record = value.partition(b" ")
        placed.append((int(place.lstrip(b"PD")), record))
    return [record for _, record in sorted(placed)]


def _pairs(reply: Reply) -> Iterator[tuple[bytes, bytes]]:
    flat = iter(_texts(reply))
    return zip(flat, flat, strict=True)


def _texts(reply: Reply) -> Iterable[bytes]:
    return (each if isinstance(each, bytes) else b"" for each in _items(reply))


def _items(reply: Reply) -> list[Reply]:
    if not isinstance(reply, list):
        raise ValueError("A list was expected.")
    return reply


def text(value: Reply) -> str:
    """Read a name or a value; what is no UTF-8 was not written here, and is made readable."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""
