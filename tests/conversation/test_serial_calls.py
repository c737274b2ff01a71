"""The clock of the calls that a client handles one after the other."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
import uvloop

from conductor.conversation.serial_calls import _UNREAD_S, SerialCallQueue, UnackedEvent
from conductor.rate_limit import STILL_S
from tests.conversation.helpers import VirtualLoop, later
from tests.conversation.test_outbox import make_record

LIMIT = 30.0


def stand_still(seconds: float) -> None:
    """Let time pass in which the process does nothing."""
    cast(VirtualLoop, asyncio.get_running_loop()).clock.now += seconds


class Watch:
    """A lane, and when each of its entries expired, counted from the start."""

    def __init__(self, entries: int) -> None:
        self.began = asyncio.get_running_loop().time()
        self.expired: list[str] = []
        self.after: list[float] = []
        self.call_queue = SerialCallQueue(self._expire)
        self.entries = [UnackedEvent(make_record(number, "call"), LIMIT) for number in range(entries)]
        for entry in self.entries:
            self.call_queue.join(entry)

    def _expire(self, entry: UnackedEvent) -> None:
        self.expired.append(entry.record.event_id)
        self.after.append(asyncio.get_running_loop().time() - self.began)
        self.call_queue.leave(entry)


async def test_each_entry_has_its_time_from_when_it_is_the_first() -> None:
    watch = Watch(3)
    await later(10)
    watch.call_queue.leave(watch.entries[1])
    await watch.call_queue.quiet()
    assert watch.expired == ["e0", "e2"] and watch.after == pytest.approx([30, 60])
    assert not watch.call_queue.ticking


@pytest.mark.parametrize(
    ("still", "expires"),
    [
        (20 + STILL_S - 0.1, 30 + STILL_S - 0.1),  # it was a long piece of work
        (20 + 2.0, 30 + 2.0 + 2.0),
        (20 + 90.0, 30 + 90.0 + LIMIT),
    ],
)
async def test_a_clock_that_goes_off_far_too_late_goes_on(still: float, expires: float) -> None:
    watch = Watch(1)
    await later(10)
    stand_still(still)
    await watch.call_queue.quiet()
    assert watch.expired == ["e0"] and watch.after == pytest.approx([expires])


async def test_what_came_in_the_meantime_is_waited_for() -> None:
    watch = Watch(1)
    await later(29.5)
    stand_still(0.6)
    watch.call_queue.postpone(0.1)
    await watch.call_queue.quiet()
    assert watch.after == pytest.approx([30.1 + _UNREAD_S])


async def test_a_process_that_stands_still_again_and_again_lets_calls_expire() -> None:
    watch = Watch(1)
    active = 0.0
    while not watch.expired:
        stand_still(2.0)
        watch.call_queue.postpone(2.0)
        await later(1.0)
        active += 1.0
    assert active == pytest.approx(LIMIT, abs=2.0)


async def test_only_the_first_has_more_time() -> None:
    watch = Watch(2)
    await later(10)
    watch.call_queue.restart(watch.entries[1])
    await later(10)
    watch.call_queue.restart(watch.entries[0])
    await later(10)
    watch.call_queue.postpone(5)
    await watch.call_queue.quiet()
    watch.call_queue.postpone(5)
    assert watch.expired == ["e0", "e1"] and watch.after == pytest.approx([55, 85])
    assert not watch.call_queue.ticking


def test_an_entry_without_time_expires_and_may_be_given_some_in_uvloop_too() -> None:
    async def scenario() -> None:
        expired: list[UnackedEvent] = []

        def expire(entry: UnackedEvent) -> None:
            expired.append(entry)
            call_queue.leave(entry)

        call_queue = SerialCallQueue(expire)
        first, second = UnackedEvent(make_record(1, "call"), 0.0), UnackedEvent(make_record(2, "call"), 0.0)
        call_queue.join(first)
        await call_queue.quiet()
        call_queue.join(second)
        call_queue.postpone(LIMIT)
        await asyncio.sleep(0)
        assert expired == [first] and call_queue.ticking
        call_queue.clear()

    uvloop.run(scenario())
