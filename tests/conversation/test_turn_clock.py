"""A turn's clock counts machine time only."""

from __future__ import annotations

import asyncio

import pytest

from conductor.conversation.turn_state import TurnClock
from tests.conversation.helpers import later


class Expired:
    """When the clock's time was over."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self) -> None:
        self.times.append(asyncio.get_running_loop().time())


async def test_a_clock_expires_once_and_on_time() -> None:
    expired = Expired()
    clock = TurnClock(120.0, expired)
    assert clock.remaining == 120.0
    clock.start()
    start = asyncio.get_running_loop().time()
    await later(50)
    assert clock.remaining == pytest.approx(70)
    await later(500)
    assert expired.times == [start + 120.0]
    assert clock.remaining == 0.0


async def test_a_stopped_clock_does_not_expire() -> None:
    expired = Expired()
    clock = TurnClock(10.0, expired)
    clock.start()
    await later(4)
    clock.stop()
    clock.stop()
    await later(100)
    assert expired.times == []
    assert clock.remaining == pytest.approx(6)


async def test_a_pause_does_not_count_and_pauses_nest() -> None:
    expired = Expired()
    clock = TurnClock(10.0, expired)
    clock.start()
    await later(4)
    with clock.paused():
        await later(1000)
        with clock.paused():
            await later(1000)
        await later(1000)
        assert clock.remaining == pytest.approx(6)
    start = asyncio.get_running_loop().time()
    await later(100)
    assert expired.times == [pytest.approx(start + 6.0)]


async def test_a_pause_ends_with_an_error_too() -> None:
    expired = Expired()
    clock = TurnClock(10.0, expired)
    clock.start()
    with pytest.raises(ValueError, match="x"), clock.paused():
        raise ValueError("x")
    await later(11)
    assert len(expired.times) == 1


async def test_a_pause_after_the_end_does_not_end_it_again() -> None:
    expired = Expired()
    clock = TurnClock(10.0, expired)
    clock.start()
    await later(11)
    with clock.paused():
        await later(1)
    await later(1)
    assert len(expired.times) == 1
