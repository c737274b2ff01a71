"""Run the server's calls: tools by the app's handlers, UI calls directly, speech by the voice."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from conductor.client.connection import ConnectionLost, arguments_of, describe_error, finish
from conductor.client.state import (
    MAX_FRAME_BYTES,
    MAX_IDS,
    ClientSession,
    clean,
    encode,
    takes_two_arguments,
)
from conductor.events.client import ToolAccepted, ToolCancelled, ToolProgress, ToolResultEvent, ToolStarted
from conductor.events.server import (
    ToolCallEvent,
    ToolCancel,
)
from conductor.events.ui_calls import is_ui_call

log = logging.getLogger(__name__)

Effect: TypeAlias = Literal["none", "partial", "complete"]
"""How much of a cancelled call took effect."""

ToolHandler: TypeAlias = Callable[..., Any]
"""A function, async or not, that takes the arguments as a dict and returns a string or a JSON value.

A second parameter without a default receives the `ToolRun`.
"""

SpeakHandler: TypeAlias = Callable[[str], Awaitable[None]]
"""Speaks a text and returns at its end. Cancellation stops the speech."""


async def stay_silent(_text: str) -> None:
    """Speak nothing: the default voice."""


SPEAK = "tts.speak"
_MAX_MESSAGE = 1_000
_MAX_JOB_ID = 256
# Characters kept of a result that exceeds a frame; a character takes up to six bytes of JSON.
_MAX_RESULT = 131_072
_MAX_CANCELLED_RESULT = 8_192  # an event other than ``tool.result`` may have 64 KiB
_STOPPED = "The tool was cancelled on the device."
_NO_OBJECT = "The arguments are not a JSON object."


class ToolCancelledError(Exception):
    """Raised by a handler whose call was cancelled. ``effect`` is the part that took effect.

    ``result`` is the partial result: a string or a JSON value.
    """

    def __init__(self, effect: Effect, result: Any = None) -> None:
        super().__init__(f"The tool was cancelled on the device; effect: {effect}.")
        self.effect = effect
        self.result = result


class ToolRun:
    """One running call: the second argument of a handler that takes two.

    ``timeout_ms`` is the server's limit without progress, if it sets one. ``cancelled`` is set when the
    server cancels the call, with its ``reason`` (``barge_in``, ``superseded``, ``timeout``, ``session_end``);
    the handler's task is cancelled at the same time. The handler may update ``effect``, which is reported
    after a cancellation.
    """

    def __init__(self, call: ToolCallEvent, session: ClientSession, has_slot: Callable[[], bool]) -> None:
        self.call_id = call.call_id
        self.name = call.name
        self.timeout_ms = call.timeout_ms
        self.cancelled = asyncio.Event()
        self.reason: str | None = None
        self.effect: Effect | None = None
        self.job_id: str | None = None
        self.released = asyncio.Event()  # the call has ended or has become a job
        self.is_dropped = False  # the server accepts no answer
        self.has_begun = False
        self.limit_s = session.limits.tool_s
        self.limit = asyncio.timeout(self.limit_s)
        self.task: asyncio.Task[Any] | None = None
        self._session = session
        self._has_slot = has_slot
        self._last_report = float("-inf")

    async def progress(self, message: str | None = None, percent: float | None = None) -> None:
        """Report progress (capability ``lease``); does nothing if the server does not accept it.

        Sends at most one report in ``ClientLimits.progress_s`` seconds, and does not repeat it after a
        reconnect. Raises `ValueError` if ``percent`` is not from 0 to 100.
        """
        if percent is not None and not 0 <= percent <= 100:
            raise ValueError("percent must be from 0 to 100")
        now = asyncio.get_running_loop().time()
        is_early = now - self._last_report < self._session.limits.progress_s
        if is_early or self._is_over or "lease" not in self._session.capabilities:
            return
        self._last_report = now
        text = None if message is None else clean(message[:_MAX_MESSAGE])
        with contextlib.suppress(ConnectionLost):  # only results are repeated
            await self._session.send(ToolProgress(self.call_id, text, percent))

    async def accept(self, job_id: str) -> bool:
        """Become a job (capability ``async``): the turn continues, and the result is sent later.

        Returns False if the server does not accept jobs, or if ``ClientLimits.jobs`` are running: the call
        stays a call. A job may take ``ClientLimits.job_s`` seconds from now. Raises `ValueError` for an
        invalid ``job_id``.
        """
        if not 1 <= len(job_id) <= _MAX_JOB_ID or clean(job_id) != job_id:
            raise ValueError(f"job_id must have 1 to {_MAX_JOB_ID} characters")
        if self.job_id is not None:
            return True
        if self._is_over or "async" not in self._session.capabilities or not self._has_slot():
            return False
        self.job_id = job_id
        self.limit_s = self._session.limits.job_s
        self.limit.reschedule(asyncio.get_running_loop().time() + self.limit_s)
        # Kept until confirmed: without it the server reports the call as unknown.
        await self._session.keep(ToolAccepted(self.call_id, job_id))
        self.released.set()
        return True

    def begin(self, handler: ToolHandler, arguments: dict[str, Any]) -> Any:
        """Call the handler. Runs in the handler's task."""
        self.has_begun = True
        return handler(arguments, self) if takes_two_arguments(handler) else handler(arguments)

    def cancel(self, reason: str) -> None:
        """Cancel the call, unless its handler has ended."""
        if self.task is None or not self.task.done():
            self.reason = reason
            self.cancelled.set()
            if self.task is not None:
                self.task.cancel()

    @property
    def _is_over(self) -> bool:
        ended = self.is_dropped or self.task is None or self.task.done()
        return ended or self.cancelled.is_set() or self.limit.expired()


