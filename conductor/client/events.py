"""Decode the server's frames, recognise duplicates, and pass events to the app."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias, cast, get_args

import msgspec

from conductor.client.errors import describe_error, finish
from conductor.errors import ErrorCode
from conductor.events.server import ErrorEvent, ServerEvent, ToolCallEvent

log = logging.getLogger(__name__)


class UnknownEvent(msgspec.Struct, frozen=True):
    """An event of an unknown type; ``payload`` is its JSON object."""

    type: str
    payload: dict[str, Any]


Event: TypeAlias = ServerEvent | UnknownEvent


@dataclass(frozen=True, slots=True)
class Received:
    """One event as received.

    ``connection`` counts the client's sockets, ``number`` the events without duplicates; both from 1. A
    duplicate has the number of its predecessor, and is not handled.
    """

    id: str
    event: Event
    connection: int
    number: int
    duplicate: bool


class _Frame(msgspec.Struct):
    id: str
    type: str
    payload: msgspec.Raw = msgspec.Raw(b"{}")


_decode_frame = msgspec.json.Decoder(_Frame).decode
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode
_DECODERS: dict[str, msgspec.json.Decoder[ServerEvent]] = {
    struct.TYPE: msgspec.json.Decoder(struct) for struct in get_args(ServerEvent)
}


def decode_frame(frame: bytes) -> tuple[str, Event] | None:
    """Decode a frame into its envelope id and its event; None if it is not an event.

    A payload that does not fit its type's struct becomes an `UnknownEvent`: a newer server is not an error.
    """
    try:
        envelope = _decode_frame(frame)
        decoder = _DECODERS.get(envelope.type)
        if decoder is not None:
            try:
                return envelope.id, decoder.decode(envelope.payload)
            except msgspec.ValidationError:
                pass
        payload = _decode_object(envelope.payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if envelope.type == ErrorEvent.TYPE:
        return envelope.id, _lenient_error(payload)
    return envelope.id, UnknownEvent(envelope.type, payload)


def _lenient_error(payload: dict[str, Any]) -> ErrorEvent:
    # A newer server may send unknown codes; the app must still receive the error.
    def text(key: str) -> str | None:
        value = payload.get(key)
        return value if isinstance(value, str) else None

    code = cast(ErrorCode, text("code") or "internal_error")
    return ErrorEvent(code, text("message") or "", event_id=text("eventId"), call_id=text("callId"))


def wire_type(event: Event) -> str:
    """Return an event's type on the wire."""
    return event.type if isinstance(event, UnknownEvent) else event.TYPE


def decode_arguments(call: ToolCallEvent) -> dict[str, Any] | None:
    """Decode a call's arguments; None if they are not a JSON object."""
    try:
        return _decode_object(call.arguments or "{}")
    except (msgspec.MsgspecError, RecursionError):
        return None


def arguments_of(call: ToolCallEvent) -> dict[str, Any]:
    """Decode a call's arguments; empty if they are not a JSON object."""
    return decode_arguments(call) or {}


def state_of(event: Event) -> str | None:
    """Return the state set by a ``convo.setState``; None for any other event."""
    if isinstance(event, ToolCallEvent) and event.name == "convo.setState":
        return str(arguments_of(event).get("state", ""))
    return None


Callback: TypeAlias = Callable[[Any], Any]
"""Takes an event. The next event waits for an async callback."""


class Typed(Protocol):
    """A class of events, of the server or of the connection; ``TYPE`` is its name."""

    TYPE: ClassVar[str]


class Listeners:
    """The callbacks of one client."""

    def __init__(self, callback_s: float) -> None:
        self._callback_s = callback_s
        self._callbacks: dict[str, list[Callback]] = {}

    def on(self, kind: str, callback: Callback) -> None:
        """Register a callback for a type of event; ``*`` means all types."""
        self._callbacks.setdefault(kind, []).append(callback)

    async def publish(self, event: Event) -> None:
        """Call all listeners of an event. An exception is logged and does not affect other listeners."""
        await self._call_all(wire_type(event), event)
        await self._call_all("*", event)

    async def notify(self, event: Typed) -> None:
        """Call the listeners of this type only, without ``*``."""
        await self._call_all(event.TYPE, event)

    async def _call_all(self, kind: str, event: object) -> None:
        for callback in self._callbacks.get(kind, ()):
            # In a separate task: a callback may close the client, which cancels the reading task.
            await finish(asyncio.create_task(self._call(kind, callback, event)))

    async def _call(self, kind: str, callback: Callback, event: object) -> None:
        try:
            async with asyncio.timeout(self._callback_s):
                value = callback(event)
                if inspect.isawaitable(value):
                    await value
        except Exception as error:
            log.warning("callback for %s failed: %s", kind, describe_error(error))


class ReplayCursor:
    """The position up to which all events are handled. Events may finish out of order.

    ``last`` is the id of the newest event without an unfinished event before it.
    """

    def __init__(self) -> None:
        self.last: str | None = None
        self._unfinished: dict[str, bool] = {}  # whether it counts, by id
        self._ended: set[str] = set()

    def begin(self, event_id: str, *, counts: bool = True) -> None:
        """Mark an event as being handled; without ``counts`` it never becomes ``last``."""
        self._unfinished[event_id] = counts

    def end(self, event_id: str) -> None:
        """Mark an event as handled."""
        self._ended.add(event_id)
        # The server replays the events after ``lastEventId``.
        for event_id, counts in list(self._unfinished.items()):
            if event_id not in self._ended:
                return
            self._ended.remove(event_id)
            del self._unfinished[event_id]
            if counts:
                self.last = event_id
