"""Run the server's calls: tools by the app's handlers, UI calls directly, speech by the voice."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Literal, TypeAlias

import msgspec

from conductor.client.errors import ConnectionLost, describe_error, finish, stop
from conductor.client.events import decode_arguments
from conductor.client.options import ClientLimits
from conductor.client.outbox import Sender, as_text, clean, failure, fit, fit_cancelled
from conductor.events.client import ToolAccepted, ToolCancelled, ToolProgress, ToolResultEvent, ToolStarted
from conductor.events.server import ToolCallEvent, ToolCancel, is_ui_call

log = logging.getLogger(__name__)

Effect: TypeAlias = Literal["none", "partial", "complete"]
"""How much of a cancelled call took effect."""

# Characters of a progress report.
MAX_MESSAGE = 1_000
# Characters of a job's id.
MAX_JOB_ID = 256


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

    def __init__(
        self, call: ToolCallEvent, sender: Sender, limits: ClientLimits, may_start_job: Callable[[], bool]
    ) -> None:
        self.call_id = call.call_id
        self.name = call.name
        self.timeout_ms = call.timeout_ms
        self.cancelled = asyncio.Event()
        self.reason: str | None = None
        self.effect: Effect | None = None
        self.job_id: str | None = None
        self.has_begun = False
        # Set when the server no longer accepts an answer (capability ``resume``).
        self.is_dropped = False
        # Set when the call has ended or has become a job.
        self.released = asyncio.Event()
        self._sender = sender
        self._limits = limits
        self._may_start_job = may_start_job
        self._last_report = float("-inf")
        self._limit: asyncio.Timeout | None = None
        self._task: asyncio.Task[Any] | None = None

    async def progress(self, message: str | None = None, percent: float | None = None) -> None:
        """Report progress (capability ``lease``); does nothing if the server does not accept it.

        Sends at most one report in ``ClientLimits.progress_s`` seconds, and does not repeat it after a
        reconnect. Raises `ValueError` if ``percent`` is not from 0 to 100.
        """
        if percent is not None and not 0 <= percent <= 100:
            raise ValueError("percent must be from 0 to 100")
        now = asyncio.get_running_loop().time()
        if (
            self._over
            or not self._sender.accepts("lease")
            or now - self._last_report < self._limits.progress_s
        ):
            return
        self._last_report = now
        text = None if message is None else clean(message[:MAX_MESSAGE])
        with contextlib.suppress(ConnectionLost):  # only results are repeated
            await self._sender.once(ToolProgress(self.call_id, text, percent))

    async def accept(self, job_id: str) -> bool:
        """Become a job (capability ``async``): the turn continues, and the result is sent later.

        Returns False if the server does not accept jobs, or if ``ClientLimits.jobs`` are running: the call
        stays a call. A job may take ``ClientLimits.job_s`` seconds from now. Raises `ValueError` for an
        invalid ``job_id``.
        """
        if not 1 <= len(job_id) <= MAX_JOB_ID or clean(job_id) != job_id:
            raise ValueError(f"job_id must have 1 to {MAX_JOB_ID} characters")
        if self.job_id is not None:
            return True
        if (
            self._over
            or self._limit is None
            or not self._sender.accepts("async")
            or not self._may_start_job()
        ):
            return False
        self.job_id = job_id
        # The job's limit starts here.
        self._limit.reschedule(asyncio.get_running_loop().time() + self._limits.job_s)
        # Kept until confirmed: without it the server reports the call as unknown.
        await self._sender.keep(ToolAccepted(self.call_id, job_id))
        self.released.set()
        return True

    @property
    def limit_s(self) -> float:
        return self._limits.tool_s if self.job_id is None else self._limits.job_s

    def begin(self, handler: ToolHandler, arguments: dict[str, Any], limit: asyncio.Timeout) -> Any:
        """Call the handler, within a time limit. Runs in the handler's task."""
        self.has_begun = True
        self._limit = limit
        return handler(arguments, self) if takes_two_arguments(handler) else handler(arguments)

    def watch(self, task: asyncio.Task[Any]) -> None:
        """Set the task that runs the handler."""
        self._task = task

    def cancel(self, reason: str) -> None:
        """Cancel the call, unless its handler has ended."""
        if self._task is not None and self._task.done():
            return
        self.reason = reason
        self.cancelled.set()
        if self._task is not None:
            self._task.cancel()

    def drop(self, *, stop: bool) -> None:
        """Send nothing more about the call; ``stop`` also cancels its handler."""
        self.is_dropped = True
        if stop:
            self.cancel("superseded")

    @property
    def _over(self) -> bool:
        ended = self.is_dropped or self._task is None or self._task.done()
        return ended or self.cancelled.is_set() or (self._limit is not None and self._limit.expired())


