"""Tests of trying to open a stream again."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from conductor.errors import ModelError, ModelFailure
from conductor.models.retry import RetryClock, RetryPolicy, with_retries


class Clock:
    """A clock that only sleeping moves, and what was slept."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class Attempts:
    """Fails with each error in turn, then succeeds."""

    def __init__(self, *errors: ModelError) -> None:
        self.errors = list(errors)
        self.left: list[float] = []

    async def __call__(self, left: float) -> str:
        self.left.append(left)
        if self.errors:
            raise self.errors.pop(0)
        return "open"


async def run(attempts: Attempts, clock: Clock, deadline_s: float = 60.0, seed: int = 7) -> str:
    return await with_retries(
        attempts,
        deadline_s=deadline_s,
        random=Random(seed),
        policy=RetryPolicy(),
        waiting=RetryClock(clock, clock.sleep),
    )


def error(reason: ModelFailure, retry_after: float | None = None) -> ModelError:
    return ModelError(reason, "It failed.", retry_after=retry_after)


async def test_a_success_is_not_waited_for() -> None:
    clock = Clock()
    assert await run(Attempts(), clock) == "open"
    assert clock.slept == []


@pytest.mark.parametrize("reason", ["rate_limited", "overloaded", "connection", "undecodable"])
async def test_a_passing_failure_is_tried_again_twice_with_longer_waits(reason: ModelFailure) -> None:
    clock, attempts = Clock(), Attempts(error(reason), error(reason))
    assert await run(attempts, clock) == "open"
    first, second = clock.slept
    assert 0.25 <= first <= 0.5
    assert 0.5 <= second <= 1.0


async def test_a_third_failure_is_raised() -> None:
    clock, attempts = Clock(), Attempts(*[error("overloaded")] * 3)
    with pytest.raises(ModelError) as caught:
        await run(attempts, clock)
    assert caught.value.reason == "overloaded"
    assert len(attempts.left) == 3


@pytest.mark.parametrize("reason", ["authentication", "timeout", "context_too_long", "refused", "protocol"])
async def test_a_lasting_failure_is_raised_at_once(reason: ModelFailure) -> None:
    clock, attempts = Clock(), Attempts(error(reason))
    with pytest.raises(ModelError):
        await run(attempts, clock)
    assert len(attempts.left) == 1
    assert clock.slept == []


async def test_the_service_s_retry_after_is_kept_to() -> None:
    clock, attempts = Clock(), Attempts(error("rate_limited", 7.0))
    assert await run(attempts, clock) == "open"
    assert clock.slept == [7.0]


async def test_a_retry_after_longer_than_what_is_left_fails_at_once() -> None:
    clock, attempts = Clock(), Attempts(error("rate_limited", 7.0))
    with pytest.raises(ModelError) as caught:
        await run(attempts, clock, deadline_s=7.0)
    assert caught.value.retry_after == 7.0
    assert clock.slept == []


async def test_no_wait_begins_that_would_pass_the_deadline() -> None:
    clock, attempts = Clock(), Attempts(*[error("overloaded")] * 3)
    with pytest.raises(ModelError):
        await run(attempts, clock, deadline_s=0.6)
    assert len(clock.slept) == 1
    assert clock.now - 100.0 < 0.6


async def test_an_attempt_is_told_what_is_left() -> None:
    clock, attempts = Clock(), Attempts(error("rate_limited", 10.0))
    await run(attempts, clock, deadline_s=60.0)
    assert attempts.left == [60.0, 50.0]


async def test_an_attempt_that_outlasts_the_deadline_is_cut_off() -> None:
    async def never(left: float) -> str:
        await asyncio.Event().wait()
        return "never"

    async with asyncio.timeout(5):
        with pytest.raises(ModelError) as caught:
            await with_retries(never, deadline_s=0.02, random=Random(7))
    assert caught.value.reason == "timeout"


async def test_sessions_that_fail_together_do_not_come_back_together() -> None:
    waits = set()
    for seed in range(20):
        clock = Clock()
        await run(Attempts(error("overloaded")), clock, seed=seed)
        waits.add(clock.slept[0])
    assert len(waits) == 20
    assert 0.25 <= min(waits) <= max(waits) <= 0.5


async def test_a_retry_after_of_nothing_is_no_reason_not_to_wait() -> None:
    clock = Clock()
    await run(Attempts(error("rate_limited", 0.0)), clock)
    assert clock.slept[0] >= 0.25


def test_no_wait_is_longer_than_the_cap_but_by_the_services_word() -> None:
    policy = RetryPolicy(retries=20, cap_s=8.0)
    assert 4.0 <= policy.wait_s(20, None, Random(7)) <= 8.0
    assert policy.wait_s(20, 9.0, Random(7)) == 9.0
