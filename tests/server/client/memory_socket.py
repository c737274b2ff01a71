"""A socket in memory, which starts each session at once."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from conductor.client.connection import ConnectionLost, Socket
from conductor.client.state import ClientSession
from conductor.events.client import SessionStart
from conductor.events.envelope import encode_event
from conductor.events.server import SessionStarted
from tests.stand_ins.scripted_server import Json


class MemorySocket(Socket):
    """Accepts ``room`` frames after ``session.start``, each once ``through`` is set, and then breaks."""

    def __init__(self, started: SessionStarted, room: int) -> None:
        self.room = room
        self.through = asyncio.Event()
        self.through.set()
        self.sending: asyncio.Queue[Json] = asyncio.Queue()
        self.frames: list[Json] = []
        self._started = started
        self._unread: asyncio.Queue[bytes] = asyncio.Queue()

    async def send(self, frame: bytes) -> None:
        event = json.loads(frame)
        if event["type"] == SessionStart.TYPE:
            self._unread.put_nowait(encode_event("evt_started", "s", self._started))
            return
        if not self.room:
            raise ConnectionLost("The connection broke.")
        self.room -= 1
        self.frames.append(event)
        self.sending.put_nowait(event)
        await self.through.wait()

    async def receive(self) -> bytes:
        return await self._unread.get()

    def abort(self) -> None: ...
    async def close(self) -> None: ...

    @property
    def contents(self) -> list[Any]:
        """The texts and results that were sent."""
        return [event["payload"].get("text", event["payload"].get("result")) for event in self.frames]


async def open_socket(
    session: ClientSession, *capabilities: str, room: int = 1_000, start: SessionStart | None = None
) -> MemorySocket:
    """Open the next socket of a session, whose server accepts these capabilities."""
    link = MemorySocket(SessionStarted("s", resumed=True, capabilities=list(capabilities)), room)

    async def connect() -> Socket:
        return link

    await session.open(connect, lambda: start or SessionStart("s"), replace=True)
    return link
