"""One socket to the server: its limits, its failures as errors, and the events that it delivers.

Every error's message is one sentence without secrets: a URL is shown without its query.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from traceback import extract_tb
from typing import Any, ClassVar, TypeAlias, get_args

import msgspec
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as open_websocket
from websockets.exceptions import ConnectionClosed, InvalidStatus, InvalidURI, WebSocketException

from conductor.errors import ConductorError
from conductor.events.envelope import SUPERSEDED
from conductor.events.server import ErrorEvent, ServerEvent, SessionStarted, ToolCallEvent

MAX_INBOUND_BYTES = 4 * 2**20
_FINAL_CODES = ("unauthorized", "unsupported_protocol_version", "session_mismatch")


class ClientError(ConductorError):
    """Base class of the client library's errors."""

    is_final = False
    """Whether a retry is pointless."""


class CannotConnect(ClientError):
    """No socket could be opened; ``status`` is the HTTP status, if there was one."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.is_final = status in (401, 403)  # 429 and 503 are temporary


class StartRefused(ClientError):
    """The server answered ``session.start`` with an error; ``code`` and ``event`` describe it."""

    def __init__(self, event: ErrorEvent) -> None:
        super().__init__(f"The server refused the session: {event.message} ({event.code})")
        self.code = event.code
        self.event = event
        self.is_final = event.code in _FINAL_CODES


class ConnectionLost(ClientError):
    """The connection is lost; ``close_code`` is the WebSocket close code, if a close frame came."""

    def __init__(self, message: str, *, close_code: int | None = None) -> None:
        super().__init__(message)
        self.close_code = close_code
        # Two clients would take the session from each other forever.
        self.is_final = close_code == SUPERSEDED

    @classmethod
    def by(cls, closed: ConnectionClosed) -> ConnectionLost:
        """Describe the end of a socket."""
        if closed.rcvd is None:
            return cls("The connection broke.")
        code, reason = closed.rcvd.code, f": {closed.rcvd.reason}" if closed.rcvd.reason else ""
        return cls(f"The server closed the connection ({code}{reason}).", close_code=code)


class WaitTimeout(ClientError, TimeoutError):
    """A wait reached its time limit."""


def describe_error(error: BaseException) -> str:
    """Return an error's type and location. The message is omitted because it may quote the person."""
    location = "".join(f" in {f.name}, line {f.lineno}" for f in extract_tb(error.__traceback__)[-1:])
    return f"{type(error).__name__}{location}"


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Limits of a client. Times are in seconds.

    ``connect_s``, ``start_s`` and ``close_s`` bound the steps of a connection: opening the socket, the answer
    to ``session.start``, closing. ``ping_s`` is the interval of WebSocket pings, and the limit for a pong.
    ``tool_s`` bounds one tool handler and one speech, ``turn_s`` the wait for a turn, ``approval_s`` one
    approval handler.

    ``unconfirmed`` events are kept for the next connection, ``unsent`` transcripts may wait for one, and a
    transcript older than ``resend_s`` is not repeated. ``progress_s`` is the shortest time between two
    progress reports. An event that the server could not record is repeated after ``retry_s``.
    """

    connect_s: float = 10.0
    start_s: float = 10.0
    close_s: float = 2.0
    ping_s: float = 20.0
    tool_s: float = 600.0
    turn_s: float = 180.0
    approval_s: float = 900.0
    unconfirmed: int = 128
    unsent: int = 8
    resend_s: float = 60.0
    progress_s: float = 0.25
    retry_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Reconnect:
    """When a lost connection is retried: exponential backoff with jitter.

    The delay before the first try is ``first_s`` seconds. It doubles up to ``most_s``, less a random part of
    up to ``jitter`` (0 to 1) of it. The client gives up after ``tries`` failures in a row; None retries
    forever. A new connection ends the row, and begins one if it is shorter than ``steady_s`` seconds.
    ``random`` returns numbers from 0 to 1, ``sleep`` waits for a number of seconds.

    Raises `ValueError` for numbers out of range.
    """

    first_s: float = 0.5
    most_s: float = 15.0
    jitter: float = 0.5
    tries: int | None = None
    steady_s: float = 5.0
    random: Callable[[], float] = random.random
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def __post_init__(self) -> None:
        if not (0 <= self.first_s <= self.most_s and 0 <= self.jitter <= 1 and (self.tries or 0) >= 0):
            raise ValueError("first_s must be from 0 to most_s, jitter from 0 to 1, and tries not negative")

    def delay_s(self, number: int, error: ClientError) -> float:
        """Return the delay in seconds before try ``number`` (from 1), after ``error``.

        The server's ``retryAfterMs`` counts, up to ``most_s``.
        """
        delay = min(self.most_s, self.first_s * 2.0 ** min(number - 1, 64))
        retry_ms = (isinstance(error, StartRefused) and error.event.retry_after_ms) or 0
        return max(delay * (1 - self.jitter * self.random()), min(retry_ms / 1000, self.most_s))


# Events of the connection for `Client.on`. They are not part of "*".


class Lost(msgspec.Struct, frozen=True):
    """The connection is lost; `Reconnected` or `GaveUp` follows."""

    TYPE: ClassVar[str] = "client.lost"
    error: ConnectionLost


class TryFailed(msgspec.Struct, frozen=True):
    """A try failed; ``number`` counts from 1. More tries may follow."""

    TYPE: ClassVar[str] = "client.try_failed"
    number: int
    error: ClientError


class Reconnected(msgspec.Struct, frozen=True):
    """The connection is restored, and waiting events were sent."""

    TYPE: ClassVar[str] = "client.reconnected"
    started: SessionStarted


class GaveUp(msgspec.Struct, frozen=True):
    """The client stops retrying, and open turns end. Tries are used up, or a retry is pointless."""

    TYPE: ClassVar[str] = "client.gave_up"
    error: ClientError


class UnknownEvent(msgspec.Struct, frozen=True):
    """An event of an unknown type, which ``TYPE`` names; ``payload`` is its JSON object."""

    TYPE: str
    payload: dict[str, Any]


ReceivedEvent: TypeAlias = ServerEvent | UnknownEvent


class _UnknownError(ErrorEvent, frozen=True, rename="camel", omit_defaults=True):
    code: Any  # a newer server may send other codes; the app must still receive the error


class _Frame(msgspec.Struct):
    id: str
    type: str
    payload: msgspec.Raw = msgspec.Raw(b"{}")


_decode_frame = msgspec.json.Decoder(_Frame).decode
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode
_DECODERS: dict[str, list[msgspec.json.Decoder[ServerEvent]]] = {
    struct.TYPE: [msgspec.json.Decoder(struct)] for struct in get_args(ServerEvent)
}
_DECODERS[ErrorEvent.TYPE].append(msgspec.json.Decoder(_UnknownError))


def decode_frame(frame: bytes) -> tuple[str, ReceivedEvent] | None:
    """Decode a frame into its envelope id and its event; None if it is not an event.

    A payload that does not fit its type's struct becomes an `UnknownEvent`: a newer server is not an error.
    """
    try:
        envelope = _decode_frame(frame)
        for decoder in _DECODERS.get(envelope.type, ()):
            with contextlib.suppress(msgspec.ValidationError):
                return envelope.id, decoder.decode(envelope.payload)
        return envelope.id, UnknownEvent(envelope.type, _decode_object(envelope.payload))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def arguments_of(call: ToolCallEvent) -> dict[str, Any] | None:
    """Decode a call's arguments; None if they are not a JSON object."""
    try:
        return _decode_object(call.arguments or "{}")
    except (msgspec.MsgspecError, RecursionError):
        return None


