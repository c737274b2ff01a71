"""Answering the server's calls: the app's tools by handlers, UI calls by themselves, speech by a voice."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import msgspec

from conductor.client.options import ClientLimits
from conductor.client.tasks import finish, where
from conductor.events.client import ToolResultEvent
from conductor.events.server import ToolCallEvent, is_ui_call

log = logging.getLogger(__name__)

ToolHandler: TypeAlias = Callable[[dict[str, Any]], Any]
"""Takes the arguments, returns (or, async, comes to return) a string or anything that JSON can hold."""

SpeakHandler: TypeAlias = Callable[[str], Awaitable[None]]
"""Says a text and returns when it is said. It is cancelled to stop it midway."""

SPEAK = "tts.speak"
MAX_RESULT_CHARACTERS = 131_072
"""What is kept of a result too large for a frame: the server's hard limit is 1 MiB, and a character takes
up to six bytes as JSON."""
MAX_RESULT_FRAME = 2**20 - 4_096

_decode_object = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode


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
    """The handlers, and the speech under way."""

    def __init__(self, limits: ClientLimits, speak: SpeakHandler) -> None:
        self.handlers: dict[str, ToolHandler] = {}
        self.speak = speak
        self._limits = limits
        self._voice = asyncio.Lock()  # two speeches are never said at once
        self._speech: asyncio.Task[ToolResultEvent] | None = None
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

    async def answer(self, call: ToolCallEvent, number: int) -> ToolResultEvent | None:
        """Run a call to its end and make its result; None for those that are never answered."""
        if never_answered(call.name):
            return None
        arguments = _arguments(call)
        if arguments is None:
            return _failure(call, "The arguments are not a JSON object.")
        if call.name == SPEAK:
            return await self._say(call, str(arguments.get("text", "")), number)
        handler = self.handlers.get(call.name)
        if handler is None:
            if is_ui_call(call.name):
                return ToolResultEvent(call.call_id, '{"ok":true}')
            return _failure(call, f"This device has no tool {call.name}.")
        result = await finish(asyncio.create_task(self._run(call, handler, arguments)))
        return result or _failure(call, "The tool was cancelled on the device.")

    async def _say(self, call: ToolCallEvent, text: str, number: int) -> ToolResultEvent:
        # The shipped app says "spoken" of a speech that was stopped, too (protocol).
        spoken = ToolResultEvent(call.call_id, '{"spoken":true}')
        async with self._voice:
            if number <= self._silent_to:
                return spoken
            self._speech = asyncio.create_task(self._run(call, lambda _: self.speak(text), {}))
            try:
                result = await finish(self._speech)
            finally:
                self._speech = None
        return result if result is not None and result.error is not None else spoken

    async def _run(
        self, call: ToolCallEvent, handler: ToolHandler, arguments: dict[str, Any]
    ) -> ToolResultEvent:
        """Run one handler; the top of its task, whatever it does becomes a result."""
        limit = asyncio.timeout(self._limits.tool_s)
        try:
            async with limit:
                value = handler(arguments)
                if inspect.isawaitable(value):
                    value = await value
            return ToolResultEvent(call.call_id, value if isinstance(value, str) else _encode(value).decode())
        except Exception as error:
            log.warning("handler of %s failed: %s", call.name, where(error))
            if limit.expired():
                return _failure(call, f"The device's tool did not end within {self._limits.tool_s:g} s.")
            return _failure(call, str(error) or type(error).__name__)


def _arguments(call: ToolCallEvent) -> dict[str, Any] | None:
    try:
        return _decode_object(call.arguments or "{}")
    except (msgspec.MsgspecError, RecursionError):
        return None


def _failure(call: ToolCallEvent, message: str) -> ToolResultEvent:
    return ToolResultEvent(call.call_id, error=message)


def fit(result: ToolResultEvent) -> ToolResultEvent:
    """Shorten a result that would not fit into a frame, saying how much is missing."""
    result = ToolResultEvent(result.call_id, _clean(result.result), _clean(result.error))
    if len(_encode(result)) <= MAX_RESULT_FRAME:
        return result
    return ToolResultEvent(result.call_id, _shorten(result.result), _shorten(result.error))


def _shorten(text: str | None) -> str | None:
    if text is None or len(text) <= MAX_RESULT_CHARACTERS:
        return text
    missing = len(text) - MAX_RESULT_CHARACTERS
    return f"{text[:MAX_RESULT_CHARACTERS]}… [{missing} characters left out by the device]"


def _clean(text: str | None) -> str | None:
    """Replace lone surrogates, which Python can hold and UTF-8 cannot."""
    return None if text is None else text.encode(errors="replace").decode()
