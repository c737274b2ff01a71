"""The turn loop: model rounds and tool calls until the model stops.

Whatever a client can act upon goes through the host's ``commit``: recorded, then sent. Interruption is
honoured between commits, never inside one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import msgspec
import structlog

from conductor.conversation.calling import Calling
from conductor.conversation.clock import TurnClock
from conductor.conversation.heard import CUT_BEFORE_SPEECH, marked
from conductor.conversation.history import repair
from conductor.conversation.memos import TurnMemo
from conductor.conversation.partials import Reply
from conductor.conversation.recovery import MAX_ATTEMPTS, Recovered
from conductor.conversation.round import Round, prepare_round
from conductor.conversation.turn_host import TurnHost
from conductor.errors import ConductorError, ErrorCode, Fenced, ModelError, StoreError, TurnTimeout
from conductor.events.server import ErrorEvent
from conductor.messages import AssistantMessage, ToolCall
from conductor.models.base import Finished, ModelRequest, TextDelta, Usage
from conductor.stores.base import AppendLog

log = structlog.get_logger(__name__)

EndReason: TypeAlias = Literal["answered", "interrupted", "session_end", "timed_out", "failed"]

_MAX_REFUSED_ROUNDS = 2
"""Tools, "Approvals": after so many rounds in which everything was denied the model answers without tools."""
_NO_ANSWER = "I have nothing to say to that."


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

    def __init__(self, host: TurnHost, turn_id: str, cause: str, recovered: Recovered | None = None) -> None:
        self.id = turn_id
        self.cause = cause
        self.figures = TurnFigures([cause])
        self.actions: list[str] = []
        self.over = False
        self._attempts = 1
        self._recovered = recovered
        self.error: ErrorCode | None = None
        self._host = host
        self._clock = TurnClock(host.limits.turn_timeout, lambda: self.stop("timed_out"))
        self._task: asyncio.Task[object] | None = None
        self._stop: EndReason | None = None
        self._heard: str | None = None
        self._waiting = False
        self._reply = Reply()
        self._round: Round | None = None
        self._calling = Calling(host, self)
        self._calls_made = 0
        self._refused_rounds = 0
        if recovered is not None:
            self._restore(recovered)

    def memo(self) -> TurnMemo:
        """Say what another process would have to know of it."""
        rounds, calls, stop = self.figures.rounds, self._calls_made, self._stop
        return TurnMemo(
            self.id,
            self.cause,
            self._attempts,
            rounds,
            calls,
            self._refused_rounds,
            tuple(self.actions),
            stop if stop in ("interrupted", "session_end", "timed_out") else None,
        )

    def stop(self, reason: EndReason, heard: str | None = None) -> None:
        """Ask the turn to end: at once where it waits, else after the commit that it is in.

        ``heard`` is what the client says was spoken of a reply that was still arriving.
        """
        if self._stop is None:
            self._heard = heard
            self._stop = reason
            if self._waiting and self._task is not None:
                self._task.cancel()

    def hand_over(self) -> None:
        """Let another process go on with it: what was begun here and laid down in order is no attempt."""
        self._attempts -= 1

    def end(self) -> None:
        """Note that its end is recorded: another process has nothing to do for it."""
        self.over = True

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
    def waits_for_device(self) -> bool:
        """Whether it does nothing but wait for results from the device."""
        return self._calling.waits_for_device

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
        if self._recovered is not None:
            await self._recover(self._recovered)
        while True:
            if self._refused_rounds >= _MAX_REFUSED_ROUNDS:
                spent = True
            if not spent and (
                self.figures.rounds >= limits.max_tool_rounds or self._calls_made >= limits.max_calls_per_turn
            ):
                spent = True
                await self._note_limit()
            self.check()
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
        with self.interruptible():
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
        prepared = prepare_round(
            host.executor, calls, host.limits, self._calling.permit, room=room, whole=whole
        )
        for ready in prepared.device_calls:
            host.expect(ready.call.call_id)
        self._calls_made += len(calls)
        self.figures.trace.extend(f"tool.call:{call.name[:64]}" for call in calls)
        self._round = prepared
        self._attempts = 1
        try:
            await host.say(self, msgspec.structs.replace(message, calls=prepared.calls), prepared)
            self._reply = Reply()
            if prepared.ready or prepared.asked:
                await self._calling.run(prepared)
        finally:
            for ready in prepared.device_calls:
                host.forget(ready.call.call_id)
        await self._end_round(prepared)

    async def _end_round(self, prepared: Round) -> None:
        self._refused_rounds = self._refused_rounds + 1 if prepared.all_refused else 0
        await self._host.commit(prepared.close())
        self._round = None

    # -- a turn of another process

    def _restore(self, recovered: Recovered) -> None:
        memo = recovered.memo
        self.figures.rounds = memo.rounds
        self.figures.trace.append("recovered")
        self.actions = list(memo.actions)
        self._calls_made, self._refused_rounds = memo.calls, memo.refused_rounds
        self._attempts = memo.attempts if recovered.round is not None else memo.attempts + 1
        self._stop = memo.stop
        self._round = recovered.round

    async def _recover(self, recovered: Recovered) -> None:
        """Go on where the other process was: in a round of calls, or before a reply of the model."""
        prepared = recovered.round
        if prepared is None:
            if self._attempts > MAX_ATTEMPTS:
                raise ModelError("protocol", "The model was begun again and again for these words.")
            await self._host.note_attempt()
            return
        try:
            if prepared.ready or prepared.asked:
                await self._calling.run(prepared, recovered.batch)
        finally:
            for ready in prepared.device_calls:
                self._host.forget(ready.call.call_id)
        await self._end_round(prepared)
        self.figures.rounds += 1

    # -- the end

    async def _close(self, reason: EndReason) -> None:
        """Give every call its one result, and the history its end; the session then says it is idle."""
        operations, events = await self._host.withdraw_questions()
        cause = {"timed_out": "turn_timeout", "session_end": "session_end"}.get(reason, reason)
        prepared, self._round = self._round, None
        if prepared is not None and self._host.record(prepared.calls[0].call_id) is not None:
            prepared.ready += [one.ready for one in self._calling.batch.rest() if one.ready is not None]
            self._calling.give_up(prepared, cause)
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

    @contextmanager
    def paused(self, pause: bool) -> Iterator[None]:
        """Stop the clock while the block runs, if ``pause``."""
        if not pause:
            yield
            return
        with self._clock.paused():
            yield

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let `stop` cancel what runs in this block, and turn that into `_StoppedError`."""
        self.check()
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

    def check(self) -> None:
        """Raise if the turn is to stop."""
        if self._stop is not None:
            raise _StoppedError
