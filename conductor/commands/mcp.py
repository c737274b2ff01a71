"""``conductor mcp``: log in to servers, and serve MCP on standard input and output."""

from __future__ import annotations

import argparse
import asyncio
import sys
import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI
from websockets.typing import Subprotocol

from conductor.commands.banner import server_address
from conductor.commands.output import write
from conductor.errors import SettingsError
from conductor.plugins.mcp.config import McpServerConfig, load_mcp_servers, mcp_config_path, mcp_folder
from conductor.plugins.mcp.server import McpConnection, check_installed, tokens_path
from conductor.server.access import MCP_PATH, MCP_SUBPROTOCOL
from conductor.settings import load_settings, program_token

# Seconds for a person to log in.
LOGIN_S = 300.0
# Bytes of a line or a message of ``serve``.
MAX_SERVE_BYTES = 4 * 1024 * 1024


def login(options: argparse.Namespace) -> int:
    """Log in to a server in a browser; returns 2 on failure."""
    settings = load_settings()
    servers = {server.name: server for server in load_mcp_servers(settings)}
    if options.name not in servers:
        raise SettingsError(f'There is no server "{options.name}". Servers: {", ".join(servers) or "-"}.')
    check_installed()
    folder, server = mcp_folder(settings), servers[options.name]
    assert folder is not None  # the program has a DATA_DIR
    if not server.oauth:
        raise SettingsError(f'{server.name} has no "oauth": true in {mcp_config_path(settings)}.')
    return asyncio.run(log_in(server, folder, local_only=settings.local_only))


async def log_in(server: McpServerConfig, folder: Path, *, local_only: bool = False) -> int:
    """Log in to a server in a browser, and store its tokens in ``folder``; returns 2 on failure."""
    from conductor.plugins.mcp import oauth

    def show(address: str) -> None:
        write(f"Open this address, and log in:\n{address}")
        webbrowser.open(address)

    async def use(auth: Any) -> None:
        connection = McpConnection(server, local_only=local_only, auth=auth)
        async with connection.connected(LOGIN_S):
            write(f"{server.name}: logged in; it has {len(connection.specs)} tools.")

    try:
        await oauth.login(server.url or "", tokens_path(folder, server.name), show, use)
    except Exception as error:  # of the package, the system or the service
        write(f"{server.name} failed: {McpConnection(server).describe(error)}")
        return 2
    return 0


def serve(options: argparse.Namespace) -> None:
    """Relay MCP between standard input and output and a running server's ``/mcp``."""
    settings = load_settings()
    address = (options.url or f"ws://{server_address(settings)}").rstrip("/")
    url = address.removesuffix("/ws").removesuffix(MCP_PATH) + MCP_PATH
    if options.session is not None:
        url += f"?session={quote(options.session)}"
    own = next(map(program_token, settings.auth_tokens), None)
    asyncio.run(_forward(url, options.token or own))


def token(options: argparse.Namespace) -> None:
    """Print the programs' token of each of AUTH_TOKENS, in order. Raises `SettingsError` without any."""
    settings = load_settings()
    if not settings.auth_tokens:
        raise SettingsError("AUTH_TOKENS is empty: programs need no token, or one of another authenticator.")
    for text in map(program_token, settings.auth_tokens):
        write(text)


async def _forward(url: str, token: str | None) -> None:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        socket = await connect(
            url,
            additional_headers=headers,
            subprotocols=[Subprotocol(MCP_SUBPROTOCOL)],
            max_size=MAX_SERVE_BYTES,
            proxy=None,
        )
    except (OSError, InvalidHandshake, InvalidURI, ValueError) as error:
        raise SettingsError(
            f"{url} did not answer ({error}). Start a server there with MCP_SERVER=true."
        ) from None
    async with socket:
        directions = [asyncio.create_task(_to_server(socket)), asyncio.create_task(_to_program(socket))]
        await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        for direction in directions:
            direction.cancel()


async def _to_server(socket: ClientConnection) -> None:
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader(limit=MAX_SERVE_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin.buffer)
    with suppress(ConnectionClosed):
        while line := await lines.readline():
            await socket.send(line.decode(errors="replace").strip())


async def _to_program(socket: ClientConnection) -> None:
    async for message in socket:
        text = message if isinstance(message, str) else message.decode(errors="replace")
        sys.stdout.write(text.replace("\n", " ") + "\n")
        sys.stdout.flush()
