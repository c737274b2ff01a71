"""Waiting calls: answered once, forgotten however the wait ends."""

from __future__ import annotations

import asyncio

import pytest

from conductor.tools.base import succeeded
from conductor.tools.device import PendingCalls

WAIT = 5.0


async def test_whoever_waits_gets_the_answer() -> None:
    pending = PendingCalls()
    pending.expect("c-1")
    waiting = asyncio.create_task(pending.wait("c-1"))
    outcome = succeeded("x")
    assert pending.answer("c-1", outcome) is True
    assert await asyncio.wait_for(waiting, WAIT) is outcome
    assert len(pending) == 0


async def test_an_answer_may_come_before_anybody_waits() -> None:
    pending = PendingCalls()
    pending.expect("c-1")
    outcome = succeeded("x")
    assert pending.answer("c-1", outcome)
    assert await asyncio.wait_for(pending.wait("c-1"), WAIT) is outcome


async def test_answers_reach_each_its_own() -> None:
    pending = PendingCalls()
    names = [f"c-{number}" for number in range(5)]
    for name in names:
        pending.expect(name)
    waiting = [asyncio.create_task(pending.wait(name)) for name in names]
    for name in reversed(names):
        pending.answer(name, succeeded(name))
    outcomes = await asyncio.wait_for(asyncio.gather(*waiting), WAIT)
    assert [outcome.data for outcome in outcomes] == names and len(pending) == 0


async def test_a_repeated_answer_is_told_and_changes_nothing() -> None:
    pending = PendingCalls()
    pending.expect("c-1")
    assert pending.answer("c-1", succeeded("first"))
    assert pending.answer("c-1", succeeded("second")) is False
    assert (await asyncio.wait_for(pending.wait("c-1"), WAIT)).data == "first"


async def test_an_unknown_and_a_late_answer_are_told() -> None:
    pending = PendingCalls()
    assert pending.answer("c-1", succeeded("x")) is False
    pending.expect("c-1")
    pending.forget("c-1")
    assert pending.answer("c-1", succeeded("x")) is False and len(pending) == 0


async def test_a_cancelled_wait_is_forgotten() -> None:
    pending = PendingCalls()
    pending.expect("c-1")
    waiting = asyncio.create_task(pending.wait("c-1"))
    await asyncio.wait([waiting], timeout=0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(waiting, WAIT)
    assert len(pending) == 0 and pending.answer("c-1", succeeded("x")) is False


async def test_a_wait_that_runs_out_of_time_is_forgotten() -> None:
    pending = PendingCalls()
    pending.expect("c-1")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await pending.wait("c-1")
    assert len(pending) == 0


async def test_forgetting_wakes_whoever_waits() -> None:
    pending = PendingCalls()
    pending.expect("c-1")
    waiting = asyncio.create_task(pending.wait("c-1"))
    await asyncio.wait([waiting], timeout=0)
    pending.forget("c-1")
    pending.forget("c-1")
    await asyncio.wait([waiting], timeout=WAIT)
    assert waiting.cancelled()


async def test_a_call_that_nobody_expects_cannot_be_waited_for() -> None:
    with pytest.raises(KeyError):
        await PendingCalls().wait("c-1")
