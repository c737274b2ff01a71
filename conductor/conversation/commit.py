"""Commits: every state change and durable event of a session is recorded here, then sent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import msgspec
import structlog

from conductor.conversation.outbox import Outbox
from conductor.conversation.tasks import Tasks
from conductor.conversation.transport import Frame
from conductor.errors import Conflict, Fenced, Rollback, StoreError
from conductor.events.envelope import IdGenerator, encode_event
from conductor.events.server import ApprovalRequest, ServerEvent, SpeechFinal, SpeechPartial, ToolCallEvent
from conductor.settings import Limits
from conductor.stores.base import (
    AckOutbound,
    Claim,
    Operation,
    OutboundRecord,
    PutOutbound,
    SessionStore,
    SetField,
)
from conductor.stores.records import with_state

log = structlog.get_logger(__name__)


_event_ids = IdGenerator("evt")

_Kind = Literal["call", "final", "message", "state", "speak", "approval"]
_UI_KINDS: dict[str, _Kind] = {
    "convo.setState": "state",
    "convo.appendMessage": "message",
    "tts.speak": "speak",
}


@dataclass(frozen=True, slots=True)
class CallLimits:
    """A call's time limit in seconds, and its tool's effect."""

    limit: float
    effect: str


@dataclass(frozen=True, slots=True)
class EncodedEvent:
    """An encoded event: a durable record with its time limit in seconds, or a frame that may be lost."""

    record: OutboundRecord | None
    limit: float
    frame: Frame | None


class EventEncoder:
    """Encodes and sends one session's events; ``terms`` returns the limits of a device tool by name."""

    def __init__(
        self, session_id: str, outbox: Outbox, limits: Limits, terms: Callable[[str], CallLimits]
    ) -> None:
        self.outbox = outbox
        self._session_id = session_id
        self._limits = limits
        self._terms = terms

    def make_ready(self, events: Sequence[ServerEvent], turn_id: str) -> list[EncodedEvent]:
        """Encode events and give them ids; sends nothing."""
        return [self._ready(event, turn_id) for event in events]

    def send(self, outgoing: Sequence[EncodedEvent]) -> None:
        """Send events that have been committed."""
        for event in outgoing:
            if event.record is not None:
                self.outbox.put(event.record, event.limit)
            elif event.frame is not None:
                self.outbox.send(event.frame)

    def frame(self, event: ServerEvent, *, first: bool = False) -> Frame:
        """Encode an event that may be lost; ``first``: it is the first on its connection.

        It may overtake durable events. Its id follows the last durable event that was sent, so a ``resume``
        that names it does not acknowledge them.
        """
        event_id = _event_ids.after("" if first else self.outbox.last_written)
        data = encode_event(event_id, self._session_id, event)
        return Frame(data, partial=isinstance(event, SpeechPartial))

    def limit(self, record: OutboundRecord, tool: str | None = None) -> float:
        """Return the time limit of an event restored from the store; ``tool`` is the tool of a call."""
        if record.kind == "speak":
            return self._speech_limit(len(msgspec.json.decode(record.frame)["payload"]["arguments"]))
        if record.kind == "call" and tool is not None:
            return self._terms(tool).limit
        return self._limits.ui_timeout if record.kind != "call" else self._limits.tool_timeout

    def _ready(self, event: ServerEvent, turn_id: str) -> EncodedEvent:
        kind: _Kind
        effect, limit, call_id = "", self._limits.ui_timeout, ""
        if isinstance(event, ToolCallEvent):
            kind = _UI_KINDS.get(event.name, "call")
            call_id = event.call_id
            if kind == "speak":
                limit = self._speech_limit(len(event.arguments))
            elif kind == "call":
                terms = self._terms(event.name)
                effect, limit = terms.effect, terms.limit
        elif isinstance(event, SpeechFinal):
            kind = "final"
        elif isinstance(event, ApprovalRequest):
            kind, call_id = "approval", event.approval_id
        else:
            return EncodedEvent(None, 0.0, self.frame(event))
        overtakes = self.outbox.is_probe(call_id)
        event_id = _event_ids.after(self.outbox.last_written) if overtakes else _event_ids()
        frame = msgspec.Raw(encode_event(event_id, self._session_id, event))
        now = time.time_ns() // 1_000_000
        return EncodedEvent(OutboundRecord(event_id, kind, call_id, turn_id, now, frame, effect), limit, None)

    def _speech_limit(self, chars: int) -> float:
        return self._limits.speech_timeout + chars * self._limits.speech_seconds_per_char


_commit_ids = IdGenerator("commit")

Operations: TypeAlias = Sequence[Operation] | Callable[[], Sequence[Operation]]