def state_of(event: ReceivedEvent) -> str | None:
    """Return the state set by a ``convo.setState``; None for any other event."""
    if isinstance(event, ToolCallEvent) and event.name == "convo.setState":
        return str((arguments_of(event) or {}).get("state", ""))
    return None


async def open_socket(url: str, token: str | None, limits: ClientLimits) -> ClientConnection:
    """Open a socket. Raises `CannotConnect`."""
    if token is not None and not re.fullmatch(r"[!-~]+", token):
        raise CannotConnect("The token contains characters that are not allowed in a header.")
    try:
        return await open_websocket(
            url,
            additional_headers={} if token is None else {"Authorization": f"Bearer {token}"},
            proxy=None,  # do not read one from the environment
            open_timeout=limits.connect_s,
            ping_interval=limits.ping_s,
            ping_timeout=limits.ping_s,
            close_timeout=limits.close_s,
            max_size=MAX_INBOUND_BYTES,
        )
    except (OSError, ValueError, WebSocketException) as error:
        status = error.response.status_code if isinstance(error, InvalidStatus) else None
        message = f"Cannot connect to {show_url(url)}: {_reason(error, limits.connect_s)}."
        raise CannotConnect(message, status=status) from error


def _reason(error: Exception, connect_s: float) -> str:
    match error:
        case InvalidStatus():
            status = error.response.status_code
            hint = ": the token is missing or not accepted" if status in (401, 403) else ""
            return f"the server answered HTTP {status}{hint}"
        case TimeoutError():
            return f"no answer within {connect_s:g} s"
        case socket.gaierror():
            return "unknown host name"
        case ssl.SSLError():
            return f"no secure connection ({error.reason or 'TLS failed'})"
        case OSError():
            # asyncio joins the failures of several addresses into one message without a number.
            return os.strerror(error.errno).lower() if error.errno else "connection refused"
        case InvalidURI() | ValueError():
            return "not a WebSocket URL such as ws://127.0.0.1:8080/ws"
        case _:
            return "the service there does not speak WebSocket"


def show_url(url: str) -> str:
    """Format a URL without user, password, query and fragment, which may be secret."""
    return re.sub("//.*@", "//", re.split("[?#]", url)[0])
