"""Opening a stream is retried after a passing failure, within the turn's time."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from random import Random

import pytest

from conductor.errors import ModelError, ModelFailure
from conductor.plugins.models.streaming import with_retries


class Attempts:
    """Fails with each error in turn, then succeeds. ``starts`` are the seconds at which attempts began."""

    def __init__(self, *errors: ModelError) -> None:
        self._errors = list(errors)
        self.starts: list[float] = []

    async def __call__(self) -> str:
        self.starts.append(asyncio.get_running_loop().time())
        if self._errors:
            raise self._errors.pop(0)
        return "open"

    @property
    def waits(self) -> list[float]:
        return [end - start for start, end in pairwise(self.starts)]


def error(reason: ModelFailure, retry_after: float | None = None) -> ModelError:
    return ModelError(reason, "It failed.", retry_after=retry_after)


async def run(attempts: Attempts, deadline_s: float = 60.0, seed: int = 7) -> str:
    return await with_retries(attempts, deadline_s, random=Random(seed))


@pytest.mark.parametrize("reason", ["rate_limited", "overloaded", "connection", "undecodable"])
async def test_a_passing_failure_is_retried_twice_with_longer_waits(reason: ModelFailure) -> None:
    firsts = set()
    for seed in range(20):
        attempts = Attempts(error(reason), error(reason))
        assert await run(attempts, seed=seed) == "open"
        first, second = attempts.waits
        assert 0.25 <= first <= 0.5 <= second <= 1.0
        firsts.add(first)
    assert len(firsts) == 20, "sessions that fail together do not retry together"
    attempts = Attempts(*[error(reason)] * 3)
    with pytest.raises(ModelError):
        await run(attempts)
    assert len(attempts.starts) == 3


@pytest.mark.parametrize("reason", ["authentication", "timeout", "context_too_long", "refused", "protocol"])
async def test_a_lasting_failure_is_raised_at_once(reason: ModelFailure) -> None:
    attempts = Attempts(error(reason))
    with pytest.raises(ModelError):
        await run(attempts)
    assert len(attempts.starts) == 1


@pytest.mark.parametrize(("retry_after", "least"), [(2.5, 2.5), (0.0, 0.25)])
async def test_a_wait_is_at_least_the_services_retry_after(retry_after: float, least: float) -> None:
    attempts = Attempts(error("rate_limited", retry_after))
    await run(attempts)
    assert least <= attempts.waits[0] <= max(least, 0.5)


@pytest.mark.parametrize(("retry_after", "deadline_s", "count"), [(2.5, 2.5, 1), (None, 0.6, 2)])
async def test_a_wait_that_would_pass_the_deadline_does_not_begin(
    retry_after: float | None, deadline_s: float, count: int
) -> None:
    attempts = Attempts(*[error("overloaded", retry_after)] * 3)
    with pytest.raises(ModelError) as caught:
        await run(attempts, deadline_s)
    assert (caught.value.retry_after, len(attempts.starts)) == (retry_after, count)
    assert asyncio.get_running_loop().time() - attempts.starts[0] < deadline_s


async def test_a_service_that_names_a_long_rest_is_not_waited_for() -> None:
    attempts = Attempts(error("overloaded", 3.1))
    with pytest.raises(ModelError):
        await run(attempts)
    assert len(attempts.starts) == 1
