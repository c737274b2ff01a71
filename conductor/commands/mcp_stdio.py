"""``conductor mcp serve``: MCP on standard input and output, passed on to a running server's ``/mcp``."""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import suppress
from urllib.parse import quote

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI
from websockets.typing import Subprotocol

from conductor.commands.banner import server_address
from conductor.errors import SettingsError
from conductor.server.listener import MCP_PATH, MCP_SUBPROTOCOL
from conductor.settings import Settings

# Bytes of a line or a message.
MAX_BYTES = 4 * 1024 * 1024


def run(settings: Settings, options: argparse.Namespace) -> int:
    """Pass messages on until one side ends. Raises `SettingsError` if the server cannot be reached."""
    place = (options.url or f"ws://{server_address(settings)}").rstrip("/")
    url = place.removesuffix("/ws").removesuffix(MCP_PATH) + MCP_PATH
    if options.session is not None:
        url += f"?session={quote(options.session)}"
    token = options.token or next(iter(settings.auth_tokens), None)
    asyncio.run(_pass_on(url, token))
    return 0


async def _pass_on(url: str, token: str | None) -> None:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        socket = await connect(
            url,
            additional_headers=headers,
            subprotocols=[Subprotocol(MCP_SUBPROTOCOL)],
            max_size=MAX_BYTES,
            proxy=None,
        )
    except (OSError, InvalidHandshake, InvalidURI, ValueError) as error:
        raise SettingsError(
            f"{url} did not answer ({error}): is a server running there, with MCP_SERVER=true?"
        ) from None
    async with socket:
        directions = [asyncio.create_task(_to_server(socket)), asyncio.create_task(_to_program(socket))]
        await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        for direction in directions:
            direction.cancel()


async def _to_server(socket: ClientConnection) -> None:
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader(limit=MAX_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin.buffer)
    with suppress(ConnectionClosed):
        while line := await lines.readline():
            await socket.send(line.decode(errors="replace").strip())


async def _to_program(socket: ClientConnection) -> None:
    async for message in socket:
        text = message if isinstance(message, str) else message.decode(errors="replace")
        sys.stdout.write(text.replace("\n", " ") + "\n")
        sys.stdout.flush()
