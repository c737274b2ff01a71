"""How the opening of a model's stream is tried again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import TypeVar

import structlog

from conductor.errors import ModelError

T = TypeVar("T")
RETRYABLE = frozenset({"rate_limited", "overloaded", "connection"})

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often to try again, and how long to wait.

    The wait before retry *n* (from 0) is ``base_s * 2**n``, at most ``cap_s``, less up to half of it by
    chance, so that sessions that failed together do not come back together. A service's retry-after is the
    least wait.
    """

    retries: int = 2
    base_s: float = 0.5
    cap_s: float = 8.0

    def wait_s(self, retry: int, retry_after: float | None, random: Random) -> float:
        """Seconds to wait before the given retry."""
        backoff = min(self.base_s * 2.0**retry, self.cap_s) * (1.0 - random.random() / 2)
        return backoff if retry_after is None else max(backoff, retry_after)


@dataclass(frozen=True, slots=True)
class Waiting:
    """The clock (seconds) and the sleep that retries go by; tests pass their own."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


async def with_retries(
    attempt: Callable[[float], Awaitable[T]],
    *,
    deadline_s: float,
    random: Random,
    policy: RetryPolicy = RetryPolicy(),
    waiting: Waiting = Waiting(),
) -> T:
    """Give what ``attempt`` gives, trying again while its `ModelError` is worth it.

    ``attempt`` is given the seconds that are left of ``deadline_s``, is cut off when they are over, and
    must let go of what it holds when it fails or is cancelled. It must end with the stream's first event:
    what comes after cannot be tried again. A wait that would go beyond the deadline is not begun: the error
    is raised at once. Raises the last `ModelError`; ``timeout`` if the deadline passed during an attempt.
    """
    end = waiting.clock() + deadline_s
    retry = 0
    while True:
        left = end - waiting.clock()
        try:
            return await _bounded(attempt, left)
        except ModelError as error:
            wait = policy.wait_s(retry, error.retry_after, random)
            if error.reason not in RETRYABLE or retry >= policy.retries or wait >= end - waiting.clock():
                raise
            retry += 1
            log.info("model.retry", reason=error.reason, retry=retry, wait_s=round(wait, 3))
        await waiting.sleep(wait)


async def _bounded(attempt: Callable[[float], Awaitable[T]], left: float) -> T:
    try:
        async with asyncio.timeout(left):
            return await attempt(left)
    except TimeoutError:
        raise ModelError("timeout", "The model service did not answer in time.") from None