class Committer:
    """A session's claim, and its state as of the last commit.

    ``state`` mirrors the store. ``on_lost`` is called once, when another claim owns the session (``stale``
    False), or when the stored state is missing or differs from ``state`` (``stale`` True). After that nothing
    is recorded or sent.
    """

    def __init__(
        self,
        store: SessionStore,
        claim: Claim,
        encoder: EventEncoder,
        tasks: Tasks,
        on_lost: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self.key = claim.key
        self.state = claim.state
        self.epoch = claim.epoch
        self.durable = store.is_async
        self.is_lost = False
        self._store = store
        self._claim = claim
        self._encoder = encoder
        self._tasks = tasks
        self._on_lost = on_lost
        self._behind = False
        self._lock = asyncio.Lock()
        self._snapshots: dict[str, Callable[[], str]] = {}
        self._changed: set[str] = set()

    def register(self, name: str, snapshot: Callable[[], str]) -> None:
        """Write the result of ``snapshot`` to a session field, with the next commit after `mark_dirty`."""
        self._snapshots[name] = snapshot

    def mark_dirty(self, name: str) -> None:
        """Mark a snapshot as changed: the next commit writes it."""
        if self.durable:
            self._changed.add(name)

    async def commit(
        self,
        operations: Operations,
        events: Sequence[ServerEvent] = (),
        turn_id: str = "",
        *,
        snapshots: Mapping[str, Callable[[], str]] | None = None,
        after: Callable[[], None] | None = None,
    ) -> None:
        """Record the operations and the durable events, then send all events.

        ``snapshots`` are fields that change with this commit. They, and operations that are a function, are
        read when it holds the lock. ``after`` is called before the next commit starts. The commits of a
        session run one at a time, so events leave in their order. Raises `StoreError`: then nothing is sent,
        and usually nothing was recorded (the store's answer may have been lost).
        """
        outgoing = self._encoder.make_ready(events, turn_id)
        commit = self._commit(operations, outgoing, snapshots if self.durable else None, after)
        if not self.durable:
            await commit
            return
        # A cancelled caller does not stop the store's write, so the mirror must still be updated.
        await self._finished(commit)

    async def flush(self) -> None:
        """Record dirty snapshots and acknowledged events."""
        if self._changed or (self.durable and self._encoder.outbox.removed):
            await self.commit([])

    async def try_flush(self) -> None:
        """Flush; if the store is unreachable, a later commit writes the snapshots."""
        try:
            await self.flush()
        except StoreError as error:
            log.debug("snapshots not written", session=self.key.session_id, error=type(error).__name__)

    async def verify(self) -> bool:
        """Tell whether this claim still owns the session, in the same state. Raises `StoreError`."""
        if not self.durable:
            return True
        try:
            await self._finished(self._verify())
        except Fenced:
            return False
        return True

    async def _finished(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._tasks.spawn(work)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if self.is_lost and task.cancelled():
                # `Tasks.close` cancelled the commit, not the caller.
                raise Fenced("Another claim owns this session.") from None
            task.add_done_callback(_log_failure)
            raise

    async def _verify(self) -> None:
        async with self._lock:
            await self._record([])

    async def _commit(
        self,
        operations: Operations,
        outgoing: Sequence[EncodedEvent],
        snapshots: Mapping[str, Callable[[], str]] | None,
        after: Callable[[], None] | None,
    ) -> None:
        async with self._lock:
            outbox = self._encoder.outbox
            removed, outbox.removed = outbox.removed, []
            changed, self._changed = self._changed, set()
            fields = {name: self._snapshots[name] for name in changed} | dict(snapshots or {})
            recorded = list(operations() if callable(operations) else operations)
            recorded += [SetField(name, snapshot()) for name, snapshot in fields.items()]
            recorded += [AckOutbound(event_id) for event_id in removed]
            recorded += [PutOutbound(event.record) for event in outgoing if event.record is not None]
            if recorded:
                try:
                    await self._record(recorded)
                except StoreError:
                    outbox.removed[:0] = removed
                    self._changed |= changed
                    raise
            if after is not None:
                after()
            self._encoder.send(outgoing)

    async def _record(self, operations: Sequence[Operation]) -> None:
        if self.is_lost:
            raise Fenced("Another claim owns this session.")
        try:
            try:
                await self._write(operations)
            except Rollback:
                log.warning("session store lost commits", session=self.key.session_id)
                self._behind = True
                await self._write(operations)
        except (Conflict, Rollback) as error:
            # A commit that seemed to fail was recorded, or another claim has committed: the mirror is stale.
            log.warning("session state diverged from store", session=self.key.session_id)
            self._lose(stale=True)
            raise Fenced("The session must be reloaded from the store.") from error
        except Fenced as error:
            self._lose(stale=error.gone)
            raise

    async def _write(self, operations: Sequence[Operation]) -> None:
        if self._behind:
            # A failover lost the store's last commits: write this state, which includes them.
            claim = await self._store.claim(self.key)
            if not self.state.continues(claim.state):
                raise Conflict("Another claim came between.")
            self._claim = with_state(claim, self.state)
            self._behind = False
        await self._store.commit(self._claim, _commit_ids(), operations)

    def _lose(self, *, stale: bool) -> None:
        if not self.is_lost:
            self.is_lost = True
            self._on_lost(stale)

    async def release(self) -> None:
        """Flush, then release the claim. Raises `StoreError`."""
        try:
            if not self.is_lost:
                await self.flush()
        except Fenced:
            pass
        await self._store.release(self._claim)

    async def settled(self, seconds: float) -> None:
        """Wait for a running commit, ``seconds`` at most."""
        try:
            async with asyncio.timeout(seconds), self._lock:
                pass
        except TimeoutError:
            log.warning("commit still running", session=self.key.session_id, seconds=seconds)


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.debug("commit failed", error=type(task.exception()).__name__)
