"""No task outlives its session."""

from __future__ import annotations

import asyncio

from conductor.conversation.tasks import Tasks
from tests.conversation.helpers import later, steps


async def test_a_finished_task_is_forgotten() -> None:
    tasks = Tasks()
    finished_task = tasks.spawn(steps(3))
    assert len(tasks) == 1
    await finished_task
    await steps(1)
    assert len(tasks) == 0
    await tasks.close(5.0)


async def test_closing_cancels_running_tasks_and_waits_for_them() -> None:
    tasks, ended = Tasks(), []

    async def slow_to_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await later(2)
            ended.append(True)

    tasks.spawn(slow_to_end())
    await steps(1)
    await tasks.close(5.0)
    assert ended == [True]
    await steps(1)
    assert len(tasks) == 0


async def test_closing_has_a_time_limit() -> None:
    tasks, go = Tasks(), asyncio.Event()

    async def stubborn() -> None:
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue

    task = tasks.spawn(stubborn())
    await steps(1)
    start = asyncio.get_running_loop().time()
    await tasks.close(5.0)
    assert asyncio.get_running_loop().time() - start <= 5.0
    assert not task.done()
    go.set()
    await task


async def test_a_task_may_close_its_own_session() -> None:
    tasks = Tasks()

    async def closes() -> None:
        await tasks.close(5.0)

    await tasks.spawn(closes())
