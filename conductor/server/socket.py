"""The WebSocket library's connection, with binary messages marked and many messages in one write."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from websockets.asyncio.server import ServerConnection
from websockets.frames import Frame, Opcode
from websockets.protocol import OPEN, Event

from conductor.events.codec import BINARY_MARK


class Socket(ServerConnection):
    """One connection; ``subject`` is who was authenticated."""

    subject: str = ""
    incomplete_since: float | None = None

    def process_event(self, event: Event) -> None:
        """Take one frame. A binary message is to be answered, not to close the connection."""
        if isinstance(event, Frame):
            if event.opcode is Opcode.BINARY:
                event = Frame(Opcode.TEXT, BINARY_MARK + event.data, event.fin)
            if event.opcode is Opcode.TEXT or event.opcode is Opcode.CONT:
                if event.fin:
                    self.incomplete_since = None
                elif self.incomplete_since is None:
                    self.incomplete_since = asyncio.get_running_loop().time()
        super().process_event(event)

    async def send_texts(self, texts: Iterable[bytes], seconds: float) -> None:
        """Send text messages in one write: ten times cheaper than a `send` each.

        Raises TimeoutError if the peer does not make room within ``seconds``, and `ConnectionClosed`.
        """
        if self.protocol.state is not OPEN:
            await asyncio.shield(self.connection_lost_waiter)
            raise self.close_exc
        for text in texts:
            self.protocol.send_text(text)
        self.transport.write(b"".join(self.protocol.data_to_send()))
        if self.paused:
            async with asyncio.timeout(seconds):
                await self.drain()
