"""The turn loop: model rounds and tool calls until the model stops.

Everything a client can act on is committed before it is sent. A turn stops between commits, never inside one.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from functools import partial

import msgspec
import structlog

from conductor.conversation.context import ENDED, TurnContext
from conductor.conversation.pending_approvals import ApprovalBatch
from conductor.conversation.phrases import CONTINUE
from conductor.conversation.recovery import Recovered
from conductor.conversation.reply_speaker import ReplySpeaker, without_invented
from conductor.conversation.snapshot import TURN
from conductor.conversation.speech import CUT_BEFORE_SPEECH, CUT_SOMEWHERE, ReplyBuffer, marked
from conductor.conversation.tool_calls import ToolCallRunner
from conductor.conversation.tool_round import ToolRound, prepare_round
from conductor.conversation.tracing import request_attributes
from conductor.conversation.turn_state import EndReason, StoppedError, TurnState
from conductor.errors import ConductorError, ErrorCode, Fenced, ModelError, StoreError, TurnTimeout
from conductor.events.envelope import new_call_id
from conductor.events.server import ErrorEvent, ServerEvent, SpeechFinal, set_state
from conductor.messages import AssistantMessage, Message, Note, ToolCall
from conductor.models.base import CACHE_S, Finished, ModelRequest, TextDelta, ToolDefinition
from conductor.models.retry import BROKEN_OFF
from conductor.stores.base import AppendLog, Operation, TrimLog

log = structlog.get_logger(__name__)

# Rounds in a row with all calls denied; then the model answers without tools.
_MAX_REFUSED_ROUNDS = 2
# For one transcript, where the process ended in each; then the turn fails.
_MAX_ATTEMPTS = 2

_NO_ANSWER = "I have nothing to say to that."
_LIMIT_REACHED = "The limit of tool calls is reached; the model answers with what it has."


class Turn:
    """One turn.

    ``follows`` tells whether another turn starts at once: then no ``idle`` is sent between them. A turn with
    the cause ``request`` makes the call ``request`` without the model, and says nothing.
    """

    def __init__(
        self,
        context: TurnContext,
        turn_id: str,
        cause: str,
        follows: Callable[[], bool],
        recovered: Recovered | None = None,
        request: ToolCall | None = None,
    ) -> None:
        self.state = TurnState(turn_id, cause, context.limits.turn_timeout)
        self.error: ErrorCode | None = None
        self._context = context
        self._follows = follows
        self._recovered = recovered
        self._request = request
        self._reply = ReplyBuffer()
        self._speaker: ReplySpeaker | None = None
        self._round: ToolRound | None = None
        self._runner = ToolCallRunner(context, self.state)
        self._first_event_ns = 0
        self._system_and_tools: tuple[str, Sequence[ToolDefinition]] | None = None
        self._last_history: tuple[list[Message], int] | None = None
        if recovered is not None:
            self._round = recovered.round
            self.state.restore(recovered.snapshot, in_round=recovered.round is not None)
            self._reply.add(self.state.spoken_text)

    async def run(self) -> EndReason:
        """Answer the last message; leave the history valid however the turn ends."""
        reason: EndReason = "failed"
        self.state.begin()
        try:
            await self._converse()
            reason = "answered"
        except StoppedError:
            reason = self.state.stopped_for or "interrupted"
            if reason == "timed_out":
                self.error = TurnTimeout.code
        except ConductorError as error:
            self.error = error.code
            log.warning(
                "turn failed",
                turn=self.state.id,
                code=error.code,
                reason=getattr(error, "reason", None),
                profile=getattr(error, "profile", None),
                error=str(error),
            )
            if isinstance(error, Fenced):
                raise  # another process owns the session: send nothing more
        except Exception:
            log.exception("turn failed", turn=self.state.id)
            self.error = "internal_error"
        finally:
            self.state.clock.stop()
            self._context.stop_partials()
        if reason != "answered":
            await self._close(reason)
        return reason

    @property
    def waits_for_device(self) -> bool:
        return self._runner.waits_for_device

    @property
    def unspoken(self) -> str:
        return self._reply.text.strip()

    async def _converse(self) -> None:
        limits, state = self._context.limits, self.state
        spent = False
        if self._recovered is not None:
            await self._recover(self._recovered)
        if state.cause == "request":
            if self._request is not None:
                await self._run_calls(AssistantMessage(""), [self._request], complete=True)
            idle = [] if self._follows() else [set_state(new_call_id(), "idle")]
            committer = self._context.committer
            await committer.commit([], idle, state.id, snapshots=ENDED, after=state.end)
            return
        while True:
            if state.refused_rounds >= _MAX_REFUSED_ROUNDS:
                spent = True
            if not spent and (
                state.stats.rounds >= limits.max_tool_rounds or state.calls_made >= limits.max_calls_per_turn
            ):
                spent = True
                state.stats.trace.append("limit")
                error = ErrorEvent("tool_round_limit_exceeded", _LIMIT_REACHED)
                await self._context.commit([], [error])
            state.check()
            reply, calls, finished = await self._ask_model(tools_off=spent)
            text = reply.text.strip()
            provider = finished.provider or self._context.provider.name
            message = AssistantMessage(text, opaque=finished.opaque, provider=provider)
            if calls and not spent:
                await self._run_calls(message, calls, complete=finished.stop == "tool_use")
            # The provider paused a long reply: record this part, and ask it to continue.
            elif finished.stop == "pause_turn" and text and not spent:
                await self._say(message, ToolRound(()))
                self._reply = ReplyBuffer()
                self.state.stats.rounds += 1
            else:
                self._reply = ReplyBuffer()
                await self._answer(message, finished)
                return

    async def _answer(self, message: AssistantMessage, finished: Finished) -> None:
        if finished.stop == "refusal":
            raise ModelError("refused", "The model declined to answer.")
        text = without_invented(message.text, self._context.committer.state.log) or _NO_ANSWER
        if text != message.text:
            message = msgspec.structs.replace(message, text=text)
        self.state.stats.trace.append("final")
        await self._say(message)

    async def _say(self, message: AssistantMessage, prepared: ToolRound | None = None) -> None:
        # Without a tool round it is the turn's last message.
        context, state = self._context, self.state
        operations: list[Operation] = [AppendLog(message)]
        events: list[ServerEvent] = []
        device_calls = prepared.device_calls if prepared is not None else []
        speaker, self._speaker = self._speaker, None
        if speaker is not None:
            speech = speaker.last(message.text)
        else:
            # The device answers a speech before it reads the call behind it.
            speech = context.speech(state, message.text, "" if device_calls else message.text)
        speech_id = state.speech_id if speaker is not None else speech.speech_id if speech is not None else ""
        if message.text:
            events.append(SpeechFinal(message.text))
            events.append(context.profile.append_message("assistant", message.text, speech_id))
        events += context.speech_events(speech)
        spoke = speech is not None or (speaker is not None and speaker.spoke)
        if spoke and prepared is not None and state.cause != "news":
            events.append(set_state(new_call_id(), "thinking"))
        if prepared is not None:
            operations += prepared.open(state.id)
            events += [context.profile.tool_call(ready) for ready in device_calls]
        elif not self._follows():
            events.append(set_state(new_call_id(), "idle"))
        state.stats.reply = message.text or state.stats.reply
        position = context.committer.state.log_end

        def finish() -> None:
            state.note_logged()
            context.speeches.logged(speech_id, position)
            context.speeches.add(speech)
            if speech is not None:
                state.stats.mark_first("speech")
            if prepared is None:
                state.end()

        dump = partial(state.dump, logged=True) if prepared is not None else str
        snapshots = {TURN: dump} | context.speech_snapshot(speech)
        await context.committer.commit(operations, events, state.id, snapshots=snapshots, after=finish)

    async def _ask_model(self, *, tools_off: bool) -> tuple[ReplyBuffer, list[ToolCall], Finished]:
        # Retries once if the reply broke off. Before its first event the provider retries by itself.
        self._reply = ReplyBuffer()
        avoid: str | None = None
        for may_retry in (True, False):
            reply, calls = ReplyBuffer(), list[ToolCall]()
            request = self._model_request(tools_off, avoid)
            try:
                finished = await self._read(request, reply, calls)
            except ModelError as error:
                if may_retry and error.reason == "context_too_long" and await self._shorten_history():
                    continue
                avoid = error.profile
                broke_off = error.reason in BROKEN_OFF and (reply.text or calls)
                backoff = self._context.limits.model_retry * random.uniform(0.5, 1.0)
                pause = max(backoff, error.retry_after or 0.0)
                if not (may_retry and broke_off and pause < self.state.clock.remaining):
                    raise
                self.state.stats.trace.append(f"retry:{error.reason}")
                await self._keep_said()
                with self.state.interruptible():
                    await asyncio.sleep(pause)
            else:
                break
        self._reply = reply
        self._context.stop_partials()
        if finished is None:
            raise ModelError("protocol", "The model's reply did not end.")
        self.state.stats.add(finished)
        self._context.count(request, finished)
        return reply, calls, finished

    async def _keep_said(self) -> None:
        """Log the spoken part of a reply that broke off, so that the model continues from there."""
        context, state = self._context, self.state
        text = state.spoken_text.strip()
        if not text:
            return
        message = context.profile.append_message("assistant", text, state.speech_id)
        position = context.committer.state.log_end

        def finish() -> None:
            state.note_logged()
            context.speeches.logged(state.speech_id, position)

        await context.committer.commit(
            [AppendLog(AssistantMessage(text)), AppendLog(Note(CONTINUE))],
            [SpeechFinal(text), message],
            state.id,
            snapshots={TURN: partial(state.dump, logged=True)},
            after=finish,
        )
        self._reply = ReplyBuffer()

    def _model_request(self, tools_off: bool, avoid: str | None) -> ModelRequest:
        context = self._context
        # Changes are sent from the next turn on: the service's cache and the reasoning depend on the request.
        if self._system_and_tools is None:
            self._system_and_tools = context.profile.system_prompt, context.executor.definitions
        system, tools = self._system_and_tools
        messages = (
            context.messages if self._last_history is None else context.messages_after(*self._last_history)
        )
        self._last_history = messages, context.committer.state.log_end
        return ModelRequest(
            system,
            messages,
            tools,
            "none" if tools_off else "auto",
            silence_s=context.limits.model_silence,
            deadline_s=self.state.clock.remaining,
            profile=context.profile.model,
            avoid=avoid,
            cache_key=context.cache_key,
        )

    async def _shorten_history(self) -> bool:
        """Drop half of the history before this turn; False without such a history."""
        state = self._context.committer.state
        cut = self._context.history.halve(state.log)
        if cut:
            self.state.stats.trace.append("history_halved")
            await self._context.commit([TrimLog(state.log_start + cut)])
            self._last_history = None
        return cut > 0

    async def _read(
        self, request: ModelRequest, reply: ReplyBuffer, calls: list[ToolCall]
    ) -> Finished | None:
        context = self._context
        self._speaker = ReplySpeaker(context, self.state) if context.profile.segments else None
        start_ns = time.time_ns()
        self._first_event_ns = 0
        context.cached_until = asyncio.get_running_loop().time() + CACHE_S
        try:
            finished = await self._stream(request, reply, calls)
        except BaseException as error:
            # An interruption is not an error of the model.
            stopped = isinstance(error, (StoppedError, asyncio.CancelledError))
            reason = error.reason if isinstance(error, ModelError) else type(error).__name__
            self._note_request(start_ns, error="" if stopped else reason)
            raise
        self._note_request(start_ns, finished)
        if finished is not None and finished.stop == "context_window" and not (reply.text.strip() or calls):
            raise ModelError("context_too_long", "The conversation is too long for the model.")
        return finished

    async def _stream(
        self, request: ModelRequest, reply: ReplyBuffer, calls: list[ToolCall]
    ) -> Finished | None:
        context = self._context
        finished: Finished | None = None
        with self.state.interruptible():
            # Close the stream in every case: an open one keeps its connection.
            async with aclosing(context.provider.stream(request)) as stream:
                async for event in stream:
                    self._first_event_ns = self._first_event_ns or time.time_ns()
                    if isinstance(event, TextDelta):
                        self.state.stats.mark_first("token")
                        reply.add(event.text)
                        self._reply = reply
                        context.show(reply)
                        if self._speaker is not None:
                            await self._speaker.add(event.text)
                    elif isinstance(event, ToolCall):
                        self.state.stats.mark_first("token")
                        calls.append(msgspec.structs.replace(event, call_id=new_call_id()))
                    else:
                        finished = event
        return finished

    def _note_request(self, start_ns: int, finished: Finished | None = None, error: str = "") -> None:
        if self._context.tracer is not None:
            name, attributes = request_attributes(self._context.provider.name, finished)
            if self._first_event_ns:
                first_s = (self._first_event_ns - start_ns) / 1e9
                attributes = {**attributes, "gen_ai.response.time_to_first_chunk": first_s}
            self._context.note_step("chat", name, start_ns, error, attributes)

    async def _run_calls(
        self, message: AssistantMessage, calls: Sequence[ToolCall], *, complete: bool
    ) -> None:
        context = self._context
        max_calls = context.limits.max_calls_per_turn - self.state.calls_made
        with self.state.interruptible():
            prepared = await prepare_round(
                context.executor,
                calls,
                context.limits,
                self._runner.permit,
                max_calls=max_calls,
                complete=complete,
            )
        # Before the commit that sends them: a fast device answers before it returns.
        for ready in prepared.device_calls:
            context.pending.expect(ready.call.call_id)
        self.state.calls_made += len(calls)
        self.state.stats.trace.extend(f"tool.call:{call.name[:64]}" for call in calls)
        self._round = prepared
        self.state.attempts = 1
        await self._run_round(prepared, msgspec.structs.replace(message, calls=prepared.calls))

    async def _run_round(
        self, prepared: ToolRound, message: AssistantMessage | None, batch: ApprovalBatch | None = None
    ) -> None:
        # Without a message the round was recorded by another process; ``batch`` are its approvals.
        self._context.results.round = prepared
        try:
            if message is not None:
                await self._say(message, prepared)
                self._reply = ReplyBuffer()
            if prepared.ready or prepared.gated or prepared.backlog:
                await self._runner.run(prepared, batch)
        finally:
            for ready in prepared.device_calls:
                self._context.pending.forget(ready.call.call_id)
        self.state.refused_rounds = self.state.refused_rounds + 1 if prepared.all_refused else 0
        if not prepared.closed:
            await self._context.commit(prepared.close())
        self._round = self._context.results.round = None
        self.state.stats.rounds += 1

    async def _recover(self, recovered: Recovered) -> None:
        prepared = recovered.round
        if prepared is None:
            if self.state.attempts > _MAX_ATTEMPTS:
                raise ModelError("protocol", "The process ended in every attempt to answer this transcript.")
            if self.state.spoken_text:
                self.state.check()
                await self._keep_said()
            else:
                self._context.committer.mark_dirty(TURN)
                await self._context.committer.flush()
            return
        await self._run_round(prepared, None, recovered.batch)

    async def _close(self, reason: EndReason) -> None:
        operations, events = await self._context.approvals.withdraw()
        cause = {"timed_out": "turn_timeout", "session_end": "session_end"}.get(reason, reason)
        prepared, self._round = self._round, None
        if prepared is not None:
            # A result that is being recorded may close the round.
            await self._context.committer.settled(self._context.limits.close_timeout)
            recorded = self._context.record(prepared.calls[0].call_id) is not None
            decisions = self._runner.batch.drain()
            prepared.ready += [decided.ready for decided in decisions if decided.ready is not None]
            if recorded or prepared.closed:
                self._runner.give_up(prepared, cause)
            if recorded:
                operations += prepared.close()
        cut, snapshots, after = self.unspoken, None, None
        if cut and reason in ("interrupted", "session_end"):
            if self.state.heard_text is not None:
                text = marked(self.state.heard_text[: len(cut)])
            elif self.state.spoken_text:
                text = f"{self.state.spoken_text.strip()} {CUT_SOMEWHERE}"
            else:
                text = f"{cut} {CUT_BEFORE_SPEECH}"
            operations.append(AppendLog(AssistantMessage(text)))
            snapshots, after = {TURN: partial(self.state.dump, logged=True)}, self.state.note_logged
            self._reply = ReplyBuffer()
        self.state.stats.trace.append(reason if self.error is None else f"error:{self.error}")
        if not operations:
            return
        try:
            async with asyncio.timeout(self._context.limits.close_timeout):
                await self._context.commit(operations, events, snapshots, after)
        except (StoreError, TimeoutError) as error:
            # The store is unreachable; `repair` fixes the history before the next request.
            log.error("turn not closed in the store", turn=self.state.id, error=type(error).__name__)
