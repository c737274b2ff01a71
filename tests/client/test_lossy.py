"""A client with a failing connection against the real server with the demo model."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from conductor.app import make_services, running
from conductor.client import Reconnect, Reconnected, allow, connect
from conductor.messages import UserMessage
from conductor.plugins.models.demo import DemoProvider
from conductor.settings import load_settings

LIMIT_S = 5.0
TURNS = 12
LOOK_UP = {
    "name": "notes.find",
    "description": "Find a note.",
    "inputSchema": {"type": "object", "properties": {"number": {"type": "integer"}}},
}


@pytest.mark.parametrize("reads", [True, False], ids=["reads", "writes"])
@pytest.mark.parametrize("round_", range(3))
async def test_every_text_is_answered_once_and_every_call_runs_once(round_: int, reads: bool) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}, round {round_}")  # noqa: T201 -- shown where the test fails
    chance = random.Random(seed)
    runs: list[int] = []
    back: list[Reconnected] = []
    remaining = chance.randint(1, 12)

    async def find(arguments: dict[str, Any]) -> dict[str, Any]:
        runs.append(arguments["number"])
        for _ in range(chance.choice([0, 20, 200])):
            await asyncio.sleep(0)
        return {"note": f"number {arguments['number']}"}

    def break_off(_event: object) -> None:
        nonlocal remaining
        remaining -= 1
        if remaining == 0:
            remaining = chance.randint(3, 12)
            client.drop()

    settings = load_settings(None, port=0, model_provider="demo")
    async with running(settings, make_services(settings, DemoProvider(0))) as listener:
        async with connect(
            f"ws://127.0.0.1:{listener.port}/ws",
            tools=[{**LOOK_UP, "annotations": {"readOnlyHint": reads}}],
            handlers={"notes.find": find},
            on_approval=lambda _: allow("session"),
            reconnect=Reconnect(first_s=0, most_s=0),
        ) as client:
            client.on("*", break_off)
            client.on(Reconnected, back.append)
            for number in range(TURNS):
                turn = await client.say(f'call notes.find with {{"number": {number}}}')
                result = await turn.wait(LIMIT_S)
                assert result.ok, result
                assert result.text.endswith(f"number {number}.")
            assert back
        (session,) = listener.registry.sessions
        transcripts = [message for message in session.state.log if isinstance(message, UserMessage)]
    assert runs == list(range(TURNS))
    assert len(transcripts) == TURNS
