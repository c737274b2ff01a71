"""``conductor mcp``: manage and test MCP servers, and serve MCP on standard input and output."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import quote

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI
from websockets.typing import Subprotocol

from conductor.app import mcp_folder
from conductor.commands.banner import server_address
from conductor.commands.output import as_json, private_file, write_table
from conductor.errors import SettingsError
from conductor.logs import configure_logs
from conductor.plugins.mcp.config import McpServerConfig, load_mcp_servers, mcp_config_path, read_mcp_file
from conductor.plugins.mcp.server import McpConnection, check_installed, tokens_path
from conductor.plugins.mcp.toolset import call_tool
from conductor.server.listener import MCP_PATH, MCP_SUBPROTOCOL
from conductor.settings import Settings, load_settings
from conductor.tools.base import ToolSpec

# Seconds for the call of a test.
CALL_S = 30.0
# Seconds for a person to log in.
LOGIN_S = 300.0
# Lines of a log to print.
LOG_LINES = 200
# Bytes of a line or a message of ``serve``.
MAX_SERVE_BYTES = 4 * 1024 * 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands and their options."""
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("list", help="list the servers of mcp.json")
    add = actions.add_parser("add", help="add a server to mcp.json, or replace it")
    add.add_argument("name", help="the server's name, which is the prefix of its tools")
    add.add_argument("location", metavar="place", help="its URL, or the command to run")
    # The remainder, so options of `add` precede the name.
    add.add_argument("args", nargs=argparse.REMAINDER, help="the command's arguments")
    add.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="for a command")
    add.add_argument("--header", action="append", default=[], metavar="NAME=VALUE", help="for a URL")
    add.add_argument("--trust", action="store_true", help="trust the annotations of its tools")
    serve = actions.add_parser("serve", help="serve MCP on standard input and output")
    serve.add_argument("--url", help="the running server (default: HOST and PORT)")
    serve.add_argument("--token", help="the client's token (default: the first of AUTH_TOKENS)")
    serve.add_argument("--session", help="the session whose tools are served (default: the newest)")
    remove = actions.add_parser("remove", help="remove a server from mcp.json")
    test = actions.add_parser("test", help="connect, list the tools, and call a read-only one")
    logs = actions.add_parser("logs", help="print a server's standard error; needs DATA_DIR")
    login = actions.add_parser("login", help="log in to a server with OAuth, in a browser")
    for action in (remove, test, logs, login):
        action.add_argument("name", help="the server's name")


def run(options: argparse.Namespace, stdout: TextIO | None = None) -> int:
    """Run a subcommand; returns 2 if the tested server failed, else 0. Raises `SettingsError`."""
    configure_logs("error", "console", cache=False)
    settings, out = load_settings(), stdout or sys.stdout
    if options.action == "add":
        return _add(settings, options, out)
    if options.action == "serve":
        return _serve(settings, options)
    if options.action == "remove":
        return _remove(settings, options.name, out)
    servers = load_mcp_servers(settings)
    if options.action == "list":
        rows = [(server.name, server.type, _location(server), _use(server)) for server in servers]
        write_table(out, ("server", "type", "place", "used"), rows)
        return 0
    match = next((server for server in servers if server.name == options.name), None)
    if match is None:
        raise SettingsError(_unknown(options.name, [server.name for server in servers]))
    if options.action == "logs":
        return _logs(settings, match.name, out)
    check_installed()
    if options.action == "login":
        return asyncio.run(_login(settings, match, out))
    return asyncio.run(test(match, out, local_only=settings.local_only, folder=mcp_folder(settings)))


def _location(server: McpServerConfig) -> str:
    return server.url or " ".join([server.command or "", *server.args])


def _use(server: McpServerConfig) -> str:
    if not server.enabled:
        return "no"
    return "trusted" if server.trust else "yes"


def _unknown(name: str, names: list[str]) -> str:
    return f'There is no server "{name}". Servers: {", ".join(names) or "-"}.'


def _add(settings: Settings, options: argparse.Namespace, out: TextIO) -> int:
    values: dict[str, Any]
    if options.location.startswith(("http://", "https://")):
        values = {"url": options.location, "headers": _pairs(options.header), "args": options.args}
    else:
        values = {"command": options.location, "args": options.args, "env": _pairs(options.env)}
    values = {key: value for key, value in values.items() if value}
    if options.trust:
        values["trust"] = True
    document = _document(settings)
    document["mcpServers"][options.name] = values
    _write(settings, document)
    out.write(f"{options.name} is in {mcp_config_path(settings)}; a running server reads it at SIGHUP.\n")
    return 0


def _pairs(texts: list[str]) -> dict[str, str]:
    for text in texts:
        if "=" not in text:
            raise SettingsError(f"{text} must be NAME=VALUE.")
    return dict(text.split("=", 1) for text in texts)


