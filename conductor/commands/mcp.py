"""``conductor mcp``: list, add and remove MCP servers, and try one out."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
import webbrowser
from pathlib import Path
from typing import Any, TextIO

from conductor.app import mcp_folder
from conductor.commands.output import as_json, write_table
from conductor.errors import SettingsError
from conductor.logs import configure_logs
from conductor.settings import Settings, load_settings
from conductor.tools.base import ToolSpec
from conductor.tools.mcp.config import McpServerConfig, load_mcp_servers, mcp_config_path, read_mcp_file
from conductor.tools.mcp.server import McpConnection, check_installed, tokens_path
from conductor.tools.mcp.toolset import call_tool

# Seconds for the one call of a trial.
CALL_S = 30.0
# Seconds for a person to log in.
LOGIN_S = 300.0
# Lines of a log that are shown.
SHOWN_LINES = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands and their options."""
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("list", help="show the servers of mcp.json")
    add = actions.add_parser("add", help="add a server to mcp.json, or replace it")
    add.add_argument("name", help="what its tools' names begin with")
    add.add_argument("place", help="its URL, or the command to run")
    # All that follows: options of `add` itself come before the name.
    add.add_argument("args", nargs=argparse.REMAINDER, help="the command's arguments")
    add.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="for a command")
    add.add_argument("--header", action="append", default=[], metavar="NAME=VALUE", help="for a URL")
    add.add_argument("--trust", action="store_true", help="believe the annotations of its tools")
    serve = actions.add_parser("serve", help="be an MCP server on standard input and output")
    serve.add_argument("--url", help="the running server (default: as HOST and PORT say)")
    serve.add_argument("--token", help="the client's token (default: the first of AUTH_TOKENS)")
    serve.add_argument("--session", help="the id of the session whose tools are served (the newest)")
    remove = actions.add_parser("remove", help="remove a server from mcp.json")
    test = actions.add_parser("test", help="connect, list the tools, and call one that only reads")
    logs = actions.add_parser("logs", help="show what a server said on standard error; needs DATA_DIR")
    login = actions.add_parser("login", help="log in to a server that wants OAuth, with a browser")
    for action in (remove, test, logs, login):
        action.add_argument("name", help="which server")


def run(options: argparse.Namespace, stdout: TextIO | None = None) -> int:
    """Run a subcommand; returns 2 if the server that was tried failed, else 0. Raises `SettingsError`."""
    configure_logs("error", "console", cache=False)
    settings, out = load_settings(), stdout or sys.stdout
    if options.action == "add":
        return _add(settings, options, out)
    if options.action == "serve":
        from conductor.commands.mcp_stdio import run as serve

        return serve(settings, options)
    if options.action == "remove":
        return _remove(settings, options.name, out)
    servers = load_mcp_servers(settings)
    if options.action == "list":
        rows = [(one.name, one.type, _place(one), _use(one)) for one in servers]
        write_table(out, ("server", "type", "place", "used"), rows)
        return 0
    found = next((server for server in servers if server.name == options.name), None)
    if found is None:
        raise SettingsError(_unknown(options.name, [server.name for server in servers]))
    if options.action == "logs":
        return _logs(settings, found.name, out)
    check_installed()
    if options.action == "login":
        return asyncio.run(_login(settings, found, out))
    return asyncio.run(test(found, out, local_only=settings.local_only, folder=mcp_folder(settings)))


def _place(server: McpServerConfig) -> str:
    return server.url or " ".join([server.command or "", *server.args])


def _use(server: McpServerConfig) -> str:
    if not server.enabled:
        return "no"
    return "trusted" if server.trust else "yes"


def _unknown(name: str, known: list[str]) -> str:
    return f'There is no server "{name}"; there are: {", ".join(known) or "none"}.'


# -- add and remove


def _add(settings: Settings, options: argparse.Namespace, out: TextIO) -> int:
    values: dict[str, Any]
    if options.place.startswith(("http://", "https://")):
        values = {"url": options.place, "headers": _pairs(options.header), "args": options.args}
    else:
        values = {"command": options.place, "args": options.args, "env": _pairs(options.env)}
    values = {key: value for key, value in values.items() if value}
    if options.trust:
        values["trust"] = True
    document = _document(settings)
    document["mcpServers"][options.name] = values
    _write(settings, document)
    out.write(f"{options.name} is in {mcp_config_path(settings)}; a running server reads it at SIGHUP.\n")
    return 0


