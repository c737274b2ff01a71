"""One conversation: what the client says, one turn at a time, and what it is told.

A session outlives its connections. It takes events from any connection that is bound to it, and sends to the
one that is served.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
import structlog

from conductor.conversation.delivery import CallTerms, Delivery
from conductor.conversation.heard import Speech
from conductor.conversation.history import cut_point
from conductor.conversation.late import LateCalls
from conductor.conversation.ledger import Ledger
from conductor.conversation.outbox import Outbox
from conductor.conversation.partials import Partials, Reply
from conductor.conversation.round import Round
from conductor.conversation.sentences import CUT_OFF, FAILURES, MESSAGES, agent_news, late_result
from conductor.conversation.speeches import Speeches
from conductor.conversation.transport import Transport
from conductor.conversation.turn import EndReason, Turn
from conductor.conversation.waiting import News, Waiting
from conductor.errors import Duplicate, ErrorCode, Fenced, StoreError
from conductor.events import client
from conductor.events.codec import Inbound
from conductor.events.envelope import IdSource
from conductor.events.server import (
    ErrorEvent,
    RejectedTool,
    ServerEvent,
    SessionStarted,
    SpeechFinal,
    SpeechPartial,
    ToolCallEvent,
    ToolsChanged,
    append_message,
    set_state,
    speak,
)
from conductor.messages import AssistantMessage, Message, Note, UserMessage
from conductor.models.base import ModelProvider
from conductor.prompts import session_prompt
from conductor.settings import Limits
from conductor.speech import for_the_ear
from conductor.stores.base import (
    AppendLog,
    CallRecord,
    Claim,
    FinishCall,
    ForgetCall,
    Operation,
    OutboundRecord,
    RememberInbound,
    SessionStore,
    TrimLog,
)
from conductor.tools.base import CallContext, Toolset, ToolSpec
from conductor.tools.client import DeviceToolset
from conductor.tools.declarations import parse_declarations
from conductor.tools.executor import ToolExecutor, device_outcome
from conductor.tools.pending import Pending

log = structlog.get_logger(__name__)

CAPABILITIES = ("tools",)
"""Those of the protocol's extensions that this version accepts."""

_call_ids = IdSource("call")
_turn_ids = IdSource("turn")


@dataclass(frozen=True, slots=True)
class Services:
    """What all sessions share.

    ``catalog`` is the device's tools for clients that do not declare theirs. ``failures`` are the sentences
    that a failed turn speaks, by error code; an empty mapping switches them off.
    """

    store: SessionStore
    provider: ModelProvider
    toolsets: Sequence[Toolset]
    catalog: Sequence[ToolSpec]
    system_prompt: str
    limits: Limits = field(default_factory=Limits)
    interruption_mode: Literal["cancel", "queue"] = "cancel"
    failures: Mapping[ErrorCode, str] = field(default_factory=lambda: FAILURES)
    log_content: bool = False


