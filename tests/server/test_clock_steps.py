"""The wall clock is set forward and back under turns, cards, calls and takeovers: no deadline moves."""

from __future__ import annotations

import asyncio
import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from conductor import clock
from conductor.messages import ToolCall, ToolResult
from conductor.models.base import ModelRequest, TextDelta
from conductor.plugins.stores.sqlite import SqliteStore
from tests.app import App
from tests.models import Script
from tests.server.nodes import Shelf, node, two_nodes, words

HOUR_S = 3600.0
STEPS_S = (HOUR_S, -HOUR_S, 24 * HOUR_S, -24 * HOUR_S)
LIMIT_S = 0.1
"""The time limit of the tool that never answers."""


def declared(name: str, effect: str, **meta: Any) -> dict[str, Any]:
    return {
        "name": name,
        "inputSchema": {"type": "object", "properties": {"number": {"type": "integer"}}},
        "annotations": {"readOnlyHint": effect == "read", "destructiveHint": False},
        "_meta": {"conductor": meta},
    }


TOOLS = [
    declared("lamp.read", "read"),
    declared("lamp.write", "write", approval="ask"),
    declared("lamp.mute", "read", timeoutMs=round(LIMIT_S * 1000)),
]
CAPABILITIES = ["tools", "approval", "resume"]


class Wall:
    """The wall clock of this process, which can be set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch, self._offset_s = monkeypatch, 0.0
        seconds, nanoseconds = time.time, time.time_ns
        monkeypatch.setattr(time, "time", lambda: seconds() + self._offset_s)
        monkeypatch.setattr(time, "time_ns", lambda: nanoseconds() + round(self._offset_s * 1e9))

    def step(self, seconds: float) -> None:
        self._offset_s += seconds

    def start_process(self) -> None:
        """Read the wall clock as the start of another process does."""
        self._patch.setattr(clock, "_STARTED_NS", time.time_ns() - time.monotonic_ns())


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Wall:
    return Wall(monkeypatch)


class Phone:
    """An app whose person, model and device wait for the test at each point."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.answer = asyncio.Event()
        self.app = App(
            tools={"lamp.read": self._answer, "lamp.write": self._answer},
            start_fields={"capabilities": CAPABILITIES, "tools": TOOLS},
        )

    async def _answer(self, arguments: dict[str, Any]) -> str:
        await self.answer.wait()
        return "done"

    def reply(self, request: ModelRequest) -> Script:
        """Do as the person said: talk, call a tool, or report its outcome."""
        text = words(request)[-1]
        act, _, number = text.partition(" ")
        last = request.messages[-1]
        if isinstance(last, ToolResult):
            outcome = json.loads(last.content)
            return [TextDelta(f"{number}: {outcome['data'] or outcome['error_type']}")]
        if act == "talk":
            return [TextDelta(f"{number}: one, "), self.go, TextDelta("two")]
        return [ToolCall("c", f"lamp.{act}", json.dumps({"number": int(number)}))]

    async def act(self, act: str, number: int, step: Any) -> str:
        """Let the person say something, call ``step`` in the middle, and give the end of the final."""
        app, since = self.app, len(self.app.log)
        self.go.clear()
        self.answer.clear()
        app.say(f"{act} {number}")
        await app.until(MIDDLE[act], since=since)
        await step()
        if act == "write":
            card = app.events("approval.request", since)[-1]
            app.decide_card(card, "allow")
            await app.until("lamp.write", since=since)
            await step()
        self.go.set()
        self.answer.set()
        final = await app.until("assistant.speech.final", since=since)
        return str(final["payload"]["text"]).removeprefix(f"{number}: ")


MIDDLE = {
    "talk": "assistant.speech.partial",
    "read": "lamp.read",
    "write": "approval.request",
    "mute": "lamp.mute",
}
EXPECTED = {"talk": "one, two", "read": "done", "write": "done", "mute": "unknown"}


def shelf_at(path: Path) -> Shelf:
    return Shelf(lambda: SqliteStore(path / "sessions.db"), path / "sessions.db")


@pytest.mark.parametrize(("seed", "acts"), [(7, 8), pytest.param(8, 400, marks=pytest.mark.extended)])
async def test_steps_of_the_clock_end_nothing_and_hold_nothing_up(
    wall: Wall, tmp_path: Path, seed: int, acts: int
) -> None:
    rng, phone = random.Random(seed), Phone()
    wrong = []

    async def step() -> None:
        wall.step(rng.choice(STEPS_S))

    async with node(shelf_at(tmp_path).make(), phone.reply) as a:
        phone.app.url = a.url
        async with phone.app:
            for number in range(acts):
                act = list(EXPECTED)[number % 4]
                text = await phone.act(act, number, step)
                if text != EXPECTED[act]:
                    wrong.append((number, act, text))
                await a.quiet()
    assert not wrong, f"seed {seed}"


@pytest.mark.parametrize("seconds", STEPS_S)
async def test_a_takeover_by_a_process_with_another_clock_goes_on(
    wall: Wall, tmp_path: Path, seconds: float
) -> None:
    phone, shelf = Phone(), shelf_at(tmp_path)
    async with two_nodes(shelf, phone.reply, phone.reply) as (a, b):
        targets = [b, a]
        phone.app.url = a.url
        async with phone.app:

            async def take_over() -> None:
                wall.step(seconds)
                wall.start_process()
                await phone.app.cut()
                phone.app.url = targets[0].url
                targets.reverse()
                await phone.app.open()

            for number, act in enumerate(EXPECTED):
                assert await phone.act(act, number, take_over) == EXPECTED[act]
