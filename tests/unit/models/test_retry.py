"""Opening a stream is retried after a passing failure, within the turn's time."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from conductor.errors import ModelError, ModelFailure
from conductor.plugins.models.retry import RetryPolicy, with_retries


class Attempts:
    """Fails with each error in turn, then succeeds. ``starts`` are the seconds at which attempts began."""

    def __init__(self, *errors: ModelError) -> None:
        self._errors = list(errors)
        self.remaining: list[float] = []
        self.starts: list[float] = []

    async def __call__(self, remaining: float) -> str:
        self.remaining.append(remaining)
        self.starts.append(asyncio.get_running_loop().time())
        if self._errors:
            raise self._errors.pop(0)
        return "open"

    @property
    def waits(self) -> list[float]:
        return [end - start for start, end in zip(self.starts, self.starts[1:], strict=False)]


async def run(attempts: Attempts, deadline_s: float = 60.0, seed: int = 7) -> str:
    return await with_retries(attempts, deadline_s=deadline_s, random=Random(seed))


def error(reason: ModelFailure, retry_after: float | None = None) -> ModelError:
    return ModelError(reason, "It failed.", retry_after=retry_after)


@pytest.mark.parametrize("reason", ["rate_limited", "overloaded", "connection", "undecodable"])
async def test_a_passing_failure_is_retried_twice_with_longer_waits(reason: ModelFailure) -> None:
    attempts = Attempts(error(reason), error(reason))
    assert await run(attempts) == "open"
    first, second = attempts.waits
    assert 0.25 <= first <= 0.5
    assert 0.5 <= second <= 1.0


async def test_a_third_failure_is_raised() -> None:
    attempts = Attempts(*[error("overloaded")] * 3)
    with pytest.raises(ModelError) as caught:
        await run(attempts)
    assert caught.value.reason == "overloaded"
    assert len(attempts.starts) == 3


@pytest.mark.parametrize("reason", ["authentication", "timeout", "context_too_long", "refused", "protocol"])
async def test_a_lasting_failure_is_raised_at_once(reason: ModelFailure) -> None:
    attempts = Attempts(error(reason))
    with pytest.raises(ModelError):
        await run(attempts)
    assert len(attempts.starts) == 1


@pytest.mark.parametrize(("retry_after", "least"), [(7.0, 7.0), (0.0, 0.25)])
async def test_a_wait_is_at_least_the_services_retry_after(retry_after: float, least: float) -> None:
    attempts = Attempts(error("rate_limited", retry_after))
    await run(attempts)
    assert least <= attempts.waits[0] <= max(least, 0.5)
    assert attempts.remaining == pytest.approx([60.0, 60.0 - attempts.waits[0]])


@pytest.mark.parametrize(("retry_after", "deadline_s", "count"), [(7.0, 7.0, 1), (None, 0.6, 2)])
async def test_a_wait_that_would_pass_the_deadline_does_not_begin(
    retry_after: float | None, deadline_s: float, count: int
) -> None:
    attempts = Attempts(*[error("overloaded", retry_after)] * 3)
    begin = asyncio.get_running_loop().time()
    with pytest.raises(ModelError) as caught:
        await run(attempts, deadline_s=deadline_s)
    assert caught.value.retry_after == retry_after
    assert len(attempts.starts) == count
    assert asyncio.get_running_loop().time() - begin < deadline_s


async def test_an_attempt_that_outlasts_the_deadline_is_cut_off() -> None:
    async def never(_: float) -> None:
        await asyncio.Event().wait()

    with pytest.raises(ModelError) as caught:
        await with_retries(never, deadline_s=30.0, random=Random(7))
    assert caught.value.reason == "timeout"


async def test_sessions_that_fail_together_do_not_come_back_together() -> None:
    waits = set()
    for seed in range(20):
        attempts = Attempts(error("overloaded"))
        await run(attempts, seed=seed)
        waits.add(attempts.waits[0])
    assert len(waits) == 20


def test_only_the_services_retry_after_exceeds_the_cap() -> None:
    policy = RetryPolicy(retries=20, cap_s=8.0)
    assert 4.0 <= policy.wait_s(20, None, Random(7)) <= 8.0
    assert policy.wait_s(20, 9.0, Random(7)) == 9.0
