"""Inbound events of a session: recorded, answered, or passed to the collaborator that handles them."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum, auto
from typing import Any

import structlog

from conductor.conversation.background_requests import CacheWarming
from conductor.conversation.context import TurnContext
from conductor.conversation.pending_inputs import MAX_TRANSCRIPTS, ServerNotice
from conductor.conversation.phrases import MESSAGES, agent_notice
from conductor.conversation.snapshot import PROFILE, WAITING, PendingInputsSnapshot, decode
from conductor.conversation.speech import FloorControl, heard_part
from conductor.conversation.spoken_approvals import SpokenApprovals
from conductor.conversation.tasks import Tasks
from conductor.conversation.transport import Transport
from conductor.conversation.turn_queue import TurnQueue
from conductor.errors import Duplicate, ErrorCode, Fenced, StoreError
from conductor.events import client
from conductor.events.codec import Inbound
from conductor.events.envelope import new_call_id
from conductor.events.server import (
    CAPABILITIES,
    ApprovalResolved,
    Diagnostic,
    ErrorEvent,
    EventAck,
    ServerEvent,
    ToolsChanged,
    set_state,
)
from conductor.rate_limit import Admission, SharedRate
from conductor.stores.base import Operation, RememberInbound
from conductor.tools.builtin.clock import find_zone
from conductor.tools.declarations import read_declarations, unknown_fields

log = structlog.get_logger(__name__)


class InboundResult(Enum):
    """The kind of an event. ``EXPECTED`` answers a call; ``REFUSED`` is a transcript without a turn."""

    ORDINARY = auto()
    EXPECTED = auto()
    REFUSED = auto()


# Events that are recorded, and acknowledged to a client with the capability ``resume``.
_RECORDED = (
    client.TranscriptFinal,
    client.ToolResultEvent,
    client.OutputInterrupted,
    client.AgentCompleted,
    client.ApprovalResponse,
)
# Diagnostics sent in a session; a client could cause any number of them.
_MAX_DIAGNOSTICS = 64
# Seconds: the events of a burst share one event.ack and one commit.
_BURST_S = 0.1
# Seconds until a client may retry after a full queue or a restart.
_RETRY_S = 2.0
# Seconds: an older notice starts no turn of its own; it joins the next one.
_NOTICE_S = 600.0
# Characters of a client's name that a message repeats.
_MAX_NAME = 80
# W3C Trace Context: no version ff, and no ids of zeros only; versions after 00 may append fields.
_TRACEPARENT = re.compile(
    r"(?!ff|00-.{53})[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?"
)


class InboundHandler:
    """Handles the inbound events of one session."""

    def __init__(
        self,
        context: TurnContext,
        admission: Admission,
        spoken_approvals: SpokenApprovals,
        turns: TurnQueue,
        floor: FloorControl,
        bucket: SharedRate,
        tasks: Tasks,
        warming: CacheWarming,
    ) -> None:
        self._session_id = context.committer.key.session_id
        self._admission = admission
        self._outbox = context.outbox
        self._profile = context.profile
        self._committer = context.committer
        self._encoder = context.encoder
        self._device = context.device
        self._approvals = context.approvals
        self._speeches = context.speeches
        self._spoken_approvals = spoken_approvals
        self._turns = turns
        self._floor = floor
        self._bucket = bucket
        self._tasks = tasks
        self._warming = warming
        self._flushing: asyncio.TimerHandle | None = None
        self._unacknowledged: list[str] = []
        self._acking: asyncio.TimerHandle | None = None
        self._diagnosed: set[str] = set()

    def close(self) -> None:
        """Cancel the timers of acknowledgements."""
        for timer in (self._flushing, self._acking):
            if timer is not None:
                timer.cancel()

    async def receive(self, inbound: Inbound, transport: Transport) -> InboundResult:
        """Handle one event from a connection that is bound to this session. Never waits for a turn."""
        event = inbound.event
        is_ui_result = isinstance(event, client.ToolResultEvent) and self._outbox.is_ui_call(event.call_id)
        try:
            result = await self._take(inbound, transport)
            if result is not InboundResult.REFUSED:
                self._acknowledge(inbound, transport)
            if is_ui_result and not (self._turns.busy or self._outbox.outstanding):
                self._flush_soon()
            return result
        except Duplicate:
            log.debug("event repeated", type=inbound.type, session=self._session_id)
            if self._is_recorded(inbound.id):  # else its commit is running and may fail
                self._acknowledge(inbound, transport)
            if isinstance(event, client.TranscriptFinal):
                await self.reopen_microphone()  # its turn may be over
        except Fenced:
            # Another process owns the session and answers the client; this one must not.
            log.warning("session taken over", session=self._session_id)
        except StoreError as error:
            await self.refuse(error.code, MESSAGES.get(error.code, ""), inbound.id, transport)
        return InboundResult.ORDINARY

    async def _take(self, inbound: Inbound, transport: Transport) -> InboundResult:
        match event := inbound.event:
            case client.ToolResultEvent():
                if not event.call_id.startswith("call_"):  # all ids of this server start so
                    self.diagnose([of_unknown_call(inbound.id)])
                self._speeches.over(event.call_id, self._now())
                expected = await self._device.take(event)
                await self._spoken_approvals.prompt_spoken(event.call_id)
                self._turns.deliver_notices()
                return InboundResult.EXPECTED if expected else InboundResult.ORDINARY
            case client.TranscriptFinal():
                is_accepted = await self._take_transcript(inbound.id, event.text, transport)
                return InboundResult.ORDINARY if is_accepted else InboundResult.REFUSED
            case client.TranscriptPartial():
                self._floor.hold()
                self._spoken_approvals.person_speaks()
                self._warming.person_speaks()
            case client.OutputInterrupted():
                await self._take_interruption(inbound.id, event)
            case client.AgentCompleted():
                await self._take_notice(inbound.id, agent_notice(event))
            case client.SessionUpdate() if "tools" in self._profile.capabilities:
                readings = await read_declarations(event.tools, self._admission)
                rejected = self._profile.declare(event.tools, readings)
                self._committer.mark_dirty(PROFILE)
                await self._committer.flush()
                transport.send(self._encoder.frame(ToolsChanged(self._profile.declared, rejected)))
                self.diagnose(of_tools(event.tools, inbound.id))
            case client.SessionStart():
                raise AssertionError("the connection starts the session")
            case _:
                await self._take_extension(inbound, transport)
        return InboundResult.ORDINARY

    def _is_recorded(self, event_id: str) -> bool:
        state = self._committer.state
        waiting = decode(state.fields.get(WAITING), PendingInputsSnapshot)
        return event_id in state.seen or any(
            transcript.event_id == event_id
            for transcript in (waiting.transcripts if waiting is not None else ())
        )

    def _acknowledge(self, inbound: Inbound, transport: Transport) -> None:
        if transport.resumes and isinstance(inbound.event, _RECORDED):
            self._unacknowledged.append(inbound.id)
            if self._acking is None:
                self._send_acks()

    def _send_acks(self) -> None:
        self._acking = None
        event_ids, self._unacknowledged = self._unacknowledged, []
        transport = self._outbox.transport
        if event_ids and transport is not None and transport.resumes:
            transport.send(self._encoder.frame(EventAck(event_ids)))
            self._acking = asyncio.get_running_loop().call_later(_BURST_S, self._send_acks)

    async def _take_extension(self, inbound: Inbound, transport: Transport) -> None:
        capabilities = self._profile.capabilities
        match event := inbound.event:
            case client.ApprovalResponse() if "approval" in capabilities:
                await self._take_decisions(event, transport)
            case client.ApprovalShown() if "approval" in capabilities:
                self._approvals.card_shown(event.approval_id)
            case client.ResponseCancel() if "cancel" in capabilities:
                self._turns.interrupt()
            case client.ToolCancelled() if "cancel" in capabilities:
                await self._device.take_cancelled(event)
                self._turns.deliver_notices()
            case client.ToolAccepted() if "async" in capabilities:
                await self._device.take_accepted(event)
            case client.ToolStarted() | client.ToolProgress() if "lease" in capabilities:
                self._outbox.extend(event.call_id)
            case _:
                log.debug("event ignored", type=inbound.type[:64], session=self._session_id)
                self.diagnose([of_ignored(inbound)])

    def diagnose(self, diagnostics: Iterable[Diagnostic]) -> None:
        """Send each diagnostic once to a client with the capability; log each code once, without the text."""
        for diagnostic in diagnostics:
            if diagnostic.code not in self._diagnosed:
                self._diagnosed.add(diagnostic.code)
                log.info("diagnostic", code=diagnostic.code, session=self._session_id)
            is_wanted = (
                "diagnostics" in self._profile.capabilities and len(self._diagnosed) < _MAX_DIAGNOSTICS
            )
            if is_wanted and diagnostic.message not in self._diagnosed:
                self._diagnosed.add(diagnostic.message)
                self._outbox.send(self._encoder.frame(diagnostic))

    async def refuse(
        self,
        code: ErrorCode,
        message: str,
        event_id: str | None,
        transport: Transport,
        retry_after: float | None = None,
    ) -> None:
        """Answer an event that starts no turn, and reopen the client's microphone.

        ``retry_after`` is in seconds.
        """
        retry_after_ms = None if retry_after is None else math.ceil(retry_after * 1000)
        error = ErrorEvent(code, message, event_id=event_id, retry_after_ms=retry_after_ms)
        transport.send(self._encoder.frame(error))
        await self.reopen_microphone()

    async def reopen_microphone(self) -> None:
        """Send ``idle`` if no turn will: the app transcribes until it receives a state."""
        if self._turns.busy and not self._approvals.open:
            return
        idle = set_state(new_call_id(), "idle")
        try:
            await self._committer.commit([], [idle])
        except Fenced:
            log.warning("session taken over", session=self._session_id)
        except StoreError:
            self._outbox.send(self._encoder.frame(idle))

    async def probe(self) -> None:
        """Send a probe: its answer shows which replayed calls a reconnected client has handled."""
        call_id = new_call_id()
        state = self._outbox.send_probe(call_id)
        try:
            await self._committer.commit([], [set_state(call_id, state)])
        except StoreError as error:  # without a probe the replayed calls wait for their time limits
            log.debug("probe not sent", session=self._session_id, error=type(error).__name__)

    async def _take_transcript(self, event_id: str, text: str, transport: Transport) -> bool:
        self._floor.leave()
        began_at = self._spoken_approvals.utterance_ended()
        text = text.strip()
        if event_id in self._committer.state.seen or self._turns.knows(event_id):
            raise Duplicate(event_id)
        if not text:
            await self.refuse("invalid_transcript", "The transcript is empty.", event_id, transport)
            return False
        if self._approvals.open and await self._spoken_approvals.take_transcript(text, event_id, began_at):
            return True
        if event_id in self._committer.state.seen:
            raise Duplicate(event_id)  # the same transcript was recorded as an answer first
        refused = self._turns.draining and not self._committer.durable
        wait = _RETRY_S if refused else self._bucket.take(self._now())
        if wait:
            message = "The server restarts." if refused else "Too many turns; wait."
            await self.refuse("rate_limited", message, event_id, transport, retry_after=wait)
            return False
        self._outbox.expect_no_acknowledgements()
        if self._approvals.open:
            self._turns.interrupt()  # not an answer: end the turn that asked, and start the next
        if await self._turns.answer(text, event_id):
            return True
        self._bucket.give_back()
        message = f"More than {MAX_TRANSCRIPTS} transcripts are waiting."
        await self.refuse("rate_limited", message, event_id, transport, retry_after=_RETRY_S)
        return False

    async def _take_interruption(self, event_id: str, event: client.OutputInterrupted) -> None:
        if event_id in self._committer.state.seen:
            raise Duplicate(event_id)
        operations: list[Operation] = [RememberInbound(event_id)]
        speech = self._speeches.interrupt(self._now())
        if speech is not None and self._spoken_approvals.prompt_interrupted(speech.call_id):
            self._outbox.end_speech(speech.call_id)
            # Records, too, that the approval does not count as presented.
            await self._approvals.commit(operations, [])
            return
        if speech is None and self._spoken_approvals.will_repeat:
            # The same prompt was interrupted twice, by voice and by a tap.
            await self._committer.commit(operations)
            return
        # The running turn continues only if the interrupted speech is another turn's and was not over.
        playing = speech if speech is not None and speech.over_at is None else None
        heard_text = None if event.spoken_text is None else event.spoken_text.strip()
        if speech is not None and speech.position < 0:  # a segment of a reply that is being written
            heard_text = heard_part(speech, event.spoken_text, event.played_ms)
        self._turns.interrupt(playing, heard_text)
        if speech is not None:
            for segment in self._speeches.of_reply(speech.speech_id):
                self._outbox.end_speech(segment.call_id)
            operations += self._speeches.amend(speech, event.spoken_text, event.played_ms)
        await self._committer.commit(operations)
        self._turns.deliver_notices()

    async def _take_decisions(self, event: client.ApprovalResponse, transport: Transport) -> None:
        def answer(resolved: ServerEvent) -> None:
            transport.send(self._encoder.frame(resolved))

        decided: set[str] = set()
        for decision in event.all():
            approval_id, refusal = decision.approval_id, ""
            if approval_id in decided:
                refusal = "One decision at a time about each question."
            elif decision.decision == "edit" and self._bucket.take(self._now()):
                refusal = "Too many changes; wait."  # validating an edit costs as much as a turn
            if refusal:
                answer(ApprovalResolved(approval_id, "refused", refusal))
            else:
                await self._approvals.decide(decision, answer)
                await asyncio.sleep(0)  # validating an edit takes up to 30 ms: let other sessions run
            decided.add(approval_id)

    async def _take_notice(self, event_id: str, text: str) -> None:
        waiting, notice = self._turns.waiting, ServerNotice(text, self._now() + _NOTICE_S)
        waiting.add_notice(notice)
        try:
            await self._committer.commit([RememberInbound(event_id)], snapshots={WAITING: waiting.dump})
        except StoreError:
            waiting.drop_notices([notice])
            raise
        self._outbox.expect_no_acknowledgements()
        self._turns.deliver_notices()

    def _flush_soon(self) -> None:
        if self._committer.durable and self._flushing is None:
            loop = asyncio.get_running_loop()
            self._flushing = loop.call_later(_BURST_S, self._flush_now)

    def _flush_now(self) -> None:
        self._flushing = None
        self._tasks.spawn(self._committer.try_flush())

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


# -- diagnostics: client mistakes that the server would otherwise ignore


def of_start(event: client.SessionStart, model: str | None = None) -> Iterator[Diagnostic]:
    """Check ``session.start``; ``model`` is the one that the session chose and may have."""
    if event.model not in (None, model):
        message = f"{_quoted(event.model)} is no model that this server lets clients choose."
        yield Diagnostic("warning", "unknown_model", message)
    for name in event.capabilities:
        if name not in CAPABILITIES:  # "info": a later version may have it
            yield Diagnostic("info", "unknown_capability", f"There is no capability {_quoted(name)}.")
    if event.time_zone is not None and find_zone(event.time_zone) is None:
        message = f"{_quoted(event.time_zone)} is not an IANA time zone such as 'Europe/London'."
        yield Diagnostic("warning", "unknown_time_zone", message)
    if event.traceparent is not None and not _TRACEPARENT.fullmatch(event.traceparent):
        message = f"{_quoted(event.traceparent)} is not a traceparent of W3C Trace Context; it is ignored."
        yield Diagnostic("warning", "invalid_traceparent", message)
    for name, value in (("tools", event.tools), ("resume", event.resume)):
        if value is not None and name not in event.capabilities:
            message = f"{name!r} is ignored without the capability {name!r}."
            yield Diagnostic("warning", "missing_capability", message)
    if "tools" in event.capabilities:
        yield from of_tools(event.tools or ())


def of_tools(tools: Sequence[Any], event_id: str | None = None) -> Iterator[Diagnostic]:
    """Check tool declarations."""
    for tool in tools:
        for field in unknown_fields(tool):
            message = f"The tool {_quoted(str(tool.get('name')))} has the unknown field {_quoted(field)}."
            yield Diagnostic("warning", "unknown_field", message, event_id)


def of_ignored(inbound: Inbound) -> Diagnostic:
    """Explain why an event was ignored: unknown type, or missing capability."""
    name = _quoted(inbound.type)
    if inbound.event is None:
        return Diagnostic("warning", "unknown_event", f"There is no event type {name}.", inbound.id)
    message = f"{name} needs a capability that session.start did not name."
    return Diagnostic("warning", "missing_capability", message, inbound.id)


def of_unknown_call(event_id: str) -> Diagnostic:
    """Report a result whose call id the server never made."""
    message = "This callId is not that of a tool.call; it is not the frame's id."
    return Diagnostic("warning", "unknown_call", message, event_id)


def _quoted(name: str) -> str:
    return repr(name[:_MAX_NAME])
