"""One conversation: its connections, and how it begins, goes on elsewhere, and ends.

A session outlives its connections. It takes events from any connection that is bound to it, and sends to the
one that is served.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from conductor.conversation.duel import FIELD as CLAIMS
from conductor.conversation.duel import noted
from conductor.conversation.intake import Intake, Reception
from conductor.conversation.memos import LATE, PROFILE, SPEECH
from conductor.conversation.parts import make_parts
from conductor.conversation.services import Services
from conductor.conversation.transport import Transport
from conductor.events import client
from conductor.events.codec import Inbound
from conductor.events.server import SessionStarted
from conductor.messages import AssistantMessage, Message
from conductor.stores.base import Claim

log = structlog.get_logger(__name__)

SUPERSEDED = 4409
"""The code that closes the older of two connections (protocol, "Base: client to server")."""
_LOOK_S = 0.1
"""How often a draining session looks whether its client is still there."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is left of what a client knew: calls to answer again, and calls that nobody waits for."""

    resend: list[str]
    drop: list[str]


class Session:
    """One conversation, from its first event until its grace is over."""

    def __init__(
        self,
        services: Services,
        claim: Claim,
        on_lost: Callable[[bool], None] = lambda _: None,
        former: Session | None = None,
    ) -> None:
        self.key = claim.key
        self._on_lost = on_lost
        self.is_new = not (claim.state.log or claim.state.fields or claim.state.seen)
        parts = self._parts = make_parts(services, claim, self._lose)
        self._limits = services.limits
        self._outbox = parts.outbox
        self._profile = parts.profile
        self._ledger = parts.ledger
        self._delivery = parts.delivery
        self._device = parts.device
        self._questions = parts.questions
        self._hearing = parts.hearing
        self._turns = parts.turns
        self._intake = Intake(services.limits, parts)
        claims = noted(claim.state.fields)
        unsent = former.unsent(claim) if former is not None else set[str]()
        self._ledger.keep(CLAIMS, lambda: claims)
        self._ledger.changed(CLAIMS)
        if not self.is_new:
            self._restore(unsent)

    def _restore(self, unsent: set[str]) -> None:
        """Go on where the process before this one was."""
        state = self._ledger.state
        self._profile.restore(state.fields.get(PROFILE))
        outbound, state.outbound = state.outbound, OrderedDict()
        for record in outbound.values():
            call = state.calls.get(record.call_id)
            if record.kind != "call" or (call is not None and call.result is None):
                limit = self._delivery.limit(record, call.name if call is not None else None)
                self._outbox.restore(record, limit, sent=record.event_id not in unsent)
            else:
                self._outbox.drop(record.event_id)
        self._parts.speeches.restore(state.fields.get(SPEECH), self._text_at, self._outbox.is_outstanding)
        self._device.restore(state.fields.get(LATE))
        self._turns.restore()
        for record in outbound.values():
            if record.kind == "approval" and record.call_id not in self._questions.standing:
                self._outbox.abandon(record.call_id)

    def unsent(self, claim: Claim) -> set[str]:
        """List what the store keeps for the client and this session never sent: it knew of no such commit.

        ``claim`` is the one after this session's. Nothing, if another process may have sent it.
        """
        kept = claim.state.fields.get(CLAIMS)
        if claim.epoch != self._ledger.epoch + 1 or kept != self._ledger.state.fields.get(CLAIMS):
            return set()
        return {event_id for event_id in claim.state.outbound if not self._outbox.has_had(event_id)}

    def _text_at(self, position: int) -> str:
        state = self._ledger.state
        index = position - state.log_start
        message = state.log[index] if 0 <= index < len(state.log) else None
        return message.text if isinstance(message, AssistantMessage) else ""

    def _lose(self, stale: bool) -> None:
        """Fall silent: another claim has the session, or what is here is not what the store has."""
        log.warning("session taken over", session=self.key.session_id, stale=stale)
        self._on_lost(stale)  # first: it asks who was served
        self._outbox.mute()

    def stood_still(self, seconds: float) -> None:
        """Know that this process heard nothing for so long: clients are given as much more time."""
        self._outbox.stood_still(seconds)

    @property
    def messages(self) -> Sequence[Message]:
        """The history."""
        return self._ledger.state.log

    @property
    def busy(self) -> bool:
        """Whether a turn is running or about to."""
        return self._turns.busy

    # -- connections

    @property
    def transport(self) -> Transport | None:
        """The connection that is served."""
        return self._outbox.transport

    def attach(self, transport: Transport, *, resumed: bool) -> None:
        """Serve this connection from now on; any other one of this session falls silent."""
        previous = self._outbox.transport
        reopens = resumed and not self.busy and not self._questions.open
        if previous is not transport:
            if previous is not None:
                previous.park()
                if previous.resumes:
                    previous.close(SUPERSEDED, "another connection serves the session")
            prompting = self._questions.voice.is_being_said
            self._outbox.attach(transport, states=not reopens)
            if prompting and not self._questions.voice.is_being_said:
                self._hearing.prompt_lost()
            if self._outbox.unsure and self.busy and not transport.resumes:
                self._parts.tasks.spawn(self._intake.probe())
        if reopens:
            # A transcript that was lost with the old socket has left the app waiting for this.
            self._parts.tasks.spawn(self._intake.reopen_microphone())
        self._turns.tell_news()

    def detach(self, transport: Transport) -> None:
        """Note that the connection is gone; the running turn goes on."""
        if self._outbox.transport is transport:
            self._outbox.detach()

    def reload(self, services: Services) -> None:
        """Use another system prompt and catalog, from the next model call on."""
        self._profile.reload(services)

    def drain(self) -> None:
        """Begin no more turns: the server is about to stop."""
        self._parts.draining = True
        if self._ledger.durable:
            self._turns.lay_down()
        self._outbox.expect_no_acknowledgements()

    async def settled(self) -> None:
        """Wait until no turn is running, and the client has answered every call or had its time.

        Where another process will go on with it, a turn that asks a person is not waited for, nor one that
        waits for a client which is away.
        """
        while self._waits_for_turn or self._waits_for_client:
            await self._look_again()

    @property
    def _waits_for_turn(self) -> bool:
        left = self._questions.open or (self.transport is None and self._turns.waits_for_device)
        return self.busy and not (self._ledger.durable and left)

    @property
    def _waits_for_client(self) -> bool:
        return self.transport is not None and self._outbox.outstanding

    async def _look_again(self) -> None:
        """Wait until what is waited for may have come, or the client may have gone."""
        if self._waits_for_turn:
            ends = [asyncio.create_task(self._turns.settled())]
            if self._ledger.durable:
                ends.append(asyncio.create_task(self._questions.stands()))
        else:
            ends = [asyncio.create_task(self._outbox.quiet())]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED, timeout=_LOOK_S)
        finally:
            for end in ends:
                end.cancel()

    async def close(self) -> None:
        """End the session: stop its turn, wait until that has ended, and let go of it in the store."""
        self._parts.floor.close()
        self._intake.close()
        self._hearing.close()
        self._questions.close()
        await self._turns.close()
        self._outbox.close()
        await self._ledger.settled(self._limits.close_timeout)
        await self._parts.tasks.close(self._limits.close_timeout)
        await self._ledger.release()

    # -- what the client says

    def start(
        self,
        event: client.SessionStart,
        transport: Transport,
        *,
        resumed: bool,
        known: Known | None = None,
    ) -> None:
        """Answer ``session.start``, then replay what this connection has not seen."""
        rejected = self._profile.start(event)
        transport.resumes = "resume" in self._profile.capabilities
        if self._profile.kept() != self._ledger.state.fields.get(PROFILE):
            self._ledger.changed(PROFILE)
        started = SessionStarted(
            self.key.session_id,
            resumed,
            list(self._profile.capabilities) if event.capabilities else None,
            self._profile.declared if rejected is not None else None,
            rejected,
            None if resumed else "new" if event.resume is None else "not_kept",
            known.resend if known is not None else None,
            known.drop if known is not None else None,
        )
        new = self._outbox.transport is not transport
        if "approval" not in self._profile.capabilities:
            self._questions.take_cards_back()
        transport.send(self._delivery.frame(started))
        self.attach(transport, resumed=resumed)
        self._hearing.attached(new=new)

    async def learn(self, event: client.SessionStart) -> Known | None:
        """Record what a client that comes back has done meanwhile, before `start`. Raises `StoreError`.

        None where it does not say.
        """
        resume = event.resume
        if resume is None or "resume" not in event.capabilities:
            return None
        resend: list[str] = []
        drop: list[str] = []
        for done in resume.done:
            if not self._device.wants(done.call_id):
                drop.append(done.call_id)
            elif done.result is None and done.error is None:
                resend.append(done.call_id)
            else:
                await self._device.take(client.ToolResultEvent(done.call_id, done.result, done.error))
        drop += [call_id for call_id in resume.pending if not self._device.wants(call_id)]
        self._outbox.handled(resume.last_event_id)
        return Known(resend, drop)

    def rejoin(self, transport: Transport) -> None:
        """Serve a connection again that knew this session before it was taken from the store anew."""
        self.attach(transport, resumed=True)
        self._hearing.attached(new=True)

    async def flush(self) -> None:
        """Record what nobody waits for; where the store is away, a later commit takes it along."""
        await self._ledger.try_flush()

    async def verify(self) -> bool:
        """Tell whether this process still has the session. Raises `StoreError`."""
        return await self._ledger.verify()

    async def receive(self, inbound: Inbound, transport: Transport) -> Reception:
        """Take one event from a connection that is bound to this session. Never waits for a turn."""
        return await self._intake.receive(inbound, transport)

    async def reopen_microphone(self) -> None:
        """Say ``idle`` where no turn will: the app is transcribing until it hears that."""
        await self._intake.reopen_microphone()
