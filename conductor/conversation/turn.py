"""The turn loop: model rounds and tool calls until the model stops.

Whatever a client can act upon goes through the host's ``commit``: recorded, then sent. Interruption is
honoured between commits, never inside one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

import msgspec
import structlog

from conductor.conversation.batch import Batch, Decided
from conductor.conversation.clock import TurnClock
from conductor.conversation.heard import CUT_BEFORE_SPEECH, marked
from conductor.conversation.history import repair
from conductor.conversation.partials import Reply
from conductor.conversation.round import Round, prepare_round
from conductor.errors import ConductorError, Duplicate, ErrorCode, Fenced, ModelError, StoreError, TurnTimeout
from conductor.events.server import ErrorEvent, ServerEvent
from conductor.messages import AssistantMessage, Message, ToolCall, ToolResult
from conductor.models.base import Finished, ModelProvider, ModelRequest, TextDelta, Usage
from conductor.settings import Limits
from conductor.stores.base import AppendLog, CallRecord, FinishCall, Operation
from conductor.tools.approvals import not_answered
from conductor.tools.base import CallContext, ToolOutcome, ToolSpec
from conductor.tools.executor import JOB_ACCEPTED, Asked, Ready, ToolExecutor, interrupted_outcome, stamped
from conductor.tools.permissions import Verdict
from conductor.tools.rules import arguments_digest

log = structlog.get_logger(__name__)

EndReason: TypeAlias = Literal["answered", "interrupted", "session_end", "timed_out", "failed"]

_MAX_REFUSED_ROUNDS = 2
"""Tools, "Approvals": after so many rounds in which everything was denied the model answers without tools."""
_NO_ANSWER = "I have nothing to say to that."


class TurnHost(Protocol):
    """What a turn needs of its session."""

    limits: Limits
    provider: ModelProvider

    @property
    def executor(self) -> ToolExecutor:
        """The session's tools."""
        ...

    @property
    def messages(self) -> Sequence[Message]:
        """The history, its last message being what is to be answered."""
        ...

    @property
    def system_prompt(self) -> str:
        """The prompt for this session."""
        ...

    async def commit(self, operations: Sequence[Operation], events: Sequence[ServerEvent] = ()) -> None:
        """Record the operations, then send the events. Raises `StoreError`."""
        ...

    def permit(self, spec: ToolSpec, arguments: Mapping[str, Any]) -> Verdict:
        """Decide about a call with validated arguments."""
        ...

    async def ask(self, turn_id: str, asked: Sequence[Asked]) -> Batch:
        """Ask a person about calls. Raises `StoreError`."""
        ...

    async def withdraw_questions(self) -> tuple[list[Operation], list[ServerEvent]]:
        """Close the questions that stand; gives what is to be committed and sent for that."""
        ...

    def begins(self, ready: Ready) -> None:
        """Note that a call is run."""
        ...

    def ends(self, ready: Ready, outcome: ToolOutcome) -> None:
        """Note what came of a call that was run."""
        ...

    async def say(self, turn: Turn, message: AssistantMessage, prepared: Round | None = None) -> None:
        """Commit and send a message of the assistant; without a round of calls it is the turn's last."""
        ...

    def show(self, reply: Reply) -> None:
        """Show the live text of a reply."""
        ...

    def hush(self) -> None:
        """Stop showing it."""
        ...

    def expect(self, call_id: str) -> None:
        """Make ready for the device's answer to a call."""
        ...

    def forget(self, call_id: str) -> None:
        """Expect no answer any more."""
        ...

    def record(self, call_id: str) -> CallRecord | None:
        """Look a call up: what was recorded of it decides."""
        ...

    def withdraw(self, call_id: str) -> bool:
        """Take a call back that no socket has had; False if one has, or the call is not the device's."""
        ...

    def new_call_id(self) -> str:
        """Make an id for a call."""
        ...

    def context(self, call_id: str) -> CallContext:
        """Say what a tool may know of the session."""
        ...


@dataclass(slots=True)
class TurnFigures:
    """What the log line of a turn says; ``said`` and ``answered`` only where content may be logged."""

    trace: list[str] = field(default_factory=list)
    said: str = ""
    answered: str = ""
    rounds: int = 0
    usage: Usage = field(default_factory=Usage)
    first_token_s: float | None = None
    started: float = field(default_factory=time.monotonic)

    def add(self, usage: Usage) -> None:
        """Add what one call of the model used."""
        mine = self.usage
        self.usage = Usage(
            mine.input_tokens + usage.input_tokens,
            mine.output_tokens + usage.output_tokens,
            mine.cache_read_tokens + usage.cache_read_tokens,
            mine.cache_write_tokens + usage.cache_write_tokens,
        )


