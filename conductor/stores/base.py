"""The contract of a session store: claim a session, commit operations to it, release it.

A commit carries the claim's token, the expected revision and a commit id: a stale owner is refused, a lost
update is detected, and a retry does nothing. Everything a client can act on is committed before it is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import msgspec

from conductor.errors import TooManySessions
from conductor.messages import AssistantMessage, Message, ToolResult
from conductor.rate_limit import ANONYMOUS

# Sessions that a store keeps of one subject by default.
MAX_SESSIONS = 2_000
# Inbound event ids that a session remembers. Only transcripts and notices count: hours of talk.
MAX_SEEN = 512
# Claims that a state remembers as authors. A failover loses seconds, and few claims are made in them.
_MAX_AUTHORS = 8
# First character of the ids of the server's own records, which never expire. No client can use it.
NEVER_EXPIRES = "$"


class Amendment(msgspec.Struct, frozen=True, tag="amend"):
    """Replace the text of the assistant's message at a log position by the part that was heard.

    Does nothing at another message or before the log.
    """

    position: int
    text: str


LogEntry: TypeAlias = Message | Amendment


class CallRecord(msgspec.Struct, frozen=True):
    """A tool call, from the commit that opens it until its result is in the log.

    ``opened_ms`` is epoch milliseconds. ``result`` is None while the call is open. ``notes`` go to the model
    with the result. ``untrusted``: third parties write the result. ``consent``: the person was ``asked`` and
    nothing has run, or consent was ``given``. A ``held`` call needs none, and waits for an earlier one's.
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
    consent: Literal["", "asked", "given", "held"] = ""


class OutboundRecord(msgspec.Struct, frozen=True):
    """A durable event, until the client acknowledges it. ``created_ms`` is epoch milliseconds.

    ``kind``: a ``call`` of the model; ``final`` and ``message``, the text of one reply and its entry in the
    app's transcript; ``state``; ``speak``; an ``approval`` request, whose ``call_id`` is the approval's id.
    """

    event_id: str
    kind: Literal["call", "final", "message", "state", "speak", "approval"]
    call_id: str
    turn_id: str
    created_ms: int
    frame: msgspec.Raw
    effect: str = ""


class AppendLog(msgspec.Struct, frozen=True, tag_field="op", tag="append"):
    """Append an entry to the log; an amendment takes no position."""

    entry: LogEntry


class TrimLog(msgspec.Struct, frozen=True, tag_field="op", tag="trim"):
    """Drop the log's messages before position ``before``."""

    before: int


class OpenCall(msgspec.Struct, frozen=True, tag_field="op", tag="open"):
    """Record a call before it is sent or run. A known call id is a `Duplicate`."""

    call: CallRecord


class FinishCall(msgspec.Struct, frozen=True, tag_field="op", tag="finish"):
    """Record an open call's only result. A call that is not open is a `Duplicate`."""

    call_id: str
    result: ToolResult


class ForgetCall(msgspec.Struct, frozen=True, tag_field="op", tag="forget"):
    """Drop a call whose result is in the log."""

    call_id: str


class RememberInbound(msgspec.Struct, frozen=True, tag_field="op", tag="remember"):
    """Record that an inbound event was processed. A known id is a `Duplicate`."""

    event_id: str


class PutOutbound(msgspec.Struct, frozen=True, tag_field="op", tag="put"):
    """Store an event until it is acknowledged."""

    event: OutboundRecord


class AckOutbound(msgspec.Struct, frozen=True, tag_field="op", tag="ack"):
    """Drop an event that was acknowledged or has become obsolete."""

    event_id: str


class SetField(msgspec.Struct, frozen=True, tag_field="op", tag="set"):
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