def _pairs(given: list[str]) -> dict[str, str]:
    for pair in given:
        if not pair.partition("=")[1]:
            raise SettingsError(f"{pair} must be NAME=VALUE.")
    return dict(pair.split("=", 1) for pair in given)


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
    return read_mcp_file(path) if path.exists() else {"mcpServers": {}}


def _write(settings: Settings, document: dict[str, Any]) -> None:
    path = mcp_config_path(settings)
    new = Path(f"{path}.new")
    try:
        # It may hold keys, and a file with a mistake must not replace a good one.
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(document, file, indent=2, ensure_ascii=False)
            file.write("\n")
        load_mcp_servers(settings.model_copy(update={"mcp_config_file": new}))
        os.replace(new, path)
    except OSError as error:
        raise SettingsError(f"{path} cannot be written: {(error.strerror or str(error)).lower()}.") from None
    except SettingsError as error:
        raise SettingsError(str(error).replace(str(new), str(path))) from None
    finally:
        new.unlink(missing_ok=True)


def _logs(settings: Settings, name: str, out: TextIO) -> int:
    folder = mcp_folder(settings)
    if folder is None:
        raise SettingsError("What servers say is kept in DATA_DIR, which is not set.")
    try:
        lines = (folder / f"{name}.log").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    out.writelines(f"{line}\n" for line in lines[-SHOWN_LINES:])
    return 0


# -- test


async def _login(settings: Settings, server: McpServerConfig, out: TextIO) -> int:
    folder = mcp_folder(settings)
    if folder is None:
        raise SettingsError("Tokens are kept in DATA_DIR, which is not set.")
    if not server.oauth or server.url is None:
        raise SettingsError(f'{server.name} has no "oauth": true in {mcp_config_path(settings)}.')
    from conductor.tools.mcp.oauth import login

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
    except Exception as error:  # of the package, of the system, or of the service
        out.write(f"{server.name} failed: {McpConnection(server).describe(error)}\n")
        return 2
    return 0


async def test(
    server: McpServerConfig, out: TextIO, *, local_only: bool = False, folder: Path | None = None
) -> int:
    """Connect, list the tools and call one that only reads; returns 2 if that failed."""
    connection = McpConnection(server, local_only=local_only, folder=folder)
    began = time.perf_counter()
    try:
        async with connection.connected() as client:
            out.write(f"{server.name}: connected and listed in {time.perf_counter() - began:.2f} s, ")
            out.write(f"protocol {client.protocol_version}\n")
            rows = [(spec.name, spec.risk, spec.effect, spec.title or "") for spec in connection.specs]
            write_table(out, ("tool", "risk", "effect", "title"), rows)
            for note in connection.warnings:
                out.write(f"note: {as_json(note)}")
            return await _try(connection, out)
    except Exception as error:  # of the package, of the system, or of a program that is no server
        out.write(f"{server.name} failed: {connection.describe(error)}\n")
        return 2


async def _try(connection: McpConnection, out: TextIO) -> int:
    spec = next((spec for spec in connection.specs if _is_harmless(spec)), None)
    if spec is None:
        out.write("No tool was called: none is known to only read and needs no arguments.\n")
        return 0
    began = time.perf_counter()
    try:
        async with asyncio.timeout(CALL_S):
            outcome = await call_tool(connection, spec.name, {})
    except TimeoutError:
        out.write(f"{spec.name} gave no result in {CALL_S:g} s\n")
        return 2
    took = f"in {1000 * (time.perf_counter() - began):.0f} ms"
    if outcome.success:
        out.write(f"{spec.name} answered {outcome.metadata.data_size_bytes} bytes {took}\n")
        return 0
    out.write(f"{spec.name} failed {took}: {as_json(outcome.error_message)}")
    return 2


def _is_harmless(spec: ToolSpec) -> bool:
    return spec.effect == "read" and not spec.input_schema.get("required")
