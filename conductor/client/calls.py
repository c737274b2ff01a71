"""Answering the server's calls: the app's tools by handlers, UI calls by themselves, speech by a voice."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Literal, TypeAlias

import msgspec

from conductor.client.errors import ConnectionLost
from conductor.client.options import ClientLimits
from conductor.client.results import as_text, failure, fit, fit_cancelled
from conductor.client.runs import ToolCancelledError, ToolHandler, ToolRun
from conductor.client.sender import Sender
from conductor.client.tasks import finish, where
from conductor.events.client import ToolCancelled, ToolResultEvent, ToolStarted
from conductor.events.server import ToolCallEvent, ToolCancel, is_ui_call

log = logging.getLogger(__name__)

SpeakHandler: TypeAlias = Callable[[str], Awaitable[None]]
"""Says a text and returns when it is said. It is cancelled to stop it midway."""

SPEAK = "tts.speak"

Fate: TypeAlias = Literal["queued", "taken", "cancelled", "unwanted", "dropped"]
"""What has become of a call. ``cancelled``: the server was told so. ``unwanted``: it was cancelled before it
came. ``dropped``: the server wants no answer."""

_decode_object = msgspec.json.Decoder(dict[str, Any]).decode


def never_answered(name: str) -> bool:
    """Tell the calls that get no result: the shipped app never answers ``bridge.*``."""
    return name.startswith("bridge.")


def speaking_for(seconds: float) -> SpeakHandler:
    """Make a voice that says nothing and takes so many seconds for it."""

    async def speak(_text: str) -> None:
        if seconds > 0:
            await asyncio.sleep(seconds)

    return speak


class Calls:
    """The handlers, the calls under way, and the speech under way.

    ``answered`` hears each result before it is sent; ``reads`` tells the tools that change nothing.
    """

    def __init__(
        self,
        limits: ClientLimits,
        speak: SpeakHandler,
        sender: Sender,
        answered: Callable[[ToolResultEvent], None],
        reads: Callable[[str], bool],
    ) -> None:
        self.handlers: dict[str, ToolHandler] = {}
        self.speak = speak
        self._limits = limits
        self._sender = sender
        self._answered = answered
        self._reads = reads
        self._fates: OrderedDict[str, Fate] = OrderedDict()
        self._runs: dict[str, ToolRun] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._voice = asyncio.Lock()  # two speeches are never said at once
        self._speech: asyncio.Task[ToolResultEvent | ToolCancelledError] | None = None
        self._silent_to = 0

    @property
    def speaking(self) -> bool:
        """Whether a speech is being said now."""
        return self._speech is not None

    def silence(self, number: int) -> None:
        """Stop the speech under way, and pass over any that waits among the first ``number`` events."""
        self._silent_to = number
        if self._speech is not None:
            self._speech.cancel()

    def arrived(self, call: ToolCallEvent) -> None:
        """Note a call as soon as it is read: it may be cancelled before its turn comes."""
        ours = not is_ui_call(call.name) and not never_answered(call.name)
        if ours and call.call_id not in self._fates and call.call_id not in self._runs:
            self._note(call.call_id, "queued")

    @property
    def pending(self) -> list[str]:
        """The calls of tools that were received and have no answer yet: those that run come first."""
        running = [call_id for call_id, run in self._runs.items() if not run.dropped]
        return [*running, *(call_id for call_id, fate in self._fates.items() if fate == "queued")]

    def drop(self, call_ids: Iterable[str]) -> None:
        """Take back calls that the server no longer wants: what has not begun is not, and nothing is said.

        A tool that changes nothing is stopped; any other runs to its end.
        """
        for call_id in call_ids:
            run = self._runs.get(call_id)
            if run is not None:
                run.drop(stop=self._reads(run.name))
            self._note(call_id, "dropped")

    def cancel(self, cancel: ToolCancel) -> None:
        """Cancel a call, wherever it is; one that has ended has given its result, and no more is said."""
        call_id = cancel.call_id
        run, fate = self._runs.get(call_id), self._fates.get(call_id)
        if run is not None:
            run.cancel(cancel.reason)
        elif fate == "queued":
            self._note(call_id, "cancelled")
            self._spawn(self._post(ToolCancelled(call_id, "none")))
        elif fate is None:  # perhaps an earlier process of the app has run it: nothing can be said of that
            self._note(call_id, "unwanted")

    async def answer(self, call: ToolCallEvent, number: int) -> None:
        """Run a call to its end, or until it has become a job; its result has been sent then.

        One that is known already is not run again.
        """
        if never_answered(call.name):
            return
        arguments = _arguments(call)
        if is_ui_call(call.name):
            await self._post(await self._show(call, arguments, number), shown=True)
            return
        fate = self._fates.get(call.call_id)
        if call.call_id in self._runs or fate in ("taken", "cancelled", "dropped"):
            # A call is run once, under whatever envelope ids it comes. Is its answer still kept, then the
            # server has perhaps not got it.
            if fate == "taken":
                await self._sender.again(call.call_id)
            return
        handler = self.handlers.get(call.name)
        if fate == "unwanted":
            await self._end(call, ToolCancelled(call.call_id, "none"))
        elif arguments is None:
            await self._end(call, failure(call, "The arguments are not a JSON object."))
        elif handler is None:
            await self._end(call, failure(call, f"This device has no tool {call.name}."))
        else:
            run = ToolRun(call, self._sender, self._limits, self._room_for_job)
            self._runs[call.call_id] = run
            self._note(call.call_id, "taken")
            self._spawn(self._use(call, run, handler, arguments))
            await run.released.wait()

    async def close(self, seconds: float) -> None:
        """Stop all handlers, jobs too, and wait for their ends so long at most."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    # Tools

    async def _use(
        self, call: ToolCallEvent, run: ToolRun, handler: ToolHandler, arguments: dict[str, Any]
    ) -> None:
        """Run one handler and send what came of it; the top of its task."""
        try:
            outcome = await self._outcome(call, run, handler, arguments)
            if self._runs.get(call.call_id) is run:
                del self._runs[call.call_id]
            if not run.dropped:
                await self._end(call, outcome)
        except Exception as error:
            log.error("a result could not be sent: %s", where(error))
        finally:
            run.released.set()

    async def _outcome(
        self, call: ToolCallEvent, run: ToolRun, handler: ToolHandler, arguments: dict[str, Any]
    ) -> ToolResultEvent | ToolCancelled:
        result = None
        if self._sender.accepts("lease"):
            with contextlib.suppress(ConnectionLost):
                await self._sender.once(ToolStarted(call.call_id))
        if not run.cancelled.is_set() and not run.dropped:
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
        """Say how much of a cancelled call happened: as its handler says, else the worst that may be."""
        if isinstance(result, ToolCancelledError):
            text = None if result.result is None else _readable(result.result)
            return ToolCancelled(run.call_id, result.effect, text)
        if not run.begun:
            return ToolCancelled(run.call_id, "none")
        if result is not None and result.error is None:  # it ended all the same
            return ToolCancelled(run.call_id, run.effect or "complete", result.result)
        return ToolCancelled(run.call_id, run.effect or ("none" if self._reads(run.name) else "partial"))

    def _room_for_job(self) -> bool:
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
        # The shipped app says "spoken" of a speech that was stopped, too (protocol).
        spoken = ToolResultEvent(call.call_id, '{"spoken":true}')
        async with self._voice:
            if number <= self._silent_to:
                return spoken
            self._speech = asyncio.create_task(self._run(call, lambda _: self.speak(text)))
            try:
                stopped = await finish(self._speech)
            finally:
                self._speech = None
        result = _result(call, stopped) if stopped is not None else spoken
        return result if result.error is not None else spoken

    async def _run(
        self,
        call: ToolCallEvent,
        work: Callable[[asyncio.Timeout], Any],
        limit_s: Callable[[], float] | None = None,
    ) -> ToolResultEvent | ToolCancelledError:
        """Run the app's code within a time limit; the top of its task, whatever it does becomes a result."""
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
            log.warning("handler of %s failed: %s", call.name, where(error))
            if limit.expired():
                seconds = self._limits.tool_s if limit_s is None else limit_s()
                return failure(call, f"The device's tool did not end within {seconds:g} s.")
            return failure(call, str(error) or type(error).__name__)

    # What is kept and sent

    async def _end(self, call: ToolCallEvent, outcome: ToolResultEvent | ToolCancelled) -> None:
        self._note(call.call_id, "taken" if isinstance(outcome, ToolResultEvent) else "cancelled")
        await self._post(outcome)

    async def _post(self, outcome: ToolResultEvent | ToolCancelled, *, shown: bool = False) -> None:
        if isinstance(outcome, ToolResultEvent):
            self._answered(outcome)
            await self._sender.keep(fit(outcome), shown=shown)
        else:
            self._answered(ToolResultEvent(outcome.call_id, outcome.result, f"cancelled: {outcome.effect}"))
            await self._sender.keep(fit_cancelled(outcome))

    def _note(self, call_id: str, fate: Fate) -> None:
        self._fates[call_id] = fate
        self._fates.move_to_end(call_id)
        if len(self._fates) > self._limits.seen:
            self._fates.popitem(last=False)

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


def _arguments(call: ToolCallEvent) -> dict[str, Any] | None:
    try:
        return _decode_object(call.arguments or "{}")
    except (msgspec.MsgspecError, RecursionError):
        return None
