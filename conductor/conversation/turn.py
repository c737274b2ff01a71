"""The turn loop: model rounds and tool calls until the model stops.

Everything that a client can act on goes through the host's ``commit``: recorded, then sent. A turn stops
between commits, never inside one.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Literal, TypeAlias

import msgspec
import structlog

from conductor.conversation.history import repair
from conductor.conversation.recovery import Recovered
from conductor.conversation.snapshot import TurnSnapshot
from conductor.conversation.speech import CUT_BEFORE_SPEECH, ReplyBuffer, marked
from conductor.conversation.tool_round import ToolCallRunner, ToolRound, TurnHost, TurnStats, prepare_round
from conductor.errors import ConductorError, ErrorCode, Fenced, ModelError, StoreError, TurnTimeout
from conductor.events.server import ErrorEvent
from conductor.messages import AssistantMessage, ToolCall
from conductor.models.base import Finished, ModelRequest, TextDelta
from conductor.models.retry import RETRYABLE
from conductor.stores.base import AppendLog

log = structlog.get_logger(__name__)


class TurnClock:
    """Calls ``on_expired`` once, when ``seconds`` of unpaused time have passed since `start`."""

    def __init__(self, seconds: float, on_expired: Callable[[], None]) -> None:
        self._left = seconds
        self._on_expired = on_expired
        self._timer: asyncio.TimerHandle | None = None
        self._since = 0.0
        self._pauses = 0
        self._expired = False

    @property
    def left(self) -> float:
        """Seconds of unpaused time that are left."""
        if self._timer is None:
            return self._left
        return max(0.0, self._left - (asyncio.get_running_loop().time() - self._since))

    def start(self) -> None:
        """Start or resume the clock."""
        loop = asyncio.get_running_loop()
        self._since = loop.time()
        if not self._expired:
            self._timer = loop.call_later(self._left, self._expire)

    def stop(self) -> None:
        """Stop the clock; `start` resumes it."""
        self._left = self.left
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the clock while the block runs; pauses nest."""
        self._pauses += 1
        if self._pauses == 1:
            self.stop()
        try:
            yield
        finally:
            self._pauses -= 1
            if self._pauses == 0:
                self.start()

    def _expire(self) -> None:
        self._expired = True
        self.stop()
        self._on_expired()


EndReason: TypeAlias = Literal["answered", "interrupted", "session_end", "timed_out", "failed"]

_NO_ANSWER = "I have nothing to say to that."


class _StoppedError(Exception):
    """Ends a turn at a point where it may stop."""


