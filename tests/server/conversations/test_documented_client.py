"""A client that follows docs/protocol-reference.md alone loses its sockets, and never waits for ever."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from itertools import count
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from conductor.messages import UserMessage
from conductor.plugins.models.demo import DemoProvider
from tests.serving import Served, serving

RUNS = 50
CUTS = 3
HANG_S = 20.0
NOTE = {
    "name": "notes.add",
    "inputSchema": {"type": "object", "properties": {"number": {"type": "integer"}}},
    "_meta": {"conductor": {"approval": "never"}},
}
AGAIN = (
    "user.audio.transcript.final",
    "tool.result",
    "audio.output.interrupted",
    "approval.response",
    "agent.completed",
)


class DocumentedClient:
    """Follows "For a client's author"; ``lives`` gives the frames after which each socket is cut."""

    def __init__(self, url: str, session_id: str, lives: Callable[[], float]) -> None:
        self.url = url
        self.session_id = session_id
        self.lives = lives
        self.ends: Counter[str] = Counter()
        self.runs: Counter[str] = Counter()
        self._numbers = count(1)
        self._seen: set[str] = set()
        self._results: dict[str, dict[str, Any]] = {}
        self._unacknowledged: dict[str, dict[str, Any]] = {}
        self._acknowledged: set[str] = set()
        self._open: dict[str, asyncio.Future[str]] = {}
        self._last_event_id: str | None = None
        self._socket: ClientConnection | None = None
        self._frames_left = float("inf")

    # -- sending

    async def say(self, text: str) -> str:
        """Send a transcript; gives the reason of its turn's end, or ``error`` or ``lost``."""
        event = self._event("user.audio.transcript.final", {"text": text})
        self._open[event["id"]] = asyncio.get_running_loop().create_future()
        self._frames_left = self.lives()
        await self._keep(event)
        return await self._open[event["id"]]

    def _event(self, kind: str, payload: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": f"doc-{next(self._numbers)}",
            "type": kind,
            "timestamp": "2026-03-01T12:00:00.000Z",
            "sessionId": self.session_id,
            "protocolVersion": 1,
            "payload": payload,
        }

    async def _keep(self, event: dict[str, Any]) -> None:
        assert event["type"] in AGAIN
        self._unacknowledged[event["id"]] = event
        await self._write(event)

    async def _write(self, event: dict[str, Any]) -> None:
        if self._socket is not None:
            self._pass()
            with suppress(ConnectionClosed):  # the next connection sends it again
                await self._socket.send(json.dumps(event))

    def _pass(self) -> None:
        """Count a frame of either side; the last one is lost with its socket."""
        self._frames_left -= 1
        if self._frames_left < 0 and self._socket is not None:
            self._socket.transport.abort()
            self._frames_left = self.lives()

    # -- connections

    async def run(self) -> None:
        """Connect until cancelled. The pauses are left out: the server is on this machine."""
        while True:
            try:
                async with connect(self.url) as socket:
                    self._socket = socket
                    await self._start()
                    async for frame in socket:
                        self._pass()
                        await self._read(json.loads(frame))
            except ConnectionClosed as error:
                assert error.rcvd is None or error.rcvd.code != 4409
            finally:
                self._socket = None

    async def _start(self) -> None:
        payload: dict[str, Any] = {"capabilities": ["resume", "turns", "tools"], "tools": [NOTE]}
        if self._seen:
            done = [event["payload"] for event in self._unacknowledged.values() if self._is_result(event)]
            payload["resume"] = {"lastEventId": self._last_event_id, "done": done, "pending": []}
        await self._write(self._event("session.start", payload))

    def _is_result(self, event: dict[str, Any]) -> bool:
        return event["type"] == "tool.result" and event["payload"]["callId"] in self._results

    # -- reading

    async def _read(self, event: dict[str, Any]) -> None:
        if event["id"] in self._seen:
            return
        self._seen.add(event["id"])
        payload = event["payload"]
        match event["type"]:
            case "session.started":
                await self._welcome(payload)
            case "event.ack":
                self._acknowledged.update(payload["eventIds"])
                for event_id in payload["eventIds"]:
                    self._unacknowledged.pop(event_id, None)
            case "tool.call":
                await self._call(payload)
            case "turn.ended":
                self.ends[payload["eventId"]] += 1
                self._end(payload["eventId"], payload["reason"])
            case "error" if "eventId" in payload:
                self._unacknowledged.pop(payload["eventId"], None)
                self._end(payload["eventId"], "error")
        once = ("assistant.speech.partial", "session.ping", "session.started", "event.ack")
        if event["type"] not in once:
            self._last_event_id = event["id"]

    async def _welcome(self, payload: dict[str, Any]) -> None:
        if not payload["resumed"]:
            for event_id in self._acknowledged & self._open.keys():
                self._end(event_id, "lost")
        for event in list(self._unacknowledged.values()):
            if not self._is_result(event) or event["payload"]["callId"] in payload.get("resend", ()):
                await self._write(event)
            else:
                del self._unacknowledged[event["id"]]

    async def _call(self, payload: dict[str, Any]) -> None:
        call_id, result = payload["callId"], '{"ok":true}'
        if payload["name"] == NOTE["name"]:
            self.runs[call_id] += 1
            result = f"number {json.loads(payload['arguments'])['number']}"
            self._results[call_id] = {}
        await self._keep(self._event("tool.result", {"callId": call_id, "result": result, "error": None}))

    def _end(self, event_id: str, reason: str) -> None:
        if event_id in self._open and not self._open[event_id].done():
            self._open[event_id].set_result(reason)


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving(DemoProvider(0)) as server:
        yield server


async def test_each_turn_ends_once_when_sockets_are_cut_after_its_transcript(served: Served) -> None:
    seed = random.SystemRandom().randrange(2**31)
    print(f"seed {seed}")  # noqa: T201 -- shown where the test fails
    chances = [random.Random(f"{seed} {number}") for number in range(RUNS)]
    await asyncio.gather(*(talk(served, number, chance) for number, chance in enumerate(chances)))


async def talk(served: Served, number: int, chance: random.Random) -> None:
    """Say two things, each with up to three cuts after its transcript."""
    name = f"run-{number}"
    lives = iter([chance.randrange(14) for _ in range(chance.randint(1, CUTS))])
    client = DocumentedClient(served.url, name, lambda: next(lives, float("inf")))
    running = asyncio.create_task(client.run())
    try:
        async with asyncio.timeout(HANG_S):
            texts = [f'call notes.add with {{"number": {number}}}', "say that is all"]
            assert [await client.say(text) for text in texts] == ["answered", "answered"], number
    finally:
        running.cancel()
    assert list(client.ends.values()) == [1, 1], number
    assert list(client.runs.values()) == [1], number
    sessions = {session.key.session_id: session for session in served.listener.registry.sessions}
    log = sessions[name].state.log
    assert [message.text for message in log if isinstance(message, UserMessage)] == texts
