"""The contract of a session store: claim a session, commit operations to it, release it.

Every write carries the claim's unique token, the revision it expects, and a commit id, so that a zombie is
refused, a lost update is noticed, and a retry after a lost reply does nothing. What a client can act upon is
committed before it is sent.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

import msgspec

from conductor.messages import AssistantMessage, Message, ToolResult

MAX_SEEN = 512
"""Inbound event ids remembered a session: transcripts and news only, so that this is hours of talk."""
LASTING = "$"
"""What ids begin with that no client can name, and whose records never expire."""


class Amendment(msgspec.Struct, frozen=True, tag="amend"):
    """Give the assistant's message at log position ``position`` another text: what was heard of it.

    Where there is none, trimmed since or somebody else's, it does nothing.
    """

    position: int
    text: str


LogEntry: TypeAlias = Message | Amendment


class CallRecord(msgspec.Struct, frozen=True):
    """A tool call, from the commit that opens it until its result is in the log.

    ``opened_ms`` is epoch milliseconds. ``result`` is None while the call is open. ``notes`` go to the
    model with the result: what was changed about the arguments, what the person said. ``untrusted``:
    strangers write the result. ``consent``: a person is ``asked`` and nothing has run, or has ``given`` it.
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
    """A durable event until the client acknowledges it. ``frame`` is what was, or will be, sent.

    ``kind``: a model's ``call``; ``final`` and ``message``, which are one reply's text and its place in the
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
    """Put an entry at the end of the log; amendments take no position of their own."""

    entry: LogEntry


@dataclass(frozen=True, slots=True)
class TrimLog:
    """Forget the log's messages before position ``before``."""

    before: int


@dataclass(frozen=True, slots=True)
class OpenCall:
    """Record a call before it is sent or run. A call id that is known already is a `Duplicate`."""

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
    """Note that an inbound event was processed. An id that is known already is a `Duplicate`."""

    event_id: str


@dataclass(frozen=True, slots=True)
class PutOutbound:
    """Keep an event until it is acknowledged."""

    event: OutboundRecord


@dataclass(frozen=True, slots=True)
class AckOutbound:
    """Drop an event that was acknowledged, or that nobody needs any more."""

    event_id: str


@dataclass(frozen=True, slots=True)
class SetField:
    """Set a named field of the session; an empty value drops it."""

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
    """Everything that is kept of a session.

    ``log`` holds messages only, amendments applied; its first one has position ``log_start``.
    """

    log: list[Message] = field(default_factory=list)
    log_start: int = 0
    calls: dict[str, CallRecord] = field(default_factory=dict)
    seen: OrderedDict[str, None] = field(default_factory=OrderedDict)
    outbound: OrderedDict[str, OutboundRecord] = field(default_factory=OrderedDict)
    fields: dict[str, str] = field(default_factory=dict)

    @property
    def log_end(self) -> int:
        """The position that the next message will have."""
        return self.log_start + len(self.log)

    def apply(self, operation: Operation) -> None:
        """Carry out one operation that has been checked."""
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
        """Name what makes a commit a duplicate, if anything does; an operation counts for those after it."""
        seen: set[str] = set()
        is_open: dict[str, bool | None] = {}  # what this commit itself did to calls; None: forgot them
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
        """Whether a call waits for its result; None where it is not known."""
        known = self.calls.get(call_id)
        return None if known is None else known.result is None


@dataclass(frozen=True, slots=True)
class SessionKey:
    """Whose session: nobody reaches one by naming its id under another subject."""

    subject: str
    session_id: str

    @property
    def lasting(self) -> bool:
        """Whether it never expires: the server's own records, whose ids begin with ``$``."""
        return self.session_id.startswith(LASTING)


@dataclass(slots=True)
class Claim:
    """The right to write to a session, until somebody else claims it.

    ``epoch`` counts claims: 1 means that the session is new. ``revision`` moves with each commit.
    ``state`` is what was kept at the time of the claim; it belongs to the claimant.
    """

    key: SessionKey
    token: str
    epoch: int
    revision: int
    state: SessionState


class SessionStore(Protocol):
    """Keeps sessions.

    ``suspends`` is False only for an engine whose commits never wait: nothing can come between their steps.
    """

    @property
    def suspends(self) -> bool:
        """Whether a commit may wait."""
        ...

    async def open(self) -> None:
        """Reach for the file or the server, before anything else.

        Raises `SettingsError` for what cannot be a store, `StoreUnavailable` for one that is not there now.
        """
        ...

    async def claim(self, key: SessionKey) -> Claim:
        """Take a session over, making it if there is none. Raises `StoreUnavailable`."""
        ...

    async def commit(self, claim: Claim, commit_id: str, operations: Sequence[Operation]) -> None:
        """Check all operations, then apply all of them, or none; moves ``claim.revision``.

        A commit id that was the session's last one does nothing. Raises `Fenced`, `Duplicate`, `Conflict`,
        `Rollback` or `StoreUnavailable`.
        """
        ...

    async def release(self, claim: Claim) -> None:
        """Let go of a session that nobody is connected to."""
        ...

    async def aclose(self) -> None:
        """Let go of files and connections."""
        ...