def _remove(settings: Settings, name: str, out: TextIO) -> int:
    document = _document(settings)
    if name not in document["mcpServers"]:
        raise SettingsError(_unknown(name, list(document["mcpServers"])))
    del document["mcpServers"][name]
    _write(settings, document)
    out.write(f"{name} is no longer in {mcp_config_path(settings)}.\n")
    return 0


def _document(settings: Settings) -> dict[str, Any]:
    path = mcp_config_path(settings)
    return read_mcp_file(path)


def _write(settings: Settings, document: dict[str, Any]) -> None:
    path = mcp_config_path(settings)
    with private_file(path, replace=True) as file:  # it may contain keys
        json.dump(document, file, indent=2, ensure_ascii=False)
        file.write("\n")
        file.flush()
        try:  # an invalid file must not replace a valid one
            load_mcp_servers(settings.model_copy(update={"mcp_config_file": Path(file.name)}))
        except SettingsError as error:
            raise SettingsError(str(error).replace(file.name, str(path))) from None


def _logs(settings: Settings, name: str, out: TextIO) -> int:
    folder = mcp_folder(settings)
    if folder is None:
        raise SettingsError("Logs of servers need DATA_DIR, which is not set.")
    try:
        lines = (folder / f"{name}.log").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    out.writelines(f"{line}\n" for line in lines[-LOG_LINES:])
    return 0


async def _login(settings: Settings, server: McpServerConfig, out: TextIO) -> int:
    folder = mcp_folder(settings)
    if folder is None:
        raise SettingsError("A login needs DATA_DIR, which is not set.")
    if not server.oauth or server.url is None:
        raise SettingsError(f'{server.name} has no "oauth": true in {mcp_config_path(settings)}.')
    from conductor.plugins.mcp.oauth import login

    def show(address: str) -> None:
        out.write(f"Open this address, and log in:\n{address}\n")
        out.flush()
        webbrowser.open(address)

    async def use(auth: Any) -> None:
        connection = McpConnection(server, local_only=settings.local_only, auth=auth)
        async with connection.connected(LOGIN_S):
            out.write(f"{server.name}: logged in; it has {len(connection.specs)} tools.\n")

    try:
        await login(server.url, tokens_path(folder, server.name), show, use)
    except Exception as error:  # of the package, the system or the service
        out.write(f"{server.name} failed: {McpConnection(server).describe(error)}\n")
        return 2
    return 0


async def test(
    server: McpServerConfig, out: TextIO, *, local_only: bool = False, folder: Path | None = None
) -> int:
    """Connect, list the tools and call a read-only one; returns 2 on failure."""
    connection = McpConnection(server, local_only=local_only, folder=folder)
    start = time.perf_counter()
    try:
        async with connection.connected() as client:
            out.write(f"{server.name}: connected and listed in {time.perf_counter() - start:.2f} s, ")
            out.write(f"protocol {client.protocol_version}\n")
            rows = [(spec.name, spec.risk, spec.effect, spec.title or "") for spec in connection.specs]
            write_table(out, ("tool", "risk", "effect", "title"), rows)
            for note in connection.warnings:
                out.write(f"note: {as_json(note)}")
            return await _try(connection, out)
    except Exception as error:  # of the package, the system or a program that is not a server
        out.write(f"{server.name} failed: {connection.describe(error)}\n")
        return 2


async def _try(connection: McpConnection, out: TextIO) -> int:
    spec = next((spec for spec in connection.specs if _is_harmless(spec)), None)
    if spec is None:
        out.write("No tool was called: there is no read-only tool without required arguments.\n")
        return 0
    start = time.perf_counter()
    try:
        async with asyncio.timeout(CALL_S):
            outcome = await call_tool(connection, spec.name, {})
    except TimeoutError:
        out.write(f"{spec.name} returned no result within {CALL_S:g} s\n")
        return 2
    duration = f"in {1000 * (time.perf_counter() - start):.0f} ms"
    if outcome.success:
        out.write(f"{spec.name} answered {outcome.metadata.data_size_bytes} bytes {duration}\n")
        return 0
    out.write(f"{spec.name} failed {duration}: {as_json(outcome.error_message)}")
    return 2


def _is_harmless(spec: ToolSpec) -> bool:
    return spec.effect == "read" and not spec.input_schema.get("required")


def _serve(settings: Settings, options: argparse.Namespace) -> int:
    # MCP on standard input and output, forwarded to a running server's ``/mcp``.
    address = (options.url or f"ws://{server_address(settings)}").rstrip("/")
    url = address.removesuffix("/ws").removesuffix(MCP_PATH) + MCP_PATH
    if options.session is not None:
        url += f"?session={quote(options.session)}"
    token = options.token or next(iter(settings.auth_tokens), None)
    asyncio.run(_forward(url, token))
    return 0


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
