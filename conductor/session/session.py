"""One session in this process: the life of its parts, and its one timer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import structlog

from conductor.clock import epoch_ms
from conductor.conversation.apply import advance
from conductor.conversation.receive import ended
from conductor.conversation.records import (
    Commit,
    Record,
    Released,
    ReplyLogged,
    SessionClosed,
    StateShown,
    TurnStarted,
)
from conductor.conversation.state import Conversation, Event, Turn
from conductor.conversation.steps import AwaitResults, deadline, due, next_step
from conductor.conversation.view import lost_result
from conductor.errors import ConductorError, Fenced, StoreError
from conductor.events.envelope import new_call_id
from conductor.events.server import set_state
from conductor.messages import ToolCall, ToolResult
from conductor.rate_limit import ANONYMOUS
from conductor.session.clients import Clients
from conductor.session.commits import SessionCore
from conductor.session.fields import PREFIX
from conductor.session.loop import Loop
from conductor.session.reminders import Reminders
from conductor.session.services import Services
from conductor.session.summary import start_summary
from conductor.stores.base import Claim, SessionLog
from conductor.tools.base import failed
from conductor.tools.declarations import Reading
from conductor.tools.reminders import FIELD as REMINDERS

log = structlog.get_logger(__name__)

# Finished speeches to remember; an interruption concerns only the last ones.
_MAX_FINISHED = 32
# Calls of programs that wait for their turn.
MAX_REQUESTS = 16
_LOOK_S = 0.1


class Session(SessionCore):
    """One conversation, from its first event until the grace period after its last connection.

    ``on_lost`` is called once another process owns the session, with whether this process only has an old
    state; after that nothing is recorded or sent. If nobody owns it, because it was deleted, its client gets
    the events ``farewell``.
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
        wall: Callable[[], int] | None = None,
    ) -> None:
        super().__init__(services, store, claim, state, now, wall)
        self.is_new = state.is_new
        self.loop: Loop | None = None
        self._on_lost = on_lost
        self.clients = Clients(self.weak)
        self._summary: asyncio.Task[None] | None = None
        weak = self.weak
        self.view.may_start = lambda: not weak.bucket.wait(asyncio.get_running_loop().time())
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: int | None = None
        self._look_at: int | None = None
        self._is_expiring = False
        self.farewell: list[Event] | None = None
        self._restore(former, claim, readings)

    # -- made when they are needed: most sessions are idle

    @cached_property
    def _reminders(self) -> Reminders:
        return Reminders(self.weak)

    def _restore(self, former: Session | None, claim: Claim, readings: Sequence[Reading] | None) -> None:
        if self.state.profile.tools is not None:
            self.gate.declare(self.state.profile.tools, readings)
        for event in self.state.outbound.values():
            unsent = former is not None and former.is_unsent(event.id, claim)
            self.outbox.restore(event, is_sent=not unsent)
        if self.state.turn is not None or self.state.queue:
            self.spawn(self.insist(list))  # records the claim; then the loop goes on
        self._deliver()

    # -- after a commit

    def _advanced(self, commit: Commit, former: Turn | None) -> None:
        for record in commit.records:
            match record:
                case TurnStarted(cause="refused"):
                    self.view.refused_input = False
                case TurnStarted(cause="news" | "words"):
                    self.take_rate()
                case ReplyLogged() if self.view.requests:
                    started = {call.id for call in record.calls}
                    self.view.requests = [call for call in self.view.requests if call.call_id not in started]
        turn = self.state.turn
        if turn is former:
            return
        if self.loop is not None:
            self.loop.stop()
        if turn is not None:
            self.view.summary = None
            if self._summary is not None:
                self._summary.cancel()

    def _abandon(self, error: Fenced) -> None:
        log.warning("session taken over", session=self.key.session_id, stale=error.gone)
        self.farewell = self._make_farewell() if error.gone else None
        self._on_lost(error.gone)  # first: it looks up the attached connection
        self.is_closed = True
        self._stop()
        self._cancel_tasks()

    def _make_farewell(self) -> list[Event] | None:
        """End the turn for the client of a session that is gone; None if nothing is lost with it."""
        if self.state.turn is None:
            return None if self.state.is_new else []
        end = ended(self.view, "failed", error="store_unavailable", follow=False)
        return advance(self.state, Commit("", self.view.now(), (end,)))

    @property
    def busy(self) -> bool:
        """Whether a turn runs or waits."""
        return not self.is_closed and (self.state.turn is not None or self.loop is not None)

    # -- what the client sends

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

    async def request(self, name: str, arguments: str) -> ToolResult:
        """Make a call for a program of the person after the running turn; ``arguments`` is JSON.

        It passes the same rules and questions as a call of the model. Cancelling stops it. It is refused if
        too many wait, or the server is about to stop.
        """
        view, call = self.view, ToolCall(new_call_id(), name, arguments)
        if view.draining or self.is_closed or len(view.requests) >= MAX_REQUESTS:
            refused = failed("rate_limited", "Too many calls wait, or the server stops. Nothing was run.")
            return self.gate.executor.to_result(call.call_id, refused)
        answer = self.expect(call.call_id)
        view.requests = [*view.requests, call]
        self.changed()
        try:
            result: ToolResult = await answer
            return result
        finally:
            if answer.cancelled():
                self.pending.pop(call.call_id, None)
                self.spawn(self.insist(partial(self._request_cancelled, call)))
            view.requests = [waiting for waiting in view.requests if waiting is not call]

    def _request_cancelled(self, call: ToolCall) -> list[Record]:
        is_running = self.state.open_call(call.call_id) is not None
        return [ended(self.view, "interrupted")] if is_running else []

    def _loop_ended(self) -> None:
        """Look at everything that waits for the end of a turn."""
        self.loop = None
        if self.services.summarize_history and (self._summary is None or self._summary.done()):
            self._summary = start_summary(self)
        self.changed()

    # -- time

    def changed(self) -> None:
        """Take note of a change: move the timer, and wake the loop."""
        if self.is_closed:
            return
        view, outbox, limits = self.view, self.outbox, self.limits
        view.floor_at = None
        if self.state.notices and outbox.transport is not None and not outbox.speaking:
            floor = view.speaking_until
            if not view.sends_partials:
                floor = max(outbox.shown_at, view.utterance_began) + round(limits.open_microphone * 1000)
            wait_s = self.bucket.wait(asyncio.get_running_loop().time())
            view.floor_at = max(floor, view.now() + round(wait_s * 1000) if wait_s else 0)
        if len(view.finished_speeches) > _MAX_FINISHED:
            finished = view.finished_speeches.items()
            view.finished_speeches = {key: at for key, at in finished if key in self.state.speeches}
        rests = self.loop is None and self.state.turn is None and not view.closing
        self._look_at = self._reminders.look() if rests and self._may_have_reminders else None
        if not self._is_expiring:
            at = deadline(view, outbox.deadline, self._look_at)
            if at is not None and (self._timer_at is None or at < self._timer_at):
                self._stop_timer()
                seconds = max(0.001, (at - view.now()) / 1000)
                self._timer_at = at
                self._timer = asyncio.get_running_loop().call_later(seconds, self._tick)
        if self.loop is not None:
            self.loop.wake()
        elif not self.preface and next_step(self.view) != AwaitResults():
            self.loop = Loop(self, self._loop_ended)
            self.spawn(self.loop.run())

    @property
    def _may_have_reminders(self) -> bool:
        records, subject = self.services.subject_records, self.key.subject
        if records is None or subject == ANONYMOUS:
            return PREFIX + REMINDERS in self.state.fields
        # In a store that outlives this process another one may set them.
        return self.durable or bool(records.get(subject, PREFIX + REMINDERS))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._timer_at = None

    def _tick(self) -> None:
        self._timer = self._timer_at = None
        at = deadline(self.view, self.outbox.deadline, self._look_at)
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

    # -- the end

    def reload(self, services: Services) -> None:
        """Use another system prompt, catalog and rules; the model sees them from the next turn on."""
        self.services = services
        self.gate.reload(services)

    def drain(self, seconds: float = 0.0) -> None:
        """Start no more turns: the server is about to stop, within ``seconds``."""
        self.clients.say_goodbye(seconds)
        self.view.draining, self.view.is_suspended = True, self.durable
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
        return bool(self._decisions) or (self.busy and not (self.durable and continues_elsewhere))

    async def close(self, *, ends: bool = True) -> None:
        """Stop the turn, and release the session in the store; it ``ends`` unless the server stops."""
        self.view.closing = True
        if self.durable:
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
        await self._store.release(self._claim)

    def _stop(self) -> None:
        self.outbox.close()
        self._stop_timer()
        self.clients.close()
        self._on_lost = lambda stale: None  # it may hold this session, in a cycle
        for call_id, future in self.pending.items():  # the programs'; all other waiters are cancelled
            if not future.done():
                future.set_result(lost_result(call_id))

    def _cancel_tasks(self) -> list[asyncio.Task[Any]]:
        tasks = [task for task in self.tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        return tasks

    async def _release(self, ends: bool) -> None:
        def decision() -> list[Record]:
            released: list[Record] = [Released()] if self.state.turn is not None else []
            return [*released, SessionClosed()] if ends else released

        try:
            async with asyncio.timeout(self.limits.close_timeout):
                await self.decide(decision)
                if ends and (delivery := self.services.webhooks.delivery) is not None:
                    await delivery.settle(self)
                await self.flush()
        except (ConductorError, TimeoutError):
            log.debug("session not released in order", session=self.key.session_id)
