"""One conversation: its connections, start, restore, drain and end.

A session outlives its connections. It takes events from any connection that is bound to it, and sends to the
one that is attached.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from conductor.conversation.approvals import Approvals
from conductor.conversation.background_requests import CacheWarming
from conductor.conversation.client_profile import ClientProfile
from conductor.conversation.commit import Committer, EventEncoder
from conductor.conversation.context import TurnContext
from conductor.conversation.device_calls import DeviceCalls
from conductor.conversation.fields import Fields, PersonFields
from conductor.conversation.grants import Grants
from conductor.conversation.inbound import InboundHandler, InboundResult, of_start
from conductor.conversation.outbox import Outbox
from conductor.conversation.pending_approvals import SpokenPrompts
from conductor.conversation.recovery import FIELD as CLAIMS
from conductor.conversation.recovery import add_claim
from conductor.conversation.services import Services
from conductor.conversation.snapshot import LATE, PROFILE, SPEECH
from conductor.conversation.speech import FloorControl, SpeechTracker
from conductor.conversation.spoken_approvals import SpokenApprovals
from conductor.conversation.tasks import Tasks
from conductor.conversation.tool_round import CallResults
from conductor.conversation.transport import Transport
from conductor.conversation.turn_queue import TurnQueue
from conductor.events import client
from conductor.events.codec import Inbound
from conductor.events.envelope import SUPERSEDED
from conductor.events.server import SessionGoaway, SessionStarted
from conductor.messages import AssistantMessage, Message, ToolResult
from conductor.rate_limit import ANONYMOUS
from conductor.stores.base import Claim, OutboundRecord, SessionState
from conductor.tools.audit import SessionAudit
from conductor.tools.base import SessionFields, ToolSpec
from conductor.tools.declarations import Reading
from conductor.tools.device import PendingCalls

log = structlog.get_logger(__name__)

# Seconds between two checks of a draining session whether its client is still connected.
_LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class ResumeAnswer:
    """The answer to ``resume``: calls whose result to resend, and calls that the server does not wait for."""

    resend: list[str]
    drop: list[str]


class Session:
    """One conversation, from its first event until the grace period after its last connection ends."""

    def __init__(
        self,
        services: Services,
        claim: Claim,
        on_lost: Callable[[bool], None] = lambda _: None,
        former: Session | None = None,
        readings: Sequence[Reading] | None = None,
    ) -> None:
        self.key = claim.key
        self._on_lost = on_lost
        self.is_new = not (claim.state.log or claim.state.fields or claim.state.seen)
        limits = self._limits = services.limits
        self._local_only = services.local_only
        self._metrics = services.session_metrics
        tasks = self._tasks = Tasks()
        pending = PendingCalls()
        outbox = self._outbox = Outbox(limits, self._expired)
        encoder = self._encoder = EventEncoder(
            self.key.session_id, outbox, limits, lambda tool: self._profile.limits_for(tool)
        )
        committer = self._committer = Committer(services.store, claim, encoder, tasks, self._lose)
        grants = Grants(committer, services.subject_records)
        fields, records = Fields(committer), services.subject_records
        # An anonymous person has no identity beyond the session.
        person: SessionFields = fields
        if records is not None and self.key.subject != ANONYMOUS:
            person = PersonFields(records, self.key.subject)
        profile = self._profile = ClientProfile(
            services, self.key.session_id, pending, grants.rules, fields, person, self.key.subject
        )
        committer.register(PROFILE, profile.dump)
        self._speeches = SpeechTracker(limits.heard_window)
        results = CallResults(profile, committer)
        device = self._device = DeviceCalls(profile, pending, results, committer, encoder, lambda: self.busy)
        prompts = SpokenPrompts(profile, outbox, self._speeches)
        audit = SessionAudit(services.audit, self.key.subject, self.key.session_id)
        approvals = self._approvals = Approvals(
            limits, profile, pending, committer, outbox, prompts, tasks, grants, services.metrics, audit
        )
        self._spoken_approvals = SpokenApprovals(approvals)
        context = TurnContext(
            services, profile, pending, committer, encoder, results, device, approvals, self._speeches, audit
        )
        bucket = services.turn_rate(self.key.subject, asyncio.get_running_loop().time())
        self._floor = FloorControl(limits, outbox, bucket, lambda: self._turns.deliver_notices())
        self._turns = TurnQueue(services, context, tasks, self._floor, bucket, person)
        self._warming = CacheWarming(context, tasks)
        spoken, turns, floor = self._spoken_approvals, self._turns, self._floor
        self._inbound_handler = InboundHandler(
            context, services.admission, spoken, turns, floor, bucket, tasks, self._warming
        )
        self._reopening: asyncio.Task[None] | None = None
        claims = add_claim(claim.state.fields, services.limits)
        self._committer.register(CLAIMS, lambda: claims)
        self._committer.mark_dirty(CLAIMS)
        if not self.is_new:
            self._restore(former.unsent(claim) if former is not None else set(), readings)

    def _restore(self, unsent: set[str], readings: Sequence[Reading] | None) -> None:
        state = self._committer.state
        self._profile.restore(state.fields.get(PROFILE), readings)
        outbound = list(state.outbound.values())
        for record in outbound:
            call = state.calls.get(record.call_id)
            # The acknowledgement of a call with a result was not recorded: no commit followed it.
            if record.kind != "call" or (call is not None and call.result is None):
                limit = self._encoder.limit(record, call.name if call is not None else None)
                self._outbox.restore(record, limit, was_sent=record.event_id not in unsent)
            else:
                self._outbox.removed.append(record.event_id)
        self._speeches.restore(state.fields.get(SPEECH), self._text_at, self._outbox.is_outstanding)
        self._device.restore(state.fields.get(LATE))
        self._turns.restore()
        for record in outbound:
            if record.kind == "approval" and record.call_id not in self._approvals.pending:
                self._outbox.abandon(record.call_id)

    def _expired(self, record: OutboundRecord) -> None:
        if record.kind == "speak":
            self._speeches.forget(record.call_id)  # no acknowledgement will come
            self._spoken_approvals.prompt_unanswered(record.call_id)
            self._turns.deliver_notices()
        else:
            self._tasks.spawn(self._device.time_out(record.call_id))

    def unsent(self, claim: Claim) -> set[str]:
        """List the stored events that this session never sent, because their commit seemed to fail.

        ``claim`` is the one after this session's. Empty if another process may have sent them.
        """
        claims = claim.state.fields.get(CLAIMS)
        if claim.epoch != self._committer.epoch + 1 or claims != self._committer.state.fields.get(CLAIMS):
            return set()
        return {event_id for event_id in claim.state.outbound if not self._outbox.has_had(event_id)}

    def _text_at(self, position: int) -> str:
        state = self._committer.state
        index = position - state.log_start
        message = state.log[index] if 0 <= index < len(state.log) else None
        return message.text if isinstance(message, AssistantMessage) else ""

    def _lose(self, stale: bool) -> None:
        log.warning("session taken over", session=self.key.session_id, stale=stale)
        self._on_lost(stale)  # first: it looks up the attached connection
        self._outbox.stop_sending()

    def suspended_for(self, seconds: float) -> None:
        """Extend the clients' time limits: this process was suspended for ``seconds``."""
        self._outbox.calls.postpone(seconds)

    @property
    def state(self) -> SessionState:
        return self._committer.state

    @property
    def messages(self) -> Sequence[Message]:
        return self._committer.state.log

    @property
    def busy(self) -> bool:
        return self._turns.busy

    @property
    def asks(self) -> bool:
        """Whether a question to the person is open."""
        return self._approvals.open

    @property
    def transport(self) -> Transport | None:
        return self._outbox.transport

    def attach(self, transport: Transport, *, resumed: bool, same_process: bool = False) -> None:
        """Send to this connection from now on, and suspend the previous one.

        ``same_process``: the client was not relaunched since it was last attached.
        """
        previous = self._outbox.transport
        reopens = resumed and not self.busy and not self._approvals.open
        if previous is not transport:
            if previous is not None:
                previous.suspend()
                # Without ``resume`` an app reconnects after any close: the two would take turns forever.
                if previous.resumes:
                    previous.close(SUPERSEDED, "another connection serves the session")
            self._outbox.attach(transport, states=not reopens, relaunched=not same_process)
            # Without a turn the new ``idle`` serves as the probe, unless it is held behind a speech.
            if self._outbox.unconfirmed and (self.busy or self._outbox.has_backlog) and not transport.resumes:
                self._tasks.spawn(self._inbound_handler.probe())
        self._spoken_approvals.attached(new=previous is not transport, same_process=same_process)
        if reopens:
            # A transcript may have been lost with the old socket, and the app waits for ``idle``.
            self._reopening = self._tasks.spawn(self._reopen())
        else:
            self._turns.deliver_notices()

    async def _reopen(self) -> None:
        await self._inbound_handler.reopen_microphone()
        self._turns.deliver_notices()

    def detach(self, transport: Transport) -> None:
        """Note that the connection closed; the running turn continues."""
        if self._outbox.transport is transport:
            self._outbox.detach()

    def reload(self, services: Services) -> None:
        """Use another system prompt and catalog, from the next turn on."""
        self._profile.reload(services)

    def drain(self, seconds: float = 0.0) -> None:
        """Start no more turns: the server is about to stop, within ``seconds``."""
        if "goaway" in self._profile.capabilities:
            goaway = SessionGoaway(round(seconds * 1000), "service restart")
            self._outbox.send(self._encoder.frame(goaway))
        self._turns.drain()
        self._outbox.expect_no_acknowledgements()

    async def settled(self) -> None:
        """Wait until no turn is running, and every call of the client was answered or has timed out.

        With a durable store another process resumes the turn: this does not wait for an approval or for a
        client that is not connected.
        """
        while self._waits_for_turn or self._waits_for_client:
            await self._look_again()

    @property
    def _waits_for_turn(self) -> bool:
        may_leave = self._approvals.open or (self.transport is None and self._turns.waits_for_device)
        return self.busy and not (self._committer.durable and may_leave)

    @property
    def _waits_for_client(self) -> bool:
        return self.transport is not None and self._outbox.outstanding

    async def _look_again(self) -> None:
        if self._waits_for_turn:
            ends = [asyncio.create_task(self._turns.settled())]
            if self._committer.durable:
                ends.append(asyncio.create_task(self._approvals.opened()))
        else:
            ends = [asyncio.create_task(self._outbox.calls.quiet())]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED, timeout=_LOOK_S)
        finally:
            for end in ends:
                end.cancel()

    async def close(self) -> None:
        """Stop the turn, wait for its end, and release the session in the store."""
        self._floor.close()
        self._inbound_handler.close()
        self._spoken_approvals.close()
        self._approvals.close()
        await self._turns.close()
        self._outbox.close()
        await self._committer.settled(self._limits.close_timeout)
        await self._tasks.close(self._limits.close_timeout)
        # Last: from now on another process may claim the session.
        await self._committer.release()
        self._profile.close()

    def start(
        self,
        event: client.SessionStart,
        transport: Transport,
        *,
        resumed: bool,
        answer: ResumeAnswer | None = None,
        readings: Sequence[Reading] | None = None,
    ) -> None:
        """Answer ``session.start``, then replay unacknowledged events.

        ``readings`` are the event's tools, read by `read_declarations`.
        """
        rejected = self._profile.start(event, readings)
        transport.resumes = "resume" in self._profile.capabilities
        transport.segments = "segments" in self._profile.capabilities
        if self._profile.dump() != self._committer.state.fields.get(PROFILE):
            self._committer.mark_dirty(PROFILE)
        started = SessionStarted(
            self.key.session_id,
            resumed,
            list(self._profile.capabilities) if event.capabilities else None,
            self._profile.declared if rejected is not None else None,
            rejected,
            None if resumed else "new" if event.resume is None else "not_kept",
            answer.resend if answer is not None else None,
            answer.drop if answer is not None else None,
            self._profile.serving,
            self._local_only or None,
        )
        if "approval" not in self._profile.capabilities:
            self._approvals.withdraw_cards()
        self._metrics.started("resumed" if resumed else started.reason or "new")
        transport.send(self._encoder.frame(started, first=True))
        self.attach(transport, resumed=resumed, same_process=answer is not None)
        self._inbound_handler.diagnose(of_start(event, self._profile.model))
        self._warming.session_starts()

    async def learn(self, event: client.SessionStart) -> ResumeAnswer | None:
        """Record the results that a reconnecting client reports, before `start`. Raises `StoreError`.

        None without ``resume``.
        """
        resume = event.resume
        if resume is None or "resume" not in event.capabilities:
            return None
        resend: list[str] = []
        drop: list[str] = []
        for report in resume.done:
            if not self._device.wants(report.call_id):
                drop.append(report.call_id)
            elif report.result is None and report.error is None:
                resend.append(report.call_id)
            else:
                # Before the replay, which repeats calls without a result.
                await self._device.take(client.ToolResultEvent(report.call_id, report.result, report.error))
        drop += [call_id for call_id in resume.pending if not self._device.wants(call_id)]
        # UI calls are acknowledged by `handled`. The limit protects against made-up ids.
        drop = [call_id for call_id in drop if not self._outbox.is_ui_call(call_id)][: client.MAX_RESUMED]
        self._outbox.handled(resume.last_event_id, queues_speeches="segments" in event.capabilities)
        return ResumeAnswer(resend, drop)

    async def flush(self) -> None:
        """Record dirty snapshots; if the store is unreachable, a later commit records them."""
        await self._committer.try_flush()

    async def verify(self) -> bool:
        """Tell whether this process still owns the session. Raises `StoreError`."""
        return await self._committer.verify()

    async def receive(self, inbound: Inbound, transport: Transport) -> InboundResult:
        """Handle one event from a connection that is bound to this session. Never waits for a turn."""
        if self._reopening is not None and not self._reopening.done():
            await asyncio.wait([self._reopening])  # its ``idle`` precedes a turn of this event
        return await self._inbound_handler.receive(inbound, transport)

    @property
    def tools(self) -> Sequence[ToolSpec]:
        return self._profile.executor.specs

    async def request(self, name: str, arguments: str) -> ToolResult:
        """Make a call for a program of the person, after the running turn; ``arguments`` is JSON.

        It is subject to the same rules and approvals as a call of the model, and is part of the history.
        """
        return await self._turns.request(name, arguments)

    async def reopen_microphone(self) -> None:
        """Send ``idle`` if no turn will: the app transcribes until it receives a state."""
        await self._inbound_handler.reopen_microphone()
