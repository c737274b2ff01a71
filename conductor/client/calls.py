"""Run the server's calls: tools by the app's handlers, UI calls directly, speech by the voice."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias

from msgspec import UNSET
from msgspec.json import encode
from msgspec.structs import replace

from conductor.client.connection import ConnectionLost, arguments_of, describe_error
from conductor.client.pictures import Shown, wire_pictures
from conductor.client.session import Connections, remember
from conductor.events.client import ToolCancelled, ToolProgress, ToolResultEvent, ToolStarted
from conductor.events.server import ToolCallEvent, is_ui_call

log = logging.getLogger(__name__)

CancelledEffect: TypeAlias = Literal["none", "partial", "complete"]
"""How much of a cancelled call took effect."""

ToolHandler: TypeAlias = Callable[..., Any]
"""A function, async or not, that takes the arguments as a dict and returns a string or a JSON value.

A second parameter without a default receives the `ToolRun`.
"""

SpeakHandler: TypeAlias = Callable[[str], Awaitable[None]] | Callable[[str, str], Awaitable[None]]
"""Speaks a text and returns at its end. Cancellation stops the speech.

A second parameter without a default receives the text's language (BCP 47), or an empty string if it is the
locale's.
"""

CallEnd: TypeAlias = ToolResultEvent | ToolCancelled

SPEAK = "tts.speak"
_MAX_MESSAGE = 1_000
# Characters of a result; one takes up to six bytes of JSON, and a frame may have 1 MiB.
_MAX_RESULT = 131_072
_MAX_CANCELLED_RESULT = 8_192  # an event other than ``tool.result`` may have 64 KiB


def clean(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode."""
    return text.encode(errors="replace").decode()


def takes_two_arguments(handler: Callable[..., Any]) -> bool:
    """Whether a handler's signature has a second parameter without a default."""
    try:
        inspect.signature(handler).bind(None)
    except (TypeError, ValueError) as error:  # `ValueError`: it has no signature
        return isinstance(error, TypeError)
    return False


class ToolCancelledError(Exception):
    """Raised by a handler whose call was cancelled. ``effect`` is the part that took effect.

    ``result`` is the partial result: a string or a JSON value.
    """

    def __init__(self, effect: CancelledEffect, result: Any = None) -> None:
        super().__init__(f"The tool was cancelled on the device; effect: {effect}.")
        self.effect = effect
        self.result = None if result is None else _as_text(result)


class ToolRun:
    """One call: the second argument of a handler that takes two, and an item of `Turn.calls`.

    ``arguments`` are JSON; ``result`` or ``error`` is set at the end. When the server cancels the call,
    ``cancelled`` is set, with its ``reason``, and the handler's task is cancelled. ``effect``, which the
    handler updates, is reported then.
    """

    def __init__(self, call: ToolCallEvent, session: Connections) -> None:
        self.call_id, self.name, self.arguments = call.call_id, call.name, call.arguments
        self.result: str | None = None
        self.error: str | None = None
        self.cancelled = asyncio.Event()
        self.reason: str | None = None
        self.effect: CancelledEffect | None = None
        self.is_queued = True
        self.task: asyncio.Task[CallEnd] | None = None
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
        is_over = self.cancelled.is_set() or self.task is None or self.task.done()
        is_early = now - self._last_report < self._session.limits.progress_s
        if is_over or is_early or "lease" not in self._session.capabilities:
            return
        self._last_report = now
        text = None if message is None else clean(message[:_MAX_MESSAGE])
        with contextlib.suppress(ConnectionLost):  # only results are repeated
            await self._session.send(ToolProgress(self.call_id, text, percent))

    def cancel(self, reason: str) -> None:
        self.reason = reason
        self.cancelled.set()
        if self.task is not None:
            self.task.cancel()


class Pause:
    """A pause of the voice, from its event on. ``is_followed``: the person has said something since."""

    def __init__(self, event_id: str) -> None:
        self.event_id = event_id
        self.is_followed = False
        self.over = asyncio.Event()


