"""One session in this process: it commits records, and holds what cannot be stored.

The pure modules decide; this module records their decisions, applies them, and sends the events.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from itertools import count
from typing import Any

import structlog

from conductor.conversation.apply import advance
from conductor.conversation.approvals import Later, Refuse, Reply, Response, tapped
from conductor.conversation.background import CacheWarming, HistorySummarizer
from conductor.conversation.clients import Clients
from conductor.conversation.events import encode_payload, nonce, probe_call_id
from conductor.conversation.fields import Fields, person_fields
from conductor.conversation.history import HistoryBudget, lost_result
from conductor.conversation.ledger import Ledger
from conductor.conversation.live import Live, Rules
from conductor.conversation.loop import Loop, new_turn_id
from conductor.conversation.model import LIMIT_REACHED, ModelSteps
from conductor.conversation.observer import Observer
from conductor.conversation.outbox import Outbox
from conductor.conversation.pending import PendingCalls
from conductor.conversation.phrases import MESSAGES
from conductor.conversation.receive import ended, receive, timed_out, turn_started
from conductor.conversation.records import (
    CallFinished,
    Claimed,
    Commit,
    QuestionDecided,
    Record,
    Released,
    ReplyLogged,
    StateShown,
    TurnEnded,
    TurnStarted,
    closed_calls,
)
from conductor.conversation.reminders import Reminders
from conductor.conversation.services import Services
from conductor.conversation.state import Conversation, Event, Profile
from conductor.conversation.steps import AskModel, StartTurn, Step, deadline, due, next_step
from conductor.conversation.tasks import Tasks
from conductor.conversation.tools import SessionTools
from conductor.conversation.transport import Transport
from conductor.errors import ConductorError, ErrorCode, Fenced, StoreError
from conductor.events import client
from conductor.events.envelope import Payload, new_call_id
from conductor.events.server import ErrorEvent, set_state
from conductor.messages import Message, ToolCall, ToolResult
from conductor.settings import Limits
from conductor.stores.base import Claim, SessionKey, SessionLog
from conductor.tools.audit import SessionAudit
from conductor.tools.base import ToolSpec, failed
from conductor.tools.declarations import Reading

log = structlog.get_logger(__name__)

# Calls of programs that wait for their turn.
MAX_REQUESTS = 16
# Finished speeches to remember; an interruption concerns only the last ones.
_MAX_FINISHED = 32
_LOOK_S = 0.1


# Two clients that take a session from each other claim often within this time.
_TAKEOVER_WINDOW_MS = 30_000
_MAX_BACKOFF_S = 5.0


def takeover_delay_s(state: Conversation, limits: Limits) -> float:
    """Give the pause before a claim that follows many recent ones."""
    now = epoch_ms()
    recent = sum(abs(now - at) < _TAKEOVER_WINDOW_MS for at in state.claim_times)
    over = recent - limits.free_takeovers
    return 0.0 if over < 0 else min(_MAX_BACKOFF_S, limits.takeover_backoff * 2.0**over)


def epoch_ms() -> int:
    """Return the time in epoch milliseconds."""
    return time.time_ns() // 1_000_000


class Session:
    """One conversation, from its first event until the grace period after its last connection.

    ``on_lost`` is called once another process owns the session, with whether this process only has an old
    state; after that nothing is recorded or sent.
    """

    def __init__(
        self,
        services: Services,
        store: SessionLog,
        claim: Claim,
        state: Conversation,
        on_lost: Callable[[bool], None] = lambda _: None,
        former: Session | None = None,
        readings: Sequence[Reading] | None = None,
        now: Callable[[], int] = epoch_ms,
    ) -> None:
        self.services = services
        self.key: SessionKey = claim.key
        self.state = state
        self.is_new = self.state.is_new
        self.pending = PendingCalls()
        self.tasks = Tasks()
        self.is_closed = False
        self._on_lost = on_lost
        self._lock = asyncio.Lock()
        self._ledger = Ledger(store, claim, self.state)
        self._preface: list[Record] = [Claimed(claim.token)]
        self._fenced: Fenced | None = None
        subject = self.key.subject
        self.provider = services.provider_for(subject)
        self.history = HistoryBudget(services.history_tokens)
        # A key that discloses no identity.
        identity = f"{subject} {self.key.session_id}".encode("utf-8", "replace")
        self.cache_key = hashlib.sha256(identity).hexdigest()[:32]
        audit = SessionAudit(services.audit, subject, self.key.session_id)
        fields = Fields(self)
        person = person_fields(services.subject_records, self.key, fields)
        self.tools = SessionTools(services, self.key, self.state, fields, person, audit)
        self.live = Live(now, self.tools)
        self.rules = Rules(
            services.limits,
            services.interruption_mode == "cancel",
            store.durable,
            services.failures,
            history_tokens=lambda: self.history.tokens,
        )
        self.outbox = Outbox(self.key.session_id, nonce(claim.token), self.live, self.rules, self._expired)
        self.observer = Observer(self, audit)
        self.model = ModelSteps(self)
        self.loop = Loop(self)
        self.clients = Clients(self)
        self.warming = CacheWarming(self)
        self._summarizer = HistorySummarizer(self) if services.summarize_history else None
        self._reminders = Reminders(self, person)
        loop_time = asyncio.get_running_loop().time()
        self._bucket = services.turn_rate(subject, loop_time)
        self.live.may_start = self._may_start
        self._requests: list[tuple[ToolCall, asyncio.Future[ToolResult]]] = []
        self._request: tuple[str, ToolCall] | None = None
        self._round_at = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: int | None = None
        self._is_expiring = False
        self._decisions = 0
        self._restore(former, claim, readings)

    def _restore(self, former: Session | None, claim: Claim, readings: Sequence[Reading] | None) -> None:
        if self.state.profile.tools is not None:
            self.tools.declare(self.state.profile.tools, readings)
        for event in self.state.outbound.values():
            unsent = former is not None and former.is_unsent(event.id, claim)
            self.outbox.restore(event, sent=not unsent)
        if self.state.turn is not None:
            self.observer.recovered(self.state.turn)
        if self.state.turn is not None or self.state.queue:
            self.spawn(self._take_over())

    async def _take_over(self) -> None:
        """Record the claim before the loop goes on with the turn of another process."""
        await self.insist(list)
        self.changed()

    def is_unsent(self, event_id: str, claim: Claim) -> bool:
        """Tell whether this session never sent an event, because its commit seemed to have failed.

        ``claim`` is the one after this session's.
        """
        return claim.epoch == self._ledger.epoch + 1 and not self.outbox.has_had(event_id)

    # -- commit: decide, record, apply, send

    async def decide(self, decision: Callable[[], Response]) -> Response:
        """Commit a decision about the state as of now; the state does not change in between.

        Raises `StoreError`. A cancelled caller does not cancel the commit.
        """
        if not self._ledger.durable:
            return await self._decide(decision)
        self._decisions += 1
        task = self.tasks.spawn(self._decide(decision))
        task.add_done_callback(self._decided)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if self._fenced is not None and task.cancelled():
                raise self._fenced from None  # `close` cancelled the commit, not the caller
            task.add_done_callback(_retrieve)
            raise

    def _decided(self, _: asyncio.Task[Any]) -> None:
        self._decisions -= 1

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
                        self.live.draft = ""
                        decision = partial(self._give_up, turn.id, decision)
                await asyncio.sleep(self.rules.limits.store_retry)
            else:
                return True
        raise AssertionError("the loop has no end")

    def _give_up(self, turn_id: str, decision: Callable[[], Response]) -> list[Record]:
        state = self.state
        if state.turn is None or state.turn.id != turn_id or not decision():
            return []
        return [ended(self.state, self.live, self.rules, "failed", follow=True)]

    def report_store_failure(self, error: StoreError) -> None:
        """Tell the client that the store is away, and open its microphone; both may be lost."""
        log.error("session store failed", session=self.key.session_id, error=type(error).__name__)
        code: ErrorCode = error.code
        self.flash(ErrorEvent(code, MESSAGES.get(code, MESSAGES["internal_error"])))
        self.flash(set_state(new_call_id(), "idle"))

    async def _decide(self, decision: Callable[[], Response]) -> Response:
        async with self._lock:
            if self._fenced is not None:
                raise self._fenced
            self.outbox.deciding = self._ledger.durable
            try:
                if self._ledger.doubtful is not None:
                    self._apply(await self._ledger.settle())
                response = decision()
                records = response.records if isinstance(response, Reply) else response
                if isinstance(records, list) and (records or self._preface):
                    await self._record([*self._preface, *records])
                    self._preface = []
            except Fenced as error:
                self.lose(error)
                raise
            finally:
                self.outbox.deciding = self._ledger.doubtful is not None
                self.outbox.settle()
        self.changed()
        return response

    async def _record(self, records: Sequence[Record]) -> None:
        acked, self.outbox.acked = self.outbox.acked, []
        commit = Commit(self._ledger.token, self.live.now(), tuple(records), tuple(acked))
        if self._ledger.durable:
            self.outbox.withhold(closed_calls(records))
        try:
            await self._ledger.commit(commit)
        except StoreError:
            self.outbox.acked[:0] = acked
            raise
        self._apply(commit)

    def _apply(self, commit: Commit) -> None:
        turn = self.state.turn
        before = self.observer.before(commit)
        shown = advance(self.state, commit)
        self.outbox.deciding = False
        self.outbox.put(shown, self.state.outbound)
        self._resolve(commit.records)
        if turn is not None and self.state.turn is not turn:
            self.loop.stop()
            self._answer_request(turn.id)
        self.observer.after(commit, before)

    def _resolve(self, records: Sequence[Record]) -> None:
        """Wake the waits of this process."""
        for record in records:
            match record:
                case CallFinished():
                    self.pending.answer(record.result.call_id, record.result.content)
                case TurnEnded():
                    for finished in record.results:
                        self.pending.answer(finished.result.call_id, finished.result.content)
                    for question_id in record.superseded:
                        self.pending.answer(question_id, None)
                case QuestionDecided():
                    allowed = record.outcome in ("allowed", "edited")
                    self.pending.answer(record.question_id, record.arguments if allowed else None)
                case TurnStarted():
                    self.live.summary = None
                    if self._summarizer is not None:
                        self._summarizer.cancel()
                case ReplyLogged():
                    self._round_at = self.live.now()

    def lose(self, error: Fenced) -> None:
        """Record and send nothing more: another process owns the session."""
        if self._fenced is None:
            self._fenced = error
            log.warning("session taken over", session=self.key.session_id, stale=error.gone)
            self._on_lost(error.gone)  # first: it looks up the attached connection
            self.outbox.stop_sending()
            self.is_closed = True
            self._reminders.close()
            self._stop_timer()
            self.tasks.cancel()

    def fail(self, error: Exception) -> None:
        """Report a fault of the server in the loop, and wait before the next turn of its own."""
        log.error("turns failed", session=self.key.session_id, exc_info=error)
        self.live.notices_after = self.live.now() + round(self.rules.limits.failed_turn_retry * 1000)
        self.spawn(self._end_failed())

    async def _end_failed(self) -> None:
        def decision() -> list[Record]:
            if self.state.turn is None:
                return []
            return [ended(self.state, self.live, self.rules, "failed", error="internal_error")]

        await self.insist(decision)

    # -- facts

    @property
    def transport(self) -> Transport | None:
        """The attached connection."""
        return self.outbox.transport

    @property
    def is_connected(self) -> bool:
        """Whether a client is attached."""
        return self.outbox.transport is not None

    @property
    def messages(self) -> Sequence[Message]:
        """The history."""
        return self.state.log

    @property
    def busy(self) -> bool:
        """Whether a turn runs or waits."""
        return not self.is_closed and (self.state.turn is not None or self.loop.busy)

    @property
    def asks(self) -> bool:
        """Whether a question to the person is open."""
        return bool(self.state.questions)

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
        used = self.live.now() - turn.running_since if turn.running_since else 0
        return max(0.0, (turn.left_ms - used) / 1000)

    @property
    def specs(self) -> Sequence[ToolSpec]:
        """The tools of the session."""
        return self.tools.executor.specs

    def next_step(self) -> Step:
        """Return the next step of the conversation."""
        return next_step(self.state, self.live, self.rules)

    def note_limit(self, step: AskModel) -> None:
        """Tell the client that the turn's tool calls are used up."""
        turn = self.state.turn
        limits = self.rules.limits
        if turn is not None and step.retries == 0 and turn.refused_rounds < self.rules.max_refused_rounds:
            if turn.rounds >= limits.max_tool_rounds or turn.calls_made >= limits.max_calls_per_turn:
                self.observer.note("limit")
                self.flash(LIMIT_REACHED)

    def bridge_wait_s(self) -> float | None:
        """Seconds until a bridging phrase is due; None if none is."""
        turn, services = self.state.turn, self.services
        if turn is None or not services.bridge_phrases or turn.bridged or turn.segments:
            return None
        calls = [call for call in turn.calls if call.is_open and call.started_at]
        transport = self.outbox.transport
        device = any(call.is_device for call in calls)
        if not calls or turn.cause == "request" or self.asks or transport is None:
            return None
        if (device and not transport.segments) or self.observer.has_spoken:
            return None  # the app would say it after the call
        due_ms = self._round_at + round(self.rules.limits.bridge_after * 1000)
        return max(0.0, (due_ms - self.live.now()) / 1000)

    # -- what the client sends

    async def take(self, event_id: str, event: object) -> Response:
        """Commit the meaning of an event. Raises `StoreError`."""

        def decision() -> Response:
            return receive(self.state, self.live, self.rules, event_id, event, new_turn_id())

        response = await self.decide(decision)
        if isinstance(response, Later):
            self._after(response.at - self.live.now(), lambda: self._take_later(event_id, event))
        return response

    async def take_result(self, event: client.ToolResultEvent) -> None:
        """Commit a result; if the store is away, later, so that the app need not send it again."""
        try:
            await self.take("", event)
        except Fenced:
            raise
        except StoreError:
            self.spawn(self._insist_result(event))
        else:
            self.outbox.acknowledge(event.call_id)

    async def _insist_result(self, event: client.ToolResultEvent) -> None:
        def decision() -> Response:
            return receive(self.state, self.live, self.rules, "", event, "")

        if await self.insist(decision):
            self.outbox.acknowledge(event.call_id)
            self.changed()

    async def _take_later(self, event_id: str, event: object) -> None:
        try:
            response = await self.take(event_id, event)
        except StoreError as error:
            self.report_store_failure(error)
            return
        if isinstance(response, Refuse):
            await self.reopen_microphone()

    async def take_decision(self, decision: client.Decision) -> Reply:
        """Commit a decision about a card. Raises `StoreError`."""
        question = self.state.questions.get(decision.approval_id)
        is_lasting = decision.decision == "allow" and decision.scope == "always"
        if question is not None and is_lasting and "always" in question.scopes:
            if decision.arguments_digest == question.digest:
                await self.tools.grant_always(question)
        response = await self.decide(lambda: tapped(self.state, self.live, decision))
        return response if isinstance(response, Reply) else Reply([])

    async def reopen_microphone(self) -> None:
        """Show ``idle`` if no turn will: the app waits for it after each transcript."""

        def decision() -> list[Record]:
            return [StateShown("idle")] if self.state.turn is None or self.state.questions else []

        try:
            await self.decide(decision)
        except Fenced:
            pass
        except StoreError:
            self.flash(set_state(new_call_id(), "idle"))

    async def verify(self) -> bool:
        """Tell whether this process still owns the session. Raises `StoreError`."""
        if not self._ledger.durable:
            return True
        try:
            await self.decide(list)
            async with self._lock:
                if self._ledger.doubtful is not None:
                    self._apply(await self._ledger.settle())
                else:
                    await self._record([])
        except Fenced as error:
            self.lose(error)
            return False
        return True

    async def flush(self) -> None:
        """Record acknowledged events; if the store is away, a later commit does."""
        if self.outbox.acked and self._ledger.durable:
            try:
                async with self._lock:
                    if self._ledger.doubtful is None:
                        await self._record([])
            except StoreError:
                log.debug("not flushed", session=self.key.session_id)

    def probe_call_id(self, number: int) -> str:
        """Name the call of a `StateShown` that is the ``number``th record of the present decision."""
        return probe_call_id(self.state, self._ledger.token, number + len(self._preface))

    def take_rate(self) -> float:
        """Take a turn from the rate limit; returns 0.0, or the seconds to wait."""
        return self._bucket.take(asyncio.get_running_loop().time())

    def give_back_rate(self) -> None:
        """Return a turn that was refused."""
        self._bucket.give_back()

    # -- turns

    async def start_turn(self, step: StartTurn, turn_id: str) -> None:
        """Record the start of a turn."""
        state = self.state
        if step.cause == "request":
            await self._start_request(turn_id)
            return
        if step.cause == "news":
            self._bucket.take(asyncio.get_running_loop().time())

        def decision() -> list[Record]:
            if state.turn is not None:
                return []
            started = turn_started(
                state, self.live, self.rules, turn_id, step.cause, step.event_id, step.text
            )
            if step.cause == "refused":
                self.live.refused_input = False
                apology = self.rules.failures.get("rate_limited", "")
                spoken = self.tools.spoken(apology)
                return [
                    started,
                    TurnEnded("answered", apology=apology, spoken=spoken, follows=bool(state.queue)),
                ]
            return [started, TurnEnded("interrupted", follows=True)] if step.passed_over else [started]

        await self.insist(decision)

    async def _start_request(self, turn_id: str) -> None:
        """Record the start of a turn about a program's call."""

        def decision() -> list[Record]:
            if self.state.turn is not None or not self._requests:
                return []
            call, answer = self._requests.pop(0)
            self._request = (turn_id, call)
            self.live.request_waits = bool(self._requests)
            self.live.request = (turn_id, 0, 0)
            self.pending.watch(call.call_id, answer)
            return [turn_started(self.state, self.live, self.rules, turn_id, "request", tool=call.name)]

        await self.insist(decision)

    def request_call(self, turn_id: str) -> ToolCall | None:
        """Return the program's call that a turn is about."""
        return self._request[1] if self._request is not None and self._request[0] == turn_id else None

    async def request(self, name: str, arguments: str) -> ToolResult:
        """Make a call for a program of the person, after the running turn; ``arguments`` is JSON.

        It passes the same rules and questions as a call of the model. Cancelling stops it. It is refused if
        too many wait, or the server is about to stop.
        """
        call = ToolCall(new_call_id(), name, arguments)
        if self.live.draining or self.is_closed or len(self._requests) >= MAX_REQUESTS:
            refused = failed("rate_limited", "Too many calls wait, or the server stops. Nothing was run.")
            return self.tools.executor.to_result(call.call_id, refused)
        answer: asyncio.Future[ToolResult] = asyncio.get_running_loop().create_future()
        self._requests.append((call, answer))
        self.live.request_waits = True
        self.changed()
        try:
            return await answer
        finally:
            self._requests = [waiting for waiting in self._requests if waiting[0] is not call]
            self.live.request_waits = bool(self._requests)
            if not answer.done() or answer.cancelled():
                self.spawn(self._stop_request(call))

    async def _stop_request(self, call: ToolCall) -> None:
        def decision() -> list[Record]:
            turn = self.state.turn
            if turn is None or self._request is None or self._request != (turn.id, call):
                return []
            return [ended(self.state, self.live, self.rules, "interrupted")]

        await self.insist(decision)

    def after_turn(self) -> None:
        """Look at everything that waits for the end of a turn."""
        if self._summarizer is not None:
            self._summarizer.start()
        self.changed()

    def _answer_request(self, turn_id: str) -> None:
        """Answer the program whose turn has ended."""
        if self._request is None or self._request[0] != turn_id:
            return
        call_id, self._request = self._request[1].call_id, None
        results = (
            message
            for message in reversed(self.state.log)
            if isinstance(message, ToolResult) and message.call_id == call_id
        )
        self.pending.finish(call_id, next(results, None) or lost_result(call_id))

    def _may_start(self) -> bool:
        return not self._bucket.wait(asyncio.get_running_loop().time())

    # -- time

    def changed(self) -> None:
        """Take note of a change: move the timer, and wake the loop."""
        if self.is_closed:
            return
        live, outbox, limits = self.live, self.outbox, self.rules.limits
        live.floor_at = None
        if self.state.notices and outbox.transport is not None and not outbox.speaking:
            floor = live.speaking_until
            if not live.sends_partials:
                floor = max(outbox.shown_at, live.utterance_began) + round(limits.open_microphone * 1000)
            wait_s = self._bucket.wait(asyncio.get_running_loop().time())
            live.floor_at = max(floor, live.now() + round(wait_s * 1000) if wait_s else 0)
        if len(live.finished_speeches) > _MAX_FINISHED:
            finished = live.finished_speeches.items()
            live.finished_speeches = {key: at for key, at in finished if key in self.state.speeches}
        if self.state.turn is None:
            self._reminders.look()
        if not self._is_expiring:
            at = self._deadline
            if at is not None and (self._timer_at is None or at < self._timer_at):
                self._stop_timer()
                seconds = max(0.001, (at - live.now()) / 1000)
                self._timer_at = at
                self._timer = asyncio.get_running_loop().call_later(seconds, self._tick)
        self.loop.wake()

    @property
    def _deadline(self) -> int | None:
        at, late_at = deadline(self.state, self.live), self.outbox.deadline
        return at if late_at is None or (at is not None and at < late_at) else late_at

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._timer_at = None

    def _tick(self) -> None:
        self._timer = self._timer_at = None
        at = self._deadline
        if at is None or at > self.live.now():  # it has moved since the timer was set
            self.changed()
        else:
            self._is_expiring = True
            self.spawn(self._expire())

    async def _expire(self) -> None:
        try:
            self.outbox.tick()
            await self.insist(lambda: due(self.state, self.live, self.rules))
        finally:
            self._is_expiring = False
        self.changed()

    def _expired(self, event: Event) -> None:
        shown = True
        if event.kind == "speak":
            # A prompt that was not acknowledged counts as heard once its text was shown.
            question = next((q for q in self.state.questions.values() if q.speech_id == event.call_id), None)
            shown = question is not None and self.outbox.was_answered(question.message_id)

        def decision() -> list[Record]:
            return timed_out(self.state, self.live, self.rules, event.call_id, shown=shown)

        self.spawn(self.insist(decision, report_at=2))

    def suspended_for(self, seconds: float) -> None:
        """Extend the client's time limits: this process was suspended."""
        self.outbox.postpone(round(seconds * 1000))

    def _after(self, ms: int, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        def start() -> None:
            if not self.is_closed:
                self.spawn(work())

        asyncio.get_running_loop().call_later(max(0, ms) / 1000, start)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task of the session."""
        return self.tasks.spawn(work)

    def flash(self, event: Payload, *, partial: bool = False, first: bool = False) -> None:
        """Send an event that may be lost."""
        self.outbox.flash(event.TYPE, encode_payload(event), partial=partial, first=first)

    # -- the end

    def reload(self, services: Services) -> None:
        """Use another system prompt, catalog and rules; the model sees them from the next turn on."""
        self.services = services
        self.tools.reload(services)

    def drain(self, seconds: float = 0.0) -> None:
        """Start no more turns: the server is about to stop, within ``seconds``."""
        self.clients.say_goodbye(seconds)
        self.live.draining = True
        self.outbox.expect_no_acknowledgements()
        self.changed()

    async def settled(self) -> None:
        """Wait until no turn runs, and every call of the client was answered or is late.

        With a durable store another process continues the turn: then this waits neither for an approval nor
        for a client that is not connected.
        """
        while self._waits_for_turn or (self.is_connected and self.outbox.outstanding):  # noqa: ASYNC110 -- a lost connection ends calls, too
            await asyncio.sleep(_LOOK_S)

    @property
    def _waits_for_turn(self) -> bool:
        left = self.asks or (not self.is_connected and self.loop.waits_for_device)
        return bool(self._decisions) or (self.busy and not (self._ledger.durable and left))

    async def close(self) -> None:
        """Stop the turn, and release the session in the store."""
        self.live.closing = True
        self._reminders.close()
        self._stop_timer()
        if self._ledger.durable:
            self.is_closed = True
            self.loop.stop()
            await self._release()
        else:
            await self._end_turn()
            self.is_closed = True
        self.outbox.stop_sending()
        await self.tasks.close(self.rules.limits.close_timeout)
        await self._ledger.release()
        # A closed session is part of reference cycles, which are collected late.
        self.tools.close()
        self.state.profile = Profile()

    async def _end_turn(self) -> None:
        def decision() -> list[Record]:
            if self.state.turn is None:
                return []
            return [ended(self.state, self.live, self.rules, "session_end")]

        await self.insist(decision)

    async def _release(self) -> None:
        try:
            async with asyncio.timeout(self.rules.limits.close_timeout):
                await self.decide(lambda: [Released()] if self.state.turn is not None else [])
                await self.flush()
        except (ConductorError, TimeoutError):
            log.debug("session not released in order", session=self.key.session_id)


def _retrieve(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.debug("not recorded", error=type(task.exception()).__name__)
