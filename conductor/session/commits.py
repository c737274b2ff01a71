"""The shared core of a session's parts: its state, its commits, and the sending of their events.

The pure modules decide. A decision is made about the state as of now, and its records are in the store before
any of them is applied or sent. A commit that failed may be recorded: until the store tells, nothing else is
decided.
"""

from __future__ import annotations

import asyncio
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from functools import cached_property, partial
from itertools import count
from typing import Any
from weakref import proxy

import structlog
from msgspec.structs import replace

from conductor.clock import epoch_ms, not_before
from conductor.conversation import records as r
from conductor.conversation.apply import advance
from conductor.conversation.consent import Response
from conductor.conversation.events import encode_payload
from conductor.conversation.ids import nonce
from conductor.conversation.phrases import MESSAGES
from conductor.conversation.receive import ended, timed_out
from conductor.conversation.replay import SNAPSHOT_BYTES, SNAPSHOT_COMMITS, replay
from conductor.conversation.state import Call, Conversation, Event, Question, Turn
from conductor.conversation.steps import Step, next_step
from conductor.conversation.view import View, lost_result
from conductor.errors import Conflict, ErrorCode, Fenced, Rollback, StoreError
from conductor.events.envelope import Payload, new_call_id
from conductor.events.server import EndReason, ErrorEvent, set_state
from conductor.rate_limit import ANONYMOUS, SharedRate
from conductor.session.fields import Fields, PersonFields
from conductor.session.gate import SessionGate
from conductor.session.outbox import Outbox
from conductor.session.services import Services
from conductor.stores.base import Claim, SessionKey, SessionLog
from conductor.tools.base import CallContext, SessionFields, ToolSpec

log = structlog.get_logger(__name__)


