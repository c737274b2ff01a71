"""Retries for opening a model's stream."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import TypeVar

import structlog

from conductor.errors import ModelError
from conductor.models.failures import RETRYABLE, failure

T = TypeVar("T")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The number of retries, and their delays in seconds.

    The delay before retry *n* (from 0) is ``base_s * 2**n``, at most ``cap_s``, less a random part of up to
    half, so that sessions do not retry together. It is never shorter than the service's retry-after.
    """

    retries: int = 2
    base_s: float = 0.5
    cap_s: float = 8.0

    def wait_s(self, retry: int, retry_after: float | None, random: Random) -> float:
        """Give the delay before a retry."""
        backoff = min(self.base_s * 2.0**retry, self.cap_s) * (1.0 - random.random() / 2)
        return backoff if retry_after is None else max(backoff, retry_after)


async def with_retries(
    attempt: Callable[[float], Awaitable[T]],
    *,
    deadline_s: float,
    random: Random,
    policy: RetryPolicy = RetryPolicy(),
) -> T:
    """Return the result of ``attempt``, retrying while its `ModelError` is retryable.

    ``attempt`` gets the seconds left of ``deadline_s``, and is cancelled after them. It must release its
    resources when it fails, and end with the stream's first event. If the delay would exceed the deadline,
    the error is raised at once. Raises the last `ModelError`; ``timeout`` if an attempt passes the deadline.
    """
    now = asyncio.get_running_loop().time
    end = now() + deadline_s
    retry = 0
    while True:
        remaining = end - now()
        try:
            async with asyncio.timeout(remaining):
                return await attempt(remaining)
        except TimeoutError:
            raise failure("timeout") from None
        except ModelError as error:
            # If the wait would outlast the turn, the person hears the apology at once.
            wait = policy.wait_s(retry, error.retry_after, random)
            if error.reason not in RETRYABLE or retry >= policy.retries or wait >= end - now():
                raise
            retry += 1
            log.info("model request retried", reason=error.reason, retry=retry, wait_s=round(wait, 3))
        await asyncio.sleep(wait)
