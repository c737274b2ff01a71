"""How fast one client's long lists of tools are taken."""

from __future__ import annotations

import asyncio

import pytest

from conductor.models.scripted import ScriptedProvider
from conductor.server.connection import DEAR_BYTES
from conductor.server.pace import DECLARATIONS_AT_ONCE, DECLARATIONS_PER_SECOND, Pace, Rush
from conductor.settings import Limits
from tests.conversation.helpers import run
from tests.end_to_end.conftest import serving
from tests.server.wires import WAIT


def test_long_lists_of_tools_are_taken_at_once_at_first_and_then_at_a_steady_rate() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        pace, began = Pace(Limits(), Rush(), lambda wait: None), loop.time()
        for _ in range(DECLARATIONS_AT_ONCE):
            await pace.admit_declaration()
        assert loop.time() == began
        for number in range(1, 4):
            await pace.admit_declaration()
            assert loop.time() - began == pytest.approx(number / DECLARATIONS_PER_SECOND)

    run(scenario())


async def test_long_lists_that_are_declared_later_are_slowed_down_and_short_ones_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    admitted, waits = asyncio.Event(), asyncio.Event()

    async def admit(pace: Pace) -> None:
        waits.set()
        await admitted.wait()

    monkeypatch.setattr(Pace, "admit_declaration", admit)
    many = [{"name": f"lamp.{number}", "description": "x" * 100} for number in range(DEAR_BYTES // 100)]
    async with serving(ScriptedProvider([])) as served:
        async with served.phone(start_fields={"capabilities": ["tools"], "tools": many}) as phone:

            def answered() -> int:
                return [event["type"] for event in phone.log].count("tools.changed")

            await phone.send("session.update", {"tools": many[:1]})
            await phone.until(lambda _: answered() == 1)
            assert not waits.is_set()
            await phone.send("session.update", {"tools": many})
            await asyncio.wait_for(waits.wait(), WAIT)
            assert answered() == 1
            admitted.set()
            await phone.until(lambda _: answered() == 2)
