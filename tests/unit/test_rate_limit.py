"""Token buckets, and the admission of expensive work."""

from __future__ import annotations

import asyncio
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from conductor.rate_limit import Admission, SharedRate, TokenBucket

# Powers of two, so that no sum or quotient is rounded.
RATES = st.sampled_from([0.25, 1.0, 8.0, 64.0])
BURSTS = st.sampled_from([1.0, 2.0, 5.0, 16.0])
PAUSES = st.integers(0, 256).map(lambda ticks: ticks / 64)
COSTS = st.sampled_from([0.5, 1.0, 2.0, 5.0])
TAKES = st.lists(st.tuples(PAUSES, COSTS), min_size=1, max_size=25)


# -- token buckets


def test_the_burst_is_allowed_at_once() -> None:
    bucket = TokenBucket(2.0, 5.0, now=100.0)
    assert [bucket.take(100.0) for _ in range(5)] == [0.0] * 5
    assert bucket.take(100.0) == 0.5


def test_a_clock_that_is_set_back_takes_no_tokens_away() -> None:
    bucket = TokenBucket(2.0, 5.0, now=10_000.0)
    assert bucket.take(10_000.0) == 0.0
    assert [bucket.take(6_400.0) for _ in range(4)] == [0.0] * 4
    assert bucket.deficit(2_800.0) == 5.0
    assert bucket.take(6_400.5) == 0.0


def test_returned_tokens_may_be_taken_again_up_to_the_burst() -> None:
    bucket = TokenBucket(1.0, 2.0, now=0.0)
    assert bucket.take(0.0, 2.0) == 0.0
    bucket.give_back()
    assert bucket.take(0.0) == 0.0
    assert bucket.take(0.0) == 1.0
    bucket.give_back(100.0)
    assert bucket.take(0.0, 2.0) == 0.0
    assert bucket.take(0.0) == 1.0


def test_a_cost_above_the_burst_waits_for_a_full_bucket() -> None:
    bucket = TokenBucket(2.0, 4.0, now=0.0)
    assert bucket.take(0.0, 3.0) == 0.0
    assert bucket.take(0.0, 100.0) == 1.5
    assert bucket.take(1.0, 100.0) == 0.5
    assert bucket.take(1.5, 100.0) == 0.0


def test_reservations_are_served_in_order() -> None:
    bucket = TokenBucket(2.0, 4.0, now=0.0)
    assert [bucket.reserve(0.0) for _ in range(4)] == [0.0] * 4, "the burst"
    assert [bucket.reserve(0.0) for _ in range(4)] == [0.5, 1.0, 1.5, 2.0]
    assert bucket.reserve(1.0, 2.0) == 2.0, "behind all of them"
    assert max(bucket.reserve(1.0) for _ in range(100)) == 2.5, "a burst of debt, and one"


async def test_expensive_work_is_admitted_in_order_a_few_pieces_per_pass() -> None:
    admission, entered = Admission(pieces=2), list[int]()

    async def come(number: int) -> None:
        await admission.enter()
        entered.append(number)

    tasks = [asyncio.create_task(come(number)) for number in range(20)]
    while len(entered) < 20:
        before = len(entered)
        await asyncio.sleep(0)
        assert len(entered) - before <= 2
    assert entered == list(range(20))
    await asyncio.gather(*tasks)


async def test_cancelled_work_does_not_block_the_queue() -> None:
    admission, entered = Admission(pieces=1), list[int]()

    async def come(number: int) -> None:
        await admission.enter()
        entered.append(number)

    tasks = [asyncio.create_task(come(number)) for number in range(5)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    tasks[2].cancel()
    await asyncio.wait_for(asyncio.wait(tasks), 5)
    assert entered == [1, 3, 4]
    await asyncio.wait_for(admission.enter(), 5)


@given(RATES, BURSTS, TAKES)
def test_no_period_allows_more_than_the_burst_and_the_rate(
    rate: float, burst: float, takes: list[tuple[float, float]]
) -> None:
    bucket = TokenBucket(rate, burst, now=0.0)
    times = list(accumulate(pause for pause, _ in takes))
    costs = [min(cost, burst) for _, cost in takes]
    granted = [(now, cost) for now, cost in zip(times, costs, strict=True) if bucket.take(now, cost) == 0.0]
    for first, (start, _) in enumerate(granted):
        through = 0.0
        for now, cost in granted[first:]:
            through += cost
            assert through <= burst + rate * (now - start)


@given(RATES, BURSTS, TAKES)
def test_the_returned_wait_is_exact(rate: float, burst: float, takes: list[tuple[float, float]]) -> None:
    bucket = TokenBucket(rate, burst, now=0.0)
    now = 0.0
    for pause, cost in takes:
        now += pause
        cost = min(cost, burst)
        wait = bucket.take(now, cost)
        assert 0.0 <= wait <= burst / rate
        if wait:
            assert bucket.take(now + wait / 2, cost) == wait / 2, "too early"
            assert bucket.take(now + wait, cost) == 0.0
            now += wait


# -- what several sessions share


def test_a_shared_rate_takes_from_all_buckets_or_does_not_take() -> None:
    shared = TokenBucket(1.0, 3.0, now=0.0)
    first, second = (SharedRate(TokenBucket(0.5, 2.0, now=0.0), shared) for _ in range(2))
    assert [first.take(0.0) for _ in range(3)] == [0.0, 0.0, 2.0], "its own are used up"
    assert [second.take(0.0) for _ in range(2)] == [0.0, 1.0], "the shared ones are"
    assert second.wait(1.0) == 0.0 and second.take(1.0) == 0.0, "the refusal took nothing"
    assert second.take(1.0) == 1.0
    second.give_back()
    assert second.take(1.0) == 0.0