class Session:
    """One conversation, from its first event until its grace is over."""

    def __init__(self, services: Services, claim: Claim) -> None:
        self.key = claim.key
        self.limits = services.limits
        self.provider = services.provider
        self._services = services
        self._outbox = Outbox(self.limits, self._expired)
        self._delivery = Delivery(claim.key.session_id, self._outbox, self.limits, self._terms)
        self._ledger = Ledger(services.store, claim, self._delivery)
        self._pending = Pending()
        self._late = LateCalls(self.limits.max_late_calls, self.limits.late_result_expiry)
        self._speeches = Speeches(self.limits.heard_window)
        self._waiting = Waiting(self.limits.max_queued_transcripts, self.limits.max_queued_notes)
        self._partials = Partials(lambda text: self._show(SpeechPartial(text)), self.limits.partial_interval)
        self._turn: Turn | None = None
        self._runner: asyncio.Task[None] | None = None
        self._beginning = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._context: list[str] = []
        self._floor_until = 0.0
        self._floor_timer: asyncio.TimerHandle | None = None
        self._start = client.SessionStart()
        self._declared: tuple[ToolSpec, ...] | None = None
        self._prompt = ""
        self._closed = False
        self._configure()

    # -- connections

    @property
    def transport(self) -> Transport | None:
        """The connection that is served."""
        return self._outbox.transport

    @property
    def busy(self) -> bool:
        """Whether a turn is running or about to."""
        return self._runner is not None or self._beginning

    def attach(self, transport: Transport, *, resumed: bool) -> None:
        """Serve this connection from now on; any other one of this session falls silent."""
        previous = self._outbox.transport
        if previous is transport:
            return
        if previous is not None:
            previous.park()
        self._outbox.attach(transport)
        if resumed and not self.busy:
            # A transcript that was lost with the old socket has left the app waiting for this.
            self._spawn(self.reopen_microphone())
        self._consider_news()

    def detach(self, transport: Transport) -> None:
        """Note that the connection is gone; the running turn goes on."""
        if self._outbox.transport is transport:
            self._outbox.detach()

    async def close(self) -> None:
        """End the session: stop its turn, wait until that has ended, and let go of it in the store."""
        self._closed = True
        if self._floor_timer is not None:
            self._floor_timer.cancel()
        if self._turn is not None:
            self._turn.stop("session_end")
        if self._runner is not None:
            await asyncio.wait([self._runner], timeout=2 * self.limits.close_timeout)
        self._outbox.close()
        for task in self._tasks:
            task.cancel()
        await self._ledger.release()

    # -- what the client says

    async def receive(self, inbound: Inbound, transport: Transport) -> None:
        """Take one event from a connection that is bound to this session. Never waits for a turn."""
        event = inbound.event
        try:
            match event:
                case None:
                    log.debug("event ignored", type=inbound.type[:64], session=self.key.session_id)
                case client.ToolResultEvent():
                    await self._take_result(event)
                case client.TranscriptFinal():
                    await self._take_transcript(inbound.id, event.text)
                case client.TranscriptPartial():
                    self._hold_floor()
                case client.OutputInterrupted():
                    await self._take_interruption(inbound.id, event)
                case client.AgentCompleted():
                    await self._take_news(inbound.id, agent_news(event))
                case client.SessionUpdate():
                    self._declare(event.tools, transport)
                case client.SessionStart():
                    raise AssertionError("the connection starts the session")
        except Duplicate:
            log.debug("event repeated", type=inbound.type, session=self.key.session_id)
        except StoreError as error:
            await self.refuse(error.code, MESSAGES.get(error.code, ""), inbound.id, transport)

    def start(self, event: client.SessionStart, transport: Transport, *, resumed: bool) -> None:
        """Answer ``session.start``, then replay what this connection has not seen."""
        keep = {"locale": self._start.locale, "time_zone": self._start.time_zone}
        given = {name: getattr(event, name) or old for name, old in keep.items()}
        instructions = event.instructions if event.instructions is not None else self._start.instructions
        # The GitHub token is for tools that run elsewhere; what is not used is not kept.
        self._start = msgspec.structs.replace(event, **given, instructions=instructions, github_token=None)
        accepted = [name for name in CAPABILITIES if name in event.capabilities]
        rejected: list[RejectedTool] | None = None
        if "tools" in accepted and event.tools is not None:
            rejected = self._take_declarations(event.tools)
        self._configure()
        started = SessionStarted(
            self.key.session_id,
            resumed,
            accepted if event.capabilities else None,
            [spec.name for spec in self._declared or ()] if rejected is not None else None,
            rejected,
        )
        transport.send(self._delivery.frame(started))
        self.attach(transport, resumed=resumed)

    async def refuse(self, code: ErrorCode, message: str, event_id: str | None, transport: Transport) -> None:
        """Answer an event that starts no turn, and open the microphone that waits for one."""
        transport.send(self._delivery.frame(ErrorEvent(code, message, event_id=event_id)))
        await self.reopen_microphone()

    async def reopen_microphone(self) -> None:
        """Say ``idle`` where no turn will: the app is transcribing until it hears that."""
        if self.busy:
            return
        idle = set_state(_call_ids(), "idle")
        try:
            await self.commit([], [idle])
        except StoreError:
            self._show(idle)

    async def _take_transcript(self, event_id: str, text: str) -> None:
        self._floor_until = 0.0
        if event_id in self._ledger.state.seen:
            raise Duplicate(event_id)
        transport = self._outbox.transport
        if not text.strip() and transport is not None:
            await self.refuse("invalid_transcript", "The transcript is empty.", event_id, transport)
            return
        self._outbox.expect_no_acknowledgements()
        if not self.busy:
            self._beginning = True
            try:
                turn = await self._begin("transcript", [UserMessage(text)], text, event_id)
            finally:
                self._beginning = False
            self._runner = self._spawn(self._run_turns(turn))
            return
        if not self._waiting.add_transcript(text):
            assert transport is not None
            message = f"More than {self.limits.max_queued_transcripts} transcripts are waiting."
            transport.send(self._delivery.frame(ErrorEvent("rate_limited", message, event_id=event_id)))
            return
        await self._ledger.commit([RememberInbound(event_id)])
        if self._services.interruption_mode == "cancel":
            self._withdraw_speech()
            if self._turn is not None:
                self._hush_turn(self._turn)

    async def _take_result(self, event: client.ToolResultEvent) -> None:
        now = asyncio.get_running_loop().time()
        self._speeches.over(event.call_id, now)
        record = self._ledger.state.calls.get(event.call_id)
        if record is None or record.result is not None:
            self._outbox.acknowledge(event.call_id)
            await self._take_late(event)
            self._consider_news()
            return
        took = max(0.0, time.time() - record.opened_ms / 1000)
        outcome = device_outcome(event.result, event.error, took)
        await self.commit([FinishCall(event.call_id, self.executor.settle(event.call_id, outcome))])
        self._outbox.acknowledge(event.call_id)
        self._pending.answer(event.call_id, outcome)

    async def _take_late(self, event: client.ToolResultEvent) -> None:
        """Keep a result that nobody waits for: the model reads it before the next turn."""
        call = self._late.take(event.call_id, asyncio.get_running_loop().time())
        if call is not None:
            result = self.executor.settle(event.call_id, device_outcome(event.result, event.error, 0.0))
            self._context.append(late_result(call.name, result.content))

    async def _take_interruption(self, event_id: str, event: client.OutputInterrupted) -> None:
        """Barge-in: it concerns the oldest speech that is not over (protocol, "Base: client to server")."""
        if event_id in self._ledger.state.seen:
            raise Duplicate(event_id)
        operations: list[Operation] = [RememberInbound(event_id)]
        speech = self._speeches.interrupt(asyncio.get_running_loop().time())
        turn = self._turn
        if turn is not None and (speech is None or speech.turn_id == turn.id):
            self._hush_turn(turn)
        if speech is not None:
            self._outbox.end_speech(speech.call_id)
            operations += self._speeches.amend(speech, event.spoken_text, event.played_ms)
        await self._ledger.commit(operations)
        self._consider_news()

    async def _take_news(self, event_id: str, text: str) -> None:
        await self._ledger.commit([RememberInbound(event_id)])
        expires = asyncio.get_running_loop().time() + self.limits.note_expiry
        self._waiting.add_news(News(text, expires))
        self._consider_news()

    def _hold_floor(self) -> None:
        """Note that the person is speaking: news waits for the final transcript, or for silence."""
        loop = asyncio.get_running_loop()
        self._floor_until = loop.time() + self.limits.floor_timeout
        if self._waiting.has_news:
            self._wait_for_floor()

    def _wait_for_floor(self) -> None:
        if self._floor_timer is not None:
            self._floor_timer.cancel()
        self._floor_timer = asyncio.get_running_loop().call_at(self._floor_until, self._consider_news)

    # -- turns

    def _consider_news(self) -> None:
        """Begin a turn of the server's own, if there is something to tell and nobody is in the way."""
        loop = asyncio.get_running_loop()
        if not self._waiting.has_news or self.busy or self._closed or self._outbox.transport is None:
            return
        if self._outbox.speaking:
            return  # considered again when that speech is over
        if loop.time() < self._floor_until:
            self._wait_for_floor()
            return
        self._runner = self._spawn(self._run_turns(None))

    async def _run_turns(self, turn: Turn | None) -> None:
        """Run this turn and those that wait, until there is nothing to do."""
        try:
            while not self._closed:
                turn = turn or await self._next_turn()
                if turn is None:
                    break
                await self._run_turn(turn)
                turn = None
        except Fenced:
            log.warning("session taken over", session=self.key.session_id)
        except StoreError as error:
            log.error("session store failed", session=self.key.session_id, error=type(error).__name__)
            self._show(ErrorEvent(error.code, MESSAGES.get(error.code, MESSAGES["internal_error"])))
            self._show(set_state(_call_ids(), "idle"))
        except Exception:
            log.exception("turn runner failed", session=self.key.session_id)
        finally:
            self._turn = None
            self._runner = None
        self._consider_news()

    async def _next_turn(self) -> Turn | None:
        transcript = self._waiting.take_transcript()
        if transcript is not None:
            text = transcript.text
            return await self._begin("transcript", [UserMessage(text)], text, None)
        loop = asyncio.get_running_loop()
        if self._outbox.transport is None or self._outbox.speaking or loop.time() < self._floor_until:
            return None
        news = self._waiting.take_news(loop.time())
        return await self._begin("news", [Note("\n\n".join(news))], None, None) if news else None

    async def _begin(
        self, cause: str, messages: Sequence[Message], said: str | None, event_id: str | None
    ) -> Turn:
        """Commit what is to be answered and show it; the turn itself has not run a step."""
        turn = Turn(self, _turn_ids(), cause)
        state = self._ledger.state
        context = self._context
        cut = cut_point(state.log, self.limits.max_turns - 1, self.limits.history_tokens)
        operations: list[Operation] = [TrimLog(state.log_start + cut)] if cut else []
        if event_id is not None:
            operations.append(RememberInbound(event_id))
        operations += [AppendLog(Note(text)) for text in context]
        operations += [AppendLog(message) for message in messages]
        events: list[ServerEvent] = []
        if said is not None:
            # A turn of the server's own leaves "thinking" out: it would stop the transcriber.
            events.append(set_state(_call_ids(), "thinking"))
            events.append(append_message(_call_ids(), "user", said))
        await self._ledger.commit(operations, events, turn.id)
        self._context = self._context[len(context) :]
        self._turn = turn
        return turn

    async def _run_turn(self, turn: Turn) -> None:
        self._turn = turn
        if self._services.interruption_mode == "cancel" and self._waiting.transcripts:
            turn.stop("interrupted")
        started = asyncio.get_running_loop().time()
        reason = await turn.run()
        if reason in ("failed", "timed_out"):
            await self._apologise(turn)
        elif reason != "answered" and not self._follows():
            await self._ledger.commit([], [set_state(_call_ids(), "idle")], turn.id)
        self._turn = None
        self._log_turn(turn, reason, asyncio.get_running_loop().time() - started)

    def _follows(self) -> bool:
        """Whether another turn follows at once: then the ``idle`` between is left out."""
        return self._waiting.transcripts > 0 and not self._closed

    def _hush_turn(self, turn: Turn) -> None:
        """Stop a turn for a barge-in, and see that nothing more of its answer is shown."""
        turn.stop("interrupted")
        self.hush()
        if self._outbox.transport is not None:
            self._outbox.transport.drop_partials()

    def _withdraw_speech(self) -> None:
        """Take back speeches that were not sent yet: the person has moved on."""
        for speech in self._speeches.unsent(self._outbox.was_written):
            if self._outbox.withdraw(speech.call_id):
                self._spawn(self.commit(self._speeches.amend(speech, "", None)))

    async def _apologise(self, turn: Turn) -> None:
        """Tell of a turn that failed: an error for the app, one short sentence for the person."""
        code = turn.error or "internal_error"
        sentence = self._services.failures.get(code, "")
        error = ErrorEvent(code, MESSAGES.get(code, MESSAGES["internal_error"]))
        unspoken = turn.unspoken
        kept = " ".join(part for part in (unspoken and f"{unspoken} {CUT_OFF}", sentence) if part)
        shown = sentence or unspoken
        operations: list[Operation] = [AppendLog(AssistantMessage(kept))] if kept else []
        events: list[ServerEvent] = [error]
        if shown:
            events += [SpeechFinal(shown), append_message(_call_ids(), "assistant", shown)]
        if sentence:
            events += self._speech(turn, kept, for_the_ear(sentence))
        if not self._follows():
            events.append(set_state(_call_ids(), "idle"))
        try:
            await self._ledger.commit(operations, events, turn.id)
        except StoreError:
            # Nothing that must arrive may leave without a commit; these two need not.
            self._show(error)
            self._show(set_state(_call_ids(), "idle"))

    def _log_turn(self, turn: Turn, reason: EndReason, seconds: float) -> None:
        figures = turn.figures
        first = figures.first_token_s
        log.info(
            "turn",
            session=self.key.session_id,
            turn=turn.id,
            end=reason,
            error=turn.error,
            ms=round(seconds * 1000),
            first_token_ms=None if first is None else round(first * 1000),
            rounds=figures.rounds,
            input_tokens=figures.usage.input_tokens,
            output_tokens=figures.usage.output_tokens,
            trace=" -> ".join(figures.trace),
        )

    # -- what a turn needs (`TurnHost`)

    @property
    def messages(self) -> Sequence[Message]:
        """The history."""
        return self._ledger.state.log

    @property
    def system_prompt(self) -> str:
        """The prompt for this session."""
        return self._prompt

    async def commit(self, operations: Sequence[Operation], events: Sequence[ServerEvent] = ()) -> None:
        """Record the operations, then send the events. Raises `StoreError`."""
        for operation in operations:
            if isinstance(operation, ForgetCall):
                self._remember_late(operation.call_id)
        if operations or events:
            await self._ledger.commit(operations, events, self._turn.id if self._turn is not None else "")

    async def say(self, turn: Turn, message: AssistantMessage, prepared: Round | None = None) -> None:
        """Commit and send a message of the assistant; without a round of calls it is the turn's last."""
        self._partials.stop()
        operations: list[Operation] = [AppendLog(message)]
        events: list[ServerEvent] = []
        device_calls = prepared.device_calls if prepared is not None else []
        if message.text:
            events += [SpeechFinal(message.text), append_message(_call_ids(), "assistant", message.text)]
        if message.text and not device_calls:
            events += self._speech(turn, message.text, for_the_ear(message.text))
            if prepared is not None:
                events.append(set_state(_call_ids(), "thinking"))
        if prepared is None:
            if not self._follows():
                events.append(set_state(_call_ids(), "idle"))
        else:
            operations += prepared.open(turn.id)
            for ready in device_calls:
                arguments = msgspec.json.encode(ready.arguments).decode()
                events.append(ToolCallEvent(ready.call.call_id, ready.spec.name, arguments))
        await self._ledger.commit(operations, events, turn.id)

    def _speech(self, turn: Turn, text: str, spoken: str) -> list[ServerEvent]:
        """Have the message that is about to be logged spoken, and remember what it was for a barge-in."""
        if not spoken:
            return []
        call_id = _call_ids()
        position = self._ledger.state.log_end
        self._speeches.add(Speech(call_id, turn.id, position, text, spoken, tuple(turn.actions)))
        return [set_state(_call_ids(), "speaking"), speak(call_id, spoken)]

    def show(self, reply: Reply) -> None:
        """Show the live text of a reply."""
        if self._outbox.transport is not None:
            self._partials.show(reply)

    def hush(self) -> None:
        """Stop showing it."""
        self._partials.stop()

    def expect(self, call_id: str) -> None:
        """Make ready for the device's answer to a call."""
        self._pending.expect(call_id)

    def record(self, call_id: str) -> CallRecord | None:
        """Look a call up: what was recorded of it decides."""
        return self._ledger.state.calls.get(call_id)

    def withdraw(self, call_id: str) -> bool:
        """Take a call back that no socket has had; False if one has, or the call is not the device's."""
        return self._outbox.withdraw(call_id)

    def new_call_id(self) -> str:
        """Make an id for a call."""
        return _call_ids()

    def context(self, call_id: str) -> CallContext:
        """Say what a tool may know of the session."""
        return CallContext(self.key.session_id, call_id, self._start.time_zone, self._start.locale)

    # -- tools

    def _configure(self) -> None:
        """Put prompt and tools together anew, after the client has said what it is and has."""
        start = self._start
        self._prompt = session_prompt(
            self._services.system_prompt,
            locale=start.locale,
            time_zone=start.time_zone,
            instructions=start.instructions,
        )
        specs = self._declared if self._declared is not None else self._services.catalog
        device = DeviceToolset(specs, self._pending)
        self.executor = ToolExecutor([*self._services.toolsets, device], self.limits)

    def _declare(self, tools: list[Any], transport: Transport) -> None:
        rejected = self._take_declarations(tools)
        self._configure()
        accepted = [spec.name for spec in self._declared or ()]
        transport.send(self._delivery.frame(ToolsChanged(accepted, rejected)))

    def _take_declarations(self, tools: list[Any]) -> list[RejectedTool]:
        taken = [spec.name for toolset in self._services.toolsets for spec in toolset.specs()]
        accepted, rejected = parse_declarations(tools, reserved_names=taken)
        self._declared = tuple(accepted)
        return [RejectedTool(name, reason) for name, reason in rejected]

    def _terms(self, name: str) -> CallTerms:
        spec = self.executor.spec(name)
        assert spec is not None, "only calls that passed the gate are sent"
        return CallTerms(self.executor.timeout(spec), spec.effect)

    def _expired(self, record: OutboundRecord) -> None:
        if record.kind == "speak":
            self._speeches.over(record.call_id, asyncio.get_running_loop().time())
            self._consider_news()
        else:
            self._spawn(self._time_out(record.call_id))

    async def _time_out(self, call_id: str) -> None:
        """Answer for a device that did not: the outcome is unknown, and its late answer still counts."""
        record = self._ledger.state.calls.get(call_id)
        if record is None or record.result is not None:
            return
        took = max(0.0, time.time() - record.opened_ms / 1000)
        outcome = self.executor.timed_out(record.effect, took)
        self._late.add(record, asyncio.get_running_loop().time())
        try:
            await self.commit([FinishCall(call_id, self.executor.settle(call_id, outcome))])
        except Duplicate:
            return  # the device's answer came while this waited
        except StoreError as error:
            log.error("time-out not recorded", call=call_id, error=type(error).__name__)
        self._pending.answer(call_id, outcome)

    def _remember_late(self, call_id: str) -> None:
        """Remember a call that is closed without its device's answer: that may still come."""
        record = self._ledger.state.calls.get(call_id)
        if record is not None and record.source == "device" and record.result is None:
            self._late.add(record, asyncio.get_running_loop().time())
            self._outbox.drop(call_id)

    # -- inside

    def _show(self, event: ServerEvent) -> None:
        self._outbox.send(self._delivery.frame(event))

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
