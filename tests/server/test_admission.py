"""A connection that sends too fast waits, is told so once, and is closed; a burst takes turns with others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from conductor.server.connection import EventRate
from conductor.settings import Limits


async def times_of(rate: EventRate, sizes: Sequence[int]) -> list[float]:
    """Admit events one after the other; returns the seconds that each waited."""
    now, found = asyncio.get_running_loop().time, list[float]()
    for size in sizes:
        began = now()
        assert await rate.admit(size)
        found.append(now() - began)
    return found


async def test_events_within_the_burst_do_not_wait_and_more_wait_at_the_rate() -> None:
    told: list[float] = []
    rate = EventRate(Limits(frames_per_second=50.0, frames_burst=3.0, flood_cost=1.0), told.append)
    waits = await times_of(rate, [100] * 6)
    assert max(waits[:3]) < 0.01 <= min(waits[3:])
    assert len(told) == 1 and 0.0 < told[0] <= 0.02, "once"


async def test_a_flood_is_over_after_a_pause_and_the_next_is_told_again() -> None:
    told: list[float] = []
    limits = Limits(frames_per_second=50.0, frames_burst=1.0, flood_pause=0.2, flood_timeout=0.0)
    rate = EventRate(limits, told.append)
    for floods in (1, 2):
        await times_of(rate, [100] * 2)
        assert len(told) == floods
        await asyncio.sleep(2 * limits.flood_pause)
    await times_of(rate, [100] * 2)
    assert not await rate.admit(100), "the flood has gone on for longer than it may"


async def test_a_burst_is_admitted_in_turn_with_those_of_others() -> None:
    rates = [EventRate(Limits(frames_in_a_row=2.0), lambda _: None) for _ in range(4)]
    admitted: list[int] = []

    async def burst(number: int) -> None:
        for _ in range(10):
            assert await rates[number].admit(100)
            admitted.append(number)

    await asyncio.gather(*map(burst, range(4)))
    assert admitted[:8] == [0, 0, 1, 1, 2, 2, 3, 3], "a few in a row"
    rest = admitted[8:]
    assert all(sorted(rest[start : start + 4]) == [0, 1, 2, 3] for start in range(0, len(rest), 4))


async def test_frames_that_are_not_valid_use_up_the_rate_sooner() -> None:
    rate = EventRate(Limits(frames_per_second=50.0, frames_burst=40.0, flood_cost=1.0), lambda _: None)
    for _ in range(2):
        assert max(await times_of(rate, [100])) < 0.01
        rate.refuse()
    assert min(await times_of(rate, [100])) > 0.01
