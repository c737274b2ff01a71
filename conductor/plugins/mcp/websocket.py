"""MCP over a WebSocket, for a client and for a server: a JSON-RPC message is one text message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
from mcp.shared.message import SessionMessage
from mcp.types import jsonrpc_message_adapter
from websockets.asyncio.connection import Connection
from websockets.exceptions import ConnectionClosed

from conductor.plugins.mcp.inbound import is_dense


@asynccontextmanager
async def socket_streams(
    websocket: Connection,
    admit: Callable[[int], Awaitable[bool]] | None = None,
    send_timeout: float | None = None,
) -> AsyncIterator[tuple[Any, Any]]:
    """Make the two streams that a client or a server of the package runs on.

    ``admit`` gets the size of a message before it is parsed; False ends the stream, as do too many values.
    The connection to a peer that reads nothing for ``send_timeout`` seconds is aborted.
    """
    received, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, to_send = anyio.create_memory_object_stream[SessionMessage](0)

    async def receive() -> None:
        async with received:
            with suppress(ConnectionClosed):
                while True:
                    text = await websocket.recv(decode=False)
                    if admit is not None and not await admit(len(text)):
                        return
                    if is_dense(text):
                        return
                    try:
                        message = jsonrpc_message_adapter.validate_json(text, by_name=False)
                    except ValueError as error:
                        await received.send(error)
                    else:
                        await received.send(SessionMessage(message))

    async def send() -> None:
        async with to_send:
            with suppress(ConnectionClosed):
                async for item in to_send:
                    text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                    try:
                        async with asyncio.timeout(send_timeout):
                            await websocket.send(text)
                    except TimeoutError:
                        websocket.transport.abort()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(receive)
        tasks.start_soon(send)
        yield read, write
        tasks.cancel_scope.cancel()