ToolHandler: TypeAlias = Callable[..., Any]
"""A function, async or not, that takes the arguments as a dict and returns a string or a JSON value.

A second parameter without a default receives the `ToolRun`.
"""


def takes_two_arguments(handler: Callable[..., Any]) -> bool:
    """Whether a handler's signature has a second parameter without a default."""
    try:
        parameters = inspect.signature(handler).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = [
        parameter
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        and parameter.default is parameter.empty
    ]
    return len(positional) > 1


SpeakHandler: TypeAlias = Callable[[str], Awaitable[None]]
"""Speaks a text and returns at its end. Cancellation stops the speech."""

SPEAK = "tts.speak"

CallState: TypeAlias = Literal["queued", "taken", "cancelled", "unwanted", "dropped"]
"""State of a call. ``cancelled``: ``tool.cancelled`` was sent. ``unwanted``: cancelled before it arrived.
``dropped``: the server does not accept an answer."""


def _is_answered(name: str) -> bool:
    # The shipped app never answers ``bridge.*``.
    return not name.startswith("bridge.")


class Calls:
    """The tool handlers, the running calls and the running speech.

    ``on_result`` is called with each result before it is sent.
    """

    def __init__(
        self,
        limits: ClientLimits,
        speak: SpeakHandler,
        sender: Sender,
        on_result: Callable[[ToolResultEvent], None],
        is_read_only: Callable[[str], bool],
    ) -> None:
        self.handlers: dict[str, ToolHandler] = {}
        self.speak = speak
        self._limits = limits
        self._sender = sender
        self._on_result = on_result
        self._is_read_only = is_read_only
        self._states: OrderedDict[str, CallState] = OrderedDict()
        self._runs: dict[str, ToolRun] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._voice = asyncio.Lock()  # one speech at a time
        self._speech: asyncio.Task[ToolResultEvent | ToolCancelledError] | None = None
        self._silent_to = 0

    @property
    def speaking(self) -> bool:
        return self._speech is not None

    @property
    def queues_speeches(self) -> bool:
        """Whether only speeches wait for speeches (capability ``segments``)."""
        return self._sender.accepts("segments")

    def silence(self, number: int) -> None:
        """Stop the running speech, and skip those queued up to event ``number``."""
        self._silent_to = number
        if self._speech is not None:
            self._speech.cancel()

    def record(self, call: ToolCallEvent) -> None:
        """Record a call as soon as it is read: it may be cancelled while it is queued."""
        is_recorded = not is_ui_call(call.name) and _is_answered(call.name)
        if is_recorded and call.call_id not in self._states and call.call_id not in self._runs:
            self._note(call.call_id, "queued")

    @property
    def pending(self) -> list[str]:
        """The ids of unanswered tool calls, running ones first."""
        running = [call_id for call_id, run in self._runs.items() if not run.is_dropped]
        return [*running, *(call_id for call_id, state in self._states.items() if state == "queued")]

    def drop(self, call_ids: Iterable[str]) -> None:
        """Drop calls that the server no longer needs: queued ones do not start, and no answer is sent.

        A running read-only tool is cancelled. Other tools run to their end.
        """
        for call_id in call_ids:
            run = self._runs.get(call_id)
            if run is not None:
                run.drop(stop=self._is_read_only(run.name))
            self._note(call_id, "dropped")

    def cancel(self, cancel: ToolCancel) -> None:
        """Cancel a call, running or queued; does nothing if it has ended."""
        call_id = cancel.call_id
        run, state = self._runs.get(call_id), self._states.get(call_id)
        if run is not None:
            run.cancel(cancel.reason)
        elif state == "queued":
            self._note(call_id, "cancelled")
            self._spawn(self._post(ToolCancelled(call_id, "none")))
        elif state is None:  # an earlier process of the app may have run it
            self._note(call_id, "unwanted")

    async def answer(self, call: ToolCallEvent, number: int) -> None:
        """Run a call and send its result; returns when it has ended or become a job.

        A duplicate does not run again.
        """
        if not _is_answered(call.name):
            return
        arguments = decode_arguments(call)
        if is_ui_call(call.name):
            await self._post(await self._show(call, arguments, number), ui=True)
            return
        state = self._states.get(call.call_id)
        if call.call_id in self._runs or state in ("taken", "cancelled", "dropped"):
            # A replay may deliver a call under a new envelope id, because its answer was lost.
            if state == "taken":
                await self._sender.resend(call.call_id)
            return
        handler = self.handlers.get(call.name)
        if state == "unwanted":
            await self._end(call, ToolCancelled(call.call_id, "none"))
        elif arguments is None:
            await self._end(call, failure(call, "The arguments are not a JSON object."))
        elif handler is None:
            await self._end(call, failure(call, f"This device has no tool {call.name}."))
        else:
            run = ToolRun(call, self._sender, self._limits, self._may_start_job)
            # Before the first await: a ``tool.cancel`` or a replay may follow at once.
            self._runs[call.call_id] = run
            self._note(call.call_id, "taken")
            self._spawn(self._complete(call, run, handler, arguments))
            await run.released.wait()

    async def close(self, seconds: float) -> None:
        """Cancel all handlers, jobs too, and wait at most ``seconds`` for them."""
        await stop(self._tasks, seconds)

    # Tools

    async def _complete(
        self, call: ToolCallEvent, run: ToolRun, handler: ToolHandler, arguments: dict[str, Any]
    ) -> None:
        try:
            outcome = await self._outcome(call, run, handler, arguments)
            if self._runs.get(call.call_id) is run:
                del self._runs[call.call_id]
            if not run.is_dropped:
                await self._end(call, outcome)
        except Exception as error:
            log.error("tool result not sent: %s", describe_error(error))
        finally:
            run.released.set()

    async def _outcome(
        self, call: ToolCallEvent, run: ToolRun, handler: ToolHandler, arguments: dict[str, Any]
    ) -> ToolResultEvent | ToolCancelled:
        result = None
        if self._sender.accepts("lease"):
            with contextlib.suppress(ConnectionLost):
                await self._sender.once(ToolStarted(call.call_id))
        # The call may be cancelled while ``tool.started`` is sent.
        if not run.cancelled.is_set() and not run.is_dropped:
            work = self._run(call, lambda limit: run.begin(handler, arguments, limit), lambda: run.limit_s)
            task = asyncio.create_task(work)
            run.watch(task)
            result = await finish(task)
        if run.cancelled.is_set():
            return self._cancelled(run, result)
        if isinstance(result, ToolCancelledError):
            return failure(call, str(result))
        return result or failure(call, "The tool was cancelled on the device.")

    def _cancelled(self, run: ToolRun, result: ToolResultEvent | ToolCancelledError | None) -> ToolCancelled:
        # Without a report of the handler the worst case is assumed.
        if isinstance(result, ToolCancelledError):
            text = None if result.result is None else _readable(result.result)
            return ToolCancelled(run.call_id, result.effect, text)
        if not run.has_begun:
            return ToolCancelled(run.call_id, "none")
        if result is not None and result.error is None:  # it ended despite the cancellation
            return ToolCancelled(run.call_id, run.effect or "complete", result.result)
        return ToolCancelled(
            run.call_id, run.effect or ("none" if self._is_read_only(run.name) else "partial")
        )

    def _may_start_job(self) -> bool:
        return sum(run.job_id is not None for run in self._runs.values()) < self._limits.jobs

    # UI calls

    async def _show(
        self, call: ToolCallEvent, arguments: dict[str, Any] | None, number: int
    ) -> ToolResultEvent:
        if arguments is None:
            return failure(call, "The arguments are not a JSON object.")
        if call.name == SPEAK:
            return await self._say(call, str(arguments.get("text", "")), number)
        handler = self.handlers.get(call.name)
        if handler is None:
            return ToolResultEvent(call.call_id, '{"ok":true}')
        return _result(call, await finish(asyncio.create_task(self._run(call, lambda _: handler(arguments)))))

    async def _say(self, call: ToolCallEvent, text: str, number: int) -> ToolResultEvent:
        # The shipped app also answers "spoken" for an interrupted speech.
        response = ToolResultEvent(call.call_id, '{"spoken":true}')
        async with self._voice:
            if number <= self._silent_to:
                return response
            self._speech = asyncio.create_task(self._run(call, lambda _: self.speak(text)))
            try:
                stopped = await finish(self._speech)
            finally:
                self._speech = None
        result = _result(call, stopped) if stopped is not None else response
        return result if result.error is not None else response

    async def _run(
        self,
        call: ToolCallEvent,
        work: Callable[[asyncio.Timeout], Any],
        limit_s: Callable[[], float] | None = None,
    ) -> ToolResultEvent | ToolCancelledError:
        # The top of a task: an exception in the app's code becomes a result.
        limit = asyncio.timeout(self._limits.tool_s)
        try:
            async with limit:
                value = work(limit)
                if inspect.isawaitable(value):
                    value = await value
            return ToolResultEvent(call.call_id, as_text(value))
        except ToolCancelledError as cancelled:
            return cancelled
        except Exception as error:
            log.warning("tool handler %s failed: %s", call.name, describe_error(error))
            if limit.expired():
                seconds = self._limits.tool_s if limit_s is None else limit_s()
                return failure(call, f"The device's tool did not end within {seconds:g} s.")
            return failure(call, str(error) or type(error).__name__)

    # Results

    async def _end(self, call: ToolCallEvent, outcome: ToolResultEvent | ToolCancelled) -> None:
        self._note(call.call_id, "taken" if isinstance(outcome, ToolResultEvent) else "cancelled")
        await self._post(outcome)

    async def _post(self, outcome: ToolResultEvent | ToolCancelled, *, ui: bool = False) -> None:
        if isinstance(outcome, ToolResultEvent):
            self._on_result(outcome)
            await self._sender.keep(fit(outcome), ui=ui)
        else:
            self._on_result(ToolResultEvent(outcome.call_id, outcome.result, f"cancelled: {outcome.effect}"))
            await self._sender.keep(fit_cancelled(outcome))

    def _note(self, call_id: str, state: CallState) -> None:
        self._states[call_id] = state
        self._states.move_to_end(call_id)
        if len(self._states) > self._limits.recent_ids:
            self._states.popitem(last=False)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _result(call: ToolCallEvent, result: ToolResultEvent | ToolCancelledError | None) -> ToolResultEvent:
    if isinstance(result, ToolResultEvent):
        return result
    return failure(call, str(result) if result is not None else "The tool was cancelled on the device.")


def _readable(value: Any) -> str:
    try:
        return as_text(value)
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError):
        return str(value)
