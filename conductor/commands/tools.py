"""``conductor tools``: list the server's tools, disable and enable them, and call one."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec

from conductor.commands.output import confirm, write, write_json, write_table
from conductor.commands.policy import APPLIED, add_rule
from conductor.errors import SettingsError
from conductor.events.envelope import new_call_id
from conductor.messages import ToolCall
from conductor.settings import Settings, load_settings
from conductor.tools.base import CallContext, ToolOutcome, Toolset, ToolSpec
from conductor.tools.device import load_catalog
from conductor.tools.executor import ApprovalNeeded, DryRun, PreparedCall, ToolExecutor
from conductor.tools.permissions import Gate, GateOptions
from conductor.tools.policies import load, policies_path, remove
from conductor.tools.rules import Rule
from conductor.tools.toolsets import make_redactor, make_toolsets

_HEADINGS = ("tool", "source", "risk", "effect", "call", "why")


@asynccontextmanager
async def _started(settings: Settings) -> AsyncIterator[tuple[list[Toolset], list[str]]]:
    # The server's toolsets, and the problems of remote servers.
    toolsets, problems = make_toolsets(settings), list[str]()
    try:
        for toolset in toolsets:
            await toolset.start(lambda: None)
        for toolset in toolsets:
            try:
                await toolset.ready()
            except SettingsError as error:
                problems.append(str(error))
        yield toolsets, problems
    finally:
        for toolset in toolsets:
            await toolset.aclose()


def list_tools(options: argparse.Namespace) -> None:
    """List the tools, and the decision on a call of each."""
    settings = load_settings()
    rules = [rule for rule in _rules(settings) if rule.session in (None, options.session)]
    gate = Gate(rules, GateOptions.of(settings))

    async def offered() -> tuple[list[ToolSpec], list[str]]:
        async with _started(settings) as (toolsets, problems):
            return [spec for toolset in toolsets for spec in toolset.specs()], problems

    specs, problems = asyncio.run(offered())
    rows = []
    for spec in (*specs, *load_catalog(settings.device_tools_file)):
        decision, reason = gate.preview(spec, tainted=False)
        rows.append((spec.name, spec.source, spec.risk, spec.effect, decision, reason))
    if options.json:
        tools = [dict(zip(_HEADINGS, row, strict=True)) for row in rows]
        write_json({"tools": tools, "problems": problems})
        return
    write_table(_HEADINGS, rows)
    write(*(f"warn  {problem}" for problem in problems))


def _rules(settings: Settings) -> tuple[Rule, ...]:
    return load(policies_path(settings)).rules


def disable(options: argparse.Namespace) -> None:
    """Add a rule that hides tools from the model."""
    fields = {"tool": options.tool, "source": options.source, "session": options.session}
    add_rule(load_settings(), effect="deny", **fields)


def enable(options: argparse.Namespace) -> None:
    """Remove the rules of `disable` with the same options."""

    def disables(rule: Rule) -> bool:
        scope = (rule.tool, rule.source, rule.session)
        same_scope = scope == (options.tool, options.source, options.session)
        return same_scope and rule.effect == "deny" and rule.unconditional

    settings = load_settings()
    numbers = [number for number, rule in enumerate(_rules(settings), 1) if disables(rule)]
    if not numbers:
        raise SettingsError(f"No such rule disables {options.tool}; policy list shows the rules.")
    for number in reversed(numbers):
        remove(policies_path(settings), number)
    write(f"{options.tool} is enabled.", APPLIED)


def call(options: argparse.Namespace) -> int:
    """Call a tool of the server; returns 2 if the call failed."""
    return asyncio.run(_call(options, load_settings()))


async def _call(options: argparse.Namespace, settings: Settings) -> int:
    async with _started(settings) as (toolsets, problems):
        gate = Gate([rule for rule in _rules(settings) if rule.session is None], GateOptions.of(settings))
        redactor = make_redactor(settings, toolsets)
        executor = ToolExecutor(toolsets, settings.limits, gate, redactor)
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
            outcome = await executor.run(prepared, CallContext("cli", call_id))
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
