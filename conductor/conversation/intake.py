"""What a client says, taken event by event: recorded, answered, or handed to the part that it is for."""

from __future__ import annotations

import asyncio
import math
from typing import Literal, TypeAlias

import structlog

from conductor.conversation.ids import new_call_id
from conductor.conversation.memos import PROFILE, WAITING, WaitingMemo, decode
from conductor.conversation.parts import Parts
from conductor.conversation.sentences import MESSAGES, agent_news
from conductor.conversation.transport import Transport
from conductor.conversation.waiting import News
from conductor.errors import Duplicate, ErrorCode, Fenced, StoreError
from conductor.events import client
from conductor.events.codec import Inbound
from conductor.events.server import ErrorEvent, EventAck, ServerEvent, ToolsChanged, set_state
from conductor.settings import Limits
from conductor.stores.base import Operation, RememberInbound

log = structlog.get_logger(__name__)

Reception: TypeAlias = Literal["ordinary", "expected", "refused"]
"""What an event was: ``expected`` answers a call, ``refused`` is a transcript that starts no turn."""

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


class Intake:
    """Takes the events of one session."""

    def __init__(self, limits: Limits, parts: Parts) -> None:
        self._parts = parts
        self._session_id = parts.ledger.key.session_id
        self._limits = limits
        self._outbox = parts.outbox
        self._profile = parts.profile
        self._ledger = parts.ledger
        self._delivery = parts.delivery
        self._device = parts.device
        self._questions = parts.questions
        self._hearing = parts.hearing
        self._turns = parts.turns
        self._floor = parts.floor
        self._flushing: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Record no acknowledgements any more."""
        if self._flushing is not None:
            self._flushing.cancel()

    async def receive(self, inbound: Inbound, transport: Transport) -> Reception:
        """Take one event from a connection that is bound to this session. Never waits for a turn."""
        event = inbound.event
        shown = isinstance(event, client.ToolResultEvent) and self._outbox.is_ui_call(event.call_id)
        try:
            reception = await self._take(inbound, transport)
            if reception != "refused" and not shown:
                self._acknowledge(inbound, transport)
            if shown and not (self._turns.busy or self._outbox.outstanding):
                self._flush_soon()
            return reception
        except Duplicate:
            log.debug("event repeated", type=inbound.type, session=self._session_id)
            if self._is_recorded(inbound.id):  # else its commit is under way, and may fail
                self._acknowledge(inbound, transport)
        except Fenced:
            # Whoever owns the session now speaks for it; this one says nothing.
            log.warning("session taken over", session=self._session_id)
        except StoreError as error:
            await self.refuse(error.code, MESSAGES.get(error.code, ""), inbound.id, transport)
        return "ordinary"

    async def _take(self, inbound: Inbound, transport: Transport) -> Reception:
        match event := inbound.event:
            case client.ToolResultEvent():
                self._parts.speeches.over(event.call_id, self._now())
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

    def _is_recorded(self, event_id: str) -> bool:
        state = self._ledger.state
        waiting = decode(state.fields.get(WAITING), WaitingMemo)
        return event_id in state.seen or any(
            one.event_id == event_id for one in (waiting.transcripts if waiting is not None else ())
        )

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
                log.debug("event ignored", type=inbound.type[:64], session=self._session_id)

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
        if self._turns.busy and not self._questions.open:
            return
        idle = set_state(new_call_id(), "idle")
        try:
            await self._ledger.commit([], [idle])
        except Fenced:
            log.warning("session taken over", session=self._session_id)
        except StoreError:
            self._outbox.send(self._delivery.frame(idle))

    async def probe(self) -> None:
        """Find out which replayed calls a client that is back had handled: others wait for their answers."""
        call_id = new_call_id()
        state = self._outbox.let_pass(call_id)
        try:
            await self._ledger.commit([], [set_state(call_id, state)])
        except StoreError as error:  # they are waited for until their time is over
            log.debug("not asked", session=self._session_id, error=type(error).__name__)

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
        refused = self._parts.draining and not self._ledger.durable
        wait = _DRAIN_RETRY_S if refused else self._parts.bucket.take(self._now())
        if wait:
            message = "The server restarts." if refused else "Too many turns; wait."
            await self.refuse("rate_limited", message, event_id, transport, retry_after=wait)
            return False
        self._outbox.expect_no_acknowledgements()
        if self._questions.open:
            self._turns.interrupt()  # it is no answer: the question is closed, and this is the next turn
        if await self._turns.answer(text, event_id):
            return True
        self._parts.bucket.give_back()
        message = f"More than {self._limits.max_queued_transcripts} transcripts are waiting."
        await self.refuse("rate_limited", message, event_id, transport, retry_after=_QUEUE_RETRY_S)
        return False

    async def _take_interruption(self, event_id: str, event: client.OutputInterrupted) -> None:
        """Barge-in: it concerns the oldest speech that is not over (protocol, "Base: client to server")."""
        if event_id in self._ledger.state.seen:
            raise Duplicate(event_id)
        operations: list[Operation] = [RememberInbound(event_id)]
        speech = self._parts.speeches.interrupt(self._now())
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
            operations += self._parts.speeches.amend(speech, event.spoken_text, event.played_ms)
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

    # -- what nobody waits for

    def _flush_soon(self) -> None:
        """Record that the client has acknowledged everything, unless a commit comes that takes it along."""
        if self._ledger.durable and self._flushing is None:
            loop = asyncio.get_running_loop()
            self._flushing = loop.call_later(_FLUSH_S, self._flush_now)

    def _flush_now(self) -> None:
        self._flushing = None
        self._parts.tasks.spawn(self._ledger.try_flush())

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
