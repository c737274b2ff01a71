"""One session in this process: the life of its parts."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine, Sequence
from functools import cached_property, partial
from typing import Any, Protocol
from weakref import proxy

import structlog

from conductor.clock import epoch_ms, not_before
from conductor.conversation import records as r
from conductor.conversation.apply import advance
from conductor.conversation.events import encode_payload
from conductor.conversation.ids import nonce
from conductor.conversation.phrases import MESSAGES
from conductor.conversation.receive import timed_out
from conductor.conversation.state import Call, Conversation, Event, Question, Turn
from conductor.conversation.steps import AwaitResults, next_step
from conductor.conversation.turns import ended
from conductor.conversation.view import View, live_of, lost_result
from conductor.errors import ConductorError, ErrorCode, Fenced, StoreError
from conductor.events.envelope import Payload, new_call_id
from conductor.events.server import EndReason, ErrorEvent, set_state
from conductor.identity import ANONYMOUS
from conductor.rate_limit import SharedRate
from conductor.session import programs
from conductor.session.clients import Clients
from conductor.session.commits import Commits
from conductor.session.fields import Fields, PersonFields
from conductor.session.gate import SessionGate
from conductor.session.images import Images
from conductor.session.loop import Loop
from conductor.session.outbox import Outbox
from conductor.session.services import Services
from conductor.session.summary import start_summary
from conductor.session.timer import Timer
from conductor.session.transport import Transport
from conductor.stores.base import Claim, SessionKey, SessionLog
from conductor.tools.base import SessionFields, ToolSpec
from conductor.tools.declarations import ReadTool

log = structlog.get_logger(__name__)

_LOOK_S = 0.1
# After these records the person will probably say other words.
_HINTING = r.QuestionsAsked | r.QuestionDecided | r.CallFinished | r.LateFinished | r.TurnEnded


class Home(Protocol):
    """Keeps the sessions of a process."""

    def session_lost(self, session: Session, *, stale: bool) -> None:
        """Learn that another process owns the session, or that this one has only an old state of it."""

    def store_rolled_back(self) -> None:
        """Learn that the store has lost commits."""


class Session:
    """One conversation, from its first event until the grace period after its last connection.

    Its ``home`` learns that another process owns it; after that nothing is recorded or sent. If nobody owns
    it, because it was deleted, its client gets the events ``farewell``. ``pending`` are the Futures of calls
    and questions. ``now`` and ``wall`` are the two clocks of `conductor.clock`; ``wall`` is ``now`` by
    default. ``former`` is the session of this process under the claim before; ``readings`` are its
    tools as they were read. It ``visits`` for a request of the backend, without a client.
    """

    def __init__(
        self,
        services: Services,
        store: SessionLog,
        claim: Claim,
        state: Conversation,
        *,
        home: Home | None = None,
        former: Session | None = None,
        readings: Sequence[ReadTool] | None = None,
        visits: bool = False,
        now: Callable[[], int] = epoch_ms,
        wall: Callable[[], int] | None = None,
    ) -> None:
        self.services, self.limits, self.conduct = services, services.limits, services.conduct
        self.key: SessionKey = claim.key
        self.state = state
        self.is_new = state.is_new
        self.is_closed = False
        self.wall = wall or now
        self.cached_until = float("-inf")
        self.tasks: set[asyncio.Task[Any]] = set()
        self.pending: dict[str, asyncio.Future[Any]] = {}
        self.farewell: list[Event] | None = None
        self.loop: Loop | None = None
        self._home = home
        self._summary: asyncio.Task[None] | None = None
        self.provider = services.provider_for(self.key.subject)
        now = not_before(state.at, now)
        # What its parts hold: with a cycle, a session that ended would wait for the garbage collector.
        weak: Session = proxy(self)
        self.observer = services.observers.observe(weak)
        self.gate = SessionGate(
            services, self.key, state, observer=self.observer, now=now, person=lambda: weak.person_fields
        )
        self.view = View(
            state=state, live=live_of(self.conduct), gate=self.gate, conduct=self.conduct, now=now
        )
        self.outbox = Outbox(
            self.key.session_id,
            nonce(claim.token),
            self.view,
            self.limits,
            on_expired=lambda event: weak._expired(event),
            on_deadline=lambda at: weak._timer.wake_at(at),
        )
        self.images = Images(store, self.key, state)
        self.commits = Commits(
            store,
            claim,
            self.view,
            self.outbox,
            images=self.images,
            observer=self.observer,
            owner=weak,
            retry_s=self.limits.store_retry,
            preface=[r.Claimed(claim.token, services.webhooks.events, visits)],
        )
        self.clients = Clients(weak)
        self._timer = Timer(weak)
        self._restore(former, claim, readings)

    def _restore(self, former: Session | None, claim: Claim, readings: Sequence[ReadTool] | None) -> None:
        if self.state.profile.tools is not None:
            self.gate.declare(self.state.profile.tools, readings)
        for event in self.state.outbound.values():
            self.outbox.restore(event, is_sent=former is None or not former._is_unsent(event.id, claim))
        if self.state.turn is not None or self.state.queue:
            self.spawn(self.commits.insist(list))  # records the claim; then the loop goes on
        self._deliver()

    def _is_unsent(self, event_id: str, claim: Claim) -> bool:
        """Return whether this session never sent an event, because its commit seemed to have failed.

        ``claim`` is the one after this session's.
        """
        return self.commits.is_before(claim) and not self.outbox.has_had(event_id)

    # -- facts

    @cached_property
    def cache_key(self) -> str:
        """A key of the prompt cache, which discloses no identity."""
        identity = f"{self.key.subject} {self.key.session_id}".encode("utf-8", "replace")
        return hashlib.sha256(identity).hexdigest()[:32]

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

    def spec_of(self, item: Call | Question) -> ToolSpec | None:
        """Find the tool of a call or a question."""
        return self.gate.spec_of(item)

    @property
    def person_fields(self) -> SessionFields:
        """The fields of the person behind a token; for an anonymous person the session's fields."""
        records, subject = self.services.subject_records, self.key.subject
        if records is None or subject == ANONYMOUS:
            return Fields(self.state, self.commits.decide)
        return PersonFields(records, subject)

    # -- after a commit

    def advanced(self, commit: r.Commit, former: Turn | None) -> None:
        """Act on a commit that was applied and sent; ``former`` is the turn before it."""
        for key, value in r.answers(commit.records):
            self.answer(key, value)
        for record in commit.records:
            match record:
                case r.QuestionDecided():
                    self.clients.tell(record.question_id)
                case r.TurnStarted(cause="refused"):
                    self.view.live.openings.refused_input = False
                case r.TurnStarted(cause="news" | "words"):
                    self.take_rate()
                case r.ReplyLogged():
                    programs.forget(self, {call.id for call in record.calls})
        if any(isinstance(record, _HINTING) for record in commit.records):
            self.clients.hint()
        self.clients.recorded()
        self._deliver()
        turn = self.state.turn
        if turn is former:
            return
        self.images.rest()
        if self.loop is not None:
            self.loop.stop()
        if turn is not None and self._summary is not None:
            self._summary.cancel()

    def _deliver(self) -> None:
        """Start the delivery of waiting webhook events."""
        if self.state.webhook_events and (delivery := self.services.webhooks.delivery) is not None:
            delivery.wake(self)

    def changed(self) -> None:
        """Handle a change: move the timer, and wake the loop."""
        if self.is_closed:
            return
        view = self.view
        view.live.openings.floor_at = self._floor_at()
        self._timer.move()
        if self.clients.owes_acknowledgements:  # the last results came while the turn was ending
            self.clients.flush_soon()
        if self.loop is not None:
            self.loop.wake()
        elif self.commits.has_begun and next_step(view) != AwaitResults():
            self.loop = Loop(self, self._loop_ended)
            self.spawn(self.loop.run())

    def _floor_at(self) -> int | None:
        """Return the time from which the server may start a turn unasked; None while it may not."""
        live, outbox = self.view.live, self.outbox
        if not self.state.notices or outbox.transport is None or outbox.speaking or self.state.pause:
            return None
        floor = live.speech.speaking_until
        if not live.speech.sends_partials:
            open_ms = round(self.limits.open_microphone * 1000)
            floor = max(outbox.shown_at, live.speech.utterance_began) + open_ms
        wait_s = self.bucket.wait(asyncio.get_running_loop().time())
        return max(floor, self.view.now() + round(wait_s * 1000) if wait_s else 0)

    def _loop_ended(self) -> None:
        """Look at everything that waits for the end of a turn."""
        self.loop = None
        if self.services.summarize_history and (self._summary is None or self._summary.done()):
            self._summary = start_summary(self)
        self.changed()

    def fenced(self, error: Fenced) -> None:
        """Stop everything: another process owns the session."""
        log.warning("session taken over", session=self.key.session_id, stale=error.gone)
        self.farewell = self._make_farewell() if error.gone else None
        if self._home is not None:
            self._home.session_lost(self, stale=error.gone)  # first: it looks up the attached connection
        self.is_closed = True
        self._stop()
        self._cancel_tasks()

    def _make_farewell(self) -> list[Event] | None:
        """End the turn for the client of a session that is gone; None if nothing is lost with it."""
        if self.state.turn is None:
            return None if self.state.is_new else []
        end = ended(self.view, "failed", error="store_unavailable", follow=False)
        return advance(self.state, r.Commit(claim="", at=self.view.now(), records=(end,)))

    def rolled_back(self) -> None:
        """Learn that the store has lost commits; this session has written its own again."""
        if self._home is not None:
            self._home.store_rolled_back()

    @property
    def busy(self) -> bool:
        """Whether a turn runs or waits."""
        waits = bool(self.state.queue) and not self.view.live.stop.is_suspended
        return not self.is_closed and (self.state.turn is not None or self.loop is not None or waits)

    async def end_turn(self, reason: EndReason, error: ErrorCode | None = None) -> None:
        """End the running turn, if there is one."""
        view = self.view
        await self.commits.insist(lambda: [ended(view, reason, error=error)] if view.state.turn else [])

    # -- what is waited for

    def expect(self, key: str) -> asyncio.Future[Any]:
        """Return the Future of a call, for its `ToolResult`, or of a question, for the arguments of a yes.

        A result is recorded before its Future is set: the state decides, the Future only wakes its waiter.
        """
        if key not in self.pending:
            self.pending[key] = asyncio.get_running_loop().create_future()
        return self.pending[key]

    def answer(self, key: str, value: object) -> None:
        """Set the Future of a call or a question, if somebody waits for it."""
        future = self.pending.pop(key, None)
        if future is not None and not future.done():
            future.set_result(value)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task of the session."""
        task = asyncio.create_task(work)
        self.tasks.add(task)  # the event loop has only a weak reference
        task.add_done_callback(self.tasks.discard)
        return task

    # -- sending

    def flash(self, event: Payload, *, partial: bool = False, to: Transport | None = None) -> None:
        """Send an event that may be lost, to a new connection ``to`` as its first one."""
        self.outbox.flash(event.TYPE, encode_payload(event), partial=partial, to=to)

    def report_store_failure(self, error: StoreError) -> None:
        """Report to the client that the store is away, and open its microphone; both may be lost."""
        log.error("session store failed", session=self.key.session_id, error=type(error).__name__)
        self.flash(ErrorEvent(code=error.code, message=MESSAGES.get(error.code, MESSAGES["internal_error"])))
        self.flash(set_state(new_call_id(), "idle"))

    def store_failed(self, error: StoreError, *, gives_up: bool) -> None:
        """Report to the client that the store is away; the running turn ends if it ``gives_up``."""
        self.report_store_failure(error)
        if gives_up and self.loop is not None:
            self.loop.forget_draft()

    def refuse_input(self) -> None:
        """Say a sentence about refused words once no turn runs, unless the server stops."""
        is_wanted = bool(self.conduct.failures.get("rate_limited"))
        self.view.live.openings.refused_input = is_wanted and not self.view.live.stop.draining

    async def reopen_microphone(self) -> None:
        """Show ``idle`` if no turn will: the app waits for it after each transcript."""

        def decision() -> list[r.Record]:
            return [r.StateShown("idle")] if self.state.turn is None or self.state.questions else []

        try:
            await self.commits.decide(decision)
        except Fenced:
            pass
        except StoreError:
            self.flash(set_state(new_call_id(), "idle"))

    def _expired(self, event: Event) -> None:
        was_shown, was_sent = True, self.view.was_sent(event.call_id)
        if event.kind == "speak":
            # A prompt that was not acknowledged is heard once its text was shown.
            question = next((q for q in self.state.questions.values() if q.speech_id == event.call_id), None)
            was_shown = question is not None and not self.outbox.is_outstanding(question.message_id)
        decision = partial(timed_out, self.view, event.call_id, was_shown=was_shown, was_sent=was_sent)
        self.spawn(self.commits.insist(decision, report_at=2))

    # -- the end

    def reload(self, services: Services) -> None:
        """Use another system prompt, catalog and rules; the model sees them from the next turn on."""
        self.services = services
        self.gate.reload(services)

    def drain(self, seconds: float = 0.0) -> None:
        """Start no more turns: the server is about to stop, within ``seconds``."""
        self.clients.say_goodbye(seconds)
        self.view.live.stop.draining, self.view.live.stop.is_suspended = True, self.commits.durable
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
        calls = [call for call in self.state.calls if call.is_open]
        for_device = bool(calls) and all(call.is_device and call.started_at for call in calls)
        continues_elsewhere = self.state.questions or (for_device and not self.is_connected)
        return self.commits.is_deciding or (self.busy and not (self.commits.durable and continues_elsewhere))

    async def close(self, *, ends: bool = True) -> None:
        """Stop the turn, and release the session in the store; it ``ends`` unless the server stops."""
        self.view.live.stop.closing = True
        if self.commits.durable:
            self.is_closed = True
            if self.loop is not None:
                self.loop.stop()
        else:
            await self.end_turn("session_end")
            self.is_closed = True
        await self._release(ends and self.state.opened)
        self._stop()
        if tasks := self._cancel_tasks():
            await asyncio.wait(tasks, timeout=self.limits.close_timeout)
        await self.commits.release()

    def _stop(self) -> None:
        self.outbox.close()
        self._timer.stop()
        self.clients.close()
        self._home = None
        for call_id, future in self.pending.items():  # the programs'; all other waiters are cancelled
            if not future.done():
                future.set_result(lost_result(call_id))

    def _cancel_tasks(self) -> list[asyncio.Task[Any]]:
        tasks = [task for task in self.tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        return tasks

    async def _release(self, ends: bool) -> None:
        def decision() -> list[r.Record]:
            released: list[r.Record] = [r.Released()] if self.state.turn is not None else []
            return [*released, r.SessionClosed()] if ends else released

        try:
            async with asyncio.timeout(self.limits.close_timeout):
                await self.commits.decide(decision)
                if ends and (delivery := self.services.webhooks.delivery) is not None:
                    await delivery.settle(self)
                await self.commits.flush()
        except (ConductorError, TimeoutError):
            log.debug("session not released in order", session=self.key.session_id)
