"""The clients of a session: their start, reconnects, acknowledgements, and mistakes."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

import structlog

from conductor.conversation.approvals import Refuse, Response, answer
from conductor.conversation.phrases import MESSAGES
from conductor.conversation.receive import connected, receive
from conductor.conversation.records import (
    CardsWithdrawn,
    ProfileDeclared,
    PromptForgotten,
    Record,
    StateShown,
)
from conductor.conversation.tools import profile_with
from conductor.conversation.transport import Transport
from conductor.errors import Fenced, StoreError
from conductor.events import client
from conductor.events.codec import Inbound
from conductor.events.envelope import SUPERSEDED
from conductor.events.server import (
    CAPABILITIES,
    ApprovalResolved,
    Diagnostic,
    ErrorEvent,
    EventAck,
    SessionGoaway,
    SessionStarted,
    ToolsChanged,
)
from conductor.tools.builtin.clock import find_zone
from conductor.tools.declarations import Reading, read_declarations, unknown_fields

if TYPE_CHECKING:
    from conductor.conversation.session import Session

log = structlog.get_logger(__name__)

# Events that are recorded, and acknowledged to a client with the capability ``resume``.
_RECORDED = (
    client.TranscriptFinal,
    client.ToolResultEvent,
    client.OutputInterrupted,
    client.AgentCompleted,
    client.ApprovalResponse,
)
# Seconds: one event.ack for all events of a burst.
_BURST_S = 0.1
# Diagnostics of a session; a client could cause any number of different ones.
_MAX_DIAGNOSTICS = 64
# Characters of a client's own name in a message.
_MAX_NAME = 80
# W3C Trace Context: no version ff, and no ids of zeros only; versions after 00 may append fields.
_TRACEPARENT = re.compile(
    r"(?!ff|00-.{53})[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?"
)


class InboundResult(Enum):
    """The kind of an event. ``EXPECTED`` answers a call; ``REFUSED`` is a transcript without a turn."""

    ORDINARY = auto()
    EXPECTED = auto()
    REFUSED = auto()


@dataclass(frozen=True, slots=True)
class ResumeAnswer:
    """The answer to ``resume``: calls to resend the result of, and calls that the server does not await."""

    resend: list[str]
    drop: list[str]


class Clients:
    """Handles the connections and the events of one session's clients."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._taken: list[str] = []
        self._acking: asyncio.TimerHandle | None = None
        self._flushing: asyncio.TimerHandle | None = None
        self._diagnosed: set[str] = set()
        self._opening = asyncio.Lock()

    # -- connections

    async def learn(self, event: client.SessionStart) -> ResumeAnswer | None:
        """Record the results that a reconnecting client reports. Raises `StoreError`.

        None without ``resume``.
        """
        session, resume = self._session, event.resume
        if resume is None or "resume" not in event.capabilities:
            return None
        resend: list[str] = []
        drop: list[str] = []
        for done in resume.done:
            if not self._awaits(done.call_id):
                drop.append(done.call_id)
            elif done.result is None and done.error is None:
                resend.append(done.call_id)
            else:
                result = client.ToolResultEvent(done.call_id, done.result, done.error)
                await session.take("", result)
                session.outbox.acknowledge(done.call_id)
        drop += [call_id for call_id in resume.pending if not self._awaits(call_id)]
        # UI calls are acknowledged by `handled`; the bound holds against any number of invented ids.
        drop = [call_id for call_id in drop if not session.outbox.is_ui_call(call_id)][: client.MAX_RESUMED]
        session.outbox.handled(resume.last_event_id, queues_speeches="segments" in event.capabilities)
        return ResumeAnswer(resend, drop)

    def _awaits(self, call_id: str) -> bool:
        state = self._session.state
        call = state.open_call(call_id)
        late = state.late_calls.get(call_id)
        is_late = late is not None and late.expires_at > self._session.live.now()
        return (call is not None and call.is_device) or is_late

    async def start(
        self,
        event: client.SessionStart,
        transport: Transport,
        *,
        resumed: bool,
        answer: ResumeAnswer | None = None,
        readings: Sequence[Reading] | None = None,
    ) -> None:
        """Answer ``session.start``, then replay the events that this client has not handled.

        ``readings`` are those of the event's tools by `read_declarations`. Raises `StoreError`.
        """
        session = self._session
        services = session.services
        capabilities = tuple(name for name in CAPABILITIES if name in event.capabilities)
        model = event.model if event.model is not None and services.may_choose(event.model) else None
        declares = "tools" in capabilities and event.tools is not None
        rejected = session.tools.declare(event.tools or [], readings) if declares else None

        def records() -> list[Record]:
            profile = profile_with(
                session.state.profile,
                capabilities=capabilities,
                locale=event.locale,
                time_zone=event.time_zone,
                instructions=event.instructions,
                tools=event.tools if declares else None,
                model=model,
                traceparent=event.traceparent,
            )
            made: list[Record] = [ProfileDeclared(profile)] if profile != session.state.profile else []
            if "approval" not in capabilities and session.state.questions:
                made.append(CardsWithdrawn())
            return made

        transport.resumes, transport.segments = "resume" in capabilities, "segments" in capabilities
        started = SessionStarted(
            session.key.session_id,
            resumed,
            list(capabilities) if event.capabilities else None,
            session.tools.declared if rejected is not None else None,
            rejected,
            None if resumed else "new" if event.resume is None else "not_kept",
            answer.resend if answer is not None else None,
            answer.drop if answer is not None else None,
            services.serving(model or session.state.profile.model),
            services.local_only or None,
        )
        services.session_metrics.started("resumed" if resumed else started.reason or "new")
        await self.attach(
            transport,
            resumed=resumed,
            same_process=answer is not None,
            records=records,
            started=started,
        )
        self.diagnose(of_start(event, session.state.profile.model))
        session.warming.session_starts()

    async def attach(
        self,
        transport: Transport,
        *,
        resumed: bool,
        same_process: bool = False,
        records: Callable[[], list[Record]] = list,
        started: SessionStarted | None = None,
    ) -> None:
        """Send to this connection from now on, and suspend any other one of this session.

        ``same_process``: the app was not relaunched since its last connection. Raises `StoreError`.
        """
        async with self._opening:
            session, outbox, live = self._session, self._session.outbox, self._session.live
            previous = outbox.transport
            is_new = previous is not transport
            if is_new and previous is not None:
                outbox.detach()
                previous.suspend()
                # Without ``resume`` an app reconnects after any close: the two would compete for the session.
                if previous.resumes:
                    previous.close(SUPERSEDED, "another connection serves the session")
            if is_new:
                live.visible_cards.clear()
                live.told_outcomes.clear()
                live.speaking_until = 0
            probe = ""

            def decision() -> Response:
                nonlocal probe
                state = session.state
                made = records()
                cards = [question.id for question in state.questions.values() if question.card]
                has_card = [
                    question_id for question_id in cards if outbox.is_outstanding(question_id) or same_process
                ]
                focus = state.focus
                if is_new and focus is not None and not focus.card and not same_process:
                    made.append(PromptForgotten(focus.id))
                declared = (record.profile for record in made if isinstance(record, ProfileDeclared))
                speeches = outbox.replayed_speeches
                held = len(speeches) > 1 and not transport.segments
                made += connected(
                    state,
                    live,
                    next(declared, state.profile),
                    resumed=resumed,
                    same_process=same_process,
                    new=is_new,
                    replayed_speeches=speeches,
                    held=held,
                    has_card=has_card,
                    unconfirmed=is_new and outbox.unconfirmed and not transport.resumes,
                    shown_state="speaking" if held else outbox.last_state,
                )
                probe = ""
                for number, record in enumerate(made, 1):
                    if isinstance(record, StateShown) and record.probe:
                        probe = session.probe_call_id(number)
                return made

            if started is not None and is_new:
                outbox.stop_sending()
            await session.decide(decision)
            if started is not None:
                outbox.transport = transport
                session.flash(started, first=True)
                outbox.transport = previous if not is_new else None
            if is_new:
                outbox.attach(transport, states=True, probe=probe)
            session.changed()

    def detach(self, transport: Transport) -> None:
        """Take note of a closed connection; the running turn continues."""
        session = self._session
        if session.outbox.transport is transport:
            session.outbox.detach()
            session.live.visible_cards.clear()
            session.changed()

    def say_goodbye(self, seconds: float) -> None:
        """Announce the end of the connection."""
        if "goaway" in self._session.state.profile.capabilities:
            self._session.flash(SessionGoaway(round(seconds * 1000), "service restart"))

    # -- events

    async def receive(self, inbound: Inbound, transport: Transport) -> InboundResult:
        """Handle one event. Never waits for a turn."""
        session, event = self._session, inbound.event
        if await self._is_superseded(transport) and not isinstance(event, client.ToolResultEvent):
            return InboundResult.ORDINARY
        is_repeated = inbound.id in session.state.seen or any(
            waiting.event_id == inbound.id for waiting in session.state.queue
        )
        try:
            result = await self._take(inbound, transport)
        except Fenced:
            # Another process owns the session and answers the client.
            log.warning("session taken over", session=session.key.session_id)
            return InboundResult.ORDINARY
        except StoreError as error:
            self._refuse(Refuse(error.code, MESSAGES.get(error.code, "")), inbound.id, transport)
            await session.reopen_microphone()
            return InboundResult.ORDINARY
        if result is not InboundResult.REFUSED:
            self._acknowledge(inbound, transport)
        if is_repeated and isinstance(event, client.TranscriptFinal):
            await session.reopen_microphone()  # its turn may be over
        return result

    async def _is_superseded(self, transport: Transport) -> bool:
        """Tell whether another connection serves the session, once one that is opening does."""
        if self._opening.locked():
            async with self._opening:
                pass  # its ``idle`` precedes what an event causes
        return self._session.outbox.transport not in (None, transport)

    async def _take(self, inbound: Inbound, transport: Transport) -> InboundResult:
        session, live = self._session, self._session.live
        match event := inbound.event:
            case client.ToolResultEvent():
                return await self._take_result(inbound.id, event)
            case client.TranscriptFinal():
                return await self._take_transcript(inbound.id, event, transport)
            case client.TranscriptPartial():
                now = live.now()
                live.sends_partials = True
                live.utterance_began = live.utterance_began if now < live.speaking_until else now
                live.speaking_until = now + session.rules.floor_ms
                self._note_person(now)
                session.warming.person_speaks()
                session.changed()
            case client.OutputInterrupted() | client.AgentCompleted():
                await session.take(inbound.id, event)
                if isinstance(event, client.AgentCompleted):
                    session.outbox.expect_no_acknowledgements()
                elif session.outbox.transport is not None:
                    session.outbox.transport.drop_partials()
            case client.SessionUpdate() if "tools" in session.state.profile.capabilities:
                await self._declare(event, inbound.id, transport)
            case client.SessionStart():
                raise AssertionError("the connection starts the session")
            case _:
                await self._take_extension(inbound, transport)
        return InboundResult.ORDINARY

    def _note_person(self, now: int) -> None:
        """Note that the person speaks: an unheard prompt is repeated in the next silence."""
        session = self._session
        focus = session.state.focus
        if (
            focus is None
            or focus.card
            or focus.presented_at
            or session.outbox.is_outstanding(focus.speech_id)
        ):
            return
        session.live.repeat_prompt_at = now + session.rules.floor_ms

    async def _take_result(self, event_id: str, event: client.ToolResultEvent) -> InboundResult:
        session, outbox = self._session, self._session.outbox
        if not event.call_id.startswith("call_"):  # as all ids of this server do
            self.diagnose([of_unknown_call(event_id)])
        call = session.state.open_call(event.call_id)
        if call is not None and call.is_device:
            outbox.extend(event.call_id)  # it must not time out while its result is recorded
            await session.take_result(event)
            expected = True
        else:
            expected = outbox.acknowledge(event.call_id)
            state = session.state
            may_matter = bool(state.questions) or event.call_id in state.late_calls
            if may_matter and receive(state, session.live, session.rules, "", event, ""):
                await session.take("", event)
        session.changed()
        if expected and not (session.busy or outbox.outstanding):
            self._flush_soon()
        return InboundResult.EXPECTED if expected else InboundResult.ORDINARY

    async def _take_transcript(
        self, event_id: str, event: client.TranscriptFinal, transport: Transport
    ) -> InboundResult:
        session, live = self._session, self._session.live
        now = live.now()
        live.utterance_began = live.utterance_began if now < live.speaking_until else now
        live.speaking_until = 0
        if event_id in session.state.seen:
            return InboundResult.ORDINARY
        wait_s = 0.0
        if event.text.strip() and answer(session.state, live, session.rules, event_id, event.text) is None:
            wait_s = session.take_rate()
        if wait_s:
            self._refuse(Refuse("rate_limited", "Too many turns; wait.", wait_s), event_id, transport)
            await session.reopen_microphone()
            return InboundResult.REFUSED
        session.outbox.expect_no_acknowledgements()
        response = await session.take(event_id, event)
        if isinstance(response, Refuse):
            if response.code == "rate_limited":
                live.refused_input = not live.draining and bool(session.rules.failures.get("rate_limited"))
                session.give_back_rate()
            self._refuse(response, event_id, transport)
            await session.reopen_microphone()
            return InboundResult.REFUSED
        return InboundResult.ORDINARY

    async def _take_extension(self, inbound: Inbound, transport: Transport) -> None:
        session, profile = self._session, self._session.state.profile
        match event := inbound.event:
            case client.ApprovalResponse() if "approval" in profile.capabilities:
                await self._take_decisions(event, transport)
            case client.ApprovalShown() if "approval" in profile.capabilities:
                question = session.state.questions.get(event.approval_id)
                if question is not None and question.card and session.outbox.was_sent(event.approval_id):
                    session.live.visible_cards[event.approval_id] = session.live.now()
            case client.ResponseCancel() if "cancel" in profile.capabilities:
                await session.take("", event)
            case client.ToolCancelled() | client.ToolAccepted() if (
                "cancel" if isinstance(event, client.ToolCancelled) else "async"
            ) in profile.capabilities:
                await session.take("", event)
                session.outbox.acknowledge(event.call_id)
            case client.ToolStarted() | client.ToolProgress() if "lease" in profile.capabilities:
                session.outbox.extend(event.call_id)
                session.changed()
            case _:
                log.debug("event ignored", type=inbound.type[:64], session=session.key.session_id)
                self.diagnose([of_ignored(inbound)])

    async def _take_decisions(self, event: client.ApprovalResponse, transport: Transport) -> None:
        session = self._session
        decided: set[str] = set()
        for decision in event.all():
            question_id, refusal = decision.approval_id, ""
            if question_id in decided:
                refusal = "One decision at a time about each question."
            elif decision.decision == "edit" and session.take_rate():
                refusal = (
                    "Too many changes; wait."  # an edit is validated again, so it costs as much as a turn
                )
            if refusal:
                session.flash(ApprovalResolved(question_id, "refused", refusal))
            else:
                reply = await session.take_decision(decision)
                for answer in reply.events:
                    session.flash(answer)
                    session.live.told_outcomes.add(question_id)
                await asyncio.sleep(0)  # validating an edit takes up to 30 ms: let other sessions run
            decided.add(question_id)

    async def _declare(self, event: client.SessionUpdate, event_id: str, transport: Transport) -> None:
        session = self._session
        readings = await read_declarations(event.tools, session.services.admission)
        if await self._is_superseded(transport):
            return
        rejected = session.tools.declare(event.tools, readings)
        profile = session.state.profile
        changed = profile_with(
            profile,
            capabilities=profile.capabilities,
            locale=None,
            time_zone=None,
            instructions=None,
            tools=event.tools,
            model=None,
            traceparent=None,
        )
        await session.decide(lambda: [ProfileDeclared(changed)])
        session.flash(ToolsChanged(session.tools.declared, rejected))
        self.diagnose(of_tools(event.tools, event_id))

    def _refuse(self, refuse: Refuse, event_id: str, transport: Transport) -> None:
        retry_ms = None if refuse.retry_after_s is None else math.ceil(refuse.retry_after_s * 1000)
        error = ErrorEvent(refuse.code, refuse.message, event_id=event_id, retry_after_ms=retry_ms)
        self._session.flash(error)

    # -- acknowledgements

    def _acknowledge(self, inbound: Inbound, transport: Transport) -> None:
        if transport.resumes and isinstance(inbound.event, _RECORDED):
            self._taken.append(inbound.id)
            if self._acking is None:
                self._send_acks()

    def _send_acks(self) -> None:
        self._acking = None
        taken, self._taken = self._taken, []
        transport = self._session.outbox.transport
        if taken and transport is not None and transport.resumes:
            self._session.flash(EventAck(taken))
            self._acking = asyncio.get_running_loop().call_later(_BURST_S, self._send_acks)

    def _flush_soon(self) -> None:
        if self._flushing is None:
            self._flushing = asyncio.get_running_loop().call_later(_BURST_S, self._flush_now)

    def _flush_now(self) -> None:
        self._flushing = None
        if not self._session.is_closed:
            self._session.spawn(self._session.flush())

    # -- diagnostics

    def diagnose(self, diagnostics: Iterable[Diagnostic]) -> None:
        """Send each diagnostic once to a client with the capability; log each code once, without its text."""
        session = self._session
        for diagnostic in diagnostics:
            if diagnostic.code not in self._diagnosed:
                self._diagnosed.add(diagnostic.code)
                log.info("diagnostic", code=diagnostic.code, session=session.key.session_id)
            is_wanted = "diagnostics" in session.state.profile.capabilities
            if is_wanted and len(self._diagnosed) < _MAX_DIAGNOSTICS:
                if diagnostic.message not in self._diagnosed:
                    self._diagnosed.add(diagnostic.message)
                    session.flash(diagnostic)


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
    """Explain an ignored event: unknown type, or missing capability."""
    name = _quoted(inbound.type)
    if inbound.event is None:
        return Diagnostic("warning", "unknown_event", f"There is no event type {name}.", inbound.id)
    message = f"{name} needs a capability that session.start did not name."
    return Diagnostic("warning", "missing_capability", message, inbound.id)


def of_unknown_call(event_id: str) -> Diagnostic:
    """Report a result whose call id the server never made."""
    message = "This callId is not that of a tool.call; it is not the frame's id."
    return Diagnostic("warning", "unknown_call", message, event_id)


def _quoted(name: str | None) -> str:
    return repr((name or "")[:_MAX_NAME])
