"""Run the server's calls: tools by the app's handlers, UI calls directly, speech by the voice."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, Literal, TypeAlias

from msgspec.structs import replace

from conductor.client.connection import ConnectionLost, arguments_of, describe_error
from conductor.client.session import MAX_FRAME_BYTES, MAX_IDS, Session, clean, encode, takes_two_arguments
from conductor.events.client import ToolCancelled, ToolProgress, ToolResultEvent, ToolStarted
from conductor.events.server import ToolCallEvent, is_ui_call

log = logging.getLogger(__name__)

Effect: TypeAlias = Literal["none", "partial", "complete"]
"""How much of a cancelled call took effect."""

ToolHandler: TypeAlias = Callable[..., Any]
"""A function, async or not, that takes the arguments as a dict and returns a string or a JSON value.

A second parameter without a default receives the `ToolRun`.
"""

SpeakHandler: TypeAlias = Callable[[str], Awaitable[None]]
"""Speaks a text and returns at its end. Cancellation stops the speech."""

Outcome: TypeAlias = ToolResultEvent | ToolCancelled

SPEAK = "tts.speak"
_NO_OBJECT = "The arguments are not a JSON object."
_MAX_MESSAGE = 1_000
# Characters kept of a result that exceeds a frame; a character takes up to six bytes of JSON.
_MAX_RESULT = 131_072
_MAX_CANCELLED_RESULT = 8_192  # an event other than ``tool.result`` may have 64 KiB


class ToolCancelledError(Exception):
    """Raised by a handler whose call was cancelled. ``effect`` is the part that took effect.

    ``result`` is the partial result: a string or a JSON value.
    """

    def __init__(self, effect: Effect, result: Any = None) -> None:
        super().__init__(f"The tool was cancelled on the device; effect: {effect}.")
        self.effect = effect
        self.result = None if result is None else _as_text(result)


class ToolRun:
    """One running call: the second argument of a handler that takes two.

    ``timeout_ms`` is the server's limit without progress, if it sets one. When the server cancels the call,
    ``cancelled`` is set, with its ``reason``, and the handler's task is cancelled. ``effect``, which the
    handler updates, is reported then.
    """

    def __init__(self, call: ToolCallEvent, session: Session) -> None:
        self.call_id, self.name, self.timeout_ms = call.call_id, call.name, call.timeout_ms
        self.cancelled = asyncio.Event()
        self.reason: str | None = None
        self.effect: Effect | None = None
        self.is_dropped = False  # the server accepts no answer
        self.task: asyncio.Task[Outcome] | None = None
        self._session = session
        self._last_report = float("-inf")

    async def progress(self, message: str | None = None, percent: float | None = None) -> None:
        """Report progress (capability ``lease``); does nothing if the server does not accept it.

        Sends at most one report in ``ClientLimits.progress_s`` seconds, and does not repeat it after a
        reconnect. Raises `ValueError` if ``percent`` is not from 0 to 100.
        """
        if percent is not None and not 0 <= percent <= 100:
            raise ValueError("percent must be from 0 to 100")
        now = asyncio.get_running_loop().time()
        is_over = self.is_dropped or self.cancelled.is_set() or self.task is None or self.task.done()
        is_early = now - self._last_report < self._session.limits.progress_s
        if is_over or is_early or "lease" not in self._session.capabilities:
            return
        self._last_report = now
        text = None if message is None else clean(message[:_MAX_MESSAGE])
        with contextlib.suppress(ConnectionLost):  # only results are repeated
            await self._session.send(ToolProgress(self.call_id, text, percent))

    def cancel(self, reason: str) -> None:
        """Cancel the call, unless its handler has ended."""
        if self.task is None or not self.task.done():
            self.reason = reason
            self.cancelled.set()
            if self.task is not None:
                self.task.cancel()


class Calls:
    """The tool handlers, the running calls and the running speech; ``on_result`` takes each result.

    No call runs twice: its stage is ``queued``, ``taken`` (it runs or has a result), ``cancelled``,
    ``unwanted`` (cancelled before it arrived) or ``dropped`` (the server accepts no answer).
    """

    def __init__(self, session: Session, on_result: Callable[[ToolResultEvent], None]) -> None:
        self.tools: list[Any] = []
        self.handlers: dict[str, ToolHandler] = {}
        self.speak: SpeakHandler | None = None
        self._session = session
        self._on_result = on_result
        self._stages: dict[str, str] = {}  # oldest first
        self._runs: dict[str, ToolRun] = {}
        self._voice = asyncio.Lock()  # one speech at a time
        self._speech: asyncio.Task[Any] | None = None
        self._silent_to = 0

    @property
    def speaking(self) -> bool:
        return self._speech is not None

    @property
    def pending(self) -> list[str]:
        """The ids of unanswered tool calls, running ones first."""
        running = [call_id for call_id, run in self._runs.items() if not run.is_dropped]
        return [*running, *(call_id for call_id, stage in self._stages.items() if stage == "queued")]

    def silence(self) -> None:
        """Stop the running speech, and skip speeches that were read before."""
        self._silent_to = self._session.number
        if self._speech is not None:
            self._speech.cancel()

    def queue(self, call: ToolCallEvent) -> None:
        """Record a call as soon as it is read."""
        if _is_tool(call.name) and call.call_id not in self._stages and call.call_id not in self._runs:
            self._note(call.call_id, "queued")

    def cancel(self, call_id: str, reason: str) -> None:
        """Cancel a call at once, also a queued one."""
        stage = self._stages.get(call_id)
        if (run := self._runs.get(call_id)) is not None:
            run.cancel(reason)
        elif stage == "queued":
            self._note(call_id, "cancelled")
            self._session.spawn(self._post(ToolCancelled(call_id, "none")))
        elif stage is None:  # an earlier process of the app may have run it
            self._note(call_id, "unwanted")

    def drop(self, call_ids: Iterable[str]) -> None:
        """Drop calls that the server no longer needs: queued ones do not start, and no answer is sent.

        A running read-only tool is cancelled. Other tools run to their end.
        """
        for call_id in call_ids:
            if (run := self._runs.get(call_id)) is not None:
                run.is_dropped = True
                if self._is_read_only(run.name):
                    run.cancel("superseded")
            self._note(call_id, "dropped")

    async def answer(self, call: ToolCallEvent, number: int) -> None:
        """Run a call to its end and send the result; ``number`` is the event's."""
        arguments = arguments_of(call)
        if is_ui_call(call.name):
            await self._post(await self._show(call, arguments, number))
        elif _is_tool(call.name) and call.call_id not in self._runs:
            stage = self._stages.get(call.call_id)
            if stage == "unwanted":
                await self._end(ToolCancelled(call.call_id, "none"))
            elif stage == "taken":
                # A replay may deliver a call under a new envelope id, because its answer was lost.
                await self._session.resend(call.call_id)
            elif stage == "queued":
                await self._end(await self._run(call, arguments))

    # Tools

    async def _run(self, call: ToolCallEvent, arguments: dict[str, Any] | None) -> Outcome:
        if (handler := self.handlers.get(call.name)) is None:
            return ToolResultEvent(call.call_id, error=f"This device has no tool {call.name}.")
        if arguments is None:
            return ToolResultEvent(call.call_id, error=_NO_OBJECT)
        # Before the first await: a ``tool.cancel`` or a replay may follow at once.
        run = self._runs[call.call_id] = ToolRun(call, self._session)
        self._note(call.call_id, "taken")
        result: Outcome | None = None
        if "lease" in self._session.capabilities:
            with contextlib.suppress(ConnectionLost):
                await self._session.send(ToolStarted(call.call_id))
        # The call may be cancelled while ``tool.started`` is sent.
        if has_begun := not run.cancelled.is_set() and not run.is_dropped:
            extra = (run,) if takes_two_arguments(handler) else ()
            run.task = self._session.spawn(self._attempt(call, partial(handler, arguments, *extra)))
            result = await _end_of(run.task)
        del self._runs[call.call_id]
        if not run.cancelled.is_set():
            return _as_result(call, result)
        if isinstance(result, ToolCancelled):
            return result
        if not has_begun:
            return ToolCancelled(call.call_id, "none")
        if result is not None and result.error is None:  # it ended despite the cancellation
            return ToolCancelled(call.call_id, run.effect or "complete", result.result)
        # Without a report of the handler the worst case is assumed.
        effect: Effect = "none" if self._is_read_only(run.name) else "partial"
        return ToolCancelled(call.call_id, run.effect or effect)

    def _is_read_only(self, name: str) -> bool:
        tools = (tool for tool in self.tools if isinstance(tool, Mapping) and tool.get("name") == name)
        return any((tool.get("annotations") or {}).get("readOnlyHint") is True for tool in tools)

    # UI calls

    async def _show(
        self, call: ToolCallEvent, arguments: dict[str, Any] | None, number: int
    ) -> ToolResultEvent:
        if arguments is None:
            return ToolResultEvent(call.call_id, error=_NO_OBJECT)
        if call.name != SPEAK:
            handler = self.handlers.get(call.name, lambda _: {"ok": True})
            task = self._session.spawn(self._attempt(call, partial(handler, arguments)))
            return _as_result(call, await _end_of(task))
        result = None
        async with self._voice:
            if self.speak is not None and number > self._silent_to:
                work = partial(self.speak, str(arguments.get("text", "")))
                self._speech = self._session.spawn(self._attempt(call, work))
                try:
                    result = await _end_of(self._speech)
                finally:
                    self._speech = None
        if isinstance(result, ToolResultEvent) and result.error is not None:
            return result
        # The shipped app also answers "spoken" for an interrupted speech.
        return ToolResultEvent(call.call_id, '{"spoken":true}')

    async def _attempt(self, call: ToolCallEvent, work: Callable[[], Any]) -> Outcome:
        # An exception in the app's code becomes a result.
        limit = asyncio.timeout(seconds := self._session.limits.tool_s)
        try:
            async with limit:
                if inspect.isawaitable(value := work()):
                    value = await value
            return ToolResultEvent(call.call_id, _as_text(value))
        except ToolCancelledError as cancelled:
            return ToolCancelled(call.call_id, cancelled.effect, cancelled.result)
        except Exception as error:
            log.warning("tool handler %s failed: %s", call.name, describe_error(error))
            late = f"The device's tool did not end within {seconds:g} s." if limit.expired() else ""
            return ToolResultEvent(call.call_id, error=late or str(error) or type(error).__name__)

    # Results

    async def _end(self, outcome: Outcome) -> None:
        if self._stages.get(outcome.call_id) != "dropped":
            self._note(outcome.call_id, "cancelled" if isinstance(outcome, ToolCancelled) else "taken")
            await self._post(outcome)

    async def _post(self, event: Outcome) -> None:
        if isinstance(event, ToolCancelled):
            self._on_result(ToolResultEvent(event.call_id, event.result, f"cancelled: {event.effect}"))
            event = replace(event, result=_shorten(event.result, _MAX_CANCELLED_RESULT))
        else:
            self._on_result(event)
            event = replace(event, result=_shorten(event.result), error=_shorten(event.error))
            if len(encode(event)) > MAX_FRAME_BYTES - 4_096:
                result, error = _shorten(event.result, _MAX_RESULT), _shorten(event.error, _MAX_RESULT)
                event = replace(event, result=result, error=error)
        await self._session.keep(event)

    def _note(self, call_id: str, stage: str) -> None:
        self._stages.pop(call_id, None)
        self._stages[call_id] = stage
        if len(self._stages) > MAX_IDS:
            del self._stages[next(iter(self._stages))]


async def _end_of(task: asyncio.Task[Outcome]) -> Outcome | None:
    # Not awaited directly, which would not tell its cancellation from that of the waiting task.
    await asyncio.wait({task})
    return None if task.cancelled() else task.result()


def _is_tool(name: str) -> bool:
    # The shipped app never answers ``bridge.*``.
    return not is_ui_call(name) and not name.startswith("bridge.")


def _as_result(call: ToolCallEvent, outcome: Outcome | None) -> ToolResultEvent:
    if isinstance(outcome, ToolResultEvent):
        return outcome
    effect = f"; effect: {outcome.effect}" if outcome is not None else ""
    return ToolResultEvent(call.call_id, error=f"The tool was cancelled on the device{effect}.")


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else encode(value).decode()


def _shorten(text: str | None, limit: int | None = None) -> str | None:
    text = None if text is None else clean(text)
    if text is None or limit is None or len(text) <= limit:
        return text
    return f"{text[:limit]}… [{len(text) - limit} characters left out by the device]"
