"""``conductor policy``: list and explain the operator's rules."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from typing import Any

from conductor.commands.output import write, write_table
from conductor.commands.policy_lint import file_notes, lint
from conductor.config_file import parse_json
from conductor.errors import SettingsError
from conductor.settings import load_settings
from conductor.tools.base import ToolSpec
from conductor.tools.permissions import Gate, GateOptions, decide, steps
from conductor.tools.policies import load, policies_path
from conductor.tools.rules import Rule, describe
from conductor.tools.toolsets import all_tools
from conductor.tools.validation import Valid, validate


def list_rules(_options: argparse.Namespace) -> None:
    """List the rules, and warnings about them."""
    settings = load_settings()
    path = policies_path(settings)
    loaded, notes = load(path), file_notes(path)
    findings = lint(loaded, all_tools(settings), now=time.time())
    if loaded:
        rows = [_row(number, rule) for number, rule in enumerate(loaded, 1)]
        write_table(("", "effect", "tool", "source", "when"), rows, numbers=("",))
    else:
        write("There are no rules: each tool's risk decides.")
    write(*(f"warn  {line}" for line in (*notes, *findings)))


def _row(number: int, rule: Rule) -> tuple[str, ...]:
    when = describe(rule).removeprefix(f"{rule.effect} {rule.tool}")
    when = when.removeprefix(f" from {rule.source}").lstrip(", ") or "always"
    return (str(number), rule.effect, rule.tool, rule.source or "any", when)


def explain(options: argparse.Namespace) -> None:
    """Explain the decision on a call, step by step."""
    settings = load_settings()
    spec = next((spec for spec in all_tools(settings) if spec.name == options.tool), None)
    if spec is None:
        raise SettingsError(f"There is no tool {options.tool!r}.")
    arguments, problem = _arguments(spec, options.arguments)
    path, gate_options = policies_path(settings), GateOptions.of(settings)
    rules, notes = load(path), file_notes(path)
    gate = Gate(rules, gate_options)
    trace = steps(spec, arguments, rules, now=time.time(), tainted=options.tainted, options=gate_options)
    verdict = decide(spec, trace, tainted=options.tainted)

    def by(rule: Rule | None) -> str:
        numbers = (number for number, candidate in enumerate(rules, 1) if candidate is rule)
        return next((f" (rule {number})" for number in numbers), "")

    write(f"{spec.name}: {verdict.effect}{', with a warning' * verdict.warn}{by(verdict.rule)}")
    write(*(f"  {reason}" for reason in verdict.reasons))
    write("", f"risk {spec.risk}, effect {spec.effect}, source {spec.source}", "")
    for step in trace:
        write(f"{step.name:<8} {step.effect or '-':<6} {' '.join(step.reasons)}{by(step.rule)}")
    write("")
    if not gate.offers(spec):
        write("The model does not see this tool.")
    if gate.is_dry(spec):
        write("DRY_RUN is set: a call only describes its effect.")
    write(*(f"warn  {note}" for note in (*notes, *problem)))
    write("Decisions of people in their sessions are not considered.")


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
