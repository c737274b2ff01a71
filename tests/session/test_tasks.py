"""No task outlives its session."""

from __future__ import annotations

import asyncio

from tests.session.helpers import later, make_services, open_session, steps


async def test_a_finished_task_is_forgotten() -> None:
    session = await open_session(make_services())
    task = session.spawn(steps(3))
    assert session.tasks == {task}
    await task
    await steps(1)
    assert not session.tasks


async def test_closing_cancels_running_tasks_and_waits_for_them() -> None:
    session, ended = await open_session(make_services()), []

    async def slow_to_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await later(2)
            ended.append(True)

    session.spawn(slow_to_end())
    await steps(1)
    await session.close()
    assert ended == [True]


async def test_closing_has_a_time_limit() -> None:
    session, go = await open_session(make_services(close_timeout=0.05)), asyncio.Event()

    async def stubborn() -> None:
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue

    task = session.spawn(stubborn())
    await steps(1)
    await session.close()
    assert not task.done()
    go.set()
    await task


async def test_a_task_may_close_its_own_session() -> None:
    session = await open_session(make_services())
    await session.spawn(session.close())
