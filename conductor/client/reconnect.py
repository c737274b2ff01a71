"""Reconnecting: the delays, the end of retrying, and the events for the app."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import ClassVar

from conductor.client.errors import CannotConnect, ClientError, ConnectionLost, StartRefused, describe_error
from conductor.events.envelope import SUPERSEDED
from conductor.events.server import SessionStarted

log = logging.getLogger(__name__)

# Together these keep ``factor ** n`` a finite float (1e128 seconds).
MAX_FACTOR = 100.0
_MAX_EXPONENT = 64


@dataclass(frozen=True, slots=True)
class Reconnect:
    """When a lost connection is retried: exponential backoff with jitter.

    The delay before try ``n`` is ``first_s * factor ** (n - 1)`` seconds, at most ``most_s``, less a random
    part of up to ``jitter`` (0 to 1) of it. The client gives up after ``tries`` failures in a row; None
    retries forever. A connection shorter than ``steady_s`` seconds counts as a failure. ``random`` returns
    numbers from 0 to 1, ``sleep`` waits for a number of seconds.

    Raises `ValueError` for numbers out of range.
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

    def delay_s(self, number: int, error: ClientError) -> float:
        """Return the delay in seconds before try ``number`` (from 1), after ``error``.

        The server's ``retryAfterMs`` counts, up to ``most_s``.
        """
        delay = min(self.most_s, self.first_s * self.factor ** min(number - 1, _MAX_EXPONENT))
        delay *= 1 - self.jitter * self.random()
        if isinstance(error, StartRefused) and error.event.retry_after_ms is not None:
            delay = max(delay, min(error.event.retry_after_ms / 1000, self.most_s))
        return delay


def is_final(error: ClientError) -> bool:
    """Whether a retry is pointless: the token is invalid, or another client has the session."""
    match error:
        case CannotConnect():
            # 429 and 503 are temporary.
            return error.status in (401, 403)
        case StartRefused():
            return error.code in ("unauthorized", "unsupported_protocol_version", "session_mismatch")
        case ConnectionLost():
            # Two clients would take the session from each other forever.
            return error.close_code == SUPERSEDED
        case _:
            return False


# Events of the connection for `Client.on`. They are not part of "*".


@dataclass(frozen=True, slots=True)
class Lost:
    """The connection is lost; `Reconnected` or `GaveUp` follows."""

    TYPE: ClassVar[str] = "client.lost"
    error: ConnectionLost


@dataclass(frozen=True, slots=True)
class TryFailed:
    """A try failed; ``number`` counts from 1. More tries may follow."""

    TYPE: ClassVar[str] = "client.try_failed"
    number: int
    error: ClientError


@dataclass(frozen=True, slots=True)
class Reconnected:
    """The connection is restored, and waiting events were sent."""

    TYPE: ClassVar[str] = "client.reconnected"
    started: SessionStarted


@dataclass(frozen=True, slots=True)
class GaveUp:
    """The client stops retrying, and open turns end. Tries are used up, or a retry is pointless."""

    TYPE: ClassVar[str] = "client.gave_up"
    error: ClientError


ConnectionEvent = Lost | TryFailed | Reconnected | GaveUp


class Reconnector:
    """Reconnects by a `Reconnect` policy, from `start` until it gives up or is stopped.

    ``wait_lost`` waits for a loss of the connection and returns the reason, ``restore`` connects or raises
    `ClientError`, and ``notify`` is awaited with each event.
    """

    def __init__(
        self,
        policy: Reconnect,
        wait_lost: Callable[[], Awaitable[ConnectionLost]],
        restore: Callable[[], Awaitable[SessionStarted]],
        notify: Callable[[ConnectionEvent], Awaitable[None]],
    ) -> None:
        self._policy = policy
        self._wait_lost = wait_lost
        self._restore = restore
        self._notify = notify
        self._task: asyncio.Task[None] | None = None
        self.running = False

    def start(self) -> None:
        """Watch the connection; does nothing if it is watched."""
        if not self.running:
            self.running = True
            self._task = asyncio.create_task(self._run())

    async def stop(self, seconds: float) -> None:
        """Stop reconnecting; wait at most ``seconds`` for a running try."""
        self.running = False
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=seconds)

    async def _run(self) -> None:
        try:
            reason = await self._reconnect_until_final()
        except Exception as error:
            log.error("reconnector failed: %s", describe_error(error))
            reason = ClientError("The client failed to reconnect.")
        self.running = False
        await self._notify(GaveUp(reason))

    async def _reconnect_until_final(self) -> ClientError:
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            since = loop.time()
            loss = await self._wait_lost()
            # Only a connection that lasted resets the backoff.
            if loop.time() - since >= self._policy.steady_s:
                failures = 0
            await self._notify(Lost(loss))
            error: ClientError = loss
            started = None
            while started is None:
                if is_final(error) or failures == self._policy.tries:
                    return error
                failures += 1
                await self._policy.sleep(self._policy.delay_s(failures, error))
                try:
                    started = await self._restore()
                except ClientError as failure:
                    error = failure
                    await self._notify(TryFailed(failures, error))
            await self._notify(Reconnected(started))
