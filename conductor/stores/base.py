"""The contract of a session store: claim a session, commit operations to it, release it.

Every write carries the claim's unique token, the revision it expects, and a commit id: a stale owner is
refused, a lost update is detected, and a retry after a lost reply does nothing. An event that a client may
act upon is committed before it is sent.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias, TypeVar

import msgspec

from conductor.errors import StoreUnavailable, TooManySessions
from conductor.messages import AssistantMessage, Message, ToolResult
from conductor.rate_limit import ANONYMOUS

# Sessions that a store keeps of one subject by default.
KEPT = 2_000
# Ids of inbound events remembered for a session. Only transcripts and notices count: hours of talk.
MAX_SEEN = 512
# First character of the server's own ids: no client can use it, and these records never expire.
LASTING = "$"


class Amendment(msgspec.Struct, frozen=True, tag="amend"):
    """Replace the text of the assistant's message at log position ``position`` by what was heard of it.

    Does nothing if the message was trimmed, or is not the assistant's.
    """

    position: int
    text: str


LogEntry: TypeAlias = Message | Amendment


class CallRecord(msgspec.Struct, frozen=True):
    """A tool call, from the commit that opens it until its result is in the log.

    ``opened_ms`` is epoch milliseconds. ``result`` is None while the call is open. ``notes`` go to the model
    with the result: changes of the arguments, the person's words. ``untrusted``: third parties write the
    result. ``consent``: the person was ``asked`` and nothing has run, or consent was ``given``.
    """

    call_id: str
    name: str
    turn_id: str
    source: str
    effect: str
    opened_ms: int
    result: ToolResult | None = None
    notes: tuple[str, ...] = ()
    untrusted: bool = False
    consent: Literal["", "asked", "given"] = ""


class OutboundRecord(msgspec.Struct, frozen=True):
    """A durable event, until the client acknowledges it. ``frame`` is what was, or will be, sent.

    ``kind``: a ``call`` of the model; ``final`` and ``message``, the text of one reply and its entry in the
    app's transcript; ``state``; ``speak``; an ``approval`` request, whose ``call_id`` is the approval's id.
    ``created_ms`` is epoch milliseconds.
    """

    event_id: str
    kind: Literal["call", "final", "message", "state", "speak", "approval"]
    call_id: str
    turn_id: str
    created_ms: int
    frame: msgspec.Raw
    effect: str = ""


@dataclass(frozen=True, slots=True)
class AppendLog:
    """Append an entry to the log; an amendment takes no position."""

    entry: LogEntry


@dataclass(frozen=True, slots=True)
class TrimLog:
    """Drop the log's messages before position ``before``."""

    before: int


@dataclass(frozen=True, slots=True)
class OpenCall:
    """Record a call before it is sent or run. A known call id is a `Duplicate`."""

    call: CallRecord


@dataclass(frozen=True, slots=True)
class FinishCall:
    """Record an open call's only result. A call that is not open is a `Duplicate`."""

    call_id: str
    result: ToolResult


@dataclass(frozen=True, slots=True)
class ForgetCall:
    """Drop a call whose result is in the log."""

    call_id: str


@dataclass(frozen=True, slots=True)
class RememberInbound:
    """Record that an inbound event was processed. A known id is a `Duplicate`."""

    event_id: str


@dataclass(frozen=True, slots=True)
class PutOutbound:
    """Store an event until it is acknowledged."""

    event: OutboundRecord


@dataclass(frozen=True, slots=True)
class AckOutbound:
    """Drop an event that was acknowledged or has become obsolete."""

    event_id: str


@dataclass(frozen=True, slots=True)
class SetField:
    """Set a named field of the session; an empty value deletes it."""

    name: str
    value: str


Operation: TypeAlias = (
    AppendLog
    | TrimLog
    | OpenCall
    | FinishCall
    | ForgetCall
    | RememberInbound
    | PutOutbound
    | AckOutbound
    | SetField
)


