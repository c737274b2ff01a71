"""Retries end in time, and with their task, even if a library swallows the cancellation."""

from __future__ import annotations

import asyncio
import time

import pytest

from conductor.errors import StoreUnavailable
from conductor.stores.base import retry
from tests.stand_ins.programs import WAIT


async def swallow() -> None:
    """Turn a cancellation into an error, as redis-py sometimes does."""
    try:
        await asyncio.sleep(WAIT)
    except asyncio.CancelledError:
        raise ConnectionError("it was closed") from None


async def test_retries_end_in_time() -> None:
    with pytest.raises(StoreUnavailable, match="cannot be used: it was closed"):
        await asyncio.wait_for(retry(swallow, 0.01, (OSError,), str), WAIT)


async def test_retries_end_with_their_task() -> None:
    retrying = asyncio.create_task(retry(swallow, WAIT, (OSError,), str))
    await asyncio.sleep(0)
    retrying.cancel()
    await asyncio.wait([retrying], timeout=WAIT)
    assert retrying.cancelled()


async def test_an_answer_that_swallows_the_cancellation_ends_its_task_too() -> None:
    async def answers() -> str:
        try:
            return await asyncio.sleep(WAIT, "late")
        except asyncio.CancelledError:  # as `asyncio.wait_for` of Python 3.11 does when its answer is there
            return "stored"

    async def work() -> None:
        for _ in range(2):
            await retry(answers, WAIT, (OSError,), str)

    working = asyncio.create_task(work())
    await asyncio.sleep(0)
    working.cancel()
    await asyncio.wait([working], timeout=WAIT)
    assert working.cancelled()


async def test_an_answer_at_the_time_limit_counts() -> None:
    async def answers() -> str:
        try:
            return await asyncio.sleep(WAIT, "late")
        except asyncio.CancelledError:
            return "stored"

    assert await retry(answers, 0.01, (OSError,), str) == "stored"


async def test_a_suspended_process_reads_the_answer() -> None:
    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    started = asyncio.Event()

    async def send() -> str:
        started.set()
        return await asyncio.shield(answer)

    retrying = asyncio.create_task(retry(send, 0.1, (OSError,), str))
    await started.wait()
    time.sleep(0.5)  # noqa: ASYNC251 -- the whole process stands still
    asyncio.get_running_loop().call_later(0.001, answer.set_result, "stored")
    assert await asyncio.wait_for(retrying, WAIT) == "stored"