class SessionCore(ABC):
    """A session's state under its claim, and everything that changes or reads it.

    ``on_rollback`` is called when the store has lost commits, and those of this session are written again.
    ``pending`` are the Futures of calls and questions. ``doubtful`` is the commit that failed and may be
    recorded; ``preface`` are the records that precede those of the first decision. ``now`` and ``wall`` are
    the two clocks of `conductor.clock`; ``wall`` is ``now`` by default.
    """

    def __init__(
        self,
        services: Services,
        store: SessionLog,
        claim: Claim,
        state: Conversation,
        now: Callable[[], int] = epoch_ms,
        wall: Callable[[], int] | None = None,
    ) -> None:
        self.wall = wall or now
        now = not_before(state.at, now)
        self.services = services
        self.key: SessionKey = claim.key
        self.state = state
        self.is_closed = False
        self.cached_until = float("-inf")
        self.tasks: set[asyncio.Task[Any]] = set()
        self.provider = services.provider_for(self.key.subject)
        # A key that discloses no identity.
        identity = f"{self.key.subject} {self.key.session_id}".encode("utf-8", "replace")
        self.cache_key = hashlib.sha256(identity).hexdigest()[:32]
        # What its parts hold: with a cycle, a session that ended would wait for the garbage collector.
        self.weak: SessionCore = proxy(self)
        weak = self.weak
        self.observer = services.observers.observe(weak)
        self.gate = SessionGate(services, self.key, state, self.observer, now)
        self.limits = services.limits
        self.conduct = services.conduct
        self.view = View(state, self.gate, self.conduct, now, memories=lambda words: weak._memories(words))
        self.outbox = Outbox(
            self.key.session_id,
            nonce(claim.token),
            self.view,
            self.limits,
            on_expired=lambda event: weak._expired(event),
        )
        self.view.is_connected = lambda: weak.is_connected
        self.durable = store.durable
        self.doubtful: r.Commit | None = None
        self.preface: list[r.Record] = [r.Claimed(claim.token, services.webhooks.events)]
        self._store = store
        self._claim = claim
        self._is_lost = False
        self._lock = asyncio.Lock()
        self.pending: dict[str, asyncio.Future[Any]] = {}
        self._decisions: set[asyncio.Task[Response]] = set()
        self._commits = len(claim.commits)
        self._bytes = sum(len(data) for data in claim.commits[1:])
        claim.commits = ()  # they are in the state
        self._is_behind = False
        self.on_rollback: Callable[[], None] = lambda: None

    # -- the duties of the session

    @abstractmethod
    def changed(self) -> None:
        """Take note of a change: move the timer, and wake the loop."""

    @abstractmethod
    def _advanced(self, commit: r.Commit, former: Turn | None) -> None:
        """Wake who waits for a commit that was applied; ``former`` is the turn before it."""

    @abstractmethod
    def _abandon(self, error: Fenced) -> None:
        """Stop everything: another process owns the session."""

    def visit(self) -> None:
        """Record with the claim that it is for a request, and not for a client."""
        self.preface = [r.Claimed(self._claim.token, self.services.webhooks.events, visits=True)]

    # -- facts

    @cached_property
    def bucket(self) -> SharedRate:
        """The rate limit of turns."""
        return self.services.turn_rate(self.key.subject, asyncio.get_running_loop().time())

    def take_rate(self) -> float:
        """Take a turn from the rate limit; returns 0.0, or the seconds to wait."""
        return self.bucket.take(asyncio.get_running_loop().time())

    @property
    def is_connected(self) -> bool:
        """Whether a client is attached."""
        return self.outbox.transport is not None

    @property
    def in_segments(self) -> bool:
        """Whether replies are spoken in segments."""
        return "segments" in self.state.profile.capabilities or self.services.speak_segments

    @property
    def left_s(self) -> float:
        """Seconds that are left of the turn."""
        turn = self.state.turn
        if turn is None:
            return 0.0
        used_ms = self.view.now() - turn.running_since if turn.running_since else 0
        return max(0.0, (turn.left_ms - used_ms) / 1000)

    def spec_of(self, item: Call | Question) -> ToolSpec | None:
        """Find the tool of a call or a question."""
        return self.gate.spec_of(item)

    @property
    def person_fields(self) -> SessionFields:
        """The fields of the person behind a token; for an anonymous person those of the session."""
        records, subject = self.services.subject_records, self.key.subject
        if records is None or subject == ANONYMOUS:
            return Fields(self.state, self.decide)
        return PersonFields(records, subject)

    def _memories(self, words: str) -> str:
        fields = self.person_fields
        texts = [toolset.memories(fields, words) for toolset in self.services.toolsets]
        return self.services.redactor.text("\n\n".join(filter(None, texts)))

    def context(self, call_id: str) -> CallContext:
        """Make the context of a call."""
        return CallContext(
            session_id=self.key.session_id,
            call_id=call_id,
            time_zone=self.state.profile.time_zone,
            locale=self.state.profile.locale,
            fields=Fields(self.state, self.decide),
            person=self.person_fields,
            subject=self.key.subject,
            tainted=self.gate.is_tainted,
        )

    # -- decisions

    async def decide(self, decision: Callable[[], Response], *, proves: bool = False) -> Response:
        """Commit a decision about the state as of now; the state does not change in between.

        ``proves``: without records an empty commit is made, which the store refuses to all but the owner.
        Raises `StoreError`. A cancelled caller does not cancel the commit.
        """
        if not self.durable:
            return await self._decide(decision, proves)
        task = self.spawn(self._decide(decision, proves))
        self._decisions.add(task)
        task.add_done_callback(self._decisions.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if self._is_lost and task.cancelled():
                raise _lost() from None  # the session's end cancelled the commit, not the caller
            task.add_done_callback(_retrieve)
            raise
        finally:
            del task  # its error has this frame, and the frame the task: a cycle

    async def _decide(self, decision: Callable[[], Response], proves: bool) -> Response:
        outbox = self.outbox
        async with self._lock:
            if self._is_lost:
                raise _lost()
            outbox.deciding = self.durable
            try:
                if self.doubtful is not None:
                    await self._settle()
                response = decision()
                if isinstance(response, list) and (response or self.preface or proves):
                    await self._record([*self.preface, *response])
                    self.preface = []
            except Fenced as error:
                self.lose(error)
                raise
            finally:
                if self.durable:
                    outbox.deciding = self.doubtful is not None
                    outbox.settle()
        self.changed()
        return response

    async def insist(
        self, decision: Callable[[], Response], *, report_at: int = 1, gives_up: bool = False
    ) -> bool:
        """Commit a decision, however long the store is away; False if another process owns the session.

        A connected client is told once, from the failure ``report_at`` on, counted from 1; ``gives_up``: the
        running turn then ends without an answer, unless the decision was recorded after all.
        """
        turn = self.state.turn
        is_reported = False
        for failure in count(1):
            try:
                await self.decide(decision)
            except Fenced:
                return False
            except StoreError as error:
                if failure >= report_at and not is_reported and self.is_connected:
                    is_reported = True
                    self.report_store_failure(error)
                    if gives_up and turn is not None:
                        self.view.draft = ""
                        decision = partial(self._give_up, turn.id, decision)
                await asyncio.sleep(self.limits.store_retry)
            else:
                return True
        raise AssertionError("the loop has no end")

    async def take(self, step: Step, records: Callable[[], list[r.Record]], *, gives_up: bool = True) -> None:
        """Commit the records of a step's work, unless another step has taken its place."""
        await self.insist(lambda: records() if next_step(self.view) == step else [], gives_up=gives_up)

    async def end_turn(self, reason: EndReason, error: ErrorCode | None = None) -> None:
        """End the running turn, if there is one."""
        await self.insist(lambda: [ended(self.view, reason, error=error)] if self.state.turn else [])

    def _give_up(self, turn_id: str, decision: Callable[[], Response]) -> list[r.Record]:
        state = self.state
        if state.turn is None or state.turn.id != turn_id or not decision():
            return []
        return [ended(self.view, "failed", follow=True)]

    async def verify(self) -> bool:
        """Tell whether this process still owns the session, by an empty commit. Raises `StoreError`."""
        try:
            if self.durable:
                await self.decide(list, proves=True)
        except Fenced:
            return False
        return True

    async def flush(self) -> None:
        """Record the acknowledged events; if the store is away, a later commit does."""
        if self.outbox.acked and self.durable:
            try:
                async with self._lock:
                    if self.doubtful is None:
                        await self._record([])
            except StoreError:
                log.debug("not flushed", session=self.key.session_id)

    def lose(self, error: Fenced) -> None:
        """Record and send nothing more: another process owns the session."""
        if not self._is_lost:
            self._is_lost = True
            self._abandon(error)

    def is_unsent(self, event_id: str, claim: Claim) -> bool:
        """Tell whether this session never sent an event, because its commit seemed to have failed.

        ``claim`` is the one after this session's.
        """
        return claim.epoch == self._claim.epoch + 1 and not self.outbox.has_had(event_id)

    # -- commits

    async def _record(self, records: Sequence[r.Record]) -> None:
        outbox = self.outbox
        acked, outbox.acked = outbox.acked, []
        commit = self._commit(self.view.now(), tuple(records), tuple(acked))
        if self.durable:
            outbox.withhold(key for key, _ in r.answers(records))
        assert self.doubtful is None
        self.doubtful = commit
        try:
            await self._append(commit, "commit")
        except StoreError:
            outbox.acked[:0] = acked
            raise
        self.doubtful = None
        self._apply(commit)

    def _commit(self, at: int, records: tuple[r.Record, ...] = (), acked: tuple[str, ...] = ()) -> r.Commit:
        token = self._claim.token
        return r.Commit("" if self.state.claim == token else token, at, records, acked)

    async def _settle(self) -> bool:
        """Find out about the commit in doubt, and apply it if it is recorded; False without one.

        Else an empty commit takes its place. Raises `StoreError` while the store does not tell.
        """
        commit = self.doubtful
        if commit is None:
            return False
        filler = self._commit(commit.at)
        try:
            await self._append(filler, "filler")
            commit = filler
        except Conflict as conflict:
            # Only this claim writes under its token: the one commit too many is the doubtful one.
            if conflict.revision != self._claim.revision + 1:
                raise Fenced("The session has to be loaded from the store again.", gone=True) from conflict
            self._claim.revision += 1
            self._count(r.encode(commit), snapshot=False)
        self.doubtful = None
        self._apply(commit)
        if self.state.claim == self._claim.token:
            self.preface = []  # it was in that commit
        return True

    async def _append(self, commit: r.Commit, kind: str) -> None:
        try:
            await self._write(commit, kind)
        except Rollback:
            log.warning("session store lost commits", session=self.key.session_id)
            self._is_behind = True
            await self._write(commit, kind)
            self.on_rollback()

    async def _write(self, commit: r.Commit, kind: str) -> None:
        if self._is_behind:
            # A failover lost the log's last commits: the state, which has them, is written again.
            claim = await self._store.claim(self.key)
            if not self.state.continues(replay(claim.commits, claim.revision)):
                raise Fenced("Another claim came between.", gone=True)
            self._claim, self._commits, self._is_behind = claim, SNAPSHOT_COMMITS, False
        snapshot = self._commits >= SNAPSHOT_COMMITS or self._bytes >= SNAPSHOT_BYTES
        data = r.encode(replace(commit, state=self.state) if snapshot else commit)
        # A repetition has the same id: the store then records nothing.
        commit_id = f"{self._claim.token}/{self._claim.revision}/{kind}"
        await self._store.append(self._claim, commit_id, data, snapshot=snapshot)
        self._count(data, snapshot=snapshot)

    def _count(self, data: bytes, *, snapshot: bool) -> None:
        self._commits = 1 if snapshot else self._commits + 1
        # The snapshot itself does not count, or a long history would have one in each commit.
        self._bytes = 0 if snapshot else self._bytes + len(data)

    def _apply(self, commit: r.Commit) -> None:
        """Apply a recorded commit: change the state, send its events, wake who waits."""
        turn = self.state.turn
        for key, value in r.answers(commit.records):
            self._answer(key, value)
        self.observer.applying(commit)
        events = advance(self.state, commit)
        self.outbox.deciding = False
        self.outbox.put(events, self.state.outbound)
        self._advanced(commit, turn)
        self.observer.applied()
        self._deliver()

    def _deliver(self) -> None:
        """Start the delivery of waiting webhook events."""
        if self.state.webhook_events and (delivery := self.services.webhooks.delivery) is not None:
            delivery.wake(self)

    # -- what is waited for

    def expect(self, key: str) -> asyncio.Future[Any]:
        """Return the Future of a call, for its `ToolResult`, or of a question, for the arguments of a yes.

        A result is recorded before its Future is set: the state decides, the Future only wakes its waiter.
        """
        if key not in self.pending:
            self.pending[key] = asyncio.get_running_loop().create_future()
        return self.pending[key]

    def drop_request(self, call_id: str) -> None:
        """Answer a call of a program that will not be made."""
        self.view.requests = [call for call in self.view.requests if call.call_id != call_id]
        self._answer(call_id, lost_result(call_id))

    def _answer(self, key: str, value: object) -> None:
        future = self.pending.pop(key, None)
        if future is not None and not future.done():
            future.set_result(value)

    # -- sending

    def flash(self, event: Payload, *, partial: bool = False, first: bool = False) -> None:
        """Send an event that may be lost."""
        self.outbox.flash(event.TYPE, encode_payload(event), partial=partial, first=first)

    def report_store_failure(self, error: StoreError) -> None:
        """Tell the client that the store is away, and open its microphone; both may be lost."""
        log.error("session store failed", session=self.key.session_id, error=type(error).__name__)
        self.flash(ErrorEvent(error.code, MESSAGES.get(error.code, MESSAGES["internal_error"])))
        self.flash(set_state(new_call_id(), "idle"))

    def _expired(self, event: Event) -> None:
        was_shown, was_sent = True, self.outbox.was_sent(event.call_id)
        if event.kind == "speak":
            # A prompt that was not acknowledged counts as heard once its text was shown.
            question = next((q for q in self.state.questions.values() if q.speech_id == event.call_id), None)
            was_shown = question is not None and not self.outbox.is_outstanding(question.message_id)
        decision = partial(timed_out, self.view, event.call_id, was_shown=was_shown, was_sent=was_sent)
        self.spawn(self.insist(decision, report_at=2))

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task of the session."""
        task = asyncio.create_task(work)
        self.tasks.add(task)  # the event loop has only a weak reference
        task.add_done_callback(self.tasks.discard)
        return task


def _lost() -> Fenced:
    return Fenced("Another process owns the session.")


def _retrieve(task: asyncio.Task[Response]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.debug("not recorded", error=type(task.exception()).__name__)