CallState: TypeAlias = Literal["queued", "taken", "cancelled", "unwanted", "dropped"]
"""State of a call. ``unwanted``: cancelled before it arrived. ``dropped``: the server accepts no answer."""


class Calls:
    """The tool handlers, the running calls and the running speech.

    ``on_result`` is called with each result before it is sent. ``tools`` are the declarations.
    """

    def __init__(
        self,
        session: ClientSession,
        speak: SpeakHandler,
        on_result: Callable[[ToolResultEvent], None],
    ) -> None:
        self.tools: list[Any] = []
        self.handlers: dict[str, ToolHandler] = {}
        self.speak = speak
        self._session = session
        self._on_result = on_result
        self._states: dict[str, CallState] = {}  # oldest first
        self._runs: dict[str, ToolRun] = {}
        self._voice = asyncio.Lock()  # one speech at a time
        self._speech: asyncio.Task[ToolResultEvent | ToolCancelledError] | None = None
        self._silent_to = 0

    @property
    def speaking(self) -> bool:
        return self._speech is not None

    @property
    def pending(self) -> list[str]:
        """The ids of unanswered tool calls, running ones first."""
        running = [call_id for call_id, run in self._runs.items() if not run.is_dropped]
        return [*running, *(call_id for call_id, state in self._states.items() if state == "queued")]

    def silence(self) -> None:
        """Stop the running speech, and skip speeches that were read before."""
        self._silent_to = self._session.number
        if self._speech is not None:
            self._speech.cancel()

    def notice(self, event: ToolCallEvent | ToolCancel) -> None:
        """Record or cancel a call as soon as the event is read: a queued call may be cancelled."""
        if isinstance(event, ToolCancel):
            self._cancel(event)
        elif _is_tool(event.name) and event.call_id not in self._states and event.call_id not in self._runs:
            self._note(event.call_id, "queued")

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

    def _cancel(self, cancel: ToolCancel) -> None:
        state = self._states.get(cancel.call_id)
        if (run := self._runs.get(cancel.call_id)) is not None:
            run.cancel(cancel.reason)
        elif state == "queued":
            self._note(cancel.call_id, "cancelled")
            self._session.spawn(self._post(ToolCancelled(cancel.call_id, "none")))
        elif state is None:  # an earlier process of the app may have run it
            self._note(cancel.call_id, "unwanted")

    async def answer(self, call: ToolCallEvent, number: int) -> None:
        """Run a call and send its result; returns when it has ended or become a job.

        ``number`` is the event's. A duplicate does not run again.
        """
        arguments = arguments_of(call)
        if is_ui_call(call.name):
            await self._post(await self._show(call, arguments, number), is_ui=True)
        if not _is_tool(call.name):
            return
        state = self._states.get(call.call_id)
        if call.call_id in self._runs or state in ("taken", "cancelled", "dropped"):
            # A replay may deliver a call under a new envelope id, because its answer was lost.
            if state == "taken":
                await self._session.resend(call.call_id)
        elif state == "unwanted":
            await self._end(ToolCancelled(call.call_id, "none"))
        elif arguments is None:
            await self._end(_failure(call, _NO_OBJECT))
        elif (handler := self.handlers.get(call.name)) is None:
            await self._end(_failure(call, f"This device has no tool {call.name}."))
        else:
            run = ToolRun(call, self._session, self._has_slot)
            # Before the first await: a ``tool.cancel`` or a replay may follow at once.
            self._runs[call.call_id] = run
            self._note(call.call_id, "taken")
            self._session.spawn(self._complete(call, run, handler, arguments))
            await run.released.wait()

    # Tools

    async def _complete(
        self, call: ToolCallEvent, run: ToolRun, handler: ToolHandler, arguments: dict[str, Any]
    ) -> None:
        try:
            outcome = await self._outcome(call, run, handler, arguments)
            del self._runs[call.call_id]
            if not run.is_dropped:
                await self._end(outcome)
        except Exception as error:
            log.error("tool result not sent: %s", describe_error(error))
        finally:
            run.released.set()

    async def _outcome(
        self, call: ToolCallEvent, run: ToolRun, handler: ToolHandler, arguments: dict[str, Any]
    ) -> ToolResultEvent | ToolCancelled:
        result = None
        if "lease" in self._session.capabilities:
            with contextlib.suppress(ConnectionLost):
                await self._session.send(ToolStarted(call.call_id))
        # The call may be cancelled while ``tool.started`` is sent.
        if not run.cancelled.is_set() and not run.is_dropped:
            task = asyncio.create_task(self._run(call, lambda: run.begin(handler, arguments), run))
            run.task = task
            result = await finish(task)
        if not run.cancelled.is_set():
            return _result(call, result)
        # Without a report of the handler the worst case is assumed.
        if isinstance(result, ToolCancelledError):
            return ToolCancelled(call.call_id, result.effect, _readable(result.result))
        if not run.has_begun:
            return ToolCancelled(call.call_id, "none")
        if result is not None and result.error is None:  # it ended despite the cancellation
            return ToolCancelled(call.call_id, run.effect or "complete", result.result)
        effect: Effect = "none" if self._is_read_only(run.name) else "partial"
        return ToolCancelled(call.call_id, run.effect or effect)

    def _is_read_only(self, name: str) -> bool:
        tools = (tool for tool in self.tools if isinstance(tool, Mapping) and tool.get("name") == name)
        return any((tool.get("annotations") or {}).get("readOnlyHint") is True for tool in tools)

    def _has_slot(self) -> bool:
        return sum(run.job_id is not None for run in self._runs.values()) < self._session.limits.jobs

    # UI calls

    async def _show(
        self, call: ToolCallEvent, arguments: dict[str, Any] | None, number: int
    ) -> ToolResultEvent:
        if arguments is None:
            return _failure(call, _NO_OBJECT)
        if call.name == SPEAK:
            return await self._say(call, str(arguments.get("text", "")), number)
        if (handler := self.handlers.get(call.name)) is None:
            return ToolResultEvent(call.call_id, '{"ok":true}')
        return _result(call, await finish(asyncio.create_task(self._run(call, lambda: handler(arguments)))))

    async def _say(self, call: ToolCallEvent, text: str, number: int) -> ToolResultEvent:
        result = None
        async with self._voice:
            if number > self._silent_to:
                self._speech = asyncio.create_task(self._run(call, lambda: self.speak(text)))
                try:
                    result = await finish(self._speech)
                finally:
                    self._speech = None
        if result is not None and (answer := _result(call, result)).error is not None:
            return answer
        # The shipped app also answers "spoken" for an interrupted speech.
        return ToolResultEvent(call.call_id, '{"spoken":true}')

    async def _run(
        self, call: ToolCallEvent, work: Callable[[], Any], run: ToolRun | None = None
    ) -> ToolResultEvent | ToolCancelledError:
        # The top of a task: an exception in the app's code becomes a result.
        run = run or ToolRun(call, self._session, self._has_slot)
        try:
            async with run.limit:
                value = work()
                if inspect.isawaitable(value):
                    value = await value
            return ToolResultEvent(call.call_id, _as_text(value))
        except ToolCancelledError as cancelled:
            return cancelled
        except Exception as error:
            log.warning("tool handler %s failed: %s", call.name, describe_error(error))
            if run.limit.expired():
                return _failure(call, f"The device's tool did not end within {run.limit_s:g} s.")
            return _failure(call, str(error) or type(error).__name__)

    # Results

    async def _end(self, outcome: ToolResultEvent | ToolCancelled) -> None:
        self._note(outcome.call_id, "taken" if isinstance(outcome, ToolResultEvent) else "cancelled")
        await self._post(outcome)

    async def _post(self, outcome: ToolResultEvent | ToolCancelled, *, is_ui: bool = False) -> None:
        if isinstance(outcome, ToolCancelled):
            self._on_result(ToolResultEvent(outcome.call_id, outcome.result, f"cancelled: {outcome.effect}"))
            result = _shorten(outcome.result, _MAX_CANCELLED_RESULT)
            await self._session.keep(ToolCancelled(outcome.call_id, outcome.effect, result))
            return
        self._on_result(outcome)
        result, error = _shorten(outcome.result), _shorten(outcome.error)
        full = ToolResultEvent(outcome.call_id, result, error)
        if len(encode(full)) > MAX_FRAME_BYTES - 4_096:
            full = ToolResultEvent(
                outcome.call_id, _shorten(result, _MAX_RESULT), _shorten(error, _MAX_RESULT)
            )
        await self._session.keep(full, is_ui=is_ui)

    def _note(self, call_id: str, state: CallState) -> None:
        self._states.pop(call_id, None)
        self._states[call_id] = state
        if len(self._states) > MAX_IDS:
            del self._states[next(iter(self._states))]


def _is_tool(name: str) -> bool:
    # The shipped app never answers ``bridge.*``.
    return not is_ui_call(name) and not name.startswith("bridge.")


def _failure(call: ToolCallEvent, message: str) -> ToolResultEvent:
    return ToolResultEvent(call.call_id, error=message)


def _result(call: ToolCallEvent, result: ToolResultEvent | ToolCancelledError | None) -> ToolResultEvent:
    return result if isinstance(result, ToolResultEvent) else _failure(call, str(result or _STOPPED))


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else encode(value).decode()


def _readable(value: Any) -> str | None:
    try:
        return None if value is None else _as_text(value)
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError):
        return str(value)


def _shorten(text: str | None, limit: int | None = None) -> str | None:
    text = None if text is None else clean(text)
    if text is None or limit is None or len(text) <= limit:
        return text
    return f"{text[:limit]}… [{len(text) - limit} characters left out by the device]"
