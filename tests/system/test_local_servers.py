"""Conversations with a real local model server: calls as text, over both endpoints, and native ones."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from conductor.app import running
from conductor.settings import load_settings
from tests.app import App
from tests.dialogues import begin, decide
from tests.shapes import Event
from tests.stand_ins.local_servers import LocalServer, mlx_server

LAMP = {
    "name": "lamp.switch",
    "description": "Switches the lamp of a room on or off.",
    "inputSchema": {
        "type": "object",
        "properties": {"room": {"type": "string"}, "on": {"type": "boolean"}},
        "required": ["room", "on"],
    },
}
HELLO = "Hello. I can switch the lamps."
PROFILES = """
default = "home"
health_check_s = 0

[[profile]]
name = "home"
provider = "openai"
base_url = "{base_url}"
model = "{model}"
kind = "{kind}"
endpoint = "{endpoint}"
fallback = ["demo"]

[[profile]]
name = "demo"
provider = "demo"
"""


@dataclass(frozen=True)
class Way:
    """The call format, and the API of the server."""

    kind: str
    endpoint: str


WAYS = [Way("text", "chat"), Way("text", "completions"), Way("native", "chat")]


@pytest.fixture(params=WAYS, ids=lambda way: f"{way.kind}-{way.endpoint}")
async def way(request: pytest.FixtureRequest) -> Way:
    assert isinstance(request.param, Way)
    return request.param


@asynccontextmanager
async def phone_of(
    way: Way, folder: Path, tools: dict[str, Callable[[dict[str, Any]], str | None]]
) -> AsyncIterator[tuple[App, LocalServer]]:
    """Run the model's server and ours; give a phone whose lamp can be switched."""
    async with mlx_server(way.kind) as server:
        models = folder / "models.toml"
        models.write_text(
            PROFILES.format(
                base_url=server.base_url, model=server.model, kind=way.kind, endpoint=way.endpoint
            )
        )
        settings = load_settings(None, config_dir=models.parent, port=0, allowed_tools="lamp.switch")
        async with running(settings) as listener:
            async with App(f"ws://127.0.0.1:{listener.port}/ws", "s-1", tools=tools) as phone:
                await begin(phone, "approval", tools=[LAMP])
                yield phone, server


def is_partial(event: Event) -> bool:
    return bool(event["type"] == "assistant.speech.partial")


async def test_a_device_tool_runs_after_its_card(way: Way, tmp_path: Path) -> None:
    async with phone_of(way, tmp_path, {"lamp.switch": lambda _: "on"}) as (phone, _):
        phone.say("Turn on the lamp in the hall.")
        await decide(phone, await phone.until("approval.request"), "allow")
        final = await phone.until("assistant.speech.final")
        await phone.until("state idle", since=phone.log.index(final))
        assert phone.runs == [("lamp.switch", {"room": "hall", "on": True})]
        assert final["payload"]["text"] == "Done." and not phone.errors()
        await phone.ask("Hello.")
        assert phone.finals()[-1] == HELLO and len(phone.runs) == 1


async def test_a_barge_in_stops_the_reply_and_the_next_turn_is_answered(way: Way, tmp_path: Path) -> None:
    async with phone_of(way, tmp_path, {}) as (phone, _):
        phone.say("Count to sixty.")
        await phone.until("assistant.speech.partial")
        phone.say("Hello.")
        # The model reads the stopped reply as far as it came: what it answers depends on the machine.
        final = await phone.until("assistant.speech.final")
        await phone.until("state idle", since=phone.log.index(final))
        assert len(phone.finals()) == 1 and final["payload"]["text"]
        assert not phone.errors()


async def test_a_server_killed_in_the_middle_of_a_reply_is_replaced(way: Way, tmp_path: Path) -> None:
    async with phone_of(way, tmp_path, {}) as (phone, server):
        phone.say("Count to sixty.")
        await phone.until("assistant.speech.partial")
        server.process.kill()
        final = await phone.until("assistant.speech.final")
        await phone.until("state idle", since=phone.log.index(final))
        assert "demo" in final["payload"]["text"] and not phone.errors()
