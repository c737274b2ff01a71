"""How fast one client's long lists of tools are taken."""

from __future__ import annotations

import asyncio

import pytest

from conductor.models.scripted import ScriptedProvider
from conductor.server import pace as pace_module
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


async def test_a_client_that_declares_long_lists_all_the_time_has_to_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pace_module, "DECLARATIONS_AT_ONCE", 1)
    monkeypatch.setattr(pace_module, "DECLARATIONS_PER_SECOND", 0.001)
    many = [{"name": f"lamp.{number}", "description": "x" * 100} for number in range(DEAR_BYTES // 100)]
    async with serving(ScriptedProvider([])) as served:
        async with served.phone(start_fields={"capabilities": ["tools"]}) as phone:
            for _ in range(2):
                await phone.send("session.update", {"tools": many[:1]})
            await phone.send("session.update", {"tools": many})
            await phone.send("session.update", {"tools": many})

            def answered() -> int:
                return [event["type"] for event in phone.log].count("tools.changed")

            await phone.until(lambda _: answered() == 3)
            assert phone._socket is not None
            await asyncio.wait_for(await phone._socket.ping(), WAIT)
            assert answered() == 3, "the short ones and the first long one"
