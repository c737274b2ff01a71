"""The rate limit of a connection's events: waits, floods and bursts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from conductor.server.websocket import EventRate
from conductor.settings import Limits
from tests.session.helpers import run


async def times_of(rate: EventRate, sizes: Sequence[int]) -> list[float]:
    """Admit events one after the other; returns the seconds that each waited."""
    now, times = asyncio.get_running_loop().time, list[float]()
    for size in sizes:
        began = now()
        assert await rate.admit(size)
        times.append(now() - began)
    return times


def test_a_flood_ends_after_a_pause_and_the_next_one_is_reported() -> None:
    async def flood_twice() -> None:
        waits: list[float] = []
        limits = Limits(frames_per_second=50.0, frames_burst=1.0, flood_pause=0.2, flood_timeout=0.0)
        rate = EventRate(limits, waits.append)
        for floods in (1, 2):
            await times_of(rate, [100] * 2)
            assert len(waits) == floods
            await asyncio.sleep(2 * limits.flood_pause)
        await times_of(rate, [100] * 2)
        assert not await rate.admit(100), "the flood has gone on for longer than it may"

    run(flood_twice())


async def test_bursts_of_several_connections_alternate() -> None:
    rates = [EventRate(Limits(frames_in_a_row=2.0), lambda _: None) for _ in range(4)]
    admitted: list[int] = []

    async def burst(number: int) -> None:
        for _ in range(10):
            assert await rates[number].admit(100)
            admitted.append(number)

    await asyncio.gather(*map(burst, range(4)))
    assert admitted[:8] == [0, 0, 1, 1, 2, 2, 3, 3], "a few in a row"
    tail = admitted[8:]
    assert all(sorted(tail[start : start + 4]) == [0, 1, 2, 3] for start in range(0, len(tail), 4))


def test_invalid_frames_cost_more() -> None:
    async def send() -> None:
        limits = Limits(frames_per_second=50.0, frames_burst=40.0, flood_cost=1.0)
        rate = EventRate(limits, lambda _: None)
        for _ in range(2):
            assert await times_of(rate, [100]) == [0]
            rate.refuse()
        (waited,) = await times_of(rate, [100])
        assert waited > 0.01

    run(send())
