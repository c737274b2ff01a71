"""MCP over a WebSocket, for a client and for a server: a JSON-RPC message is one text message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import TYPE_CHECKING

from websockets.asyncio.connection import Connection
from websockets.exceptions import ConnectionClosed

from conductor.plugins.mcp.streams import message_streams

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams


async def _always(size: int) -> bool:
    return True


def socket_streams(
    websocket: Connection,
    admit: Callable[[int], Awaitable[bool]] = _always,
    send_timeout: float | None = None,
    on_end: Callable[[], None] = lambda: None,
) -> AbstractAsyncContextManager[TransportStreams]:
    """Make the streams of a client or a server.

    ``admit`` gets the size of a message before it is parsed; False ends the stream.
    The connection to a peer that reads nothing for ``send_timeout`` seconds is aborted.
    """

    async def messages() -> AsyncIterator[bytes]:
        with suppress(ConnectionClosed):
            while await admit(len(text := await websocket.recv(decode=False))):
                yield text

    async def send(text: str) -> None:
        try:
            async with asyncio.timeout(send_timeout):
                await websocket.send(text)
        except (TimeoutError, ConnectionClosed) as error:
            websocket.transport.abort()
            raise ConnectionError from error

    return message_streams(messages(), send, on_end)