class SessionState(msgspec.Struct):
    """The state of a session; a snapshot is one, encoded.

    ``log`` has the amendments applied; its first message has position ``log_start``. ``seen`` holds ids of
    inbound events. ``authors`` maps the tokens of the last claims to the revision of their last commit.
    """

    log: list[Message] = []
    log_start: int = 0
    calls: dict[str, CallRecord] = {}
    seen: dict[str, None] = {}
    outbound: dict[str, OutboundRecord] = {}
    fields: dict[str, str] = {}
    authors: dict[str, int] = {}

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
                self.seen[event_id] = None
                if len(self.seen) > MAX_SEEN:
                    del self.seen[next(iter(self.seen))]
            case PutOutbound(event=event):
                self.outbound[event.event_id] = event
            case AckOutbound(event_id=event_id):
                self.outbound.pop(event_id, None)
            case SetField(name=name, value=""):
                self.fields.pop(name, None)
            case SetField(name=name, value=value):
                self.fields[name] = value

    def _append(self, entry: LogEntry) -> None:
        if not isinstance(entry, Amendment):
            self.log.append(entry)
            return
        index = entry.position - self.log_start
        message = self.log[index] if 0 <= index < len(self.log) else None
        if isinstance(message, AssistantMessage):
            self.log[index] = msgspec.structs.replace(message, text=entry.text)

    def advance(self, operations: Sequence[Operation], token: str, revision: int) -> None:
        """Apply the commit that a claim made at ``revision``."""
        for operation in operations:
            self.apply(operation)
        self.authors[token] = revision
        if len(self.authors) > _MAX_AUTHORS:
            del self.authors[next(iter(self.authors))]

    def continues(self, earlier: SessionState) -> bool:
        """Whether the last commit of ``earlier`` is in this state; token and revision identify a commit."""
        if not earlier.authors:
            return True  # the empty state
        token, revision = list(earlier.authors.items())[-1]
        return self.authors.get(token, 0) >= revision

    def copy(self) -> SessionState:
        """Copy the containers; their items are immutable."""
        return SessionState(*map(copy, msgspec.structs.astuple(self)))

    def duplicate(self, operations: Sequence[Operation]) -> str | None:
        """Give the id that makes a commit a duplicate, or None."""
        inbound_ids: set[str] = set()
        # Calls that this commit opened (True), finished (False) or forgot (None).
        is_open: dict[str, bool | None] = {}
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
                    if event_id in inbound_ids or event_id in self.seen:
                        return event_id
                    inbound_ids.add(event_id)
        return None

    def _is_open(self, call_id: str) -> bool | None:
        record = self.calls.get(call_id)
        return None if record is None else record.result is None


@dataclass(frozen=True, slots=True)
class SessionKey:
    """The id of a session within its subject."""

    subject: str
    session_id: str

    @property
    def never_expires(self) -> bool:
        """Whether it is one of the server's own records."""
        return self.session_id.startswith(NEVER_EXPIRES)

    @property
    def counted(self) -> bool:
        """Whether it counts towards the subject's limit of sessions."""
        return not self.never_expires and self.subject != ANONYMOUS


@dataclass(slots=True)
class Claim:
    """The right to write to a session, until another claim.

    ``epoch`` counts claims: 1 means that the session is new. ``revision`` counts commits. ``state`` is the
    claimant's own. ``commits`` and ``size`` are the number and bytes of the commits since the last snapshot.
    """

    key: SessionKey
    token: str
    epoch: int
    revision: int
    state: SessionState
    commits: int = 0
    size: int = 0


def too_many(limit: int) -> TooManySessions:
    """Make the error for a new session beyond the subject's limit."""
    return TooManySessions(f"{limit} sessions of this token are stored; delete one, or let one expire.")


class SessionStore(Protocol):
    """Stores sessions."""

    @property
    def is_async(self) -> bool:
        """Whether a commit may await; otherwise no other task runs between its steps."""

    async def open(self) -> None:
        """Open the file or connect to the server, before any other method.

        Raises `SettingsError` for a wrong file or server, `StoreUnavailable` if it cannot be reached now.
        """

    async def claim(self, key: SessionKey) -> Claim:
        """Claim a session, creating it if there is none; the former owner is fenced.

        Raises `StoreUnavailable`, and `TooManySessions` for a new session beyond the subject's limit.
        """

    async def commit(self, claim: Claim, commit_id: str, operations: Sequence[Operation]) -> None:
        """Check all operations, then apply all or none; advances ``claim.revision`` and ``claim.state``.

        The commits of a claim follow each other. A repeated commit id records nothing. Raises `Fenced`,
        `Duplicate`, `Conflict`, `Rollback` or `StoreUnavailable`; after the last one repeat the commit.
        """

    async def release(self, claim: Claim) -> None:
        """Release a session that has no connection."""

    async def aclose(self) -> None:
        """Close files and connections."""
