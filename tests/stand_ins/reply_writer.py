"""How the stand-in sends one scripted stream: its waits, its pieces and its breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from tests.stand_ins.anthropic_script import Break, Piece, Reply
from tests.stand_ins.http_connection import Connection


class ReplyWriter:
    """Sends one stream, with the waits and the break that its reply wants.

    ``error_event`` gives the service's form of an error within a stream.
    """

    def __init__(self, connection: Connection, reply: Reply, error_event: Callable[[Break], bytes]) -> None:
        self._connection = connection
        self._reply = reply
        self._error_event = error_event
        self._waiting: list[bytes] = []

    async def send(self, pieces: Iterator[Piece]) -> None:
        """Send all pieces and end the response, unless the reply breaks."""
        reply, deltas = self._reply, 0
        if reply.first_delay_s:
            await asyncio.sleep(reply.first_delay_s)
        for piece in pieces:
            if piece.delta:
                await self._before_delta(deltas)
                if reply.broken is not None and deltas == reply.broken.after:
                    break
                deltas += 1
            await self._write(piece.data)
        self._flush()
        if reply.broken is not None:
            await self._break(reply.broken)
            return
        if reply.hold_end is not None:
            await reply.hold_end.wait()
        self._connection.end()

    async def _before_delta(self, number: int) -> None:
        reply = self._reply
        if reply.hold is not None and number == reply.hold_at:
            self._flush()
            await reply.hold.wait()
        if reply.delay_s:
            self._flush()
            await asyncio.sleep(reply.delay_s)

    async def _write(self, data: bytes) -> None:
        size = self._reply.split_bytes
        if size is None:
            self._waiting.append(data)  # events without a wait between them go out in one write
            return
        for at in range(0, len(data), size):
            self._connection.write(data[at : at + size])
            await asyncio.sleep(0)

    def _flush(self) -> None:
        self._connection.write(*self._waiting)
        self._waiting.clear()

    async def _break(self, broken: Break) -> None:
        if broken.kind == "error":
            self._connection.write(self._error_event(broken))
        if broken.kind == "garbage":
            self._connection.write(b"data: {not json \xff\xfe\n\n")
        if broken.kind == "cut":
            self._connection.abort()
        elif broken.kind == "stall":
            await asyncio.Event().wait()  # the client's leaving cancels it
        else:
            self._connection.end()
