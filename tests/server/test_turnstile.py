"""Dear work goes through one at a time, in order, and in between everybody else goes on."""

from __future__ import annotations

import asyncio

from conductor.server.turnstile import Turnstile


async def passes(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_whoever_comes_alone_does_not_wait() -> None:
    turnstile = Turnstile()
    for _ in range(3):
        entering = turnstile.enter()
        try:
            entering.send(None)
        except StopIteration:
            pass
        else:
            raise AssertionError("it waited")
        await passes(2)


async def test_a_crowd_enters_one_in_a_pass_and_in_order() -> None:
    turnstile, entered, others = Turnstile(), list[int](), 0

    async def come(number: int) -> None:
        await turnstile.enter()
        entered.append(number)

    tasks = [asyncio.create_task(come(number)) for number in range(20)]
    while len(entered) < 20:
        before = len(entered)
        await asyncio.sleep(0)
        others += 1
        assert len(entered) - before <= 1
    assert entered == list(range(20))
    assert others >= 20, "somebody else has had each pass, too"
    await asyncio.gather(*tasks)


async def test_one_that_is_cut_off_holds_up_nobody() -> None:
    turnstile, entered = Turnstile(), list[int]()

    async def come(number: int) -> None:
        await turnstile.enter()
        entered.append(number)

    tasks = [asyncio.create_task(come(number)) for number in range(5)]
    await asyncio.sleep(0)
    tasks[2].cancel()
    await asyncio.wait_for(asyncio.wait(tasks), 5)
    assert entered == [0, 1, 3, 4]
    await passes(3)
    await asyncio.wait_for(turnstile.enter(), 5)
