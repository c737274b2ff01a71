"""Stand-ins at the server's seams: unreachable and slow stores, and a transport that records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from conductor.errors import StoreUnavailable
from conductor.session.transport import Frame
from conductor.stores.base import NO_ATTACHMENTS, Attachments, Claim, SessionKey, SessionLog
from conductor.stores.memory import MemoryStore
from tests.session.helpers import StoreProxy

WAIT = 60.0
"""The limit of every wait of a test, in seconds."""


class WiredStore(StoreProxy):
    """A store, by default in memory, that may be ``away``; it answers while its gates are open.

    ``refused`` is set at the first claim that is refused.
    """

    def __init__(self, inner: SessionLog | None = None) -> None:
        self.memory = MemoryStore()
        super().__init__(inner or self.memory)
        self.away = False
        self.claims = 0
        self.claiming, self.releasing, self.refused = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.claim_gate, self.append_gate, self.release_gate = (asyncio.Event() for _ in range(3))
        for gate in (self.claim_gate, self.append_gate, self.release_gate):
            gate.set()

    async def claim(self, key: SessionKey) -> Claim:
        self.claims += 1
        self.claiming.set()
        await self.claim_gate.wait()
        if self.away:
            self.refused.set()
        self._reach()
        return await super().claim(key)

    async def append(
        self,
        claim: Claim,
        commit_id: str,
        data: bytes,
        *,
        snapshot: bool = False,
        attachments: Attachments = NO_ATTACHMENTS,
    ) -> None:
        await self.append_gate.wait()
        self._reach()
        await super().append(claim, commit_id, data, snapshot=snapshot, attachments=attachments)

    async def release(self, claim: Claim) -> None:
        self.releasing.set()
        await self.release_gate.wait()
        self._reach()
        await super().release(claim)

    def _reach(self) -> None:
        if self.away:
            raise StoreUnavailable("The store does not answer.")


class Wire:
    """A transport that records its frames."""

    resumes = False
    segments = False
    is_forwarded = False

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.parked = 0
        self.alive = True

    def send(self, frame: Frame) -> None:
        frame.is_written = True
        self.frames.append(frame)

    def drop_partials(self) -> None:
        """No frame waits."""

    def suspend(self) -> None:
        self.parked += 1

    def close(self, code: int, reason: str) -> None:
        """There is no socket."""

    def ownership_lost(self, *, stale: bool) -> None:
        """Ignore the loss."""

    async def is_alive(self) -> bool:
        return self.alive


async def until(holds: Callable[[], bool]) -> None:
    """Run the event loop until a condition holds."""
    async with asyncio.timeout(WAIT):
        while not holds():  # noqa: ASYNC110 -- what is looked at has no event to wait for
            await asyncio.sleep(0)


async def http(port: int, request: str) -> tuple[int, str]:
    """Send a raw request; returns the status and the whole response."""
    async with asyncio.timeout(WAIT):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            return await ask(reader, writer, request)
        finally:
            writer.close()


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: str) -> tuple[int, str]:
    """Send a raw request on an open connection."""
    async with asyncio.timeout(WAIT):
        writer.write(request.encode("latin-1"))
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        body = "" if " 101 " in head.partition("\r\n")[0] else (await reader.read()).decode()
        return int(head.split()[1]), head + body


def get(path: str, *headers: str) -> str:
    """Write a plain request."""
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: localhost", *headers, "", ""])


def upgrade(path: str = "/ws", *headers: str) -> str:
    """Write a request for a WebSocket (the key is RFC 6455's example)."""
    return get(
        path,
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        *headers,
    )
