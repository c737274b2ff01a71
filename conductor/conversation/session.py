"""One conversation: its connections, and what comes by them.

A session outlives its connections. It takes events from any connection that is bound to it, and sends to the
one that is served.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import structlog

from conductor.bounds import TokenBucket
from conductor.conversation.delivery import Delivery
from conductor.conversation.device_calls import DeviceCalls
from conductor.conversation.duel import FIELD as CLAIMS
from conductor.conversation.duel import noted
from conductor.conversation.fields import Fields
from conductor.conversation.floor import Floor
from conductor.conversation.grants import Grants
from conductor.conversation.hearing import Hearing
from conductor.conversation.host import Host, new_call_id
from conductor.conversation.ledger import Ledger
from conductor.conversation.memos import LATE, PROFILE, SPEECH, WAITING
from conductor.conversation.open_question import Voice
from conductor.conversation.outbox import Outbox
from conductor.conversation.profile import Profile
from conductor.conversation.questions import Questions
from conductor.conversation.sentences import MESSAGES, agent_news
from conductor.conversation.services import Services
from conductor.conversation.speeches import Speeches
from conductor.conversation.tasks import Tasks
from conductor.conversation.transport import Transport
from conductor.conversation.turns import Turns
from conductor.conversation.waiting import News
from conductor.errors import Duplicate, ErrorCode, Fenced, StoreError
from conductor.events import client
from conductor.events.codec import Inbound
from conductor.events.server import ErrorEvent, EventAck, ServerEvent, SessionStarted, ToolsChanged, set_state
from conductor.messages import AssistantMessage, Message
from conductor.stores.base import Claim, Operation, OutboundRecord, RememberInbound
from conductor.tools.pending import Pending

log = structlog.get_logger(__name__)

Reception: TypeAlias = Literal["ordinary", "expected", "refused"]
"""What an event was: ``expected`` answers a call, ``refused`` is a transcript that starts no turn."""

SUPERSEDED = 4409
"""The code that closes the older of two connections (protocol, "Base: client to server")."""
_RECORDED = (
    client.TranscriptFinal,
    client.ToolResultEvent,
    client.OutputInterrupted,
    client.AgentCompleted,
    client.ApprovalResponse,
)
"""Events that are recorded when they have been taken."""
_QUEUE_RETRY_S = 2.0
"""When to say again what found too many transcripts waiting."""
_FLUSH_S = 0.1
"""How long acknowledgements wait for a commit to go with."""
_DRAIN_RETRY_S = 2.0
"""When a client whose server restarts should say it again."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is left of what a client knew: calls to answer again, and calls that nobody waits for."""

    resend: list[str]
    drop: list[str]