@dataclass(slots=True)
class SessionState:
    """Everything that is stored of a session.

    ``log`` holds messages only, with amendments applied; the first one has position ``log_start``.
    """

    log: list[Message] = field(default_factory=list)
    log_start: int = 0
    calls: dict[str, CallRecord] = field(default_factory=dict)
    seen: OrderedDict[str, None] = field(default_factory=OrderedDict)
    outbound: OrderedDict[str, OutboundRecord] = field(default_factory=OrderedDict)
    fields: dict[str, str] = field(default_factory=dict)

    @property
    def log_end(self) -> int:
        return self.log_start + len(self.log)

    def apply(self, operation: Operation) -> None:
        """Apply an operation that has been checked."""
        match operation:
            case AppendLog(entry=entry):
                self._append(entry)
            case TrimLog(before=before):
                del self.log[: max(before - self.log_start, 0)]
                self.log_start = max(before, self.log_start)
            case OpenCall(call=call):
                self.calls[call.call_id] = call
            case FinishCall(call_id=call_id, result=result):
                self.calls[call_id] = msgspec.structs.replace(self.calls[call_id], result=result)
            case ForgetCall(call_id=call_id):
                self.calls.pop(call_id, None)
            case RememberInbound(event_id=event_id):
                self._remember(event_id)
            case PutOutbound(event=event):
                self.outbound[event.event_id] = event
            case AckOutbound(event_id=event_id):
                self.outbound.pop(event_id, None)
            case SetField(name=name, value=value):
                self._set(name, value)

    def _append(self, entry: LogEntry) -> None:
        if not isinstance(entry, Amendment):
            self.log.append(entry)
            return
        index = entry.position - self.log_start
        message = self.log[index] if 0 <= index < len(self.log) else None
        if isinstance(message, AssistantMessage):
            self.log[index] = msgspec.structs.replace(message, text=entry.text)

    def _remember(self, event_id: str) -> None:
        self.seen[event_id] = None
        if len(self.seen) > MAX_SEEN:
            self.seen.popitem(last=False)

    def _set(self, name: str, value: str) -> None:
        if value:
            self.fields[name] = value
        else:
            self.fields.pop(name, None)

    def duplicate(self, operations: Sequence[Operation]) -> str | None:
        """Name what makes a commit a duplicate, or None. Operations see those before them."""
        seen: set[str] = set()
        is_open: dict[
            str, bool | None
        ] = {}  # calls that this commit opened (True), finished (False) or forgot (None)
        for operation in operations:
            match operation:
                case OpenCall(call=call):
                    if is_open.get(call.call_id, self._is_open(call.call_id)) is not None:
                        return call.call_id
                    is_open[call.call_id] = call.result is None
                case FinishCall(call_id=call_id):
                    if not is_open.get(call_id, self._is_open(call_id)):
                        return call_id
                    is_open[call_id] = False
                case ForgetCall(call_id=call_id):
                    is_open[call_id] = None
                case RememberInbound(event_id=event_id):
                    if event_id in seen or event_id in self.seen:
                        return event_id
                    seen.add(event_id)
        return None

    def _is_open(self, call_id: str) -> bool | None:
        known = self.calls.get(call_id)
        return None if known is None else known.result is None


@dataclass(frozen=True, slots=True)
class SessionKey:
    """The id of a session within its subject: no other subject can name it."""

    subject: str
    session_id: str

    @property
    def lasting(self) -> bool:
        """Whether it never expires: the server's own records have ids that begin with ``$``."""
        return self.session_id.startswith(LASTING)

    @property
    def counted(self) -> bool:
        """Whether it counts towards the subject's limit of sessions."""
        return not self.lasting and self.subject != ANONYMOUS


@dataclass(slots=True)
class Claim:
    """The right to write to a session, until another claim.

    ``epoch`` counts claims: 1 means that the session is new. ``revision`` grows with each commit. ``state``
    is the stored state at the time of the claim; it belongs to the claimant.
    """

    key: SessionKey
    token: str
    epoch: int
    revision: int
    state: SessionState


def too_many(kept: int) -> TooManySessions:
    """Make the error for a new session beyond the subject's limit."""
    return TooManySessions(f"{kept} sessions of this token are kept already; delete one, or let one expire.")


class SessionStore(Protocol):
    """Stores sessions.

    ``is_async`` is False only for a store whose commits never await: no other task can run between their
    steps.
    """

    @property
    def is_async(self) -> bool:
        """Whether a commit may await."""
        ...

    async def open(self) -> None:
        """Open the file or connect to the server, before any other method.

        Raises `SettingsError` for what cannot be a store, `StoreUnavailable` if it cannot be reached now.
        """
        ...

    async def claim(self, key: SessionKey) -> Claim:
        """Claim a session, creating it if there is none; the former owner is fenced.

        Raises `StoreUnavailable`, and `TooManySessions` for a new session beyond the subject's limit.
        """
        ...

    async def commit(self, claim: Claim, commit_id: str, operations: Sequence[Operation]) -> None:
        """Check all operations, then apply all or none; advances ``claim.revision``.

        Repeating the session's last commit id does nothing. Raises `Fenced`, `Duplicate`, `Conflict`,
        `Rollback` or `StoreUnavailable`.
        """
        ...

    async def release(self, claim: Claim) -> None:
        """Release a session that has no connection."""
        ...

    async def aclose(self) -> None:
        """Close files and connections."""
        ...


_T = TypeVar("_T")

_encode = msgspec.json.Encoder().encode
_entries: msgspec.json.Decoder[LogEntry] = msgspec.json.Decoder(LogEntry)
_calls = msgspec.json.Decoder(CallRecord)
_outbound = msgspec.json.Decoder(OutboundRecord)


def encode_entry(entry: LogEntry) -> str:
    """Encode an entry of the log; a call's result is encoded in the same way."""
    return _text(entry)


def decode_entry(text: str | bytes) -> LogEntry:
    """Decode what `encode_entry` wrote."""
    return _read(_entries, text)


def encode_call(call: CallRecord) -> str:
    """Encode a call, with its result if it has one."""
    return _text(call)


def decode_call(text: str | bytes) -> CallRecord:
    """Decode what `encode_call` wrote."""
    return _read(_calls, text)


def encode_outbound(record: OutboundRecord) -> str:
    """Encode an outbound event; its frame is stored byte for byte."""
    return _text(record)


def decode_outbound(text: str | bytes) -> OutboundRecord:
    """Decode what `encode_outbound` wrote. The frame is a copy, so that no larger buffer stays alive."""
    record = _read(_outbound, text)
    return msgspec.structs.replace(record, frame=record.frame.copy())


def clean(text: str) -> str:
    """Replace lone surrogates by ``?``; for ids and values that are stored as they are."""
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
