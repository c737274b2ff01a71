"""MCP over a WebSocket, for a client and for a server: one message of JSON-RPC is one text."""

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

from conductor.tools.mcp.bounds import is_dense


async def _always(size: int) -> bool:
    return True


@asynccontextmanager
async def socket_streams(
    websocket: Connection,
    admit: Callable[[int], Awaitable[bool]] = _always,
    send_timeout: float | None = None,
) -> AsyncIterator[tuple[Any, Any]]:
    """Make the two streams that a client or a server of the package runs on.

    ``admit`` gets the bytes of a message before it is parsed; False ends the stream, as do too many values.
    A peer that reads nothing for ``send_timeout`` seconds is cut.
    """
    to_here, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, from_here = anyio.create_memory_object_stream[SessionMessage](0)

    async def receive() -> None:
        async with to_here:
            with suppress(ConnectionClosed):
                while True:
                    text = await websocket.recv(decode=False)
                    if not await admit(len(text)) or is_dense(text):
                        return
                    try:
                        message = jsonrpc_message_adapter.validate_json(text, by_name=False)
                    except ValueError as error:
                        await to_here.send(error)
                    else:
                        await to_here.send(SessionMessage(message))

    async def send() -> None:
        async with from_here:
            with suppress(ConnectionClosed):
                async for one in from_here:
                    text = one.message.model_dump_json(by_alias=True, exclude_unset=True)
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