class Session:
    """One conversation, from its first event until its grace is over."""

    def __init__(
        self, services: Services, claim: Claim, on_lost: Callable[[bool], None] = lambda _: None
    ) -> None:
        self.key = claim.key
        self._on_lost = on_lost
        self.is_new = not (claim.state.log or claim.state.fields or claim.state.seen)
        self._limits = services.limits
        self._tasks = Tasks()
        self._outbox = Outbox(self._limits, self._expired)
        pending = Pending()
        self._profile = Profile(services, self.key.session_id, pending)
        self._delivery = Delivery(self.key.session_id, self._outbox, self._limits, self._profile.terms)
        self._ledger = Ledger(services.store, claim, self._delivery, self._tasks, self._lose)
        self._ledger.keep(PROFILE, self._profile.kept)
        self._device = DeviceCalls(
            self._limits, self._profile, pending, self._ledger, self._delivery, lambda: self.busy
        )
        speeches = self._speeches = Speeches(self._limits.heard_window)
        grants = Grants(self._ledger, services.lasting_grants)
        self._profile.grants = grants.rules
        self._profile.fields = Fields(self._ledger)
        self._questions = Questions(
            self._limits,
            self._profile,
            pending,
            self._ledger,
            self._outbox,
            Voice(self._outbox, speeches),
            self._tasks,
            grants,
            services.figures,
        )
        self._hearing = Hearing(self._questions)
        host = Host(
            services,
            self._profile,
            pending,
            self._ledger,
            self._delivery,
            self._device,
            self._questions,
            speeches,
            lambda: self._turns.follow(),
        )
        self._turns = Turns(
            services,
            host,
            pending,
            self._ledger,
            self._delivery,
            self._device,
            self._questions,
            speeches,
            self._tasks,
            self._may_tell_news,
            self._count_news,
        )
        self._bucket = TokenBucket(
            self._limits.turns_per_minute / 60, self._limits.turns_per_minute, self._now()
        )
        self._draining = False
        self._flushing: asyncio.TimerHandle | None = None
        self._floor = Floor(self._limits.floor_timeout, self._outbox, self._bucket, self._turns.tell_news)
        claims = noted(claim.state.fields)
        self._ledger.keep(CLAIMS, lambda: claims)
        self._ledger.changed(CLAIMS)
        if not self.is_new:
            self._restore()

    def _restore(self) -> None:
        """Go on where the process before this one was."""
        state = self._ledger.state
        self._profile.restore(state.fields.get(PROFILE))
        outbound, state.outbound = state.outbound, OrderedDict()
        for record in outbound.values():
            call = state.calls.get(record.call_id)
            if record.kind != "call" or (call is not None and call.result is None):
                limit = self._delivery.limit(record, call.name if call is not None else None)
                self._outbox.restore(record, limit)
            else:
                self._outbox.drop(record.event_id)
        self._speeches.restore(state.fields.get(SPEECH), self._text_at)
        self._device.restore(state.fields.get(LATE))
        self._turns.restore()
        for record in outbound.values():
            if record.kind == "approval" and record.call_id not in self._questions.standing:
                self._outbox.abandon(record.call_id)

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
        if reopens:
            # A transcript that was lost with the old socket has left the app waiting for this.
            self._tasks.spawn(self.reopen_microphone())
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
        self._draining = True
        if self._ledger.durable:
            self._turns.lay_down()
        self._outbox.expect_no_acknowledgements()

    async def turns_ended(self) -> None:
        """Wait until no turn is running or waiting."""
        await self._turns.settled()

    async def settled(self) -> None:
        """Wait until no turn is running, and the client has answered every call or had its time.

        Where another process will go on with it, a turn that asks a person is not waited for.
        """
        while (self.busy and not self._may_be_left) or self._outbox.outstanding:
            await self._turn_over_or_asking()
            await self._outbox.quiet()

    @property
    def _may_be_left(self) -> bool:
        return self._ledger.durable and self._questions.open

    async def _turn_over_or_asking(self) -> None:
        ends = [asyncio.create_task(self._turns.settled())]
        if self._ledger.durable:
            ends.append(asyncio.create_task(self._questions.stands()))
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()

    async def close(self) -> None:
        """End the session: stop its turn, wait until that has ended, and let go of it in the store."""
        self._floor.close()
        if self._flushing is not None:
            self._flushing.cancel()
        self._hearing.close()
        self._questions.close()
        await self._turns.close()
        self._outbox.close()
        await self._ledger.settled(self._limits.close_timeout)
        await self._tasks.close(self._limits.close_timeout)
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
        try:
            await self._ledger.flush()
        except StoreError as error:
            log.debug("not flushed", session=self.key.session_id, error=type(error).__name__)

    def _flush_soon(self) -> None:
        """Record that the client has acknowledged everything, unless a commit comes that takes it along."""
        if self._ledger.durable and self._flushing is None:
            loop = asyncio.get_running_loop()
            self._flushing = loop.call_later(_FLUSH_S, self._flush_now)

    def _flush_now(self) -> None:
        self._flushing = None
        self._tasks.spawn(self.flush())

    async def verify(self) -> bool:
        """Tell whether this process still has the session. Raises `StoreError`."""
        return await self._ledger.verify()

    async def receive(self, inbound: Inbound, transport: Transport) -> Reception:
        """Take one event from a connection that is bound to this session. Never waits for a turn."""
        event = inbound.event
        shown = isinstance(event, client.ToolResultEvent) and self._outbox.is_ui_call(event.call_id)
        try:
            reception = await self._take(inbound, transport)
            if reception != "refused" and not shown:
                self._acknowledge(inbound, transport)
            if shown and not (self.busy or self._outbox.outstanding):
                self._flush_soon()
            return reception
        except Duplicate:
            log.debug("event repeated", type=inbound.type, session=self.key.session_id)
            if inbound.id in self._ledger.state.seen:  # else its commit is under way, and may fail
                self._acknowledge(inbound, transport)
        except Fenced:
            # Whoever owns the session now speaks for it; this one says nothing.
            log.warning("session taken over", session=self.key.session_id)
        except StoreError as error:
            await self.refuse(error.code, MESSAGES.get(error.code, ""), inbound.id, transport)
        return "ordinary"

    async def _take(self, inbound: Inbound, transport: Transport) -> Reception:
        match event := inbound.event:
            case client.ToolResultEvent():
                self._turns.speeches.over(event.call_id, self._now())
                expected = await self._device.take(event)
                await self._hearing.spoken(event.call_id)
                self._turns.tell_news()
                return "expected" if expected else "ordinary"
            case client.TranscriptFinal():
                taken = await self._take_transcript(inbound.id, event.text, transport)
                return "ordinary" if taken else "refused"
            case client.TranscriptPartial():
                self._floor.hold()
                self._hearing.person_speaks()
            case client.OutputInterrupted():
                await self._take_interruption(inbound.id, event)
            case client.AgentCompleted():
                await self._take_news(inbound.id, agent_news(event))
            case client.SessionUpdate() if "tools" in self._profile.capabilities:
                rejected = self._profile.declare(event.tools)
                self._ledger.changed(PROFILE)
                await self._ledger.flush()
                transport.send(self._delivery.frame(ToolsChanged(self._profile.declared, rejected)))
            case client.SessionStart():
                raise AssertionError("the connection starts the session")
            case _:
                await self._take_extension(inbound, transport)
        return "ordinary"

    def _acknowledge(self, inbound: Inbound, transport: Transport) -> None:
        """Let a client that keeps what it has said until it is recorded forget this."""
        if transport.resumes and isinstance(inbound.event, _RECORDED):
            transport.send(self._delivery.frame(EventAck([inbound.id])))

    async def _take_extension(self, inbound: Inbound, transport: Transport) -> None:
        """Take an event of a capability, if the client has declared that."""
        spoken = self._profile.capabilities
        match event := inbound.event:
            case client.ApprovalResponse() if "approval" in spoken:
                await self._take_decisions(event, transport)
            case client.ResponseCancel() if "cancel" in spoken:
                self._turns.interrupt()
            case client.ToolCancelled() if "cancel" in spoken:
                await self._device.take_cancelled(event)
                self._turns.tell_news()
            case client.ToolAccepted() if "async" in spoken:
                await self._device.take_accepted(event)
            case client.ToolStarted() | client.ToolProgress() if "lease" in spoken:
                self._device.alive(event.call_id)
            case _:
                log.debug("event ignored", type=inbound.type[:64], session=self.key.session_id)

    async def refuse(
        self,
        code: ErrorCode,
        message: str,
        event_id: str | None,
        transport: Transport,
        retry_after: float | None = None,
    ) -> None:
        """Answer an event that starts no turn, and open the microphone that waits for one.

        ``retry_after`` is in seconds.
        """
        retry_after_ms = None if retry_after is None else math.ceil(retry_after * 1000)
        error = ErrorEvent(code, message, event_id=event_id, retry_after_ms=retry_after_ms)
        transport.send(self._delivery.frame(error))
        await self.reopen_microphone()

    async def reopen_microphone(self) -> None:
        """Say ``idle`` where no turn will: the app is transcribing until it hears that."""
        if self.busy and not self._questions.open:
            return
        idle = set_state(new_call_id(), "idle")
        try:
            await self._ledger.commit([], [idle])
        except Fenced:
            log.warning("session taken over", session=self.key.session_id)
        except StoreError:
            self._outbox.send(self._delivery.frame(idle))

    async def _take_transcript(self, event_id: str, text: str, transport: Transport) -> bool:
        self._floor.leave()
        text = text.strip()
        if event_id in self._ledger.state.seen or self._turns.knows(event_id):
            raise Duplicate(event_id)
        if not text:
            await self.refuse("invalid_transcript", "The transcript is empty.", event_id, transport)
            return False
        if self._questions.open and await self._hearing.hear(text, event_id):
            return True
        if event_id in self._ledger.state.seen:
            raise Duplicate(event_id)  # it was taken for an answer meanwhile
        refused = self._draining and not self._ledger.durable
        wait = _DRAIN_RETRY_S if refused else self._bucket.take(self._now())
        if wait:
            message = "The server restarts." if refused else "Too many turns; wait."
            await self.refuse("rate_limited", message, event_id, transport, retry_after=wait)
            return False
        self._outbox.expect_no_acknowledgements()
        if self._questions.open:
            self._turns.interrupt()  # it is no answer: the question is closed, and this is the next turn
        if await self._turns.answer(text, event_id):
            return True
        self._bucket.give_back()
        message = f"More than {self._limits.max_queued_transcripts} transcripts are waiting."
        await self.refuse("rate_limited", message, event_id, transport, retry_after=_QUEUE_RETRY_S)
        return False

    async def _take_interruption(self, event_id: str, event: client.OutputInterrupted) -> None:
        """Barge-in: it concerns the oldest speech that is not over (protocol, "Base: client to server")."""
        if event_id in self._ledger.state.seen:
            raise Duplicate(event_id)
        operations: list[Operation] = [RememberInbound(event_id)]
        speech = self._turns.speeches.interrupt(self._now())
        if speech is not None and self._hearing.unheard(speech.call_id):
            self._outbox.end_speech(speech.call_id)
            await self._questions.commit(operations, [])  # that it was not heard is kept, too
            return
        if speech is None and self._hearing.is_unheard:
            await self._ledger.commit(operations)  # once more for the same prompt, by voice and by a tap
            return
        # The running turn goes on only if the speech is another's, and was still to be heard.
        other = speech if speech is not None and speech.over_at is None else None
        self._turns.interrupt(other, None if event.spoken_text is None else event.spoken_text.strip())
        if speech is not None:
            self._outbox.end_speech(speech.call_id)
            operations += self._turns.speeches.amend(speech, event.spoken_text, event.played_ms)
        await self._ledger.commit(operations)
        self._turns.tell_news()

    async def _take_decisions(self, event: client.ApprovalResponse, transport: Transport) -> None:
        def answer(resolved: ServerEvent) -> None:
            transport.send(self._delivery.frame(resolved))

        for decision in event.all():
            await self._questions.decide(decision, answer)

    async def _take_news(self, event_id: str, text: str) -> None:
        waiting, news = self._turns.waiting, News(text, self._now() + self._limits.note_expiry)
        waiting.add_news(news)
        try:
            await self._ledger.commit([RememberInbound(event_id)], memos={WAITING: waiting.kept})
        except StoreError:
            waiting.drop_news([news])
            raise
        self._outbox.expect_no_acknowledgements()
        self._turns.tell_news()

    # -- the floor

    def _may_tell_news(self) -> bool:
        return not self._draining and self._floor.is_free()

    def _count_news(self) -> None:
        """Count a turn that nobody asked for as one of the session's."""
        self._bucket.take(self._now())

    # -- inside

    def _expired(self, record: OutboundRecord) -> None:
        if record.kind == "speak":
            self._turns.speeches.forget(record.call_id)  # nobody will ever say whether it was heard
            self._hearing.unanswered(record.call_id)
            self._turns.tell_news()
        else:
            self._tasks.spawn(self._device.time_out(record.call_id))

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
