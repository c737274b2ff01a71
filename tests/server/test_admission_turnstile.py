"""Dear work goes through little by little, in order, and in between everybody else goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from conductor.server.admission import AT_ONCE, STEP_S, Slices, Turnstile


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


@pytest.mark.parametrize("weight", [1.0, 8.0])
async def test_a_turnstile_that_rests_pauses_for_as_long_as_the_work_took(
    monkeypatch: pytest.MonkeyPatch, weight: float
) -> None:
    loop = asyncio.get_running_loop()
    pauses: list[float] = []

    def call_later(pause: float, then: Callable[[], None]) -> None:
        pauses.append(pause)
        loop.call_soon(then)

    monkeypatch.setattr(loop, "call_later", call_later)
    worked = 0.0
    turnstile, entered = Turnstile(rests=True, clock=lambda: worked), list[int]()

    async def come(number: int) -> None:
        nonlocal worked
        await turnstile.enter(weight)
        entered.append(number)
        worked += number / 1024  # of a second

    tasks = [asyncio.create_task(come(number)) for number in range(8)]
    await asyncio.wait(tasks)
    await passes(6)
    assert entered == list(range(8))
    assert pauses == [min(number / 1024, STEP_S) * weight for number in range(8)]
    assert pauses[-1] == STEP_S * weight


async def test_nobody_enters_while_a_turnstile_rests() -> None:
    worked = 0.0
    turnstile = Turnstile(rests=True, clock=lambda: worked)
    await turnstile.enter(10.0)
    worked = 3_600.0
    await passes(2)
    began = asyncio.get_running_loop().time()
    await turnstile.enter()
    assert asyncio.get_running_loop().time() - began > 5 * STEP_S


async def test_slices_of_many_connections_are_parsed_a_few_in_each_pass_and_in_order() -> None:
    slices, parsed = Slices(), list[int]()

    def parse(number: int) -> None:
        parsed.append(number % 10)
        if number < 30:
            slices.add(partial(parse, number + 10))  # there is more of it

    for number in range(10):
        slices.add(partial(parse, number))
    while len(parsed) < 40:
        before = len(parsed)
        await passes(1)
        assert 0 < len(parsed) - before <= AT_ONCE or not before
    assert parsed == list(range(10)) * 4


async def test_a_connection_that_cannot_be_parsed_holds_up_nobody() -> None:
    slices, parsed = Slices(), list[int]()
    loop = asyncio.get_running_loop()
    raised: list[object] = []
    loop.set_exception_handler(lambda _, context: raised.append(context["exception"]))

    def fails() -> None:
        raise ValueError("cannot be parsed")

    slices.add(fails)
    slices.add(lambda: parsed.append(1))
    await passes(4)
    assert parsed == [1] and len(raised) == 1