class Calls:
    """The tools and their handlers, the queued and running calls, and the voice. No call runs twice."""

    def __init__(self, session: Connections, tools: Sequence[Any], speak: SpeakHandler | None) -> None:
        self.tools, self.speak = list(tools), speak
        self.handlers: dict[str, ToolHandler] = {}
        self.runs: dict[str, ToolRun] = {}  # unanswered tool calls, oldest first
        self.speeches: set[str] = set()  # calls of the queued speeches, and of the running one
        self._session = session
        self._over: dict[str, ToolRun | None] = {}  # calls that must not run, or not again
        self._voice = asyncio.Lock()  # one speech at a time
        self._speech: ToolRun | None = None
        self.pause: Pause | None = None

    @property
    def playing(self) -> str | None:
        """The call of the running speech."""
        return self._speech.call_id if self._speech is not None else None

    def begin_pause(self, event_id: str) -> None:
        """Begin no further speech until the pause ends."""
        self.pause = Pause(event_id)

    def end_pause(self) -> Pause | None:
        """End the pause, and return it."""
        pause, self.pause = self.pause, None
        if pause is not None:
            pause.over.set()
        return pause

    def silence(self) -> None:
        """Stop the running speech, and skip the queued ones."""
        self.end_pause()
        self.speeches.clear()
        if self._speech is not None:
            self._speech.cancel("barge_in")

    def queue(self, call: ToolCallEvent) -> None:
        """Record a call as soon as it is read."""
        if call.name == SPEAK:
            self.speeches.add(call.call_id)
        # The shipped app never answers ``bridge.*``.
        is_tool = not is_ui_call(call.name) and not call.name.startswith("bridge.")
        if is_tool and call.call_id not in self._over:
            self.runs.setdefault(call.call_id, ToolRun(call, self._session))

    def find(self, call_id: str) -> ToolRun | None:
        """Return an unanswered call, or one that was cancelled while it was queued."""
        return self.runs.get(call_id) or self._over.get(call_id)

    def cancel(self, call_id: str, reason: str) -> None:
        """Cancel a call at once, also a queued one."""
        if (run := self.runs.get(call_id)) is not None:
            run.cancel(reason)
        self.drop([call_id])
        if run is not None and run.is_queued:
            run.error = "cancelled: none"
            self._session.spawn(self._post(ToolCancelled(call_id, "none")))

    def drop(self, call_ids: Iterable[str]) -> None:
        """Forget calls that the server no longer needs, unless they are running."""
        for call_id in call_ids:
            if (run := self.runs.get(call_id)) is None or run.is_queued:
                remember(self._over, call_id, self.runs.pop(call_id, self._over.get(call_id)))

    async def answer(self, call: ToolCallEvent) -> None:
        """Run a call to its end and send the result."""
        run = ToolRun(call, self._session) if is_ui_call(call.name) else self.runs.get(call.call_id)
        if run is None or not run.is_queued:
            return
        run.is_queued = False  # before the first await: a ``tool.cancel`` or a replay may follow at once
        outcome: CallEnd
        if (arguments := arguments_of(call)) is None:
            outcome = ToolResultEvent(call.call_id, error="The arguments are not a JSON object.")
        elif call.name == SPEAK:
            outcome = await self._say(run, str(arguments.get("text", "")), str(arguments.get("lang", "")))
        elif is_ui_call(call.name):
            handler: ToolHandler = self.handlers.get(call.name, lambda _: {"ok": True})
            outcome = await self._attempt(run, lambda: handler(arguments))
        else:
            outcome = await self._run(run, arguments)
        if self.runs.pop(call.call_id, None) is not None:
            remember(self._over, call.call_id, None)
        run.result = outcome.result
        run.error = f"cancelled: {outcome.effect}" if isinstance(outcome, ToolCancelled) else outcome.error
        await self._post(outcome)

    async def _run(self, run: ToolRun, arguments: dict[str, Any]) -> CallEnd:
        if (handler := self.handlers.get(run.name)) is None:
            return ToolResultEvent(run.call_id, error=f"This device has no tool {run.name}.")
        if "lease" in self._session.capabilities:
            with contextlib.suppress(ConnectionLost):
                await self._session.send(ToolStarted(run.call_id))
        if run.cancelled.is_set():  # while ``tool.started`` was sent
            return ToolCancelled(run.call_id, "none")
        extra = (run,) if takes_two_arguments(handler) else ()
        result = await self._attempt(run, lambda: handler(arguments, *extra))
        if not run.cancelled.is_set() or isinstance(result, ToolCancelled):
            return result
        if result.error is None:  # it ended despite the cancellation
            return ToolCancelled(run.call_id, run.effect or "complete", result.result)
        # Without a report of the handler the worst case is assumed.
        tools = (tool for tool in self.tools if isinstance(tool, Mapping) and tool.get("name") == run.name)
        reads = any((tool.get("annotations") or {}).get("readOnlyHint") is True for tool in tools)
        return ToolCancelled(run.call_id, run.effect or ("none" if reads else "partial"))

    async def _say(self, run: ToolRun, text: str, lang: str) -> CallEnd:
        async with self._voice:
            if self.pause is not None:
                await self.pause.over.wait()
            if self.speak is not None and run.call_id in self.speeches:
                self._speech = run
                speak: Callable[..., Awaitable[None]] = self.speak
                spoken = (text, lang) if takes_two_arguments(speak) else (text,)
                outcome = await self._attempt(run, partial(speak, *spoken))
                self._speech = None
                if isinstance(outcome, ToolResultEvent) and outcome.error and not run.cancelled.is_set():
                    return outcome
        # The shipped app also answers "spoken" for an interrupted speech.
        return ToolResultEvent(run.call_id, '{"spoken":true}')

    async def _attempt(self, run: ToolRun, work: Callable[[], Any]) -> CallEnd:
        """Run the app's code. An exception, or a cancellation by the code itself, becomes an error."""
        run.task = self._session.spawn(self._work(run, work))
        # Not awaited directly, which would confuse its cancellation with the waiting task's.
        await asyncio.wait({run.task})
        outcome = None if run.task.cancelled() else run.task.result()
        if isinstance(outcome, ToolResultEvent) or (outcome is not None and run.cancelled.is_set()):
            return outcome
        effect = f"; effect: {outcome.effect}" if outcome is not None else ""
        return ToolResultEvent(run.call_id, error=f"The tool was cancelled on the device{effect}.")

    async def _work(self, run: ToolRun, work: Callable[[], Any]) -> CallEnd:
        limit = asyncio.timeout(seconds := self._session.limits.tool_s)
        try:
            async with limit:
                if inspect.isawaitable(value := work()):
                    value = await value
            if not isinstance(value, Shown):
                return ToolResultEvent(run.call_id, _as_text(value))
            images = wire_pictures(value.images)
            is_shown = bool(images) and "images" in self._session.capabilities
            return ToolResultEvent(run.call_id, _as_text(value.result), images=images if is_shown else UNSET)
        except ToolCancelledError as cancelled:
            return ToolCancelled(run.call_id, cancelled.effect, cancelled.result)
        except Exception as error:
            log.warning("tool handler %s failed: %s", run.name, describe_error(error))
            late = f"The device's tool did not end within {seconds:g} s." if limit.expired() else ""
            with contextlib.suppress(Exception):  # the text is the app's code, too
                late = late or str(error)
            return ToolResultEvent(run.call_id, error=late or type(error).__name__)

    async def _post(self, event: CallEnd) -> None:
        if isinstance(event, ToolCancelled):
            event = replace(event, result=_shorten(event.result, _MAX_CANCELLED_RESULT))
        else:
            result, error = _shorten(event.result, _MAX_RESULT), _shorten(event.error, _MAX_RESULT)
            event = replace(event, result=result, error=error)
        self._session.add(event)
        await self._session.flush()
        self.speeches.discard(event.call_id)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else encode(value).decode()


def _shorten(text: str | None, limit: int) -> str | None:
    text = None if text is None else clean(text)
    if text is None or len(text) <= limit:
        return text
    return f"{text[:limit]}… [{len(text) - limit} characters left out by the device]"
