"""``conductor policy``: list and explain the operator's rules."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from typing import Any

from conductor.commands.output import write, write_table, write_warnings
from conductor.commands.policy_lint import file_notes, lint
from conductor.config_file import parse_json
from conductor.errors import SettingsError
from conductor.settings import load_settings
from conductor.tools.base import ToolSpec
from conductor.tools.permissions import Gate, GateOptions
from conductor.tools.policies import load, policies_path
from conductor.tools.presets import ABOUT, PRESETS
from conductor.tools.rules import Rule, describe
from conductor.tools.toolsets import all_tools
from conductor.tools.validation import Valid, validate


def list_rules(options: argparse.Namespace) -> None:
    """List the rules, and warnings about them."""
    settings = load_settings()
    path = policies_path(settings)
    policies, notes = load(path), file_notes(path)
    loaded = policies.rules
    findings = lint(loaded, all_tools(settings), now=time.time())
    if loaded or options.json:
        rows = [_row(number, rule) for number, rule in enumerate(loaded, 1)]
        write_table(("rule", "effect", "tool", "source", "when"), rows, numbers=("rule",), json=options.json)
    else:
        write("There are no rules.")
    if not options.json:
        write(f"The preset {policies.preset} decides where no rule does: {ABOUT[policies.preset]}.")
    write_warnings((*notes, *findings), json=options.json)


def _row(number: int, rule: Rule) -> tuple[str, ...]:
    when = describe(rule).removeprefix(f"{rule.effect} {rule.tool}")
    when = when.removeprefix(f" from {rule.source}").lstrip(", ") or "always"
    return (str(number), rule.effect, rule.tool, rule.source or "any", when)


def explain(options: argparse.Namespace) -> None:
    """Explain the decision on a call."""
    settings = load_settings()
    spec = next((spec for spec in all_tools(settings) if spec.name == options.tool), None)
    if spec is None:
        raise SettingsError(f"There is no tool {options.tool!r}.")
    arguments, problem = _arguments(spec, options.arguments)
    path = policies_path(settings)
    policies, notes = load(path), file_notes(path)
    rules = policies.rules
    gate = Gate(rules=rules, options=GateOptions.of(settings), preset=policies.preset)
    verdict = gate.decide(spec, arguments, tainted=options.tainted, may_have_happened=False)
    numbers = [number for number, rule in enumerate(rules, 1) if rule is verdict.rule]
    by = f" (rule {numbers[0]})" if numbers else ""
    write(f"{spec.name}: {verdict.effect}{', with a warning' * verdict.warn}{by}")
    write(*(f"  {reason}" for reason in verdict.reasons))
    write("", f"risk {spec.risk}, effect {spec.effect}, source {spec.source}", "")
    if not gate.offers(spec):
        write("The model does not see this tool.")
    if gate.is_dry(spec):
        write("DRY_RUN is set: a call only describes its effect.")
    write(*(f"warn  {note}" for note in (*notes, *problem)))
    write("Decisions of people in their sessions are not considered.")


def presets(options: argparse.Namespace) -> None:
    """Print what each preset decides about the tools at hand."""
    settings = load_settings()
    gate_options = GateOptions.of(settings)
    rows = []
    for spec in all_tools(settings):
        decisions = [
            Gate(rules=(), options=gate_options, preset=preset).preview(spec, tainted=False)
            for preset in PRESETS
        ]
        rows.append((spec.name, spec.risk, spec.effect, *(decision for decision, _ in decisions)))
    write_table(("tool", "risk", "effect", *PRESETS), rows, json=options.json)
    if not options.json:
        write("", *(f"{preset}: {about}" for preset, about in ABOUT.items()))


def _arguments(spec: ToolSpec, text: str) -> tuple[Mapping[str, Any], list[str]]:
    # The arguments, and why the call would be refused.
    try:
        arguments = parse_json(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"The arguments must be valid JSON: {error}.") from None
    if not isinstance(arguments, dict):
        raise SettingsError('The arguments must be a JSON object, for example {"limit": 3}.')
    checked = validate(spec, text)
    if isinstance(checked, Valid):
        return checked.arguments, []
    return arguments, [f"Validation refuses the call. {checked.error_message}"]
