"""One session in this process: it commits records, and holds the facts that are not stored.

The pure modules decide; this module records their decisions, applies them, and sends the events.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import cached_property, partial
from itertools import count
from typing import Any

import structlog

from conductor.conversation.apply import advance
from conductor.conversation.approvals import Response
from conductor.conversation.background import HistorySummarizer, Reminders, Requests
from conductor.conversation.clients import Clients
from conductor.conversation.events import encode_payload, nonce
from conductor.conversation.fields import person_fields
from conductor.conversation.ledger import Ledger
from conductor.conversation.loop import Loop
from conductor.conversation.outbox import Outbox
from conductor.conversation.phrases import MESSAGES
from conductor.conversation.receive import ended, timed_out
from conductor.conversation.records import Commit, Record, Released, StateShown
from conductor.conversation.services import Services
from conductor.conversation.state import Conversation, Event, Profile, Turn
from conductor.conversation.steps import AwaitResults, deadline, due, next_step
from conductor.conversation.tools import SessionTools
from conductor.conversation.view import View
from conductor.errors import ConductorError, Fenced, StoreError
from conductor.events.envelope import Payload, new_call_id
from conductor.events.server import (
    ErrorEvent,
)
from conductor.events.ui_calls import set_state
from conductor.messages import ToolResult
from conductor.rate_limit import SharedRate
from conductor.stores.base import Claim, SessionKey, SessionLog
from conductor.tools.base import ToolSpec
from conductor.tools.declarations import Reading
from conductor.tools.reminders import FIELD as REMINDERS

log = structlog.get_logger(__name__)

# Finished speeches to remember; an interruption concerns only the last ones.
_MAX_FINISHED = 32
_LOOK_S = 0.1


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
        self.is_closed = False
        self.loop: Loop | None = None
        self.cached_until = float("-inf")
        self._on_lost = on_lost
        self.tasks: set[asyncio.Task[Any]] = set()
        subject = self.key.subject
        self.provider = services.provider_for(subject)
        # A key that discloses no identity.
        identity = f"{subject} {self.key.session_id}".encode("utf-8", "replace")
        self.cache_key = hashlib.sha256(identity).hexdigest()[:32]
        self.observer = services.observers.observe(self)
        self.tools = SessionTools(self)
        self.rules = services.conduct
        self.view = View(state, self.rules, self.tools, now)
        self.outbox = Outbox(self.key.session_id, nonce(claim.token), self.view, self._expired)
        self.ledger = Ledger(self, store, claim)
        self.clients = Clients(self)
        self._summarizer = HistorySummarizer(self) if services.summarize_history else None
        self.view.may_start = self._may_start
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: int | None = None
        self._is_expiring = False
        self._restore(former, claim, readings)

    # -- made when they are needed: most sessions are idle

    @cached_property
    def requests(self) -> Requests:
        """The calls of programs."""
        return Requests(self)

    @cached_property
    def _reminders(self) -> Reminders:
        return Reminders(self, person_fields(self))

    def _stop_reminders(self) -> None:
        if "_reminders" in self.__dict__:
            self._reminders.close()

    @cached_property
    def _bucket(self) -> SharedRate:
        return self.services.turn_rate(self.key.subject, asyncio.get_running_loop().time())

    def _restore(self, former: Session | None, claim: Claim, readings: Sequence[Reading] | None) -> None:
        if self.state.profile.tools is not None:
            self.tools.declare(self.state.profile.tools, readings)
        for event in self.state.outbound.values():
            unsent = former is not None and former.is_unsent(event.id, claim)
            self.outbox.restore(event, is_sent=not unsent)
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
        return claim.epoch == self.ledger.epoch + 1 and not self.outbox.has_had(event_id)

    # -- commit: decide, record, apply, send

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
                await self.ledger.decide(decision)
            except Fenced:
                return False
            except StoreError as error:
                if failure >= report_at and not is_reported and self.is_connected:
                    is_reported = True
                    self.report_store_failure(error)
                    if gives_up and turn is not None:
                        self.view.draft = ""
                        decision = partial(self._give_up, turn.id, decision)
                await asyncio.sleep(self.rules.limits.store_retry)
            else:
                return True
        raise AssertionError("the loop has no end")

    def _give_up(self, turn_id: str, decision: Callable[[], Response]) -> list[Record]:
        state = self.state
        if state.turn is None or state.turn.id != turn_id or not decision():
            return []
        return [ended(self.view, "failed", follow=True)]

    def report_store_failure(self, error: StoreError) -> None:
        """Tell the client that the store is away, and open its microphone; both may be lost."""
        log.error("session store failed", session=self.key.session_id, error=type(error).__name__)
        self.flash(ErrorEvent(error.code, MESSAGES.get(error.code, MESSAGES["internal_error"])))
        self.flash(set_state(new_call_id(), "idle"))

    def apply(self, commit: Commit) -> None:
        """Apply a recorded commit: change the state, send its events, wake who waits."""
        turn = self.state.turn
        self.observer.applying(commit)
        events = advance(self.state, commit)
        self.outbox.deciding = False
        self.outbox.put(events, self.state.outbound)
        if self.loop is not None:
            self.loop.resolve(commit.records)
        if self.state.turn is not turn:
            self._turn_changed(turn)
        self.observer.applied(commit)

    def _turn_changed(self, former: Turn | None) -> None:
        if former is not None:
            if self.loop is not None:
                self.loop.stop()
            if former.cause == "request":
                self.requests.answer(former.id)
        if self.state.turn is not None:
            self.view.summary = None
            if self._summarizer is not None:
                self._summarizer.cancel()

    def lose(self, error: Fenced) -> None:
        """Send nothing more: another process owns the session."""
        log.warning("session taken over", session=self.key.session_id, stale=error.gone)
        self._on_lost(error.gone)  # first: it looks up the attached connection
        self.outbox.stop_sending()
        self.is_closed = True
        self._stop_reminders()
        self._stop_timer()
        self.clients.close()
        self.requests.close()
        self._cancel_tasks()

    # -- facts

    @property
    def is_connected(self) -> bool:
        """Whether a client is attached."""
        return self.outbox.transport is not None

    @property
    def busy(self) -> bool:
        """Whether a turn runs or waits."""
        return not self.is_closed and (self.state.turn is not None or self.loop is not None)

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

    @property
    def specs(self) -> Sequence[ToolSpec]:
        """The tools of the session."""
        return self.tools.executor.specs

    # -- what the client sends

    async def reopen_microphone(self) -> None:
        """Show ``idle`` if no turn will: the app waits for it after each transcript."""

        def decision() -> list[Record]:
            return [StateShown("idle")] if self.state.turn is None or self.state.questions else []

        try:
            await self.ledger.decide(decision)
        except Fenced:
            pass
        except StoreError:
            self.flash(set_state(new_call_id(), "idle"))

    async def verify(self) -> bool:
        """Tell whether this process still owns the session. Raises `StoreError`."""
        try:
            if self.ledger.durable:
                await self.ledger.verify()
        except Fenced:
            return False
        return True

    def take_rate(self) -> float:
        """Take a turn from the rate limit; returns 0.0, or the seconds to wait."""
        return self._bucket.take(asyncio.get_running_loop().time())

    def give_back_rate(self) -> None:
        """Return a turn that was refused."""
        self._bucket.give_back()

    async def request(self, name: str, arguments: str) -> ToolResult:
        """Make a call for a program of the person; see `Requests.make`."""
        return await self.requests.make(name, arguments)

    def loop_ended(self) -> None:
        """Look at everything that waits for the end of a turn."""
        self.loop = None
        if self._summarizer is not None:
            self._summarizer.start()
        self.changed()

    def _may_start(self) -> bool:
        return not self._bucket.wait(asyncio.get_running_loop().time())

    # -- time

    def changed(self) -> None:
        """Take note of a change: move the timer, and wake the loop."""
        if self.is_closed:
            return
        view, outbox, limits = self.view, self.outbox, self.rules.limits
        view.floor_at = None
        if self.state.notices and outbox.transport is not None and not outbox.speaking:
            floor = view.speaking_until
            if not view.sends_partials:
                floor = max(outbox.shown_at, view.utterance_began) + round(limits.open_microphone * 1000)
            wait_s = self._bucket.wait(asyncio.get_running_loop().time())
            view.floor_at = max(floor, view.now() + round(wait_s * 1000) if wait_s else 0)
        if len(view.finished_speeches) > _MAX_FINISHED:
            finished = view.finished_speeches.items()
            view.finished_speeches = {key: at for key, at in finished if key in self.state.speeches}
        if self.state.turn is None and not view.closing and person_fields(self).get(REMINDERS):
            self._reminders.look()
        if not self._is_expiring:
            at = self._deadline
            if at is not None and (self._timer_at is None or at < self._timer_at):
                self._stop_timer()
                seconds = max(0.001, (at - view.now()) / 1000)
                self._timer_at = at
                self._timer = asyncio.get_running_loop().call_later(seconds, self._tick)
        if self.loop is not None:
            self.loop.wake()
        elif not self.ledger.preface and next_step(self.view) != AwaitResults():
            self.loop = Loop(self)
            self.spawn(self.loop.run())

    @property
    def _deadline(self) -> int | None:
        at, late_at = deadline(self.view), self.outbox.deadline
        return at if late_at is None or (at is not None and at < late_at) else late_at

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._timer_at = None

    def _tick(self) -> None:
        self._timer = self._timer_at = None
        at = self._deadline
        if at is None or at > self.view.now():  # it has moved since the timer was set
            self.changed()
        else:
            self._is_expiring = True
            self.spawn(self._expire())

    async def _expire(self) -> None:
        try:
            self.outbox.tick()
            await self.insist(lambda: due(self.view))
        finally:
            self._is_expiring = False
        self.changed()

    def _expired(self, event: Event) -> None:
        was_shown = True
        if event.kind == "speak":
            # A prompt that was not acknowledged counts as heard once its text was shown.
            question = next((q for q in self.state.questions.values() if q.speech_id == event.call_id), None)
            was_shown = question is not None and not self.outbox.is_outstanding(question.message_id)

        def decision() -> list[Record]:
            return timed_out(self.view, event.call_id, was_shown=was_shown)

        self.spawn(self.insist(decision, report_at=2))

    def suspended_for(self, seconds: float) -> None:
        """Extend the client's time limits: this process was suspended."""
        self.outbox.postpone(round(seconds * 1000))

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task of the session."""
        task = asyncio.create_task(work)
        self.tasks.add(task)  # the event loop has only a weak reference
        task.add_done_callback(self.tasks.discard)
        return task

    def _cancel_tasks(self) -> list[asyncio.Task[Any]]:
        tasks = [task for task in self.tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        return tasks

    def flash(self, event: Payload, *, partial: bool = False, first: bool = False) -> None:
        """Send an event that may be lost."""
        self.outbox.flash(event.TYPE, encode_payload(event), partial=partial, first=first)

    # -- the end

    def reload(self, services: Services) -> None:
        """Use another system prompt, catalog and rules; the model sees them from the next turn on."""
        self.services = services
        self.tools.reload()

    def drain(self, seconds: float = 0.0) -> None:
        """Start no more turns: the server is about to stop, within ``seconds``."""
        self.clients.say_goodbye(seconds)
        self.view.draining = True
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
        return self.ledger.busy or (self.busy and not (self.ledger.durable and continues_elsewhere))

    async def close(self) -> None:
        """Stop the turn, and release the session in the store."""
        self.view.closing = True
        self._stop_reminders()
        if self.ledger.durable:
            self.is_closed = True
            if self.loop is not None:
                self.loop.stop()
            await self._release()
        else:
            await self._end_turn()
            self.is_closed = True
        self.outbox.stop_sending()
        self.clients.close()
        self.requests.close()
        self._stop_timer()
        if tasks := self._cancel_tasks():
            await asyncio.wait(tasks, timeout=self.rules.limits.close_timeout)
        await self.ledger.release()
        # A closed session is part of reference cycles, which are collected late.
        self.tools.close()
        self.state.profile = Profile()

    async def _end_turn(self) -> None:
        def decision() -> list[Record]:
            if self.state.turn is None:
                return []
            return [ended(self.view, "session_end")]

        await self.insist(decision)

    async def _release(self) -> None:
        try:
            async with asyncio.timeout(self.rules.limits.close_timeout):
                await self.ledger.decide(lambda: [Released()] if self.state.turn is not None else [])
                await self.ledger.flush()
        except (ConductorError, TimeoutError):
            log.debug("session not released in order", session=self.key.session_id)
