"""The stand-in of OpenAI's Live API answers others as it answers our bridge: by the types."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect

from tests.app import WAIT
from tests.stand_ins.openai_live import LiveService, VoiceSession

CONFIG = {"model": "gpt-live-1.1", "delegation": {"type": "client"}, "instructions": "You are the voice."}


async def idle(_: VoiceSession) -> None:
    """Say nothing."""


async def asked(app: ClientConnection, command: Mapping[str, Any]) -> dict[str, Any]:
    """Send a command; returns the next event."""
    await app.send(json.dumps({"event_id": f"own-{command['type']}", **command}))
    event: dict[str, Any] = json.loads(await asyncio.wait_for(app.recv(), WAIT))
    return event


async def test_what_the_types_acknowledge_is_acknowledged_with_the_id_of_the_command() -> None:
    delay = {"delegation": {"type": "client", "acknowledgement_delay_ms": 900}}
    commands: dict[str, dict[str, Any]] = {
        "session.started": {"type": "session.start", "session": CONFIG},
        "session.input_audio.muted": {"type": "session.input_audio.mute"},
        "session.input_audio.unmuted": {"type": "session.input_audio.unmute"},
        "session.updated": {"type": "session.update", "session": delay},
        "session.closed": {"type": "session.close"},
    }
    async with LiveService(idle) as service, connect(service.url) as app:
        answers = [await asked(app, command) for command in commands.values()]
    assert [answer["type"] for answer in answers] == list(commands)
    assert [answer["client_event_id"] for answer in answers] == [
        f"own-{command['type']}" for command in commands.values()
    ]
    started, *_, updated, closed = answers
    assert CONFIG.items() <= started["session"].items()
    assert closed["session"] == updated["session"] == {**started["session"], **delay}


def started_with(*texts: int) -> dict[str, Any]:
    """Give a command that starts a session after messages with so many texts each."""
    part = {"type": "input_text", "text": "Hello."}
    messages = [{"role": "user", "content": [part] * count} for count in texts]
    return {"type": "session.start", "session": {**CONFIG, "input": messages}}


@pytest.mark.parametrize(
    ("path", "command", "why"),
    [
        ("", {"type": "session.close"}, "the session has not started"),
        ("", started_with(1, 2), "a message has one text part"),
        ("", started_with(*[1] * 129), "the input has more than 128 messages"),
        ("?key=a", started_with(), "the session has started"),
        (
            "?key=a",
            {"type": "session.input_audio.append", "audio": "AAAA"},
            "the audio of this session is on its media transport",
        ),
        (
            "?key=a",
            {"type": "session.output_audio.fixture.play", "audio": "AAAA"},
            "the stand-in plays no fixture of an app",
        ),
    ],
)
async def test_a_command_is_refused_where_it_has_no_place(
    path: str, command: Mapping[str, Any], why: str
) -> None:
    async with LiveService(idle) as service, connect(service.url + path) as app:
        if path:
            await app.recv()
        answer = await asked(app, command)
    assert (answer["type"], answer["error"]["message"]) == ("error", why)
