"""``conductor tools``: list the server's tools, disable and enable them, and call one."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TextIO

import msgspec

from conductor.app import builtin_tools, mcp_folder, secrets
from conductor.commands.output import as_json, write_table
from conductor.errors import SettingsError
from conductor.events.envelope import new_call_id
from conductor.logs import configure_logs
from conductor.messages import ToolCall
from conductor.plugins.mcp.config import McpServerConfig, load_mcp_servers
from conductor.plugins.mcp.server import McpConnection, check_installed
from conductor.plugins.mcp.toolset import call_tool
from conductor.plugins.tools.builtin import BuiltinToolset
from conductor.plugins.tools.http_tools import HttpToolset, load_http_tools
from conductor.plugins.tools.python_tools import PythonToolset, python_tools
from conductor.settings import Settings, load_settings
from conductor.tools.base import CallContext, ToolOutcome, Toolset, ToolSpec
from conductor.tools.device import load_catalog
from conductor.tools.executor import ApprovalNeeded, DryRun, PreparedCall, ToolExecutor
from conductor.tools.permissions import Gate, GateOptions, decide, steps
from conductor.tools.policies import REREAD_S, add, load, policies_path, remove
from conductor.tools.redaction import Redactor
from conductor.tools.rules import Rule, describe, parse_rule

# Seconds until an MCP server has connected and listed its tools.
CONNECT_S = 20.0
_APPLIED = f"Running servers apply it within {REREAD_S:g} seconds."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands and their options."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="list|disable|enable|call")
    listing = actions.add_parser("list", help="list the tools, and the decision on a call of each")
    listing.add_argument("--json", action="store_true", help="as JSON")
    disable = actions.add_parser("disable", help="hide tools from the model, by a rule")
    enable = actions.add_parser("enable", help="remove such a rule")
    for action in (disable, enable):
        action.add_argument("tool", help="a tool's name; * matches any characters")
        action.add_argument("--source", help="only tools of this source: device, builtin, mcp:NAME")
    for action in (listing, disable, enable):
        action.add_argument("--session", help="only in this session")
    call = actions.add_parser("call", help="call a tool of the server, by the same rules")
    call.add_argument("tool", help="the tool's name")
    call.add_argument("arguments", nargs="?", default="{}", help="the arguments as JSON ({})")
    call.add_argument("--yes", action="store_true", help="consent to the call in advance")


def run(options: argparse.Namespace, stdout: TextIO | None = None, stdin: TextIO | None = None) -> int:
    """Run a subcommand; returns 2 if a call failed, else 0. Raises `SettingsError`."""
    configure_logs("error", "console", cache=False)
    settings, out = load_settings(), stdout or sys.stdout
    match options.action:
        case "list":
            return asyncio.run(_list(options, settings, out))
        case "disable":
            return _disable(options, settings, out)
        case "enable":
            return _enable(options, settings, out)
    return asyncio.run(_call(options, settings, out, stdin or sys.stdin))


@dataclass(frozen=True, slots=True)
class _ConnectedServer:
    connection: McpConnection

    def specs(self) -> Sequence[ToolSpec]:
        return self.connection.specs

    async def call(self, name: str, arguments: Mapping[str, Any], context: CallContext) -> ToolOutcome:
        return await call_tool(self.connection, name, arguments)


@asynccontextmanager
async def _toolsets(
    settings: Settings, servers: Iterable[McpServerConfig]
) -> AsyncIterator[tuple[list[Toolset], list[str]]]:
    # The server's toolsets, and the problems of MCP servers.
    toolsets: list[Toolset] = [
        BuiltinToolset(builtin_tools(settings)),
        PythonToolset(python_tools(settings.tools_path)),
        HttpToolset(load_http_tools(settings).tools),
    ]
    problems: list[str] = []
    async with AsyncExitStack() as stack:
        for config in servers:
            connection = McpConnection(config, local_only=settings.local_only, folder=mcp_folder(settings))
            try:
                async with asyncio.timeout(CONNECT_S):
                    await stack.enter_async_context(connection.connected())
            except Exception as error:  # of the package, the system or a program that is not a server
                problems.append(f"{config.name} is down: {connection.describe(error)}")
            else:
                toolsets.append(_ConnectedServer(connection))
        yield toolsets, problems


def _servers(settings: Settings) -> list[McpServerConfig]:
    servers = [server for server in load_mcp_servers(settings) if server.enabled]
    if servers:
        check_installed()
    return servers


async def _list(options: argparse.Namespace, settings: Settings, out: TextIO) -> int:
    gate = GateOptions.of(settings)
    rules = [rule for rule in _rules(settings) if rule.session in (None, options.session)]
    async with _toolsets(settings, _servers(settings)) as (toolsets, problems):
        specs = [spec for toolset in toolsets for spec in toolset.specs()]
    specs += load_catalog(settings.device_tools_file)
    rows = []
    for spec in specs:
        results = steps(spec, {}, rules, now=time.time(), tainted=False, options=gate)
        verdict = decide(spec, results, tainted=False)
        effect = verdict.effect if Gate(rules, gate).offers(spec) else "disabled"
        rows.append(
            {
                "tool": spec.name,
                "source": spec.source,
                "risk": spec.risk,
                "effect": spec.effect,
                "call": effect,
                "why": " ".join(verdict.reasons),
            }
        )
    if options.json:
        out.write(as_json({"tools": rows, "problems": problems}, indent=2))
        return 0
    write_table(out, tuple(rows[0]), [tuple(row.values()) for row in rows])
    out.writelines(f"warn  {problem}\n" for problem in problems)
    return 0


def _rules(settings: Settings) -> tuple[Rule, ...]:
    return load(policies_path(settings)).rules


def _disable(options: argparse.Namespace, settings: Settings, out: TextIO) -> int:
    fields = {"effect": "deny", "tool": options.tool, "source": options.source, "session": options.session}
    rule = parse_rule({name: value for name, value in fields.items() if value is not None})
    number = add(policies_path(settings), rule)
    out.write(f"Added rule {number}: {describe(rule)}.\n{_APPLIED}\n")
    return 0


def _enable(options: argparse.Namespace, settings: Settings, out: TextIO) -> int:
    def disables(rule: Rule) -> bool:
        scope = (rule.tool, rule.source, rule.session)
        same_scope = scope == (options.tool, options.source, options.session)
        return same_scope and rule.effect == "deny" and rule.unconditional

    numbers = [number for number, rule in enumerate(_rules(settings), 1) if disables(rule)]
    if not numbers:
        raise SettingsError(f"No such rule disables {options.tool}; policy list shows the rules.")
    for number in reversed(numbers):
        remove(policies_path(settings), number)
    out.write(f"{options.tool} is enabled.\n{_APPLIED}\n")
    return 0


async def _call(options: argparse.Namespace, settings: Settings, out: TextIO, stdin: TextIO) -> int:
    # Only the tool's own server is started.
    servers = [server for server in _servers(settings) if options.tool.startswith(f"{server.name}.")]
    async with _toolsets(settings, servers) as (toolsets, problems):
        if problems:
            raise SettingsError(f"{problems[0]}.")
        gate = Gate([rule for rule in _rules(settings) if rule.session is None], GateOptions.of(settings))
        redactor = Redactor(secrets(settings), paths=settings.redact_paths)
        executor = ToolExecutor(toolsets, settings.limits, gate, redactor)
        if executor.spec(options.tool) is None:
            raise SettingsError(_unknown(options.tool, toolsets, settings))
        call_id = new_call_id()
        prepared = executor.prepare(ToolCall(call_id, options.tool, options.arguments))
        if isinstance(prepared, ApprovalNeeded):
            if not (options.yes or _consents(prepared, out, stdin)):
                out.write("The tool did not run.\n")
                return 2
            prepared = prepared.ready
        if isinstance(prepared, DryRun):
            prepared = await executor.dry_run(prepared.ready)
        outcome = prepared
        if isinstance(prepared, PreparedCall):
            outcome = await executor.run(prepared, CallContext("cli", call_id))
        assert isinstance(outcome, ToolOutcome)
        content = executor.to_result(call_id, outcome).content
        out.write(as_json(msgspec.json.decode(content), indent=2))
        return 0 if outcome.success else 2


def _unknown(name: str, toolsets: Sequence[Toolset], settings: Settings) -> str:
    if name in (spec.name for spec in load_catalog(settings.device_tools_file)):
        return f"{name} runs on the device: only a conversation can call it."
    if name in (spec.name for toolset in toolsets for spec in toolset.specs()):
        return f"{name} is disabled; tools list gives the reason."
    return f"There is no tool {name!r}."


def _consents(request: ApprovalNeeded, out: TextIO, stdin: TextIO) -> bool:
    spec = request.ready.spec
    out.write(f"{spec.name} ({spec.risk} risk, {spec.effect}): {' '.join(request.verdict.reasons)}\n")
    out.write(as_json(request.ready.arguments) + "Run it? [y/N] ")
    out.flush()
    return stdin.readline().strip().lower() in ("y", "yes")
