"""``conductor tools``: list the server's tools, and call one."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec

from conductor.commands.output import confirm, write, write_json, write_table, write_warnings
from conductor.errors import SettingsError
from conductor.events.envelope import new_call_id
from conductor.messages import ToolCall
from conductor.settings import Settings, load_settings
from conductor.tools.base import CallContext, Toolset, ToolSpec
from conductor.tools.declarations import load_catalog
from conductor.tools.executor import ApprovalNeeded, DryRun, PreparedCall, ToolExecutor
from conductor.tools.outcomes import ToolOutcome
from conductor.tools.permissions import Gate, GateOptions
from conductor.tools.policies import load, policies_path
from conductor.tools.toolsets import make_redactor, make_toolsets

_HEADINGS = ("tool", "source", "risk", "effect", "call", "why")


@asynccontextmanager
async def started(toolsets: Sequence[Toolset]) -> AsyncIterator[list[str]]:
    """Start toolsets, wait for remote servers, and yield the problems of those."""
    problems: list[str] = []
    try:
        for toolset in toolsets:
            await toolset.start(lambda: None)
        for toolset in toolsets:
            try:
                await toolset.ready()
            except SettingsError as error:
                problems.append(str(error))
        yield problems
    finally:
        for toolset in toolsets:
            await toolset.aclose()


def list_tools(options: argparse.Namespace) -> None:
    """List the tools, and the decision on a call of each."""
    settings = load_settings()
    gate = _gate(settings)

    async def offered() -> tuple[list[ToolSpec], list[str]]:
        toolsets = make_toolsets(settings)
        async with started(toolsets) as problems:
            return [spec for toolset in toolsets for spec in toolset.specs()], problems

    specs, problems = asyncio.run(offered())
    rows = []
    for spec in (*specs, *load_catalog(settings.device_tools_file)):
        decision, reason = gate.preview(spec, tainted=False)
        rows.append((spec.name, spec.source, spec.risk, spec.effect, decision, reason))
    write_table(_HEADINGS, rows, json=options.json)
    write_warnings(problems, json=options.json)


def _gate(settings: Settings) -> Gate:
    policies = load(policies_path(settings))
    return Gate(rules=policies.rules, options=GateOptions.of(settings), preset=policies.preset)


def call(options: argparse.Namespace) -> int:
    """Call a tool of the server; returns 2 if the call failed."""
    return asyncio.run(_call(options, load_settings()))


async def _call(options: argparse.Namespace, settings: Settings) -> int:
    toolsets = make_toolsets(settings)
    async with started(toolsets) as problems:
        redactor = make_redactor(settings, toolsets)
        executor = ToolExecutor(toolsets, settings.limits, _gate(settings), redactor)
        if executor.spec(options.tool) is None:
            raise SettingsError(" ".join([_unknown(options.tool, toolsets, settings), *problems]))
        call_id = new_call_id()
        prepared = executor.prepare(ToolCall(call_id, options.tool, options.arguments))
        if isinstance(prepared, ApprovalNeeded):
            if not (options.yes or _consents(prepared)):
                write("The tool did not run.")
                return 2
            prepared = prepared.ready
        if isinstance(prepared, DryRun):
            prepared = await executor.dry_run(prepared.ready)
        outcome = prepared
        if isinstance(prepared, PreparedCall):
            outcome = await executor.run(prepared, CallContext(session_id="cli", call_id=call_id))
        assert isinstance(outcome, ToolOutcome)
        write_json(msgspec.json.decode(executor.to_result(call_id, outcome).content))
        return 0 if outcome.success else 2


def _unknown(name: str, toolsets: Sequence[Toolset], settings: Settings) -> str:
    if name in (spec.name for spec in load_catalog(settings.device_tools_file)):
        return f"{name} runs on the device: only a conversation can call it."
    if name in (spec.name for toolset in toolsets for spec in toolset.specs()):
        return f"{name} is disabled; tools list gives the reason."
    return f"There is no tool {name!r}."


def _consents(request: ApprovalNeeded) -> bool:
    spec = request.ready.spec
    write(f"{spec.name} ({spec.risk} risk, {spec.effect}): {' '.join(request.verdict.reasons)}")
    write_json(request.ready.arguments, indent=None)
    return confirm("Run it?")