class Turn:
    """One turn: model rounds and tool calls until the model stops."""

    def __init__(self, host: TurnHost, turn_id: str, cause: str, recovered: Recovered | None = None) -> None:
        self.id = turn_id
        self.cause = cause
        self.stats = TurnStats([cause])
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
        self._reply = ReplyBuffer()
        self._round: ToolRound | None = None
        self._runner = ToolCallRunner(host, self)
        self._calls_made = 0
        self._refused_rounds = 0
        if recovered is not None:
            self._restore(recovered)

    def snapshot(self) -> TurnSnapshot:
        """Make the snapshot from which another process resumes the turn."""
        rounds, calls, stop = self.stats.rounds, self._calls_made, self._stop
        return TurnSnapshot(
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
        """End the turn: at once if it is waiting, else after the running commit.

        ``heard`` is the part of a streaming reply that the client reports as spoken.
        """
        if self._stop is None:
            self._heard = heard
            self._stop = reason
            if self._waiting and self._task is not None:
                self._task.cancel()

    def release(self) -> None:
        """Release the turn to another process: an orderly release does not count as an attempt."""
        self._attempts -= 1

    def end(self) -> None:
        """Note that the turn's end is recorded: another process does not resume it."""
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
                raise  # another node owns the session: send nothing more
        except Exception:
            log.exception("turn failed", turn=self.id)
            self.error = "internal_error"
        finally:
            self._clock.stop()
            self._host.stop_partials()
        if reason != "answered":
            await self._close(reason)
        return reason

    @property
    def waits_for_device(self) -> bool:
        return self._runner.waits_for_device

    @property
    def stopped_for(self) -> EndReason | None:
        return self._stop

    @property
    def unspoken(self) -> str:
        return self._reply.text.strip()

    # -- the loop

    async def _converse(self) -> None:
        limits = self._host.limits
        spent = False
        if self._recovered is not None:
            await self._recover(self._recovered)
        while True:
            if self._refused_rounds >= limits.max_refused_rounds:
                spent = True
            if not spent and (
                self.stats.rounds >= limits.max_tool_rounds or self._calls_made >= limits.max_calls_per_turn
            ):
                spent = True
                await self._note_limit()
            self.check()
            reply, calls, finished = await self._ask_model(tools_off=spent)
            text = reply.text.strip()
            message = AssistantMessage(text, opaque=finished.opaque, provider=self._host.provider.name)
            if calls and not spent:
                await self._run_calls(message, calls, whole=finished.stop == "tool_use")
                self.stats.rounds += 1
            # The provider paused a long reply: record what came, and ask it to continue.
            elif finished.stop == "pause_turn" and text and not spent:
                await self._host.say(self, message, ToolRound(()))
                self._reply = ReplyBuffer()
                self.stats.rounds += 1
            else:
                self._reply = ReplyBuffer()
                await self._answer(message, finished)
                return

    async def _note_limit(self) -> None:
        self.stats.trace.append("limit")
        message = "The limit of tool calls is reached; the model answers with what it has."
        await self._host.commit([], [ErrorEvent("tool_round_limit_exceeded", message)])

    async def _answer(self, message: AssistantMessage, finished: Finished) -> None:
        if finished.stop == "refusal":
            raise ModelError("refused", "The model declined to answer.")
        if not message.text and finished.stop == "context_window":
            raise ModelError("context_too_long", "The conversation is too long for the model.")
        if not message.text:
            message = msgspec.structs.replace(message, text=_NO_ANSWER)
        self.stats.trace.append("final")
        await self._host.say(self, message)

    async def _ask_model(self, *, tools_off: bool) -> tuple[ReplyBuffer, list[ToolCall], Finished]:
        # Retry once if the reply broke off: nothing of it was recorded or spoken. Before the first event of a
        # reply the provider retries by itself.
        self._reply = ReplyBuffer()
        for may_retry in (True, False):
            reply, calls = ReplyBuffer(), list[ToolCall]()
            try:
                finished = await self._read(tools_off, reply, calls)
            except ModelError as error:
                broke_off = error.reason in RETRYABLE and (reply.text or calls)
                backoff = self._host.limits.model_retry * random.uniform(0.5, 1.0)
                pause = max(backoff, error.retry_after or 0.0)
                if not (may_retry and broke_off and pause < self._clock.left):
                    raise
                self.stats.trace.append(f"retry:{error.reason}")
                with self.interruptible():
                    await asyncio.sleep(pause)
            else:
                break
        self._reply = reply
        self._host.stop_partials()
        if finished is None:
            raise ModelError("protocol", "The model's reply did not end.")
        self.stats.add(finished.usage)
        return reply, calls, finished

    async def _read(self, tools_off: bool, reply: ReplyBuffer, calls: list[ToolCall]) -> Finished | None:
        host = self._host
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
            # Closed on every way out: until then the request goes on, and holds a connection.
            async with aclosing(host.provider.stream(request)) as stream:
                async for event in stream:
                    if isinstance(event, TextDelta):
                        self._note_first_token()
                        reply.add(event.text)
                        self._reply = reply
                        host.show(reply)
                    elif isinstance(event, ToolCall):
                        self._note_first_token()
                        calls.append(ToolCall(host.new_call_id(), event.name, event.arguments))
                    else:
                        finished = event
        return finished

    def _note_first_token(self) -> None:
        if self.stats.first_token_s is None:
            self.stats.first_token_s = time.monotonic() - self.stats.started

    # -- tool calls

    async def _run_calls(self, message: AssistantMessage, calls: Sequence[ToolCall], *, whole: bool) -> None:
        host = self._host
        room = host.limits.max_calls_per_turn - self._calls_made
        with self.interruptible():
            prepared = await prepare_round(
                host.executor, calls, host.limits, self._runner.permit, room=room, whole=whole
            )
        # Before the commit that sends them: a fast device answers before it returns.
        for ready in prepared.device_calls:
            host.expect(ready.call.call_id)
        self._calls_made += len(calls)
        self.stats.trace.extend(f"tool.call:{call.name[:64]}" for call in calls)
        self._round = prepared
        self._attempts = 1
        try:
            await host.say(self, msgspec.structs.replace(message, calls=prepared.calls), prepared)
            self._reply = ReplyBuffer()
            if prepared.ready or prepared.asked:
                await self._runner.run(prepared)
        finally:
            for ready in prepared.device_calls:
                host.forget(ready.call.call_id)
        await self._end_round(prepared)

    async def _end_round(self, prepared: ToolRound) -> None:
        self._refused_rounds = self._refused_rounds + 1 if prepared.all_refused else 0
        await self._host.commit(prepared.close())
        self._round = None

    # -- a turn of another process

    def _restore(self, recovered: Recovered) -> None:
        # An unfinished round was recorded after the model's reply: its request did not fail.
        snapshot = recovered.snapshot
        self.stats.rounds = snapshot.rounds
        self.stats.trace.append("recovered")
        self.actions = list(snapshot.actions)
        self._calls_made, self._refused_rounds = snapshot.calls, snapshot.refused_rounds
        self._attempts = snapshot.attempts if recovered.round is not None else snapshot.attempts + 1
        self._stop = snapshot.stop
        self._round = recovered.round

    async def _recover(self, recovered: Recovered) -> None:
        prepared = recovered.round
        if prepared is None:
            if self._attempts > self._host.limits.max_attempts:
                raise ModelError("protocol", "The process ended in every attempt to answer this transcript.")
            await self._host.note_attempt()
            return
        try:
            if prepared.ready or prepared.asked:
                await self._runner.run(prepared, recovered.batch)
        finally:
            for ready in prepared.device_calls:
                self._host.forget(ready.call.call_id)
        await self._end_round(prepared)
        self.stats.rounds += 1

    # -- the end

    async def _close(self, reason: EndReason) -> None:
        operations, events = await self._host.withdraw_questions()
        cause = {"timed_out": "turn_timeout", "session_end": "session_end"}.get(reason, reason)
        prepared, self._round = self._round, None
        if prepared is not None and self._host.record(prepared.calls[0].call_id) is not None:
            prepared.ready += [one.ready for one in self._runner.batch.rest() if one.ready is not None]
            self._runner.give_up(prepared, cause)
            operations += prepared.close()
        cut = self.unspoken
        if cut and reason in ("interrupted", "session_end"):
            kept = f"{cut} {CUT_BEFORE_SPEECH}" if self._heard is None else marked(self._heard[: len(cut)])
            operations.append(AppendLog(AssistantMessage(kept)))
            self._reply = ReplyBuffer()
        self.stats.trace.append(reason if self.error is None else f"error:{self.error}")
        if not operations:
            return
        try:
            async with asyncio.timeout(self._host.limits.close_timeout):
                await self._host.commit(operations, events)
        except (StoreError, TimeoutError) as error:
            # The store is unreachable; `repair` fixes the history before the next request.
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
            # Not only CancelledError: a cancelled library may raise an error of its own.
            if self._stop is None or self._task is None:
                raise
            self._task.uncancel()
            raise _StoppedError from None
        finally:
            self._waiting = False

    def check(self) -> None:
        """Raise if the turn was asked to stop."""
        if self._stop is not None:
            raise _StoppedError
