"""Reconnecting by itself: when it is tried again, when no more, and what an app hears of it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import ClassVar

from conductor.client.errors import CannotConnect, ClientError, ConnectionLost, StartRefused
from conductor.events.server import SessionStarted

SUPERSEDED = 4409
"""The close code of a socket whose session another client took (protocol, "Base"): never fought over."""

MAX_FACTOR = 100.0
_MAX_EXPONENT = 64  # with `MAX_FACTOR` far above any wait, and far below what a float can hold


@dataclass(frozen=True, slots=True)
class Reconnect:
    """How a lost connection is opened anew: exponential backoff with jitter.

    The wait before try ``n`` is ``first_s * factor ** (n - 1)`` seconds, at most ``most_s``, less a random
    part of up to ``jitter`` of it (0 to 1), so that a thousand apps do not come back at the same moment.
    After ``tries`` failures in a row it is given up; None goes on for as long as the client lives. A
    connection that stood for less than ``steady_s`` seconds counts as a failure: a server that accepts and
    closes at once is not hammered. ``random`` gives numbers from 0 to 1, ``sleep`` waits for so many seconds.

    Raises `ValueError` for numbers that make no sense.
    """

    first_s: float = 0.5
    most_s: float = 15.0
    factor: float = 2.0
    jitter: float = 0.5
    tries: int | None = None
    steady_s: float = 5.0
    random: Callable[[], float] = random.random
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def __post_init__(self) -> None:
        if not 0 <= self.first_s <= self.most_s:
            raise ValueError("first_s must not be negative, nor above most_s")
        if not 1 <= self.factor <= MAX_FACTOR:
            raise ValueError(f"factor must be from 1 to {MAX_FACTOR:g}")
        if not 0 <= self.jitter <= 1:
            raise ValueError("jitter must be from 0 to 1")
        if self.tries is not None and self.tries < 0:
            raise ValueError("tries must not be negative")

    def delay_s(self, number: int, after: ClientError) -> float:
        """Say how many seconds to wait before a try, counted from 1, that follows such an error.

        A server that names a time (``retryAfterMs``) is not asked before it, within ``most_s``.
        """
        delay = min(self.most_s, self.first_s * self.factor ** min(number - 1, _MAX_EXPONENT))
        delay *= 1 - self.jitter * self.random()
        if isinstance(after, StartRefused) and after.event.retry_after_ms is not None:
            delay = max(delay, min(after.event.retry_after_ms / 1000, self.most_s))
        return delay


def is_final(error: ClientError) -> bool:
    """Tell whether another try is pointless: the token is not accepted, or another has the session."""
    match error:
        case CannotConnect():
            return error.status in (401, 403)
        case StartRefused():
            return error.code in ("unauthorized", "unsupported_protocol_version", "session_mismatch")
        case ConnectionLost():
            return error.close_code == SUPERSEDED
        case _:
            return False


# What an app hears of it, by `Client.on`. These are no events of the server: "*" and streams leave them out.


@dataclass(frozen=True, slots=True)
class Lost:
    """The connection is lost, for the reason given; what follows is `Reconnected` or `GaveUp`."""

    TYPE: ClassVar[str] = "client.lost"
    error: ConnectionLost


@dataclass(frozen=True, slots=True)
class TryFailed:
    """The try of this number, counted from 1, did not connect; there may be more."""

    TYPE: ClassVar[str] = "client.try_failed"
    number: int
    error: ClientError


@dataclass(frozen=True, slots=True)
class Reconnected:
    """There is a connection again, and what waited for it was sent."""

    TYPE: ClassVar[str] = "client.reconnected"
    started: SessionStarted


@dataclass(frozen=True, slots=True)
class GaveUp:
    """It is not tried any more: the tries are used up, or another is pointless. Open turns end now."""

    TYPE: ClassVar[str] = "client.gave_up"
    error: ClientError


ConnectionNews = Lost | TryFailed | Reconnected | GaveUp
