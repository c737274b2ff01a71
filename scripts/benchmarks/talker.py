"""The load: voice apps that keep no log, so that they cost as little as possible."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from benchmarks.nodes import Process
from tests.app import App
from tests.shapes import call_of

BATCH = 50
"""This many apps connect at once."""


STATUS = {
    "name": "agent.status",
    "description": "Reads the state of the agents.",
    "inputSchema": {"type": "object"},
    "annotations": {"readOnlyHint": True},
}
"""The device's tool that `BenchPersona` calls."""


class Talker(App):
    """Answers each call at once, and calls a function when something happens.

    ``on_partial`` and ``on_error`` are called for these events, ``on_idle`` when the microphone opens,
    ``on_result`` before the result of a device's tool is sent, ``on_speech`` for a speech, and ``on_user``
    for the person's words. Speeches that it does not answer are ``unanswered``.
    """

    def __init__(self, url: str, session_id: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(url, session_id, headers=headers)
        self.start_fields = {"capabilities": ["tools"], "tools": [STATUS]}
        self.on_partial: Callable[[Talker], None] = _ignore
        self.on_idle: Callable[[Talker], None] = _ignore
        self.on_error: Callable[[Talker], None] = _ignore
        self.on_result: Callable[[Talker], None] = _ignore
        self.on_speech: Callable[[Talker], None] = _ignore
        self.on_user: Callable[[Talker], None] = _ignore
        self.answers_speech = True
        self.unanswered: list[str] = []
        self.asked_at = 0.0
        self.partials = 0
        self.pings = 0

    async def connect(self) -> None:
        """Connect and start the session, without waiting for the answer."""
        await self.open(start=False)
        self.start()

    def say(self, text: str, **envelope: Any) -> str:
        self.asked_at = asyncio.get_running_loop().time()
        self.partials = 0
        return super().say(text, **envelope)

    async def turn(self, text: str = "go", seconds: float = 30.0) -> None:
        """Say something and wait for the microphone. Raises TimeoutError."""
        idle = asyncio.Event()
        self.on_idle = lambda _: idle.set()
        self.say(text)
        async with asyncio.timeout(seconds):
            await idle.wait()

    def receive(self, data: bytes) -> None:
        event = msgspec.json.decode(data)
        match event["type"]:
            case "assistant.speech.partial":
                self.partials += 1
                self.on_partial(self)
            case "session.ping":
                self.pings += 1
            case "error":
                self.on_error(self)
            case "tool.call":
                call = call_of(event)
                if not call.is_interface:
                    self.on_result(self)
                elif call.name == "tts.speak":
                    self.on_speech(self)
                    if not self.answers_speech:
                        self.unanswered.append(call.call_id)
                        return
                elif call.arguments.get("role") == "user":
                    self.on_user(self)
                self.result(call.call_id, "{}")
                if call.arguments == {"state": "idle"}:
                    self.on_idle(self)


def _ignore(_: Talker) -> None:
    pass


async def connected(server: Process, count: int, prefix: str, **start_fields: Any) -> list[Talker]:
    """Connect talkers and start their sessions, with more ``start_fields``."""
    names = [f"{prefix}-{number}" for number in range(count)]
    talkers = [Talker(server.url, name, server.headers(name)) for name in names]
    for talker in talkers:
        talker.start_fields |= start_fields
    for start in range(0, count, BATCH):
        await asyncio.gather(*(talker.connect() for talker in talkers[start : start + BATCH]))
    return talkers


def disconnect(talkers: Sequence[Talker]) -> None:
    """Cut the connections."""
    for talker in talkers:
        talker.socket.cut()