class _StoppedError(Exception):
    """The turn was asked to stop, and is at a place where it can."""


class Turn:
    """One utterance answered: model rounds and tool calls until the model stops."""

    def __init__(self, host: TurnHost, turn_id: str, cause: str) -> None:
        self.id = turn_id
        self.cause = cause
        self.figures = TurnFigures([cause])
        self.actions: list[str] = []
        self.error: ErrorCode | None = None
        self._host = host
        self._clock = TurnClock(host.limits.turn_timeout, lambda: self.stop("timed_out"))
        self._task: asyncio.Task[object] | None = None
        self._stop: EndReason | None = None
        self._heard: str | None = None
        self._waiting = False
        self._reply = Reply()
        self._round: Round | None = None
        self._batch = Batch()
        self._calls_made = 0
        self._denied: set[str] = set()
        self._refused_rounds = 0

    def stop(self, reason: EndReason, heard: str | None = None) -> None:
        """Ask the turn to end: at once where it waits, else after the commit that it is in.

        ``heard`` is what the client says was spoken of a reply that was still arriving.
        """
        if self._stop is None:
            self._heard = heard
            self._stop = reason
            if self._waiting and self._task is not None:
                self._task.cancel()

    async def run(self) -> EndReason:
        """Answer the last message; leave the history valid however the turn ends."""
        self._task = asyncio.current_task()
        reason: EndReason = "failed"
        self._clock.start()
        try:
            await self._converse()
            reason = "answered"
        except _StoppedError:
            reason = self._stop or "interrupted"
            if reason == "timed_out":
                self.error = TurnTimeout.code
        except ConductorError as error:
            self.error = error.code
            log.warning("turn failed", turn=self.id, code=error.code, reason=getattr(error, "reason", None))
            if isinstance(error, Fenced):
                raise  # another node has the session: this one must not send another word
        except Exception:
            log.exception("turn failed", turn=self.id)
            self.error = "internal_error"
        finally:
            self._clock.stop()
            self._host.hush()
        if reason != "answered":
            await self._close(reason)
        return reason

    @property
    def stopped_for(self) -> EndReason | None:
        """Why it was asked to stop, if it was."""
        return self._stop

    @property
    def unspoken(self) -> str:
        """What had arrived of a reply that was not finished."""
        return self._reply.text.strip()

    # -- the loop

    async def _converse(self) -> None:
        limits = self._host.limits
        spent = False
        while True:
            if self._refused_rounds >= _MAX_REFUSED_ROUNDS:
                spent = True
            if not spent and (
                self.figures.rounds >= limits.max_tool_rounds or self._calls_made >= limits.max_calls_per_turn
            ):
                spent = True
                await self._note_limit()
            self._check()
            reply, calls, finished = await self._ask_model(tools_off=spent)
            text = reply.text.strip()
            message = AssistantMessage(text, opaque=finished.opaque, provider=self._host.provider.name)
            if calls and not spent:
                await self._run_calls(message, calls, whole=finished.stop == "tool_use")
                self.figures.rounds += 1
            elif finished.stop == "pause_turn" and text and not spent:
                await self._host.say(self, message, Round(()))
                self._reply = Reply()
                self.figures.rounds += 1
            else:
                self._reply = Reply()
                await self._answer(message, finished)
                return

    async def _note_limit(self) -> None:
        self.figures.trace.append("limit")
        message = "The limit of tool calls is reached; the model answers with what it has."
        await self._host.commit([], [ErrorEvent("tool_round_limit_exceeded", message)])

    async def _answer(self, message: AssistantMessage, finished: Finished) -> None:
        if finished.stop == "refusal":
            raise ModelError("refused", "The model declined to answer.")
        if not message.text and finished.stop == "context_window":
            raise ModelError("context_too_long", "The conversation is too long for the model.")
        if not message.text:
            message = msgspec.structs.replace(message, text=_NO_ANSWER)
        self.figures.trace.append("final")
        await self._host.say(self, message)

    async def _ask_model(self, *, tools_off: bool) -> tuple[Reply, list[ToolCall], Finished]:
        host = self._host
        self._reply = reply = Reply()
        calls: list[ToolCall] = []
        finished: Finished | None = None
        request = ModelRequest(
            host.system_prompt,
            repair(host.messages),
            host.executor.definitions,
            "none" if tools_off else "auto",
            silence_s=host.limits.model_silence,
            deadline_s=self._clock.left,
        )
        with self._interruptible():
            async with aclosing(host.provider.stream(request)) as stream:
                async for event in stream:
                    if isinstance(event, TextDelta):
                        self._note_first_token()
                        reply.add(event.text)
                        host.show(reply)
                    elif isinstance(event, ToolCall):
                        self._note_first_token()
                        calls.append(ToolCall(host.new_call_id(), event.name, event.arguments))
                    else:
                        finished = event
        host.hush()
        if finished is None:
            raise ModelError("protocol", "The model's reply did not end.")
        self.figures.add(finished.usage)
        return reply, calls, finished

    def _note_first_token(self) -> None:
        if self.figures.first_token_s is None:
            self.figures.first_token_s = time.monotonic() - self.figures.started

    # -- tool calls

    async def _run_calls(self, message: AssistantMessage, calls: Sequence[ToolCall], *, whole: bool) -> None:
        """Record the calls, send and run them together, and log their results in the model's order."""
        host = self._host
        room = host.limits.max_calls_per_turn - self._calls_made
        prepared = prepare_round(host.executor, calls, host.limits, self._permit, room=room, whole=whole)
        for ready in prepared.device_calls:
            host.expect(ready.call.call_id)
        self._calls_made += len(calls)
        self.figures.trace.extend(f"tool.call:{call.name[:64]}" for call in calls)
        self._round = prepared
        try:
            await host.say(self, msgspec.structs.replace(message, calls=prepared.calls), prepared)
            self._reply = Reply()
            if prepared.ready or prepared.asked:
                await self._gather(prepared)
        finally:
            for ready in prepared.device_calls:
                host.forget(ready.call.call_id)
        await host.commit(prepared.close())
        self._refused_rounds = self._refused_rounds + 1 if prepared.all_refused else 0
        self._round = None

    def _permit(self, spec: ToolSpec, arguments: Mapping[str, Any]) -> Verdict:
        """Decide about a call; what the person has denied in this turn is not asked again."""
        if self._denied and arguments_digest(spec.name, arguments) in self._denied:
            return Verdict("deny", ("The user said no to this very call already.",), None, warn=False)
        return self._host.permit(spec, arguments)

    async def _gather(self, prepared: Round) -> None:
        """Run the calls that may run; then ask about the others, and run those that are allowed."""
        running = {self._begin(one): one for one in prepared.ready}
        try:
            await self._see_to(prepared, running)
            if prepared.asked:
                self._check()
                self._batch = await self._host.ask(self.id, prepared.asked)
                await self._see_to(prepared, running)
        finally:
            for task in running:
                task.cancel()
            if running:
                await asyncio.wait(running, timeout=self._host.limits.close_timeout)

    def _begin(self, ready: Ready) -> asyncio.Task[ToolOutcome]:
        self._host.begins(ready)
        context = self._host.context(ready.call.call_id)
        return asyncio.create_task(self._host.executor.run(ready, context))

    async def _see_to(self, prepared: Round, running: dict[asyncio.Task[ToolOutcome], Ready]) -> None:
        """Wait for calls and decisions. The clock stands still while a person acts in one of them."""
        decision: asyncio.Task[Decided] | None = None
        try:
            while running or decision is not None or self._batch.open:
                if decision is None and self._batch.open:
                    decision = asyncio.create_task(self._batch.next())
                waits: set[asyncio.Task[Any]] = {*running} if decision is None else {*running, decision}
                person = decision is not None or any(one.spec.interactive for one in running.values())
                with self._interruptible(), self._paused(person):
                    done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                if decision in done:
                    decided, decision = decision.result(), None
                    await self._take_decision(prepared, decided, running)
                for task in [task for task in running if task in done]:
                    await self._record(prepared, running.pop(task), task.result())
        finally:
            if decision is not None and not decision.cancel():
                self._batch.put(decision.result())  # it came with the end, and may have sent its call

    async def _take_decision(
        self, prepared: Round, decided: Decided, running: dict[asyncio.Task[ToolOutcome], Ready]
    ) -> None:
        asked = decided.asked
        self.figures.trace.append("allowed" if decided.ready is not None else "not allowed")
        if decided.ready is not None:
            prepared.ready.append(decided.ready)
            running[self._begin(decided.ready)] = decided.ready
        elif decided.outcome is not None:
            if decided.outcome.metadata.reason == "denied":  # what nobody answered may be asked again
                self._denied.add(arguments_digest(asked.ready.spec.name, asked.ready.arguments))
            prepared.refused.add(asked.ready.call.call_id)
            await self._record(prepared, asked.ready, decided.outcome)

    async def _record(self, prepared: Round, ready: Ready, outcome: ToolOutcome) -> None:
        """Take a call's outcome: the device's was recorded when it came, any other is now."""
        call_id = ready.call.call_id
        record = self._host.record(call_id)
        if record is not None and record.result is not None:
            prepared.results[call_id] = record.result
        else:
            prepared.results[call_id] = result = self._settled(ready, outcome)
            try:
                await self._host.commit([FinishCall(call_id, result)])
            except Duplicate:
                # The device's own answer was recorded while this one waited for the store.
                recorded = self._host.record(call_id)
                if recorded is not None and recorded.result is not None:
                    prepared.results[call_id] = recorded.result
        if call_id in {one.call.call_id for one in prepared.ready}:
            self._host.ends(ready, outcome)
        done = outcome.success and outcome.metadata.reason != JOB_ACCEPTED
        if done and ready.spec.effect != "read":
            self.actions.append(ready.spec.name)

    def _settled(self, ready: Ready, outcome: ToolOutcome) -> ToolResult:
        call_id = ready.call.call_id
        return self._host.executor.settle(call_id, outcome, untrusted=ready.spec.untrusted)

    # -- the end

    async def _close(self, reason: EndReason) -> None:
        """Give every call its one result, and the history its end; the session then says it is idle."""
        operations, events = await self._host.withdraw_questions()
        cause = {"timed_out": "turn_timeout", "session_end": "session_end"}.get(reason, reason)
        prepared, self._round = self._round, None
        if prepared is not None and self._host.record(prepared.calls[0].call_id) is not None:
            prepared.ready += [one.ready for one in self._batch.rest() if one.ready is not None]
            self._give_up(prepared, cause)
            operations += prepared.close()
        cut = self.unspoken
        if cut and reason in ("interrupted", "session_end"):
            kept = f"{cut} {CUT_BEFORE_SPEECH}" if self._heard is None else marked(self._heard[: len(cut)])
            operations.append(AppendLog(AssistantMessage(kept)))
            self._reply = Reply()
        self.figures.trace.append(reason if self.error is None else f"error:{self.error}")
        if not operations:
            return
        try:
            async with asyncio.timeout(self._host.limits.close_timeout):
                await self._host.commit(operations, events)
        except (StoreError, TimeoutError) as error:
            # The store is away; the history in memory is mended before the next request anyway.
            log.error("turn not closed in the store", turn=self.id, error=type(error).__name__)

    def _give_up(self, prepared: Round, cause: str) -> None:
        """Give the calls that have no result an honest one: not run, or nobody knows."""
        for ready in prepared.ready:
            call_id = ready.call.call_id
            self._host.forget(call_id)
            record = self._host.record(call_id)
            if record is not None and record.result is not None:
                prepared.results[call_id] = record.result
            if call_id not in prepared.results:
                sent = ready.spec.source != "device" or not self._host.withdraw(call_id)
                outcome = interrupted_outcome(ready.spec.effect, sent=sent, reason=cause)
                outcome = stamped(outcome, 0.0, ready.notes)
                prepared.results[call_id] = self._host.executor.settle(call_id, outcome)
                self._host.ends(ready, outcome)
        for asked in prepared.asked:
            call_id = asked.ready.call.call_id
            record = self._host.record(call_id)
            if record is not None and record.result is not None:
                prepared.results.setdefault(call_id, record.result)
            if call_id not in prepared.results:
                outcome = not_answered("superseded" if cause == "interrupted" else "interrupted")
                prepared.results[call_id] = self._host.executor.settle(call_id, outcome)

    @contextmanager
    def _paused(self, pause: bool) -> Iterator[None]:
        if not pause:
            yield
            return
        with self._clock.paused():
            yield

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Let `stop` cancel what runs in this block, and turn that into `_StoppedError`."""
        self._check()
        self._waiting = True
        try:
            yield
        except BaseException:
            # Not only CancelledError: what is cancelled may answer with an error of its own.
            if self._stop is None or self._task is None:
                raise
            self._task.uncancel()
            raise _StoppedError from None
        finally:
            self._waiting = False

    def _check(self) -> None:
        if self._stop is not None:
            raise _StoppedError
