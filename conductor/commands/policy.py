"""``conductor policy``: list, change and explain the operator's rules."""

from __future__ import annotations

import argparse
import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from conductor.commands.output import as_json, private_file, write, write_table
from conductor.commands.policy_lint import file_notes, lint
from conductor.config_file import MAX_BYTES, parse_json
from conductor.errors import SettingsError
from conductor.settings import load_settings
from conductor.tools.base import ToolSpec
from conductor.tools.permissions import Gate, GateOptions, decide, steps
from conductor.tools.policies import REREAD_S, load, parse_rules, policies_path, read_document
from conductor.tools.rules import Rule, describe, parse_rule, rule_object
from conductor.tools.toolsets import all_tools
from conductor.tools.validation import Valid, validate

APPLIED = f"Running servers apply it within {REREAD_S:g} seconds."


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


def add(options: argparse.Namespace) -> None:
    """Append a rule, in the form of the file."""
    settings = load_settings()
    rule = parse_rule(_object(options.rule, "The rule", '{"effect": "deny", "tool": "agent.cancel"}'))
    number = append_rule(policies_path(settings), rule)
    write(f"Added rule {number}: {describe(rule)}.", APPLIED)
    for finding in lint([rule], all_tools(settings), now=time.time()):
        write(f"warn  {finding.replace('Rule 1', f'Rule {number}', 1)}")


def _object(text: str, name: str, example: str) -> dict[str, Any]:
    try:
        value = parse_json(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{name} must be valid JSON: {error}.") from None
    if not isinstance(value, dict):
        raise SettingsError(f"{name} must be a JSON object, for example {example}.")
    return value


def remove(options: argparse.Namespace) -> None:
    """Remove a rule."""
    removed = remove_rule(policies_path(load_settings()), options.number)
    try:
        text = describe(parse_rule(removed))
    except SettingsError:  # an invalid rule has no description
        text = as_json(removed)
    write(f"Removed rule {options.number}: {text}.", APPLIED)


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
    arguments = _object(text, "The arguments", '{"limit": 3}')
    checked = validate(spec, text)
    if isinstance(checked, Valid):
        return checked.arguments, []
    return arguments, [f"Validation refuses the call. {checked.error_message}"]


# -- changes of the file, which preserve fields that are not known


def append_rule(path: Path, rule: Rule) -> int:
    """Append a rule to the file, under a lock; returns the rule's number. Raises `SettingsError`."""
    path = Path(os.path.realpath(path))
    with _locked(path):
        document = read_document(path)
        document["rules"] = [*document["rules"], rule_object(rule)]
        parse_rules(document["rules"], path.name)  # an invalid file is not changed
        _write(path, document)
        return len(document["rules"])


def remove_rule(path: Path, number: int) -> Mapping[str, Any]:
    """Remove a rule, valid or not, by its number from 1; returns its JSON form. Raises `SettingsError`."""
    path = Path(os.path.realpath(path))
    with _locked(path):
        document = read_document(path)
        rules = list(document["rules"])
        if not 1 <= number <= len(rules):
            extent = f"has rules 1 to {len(rules)}" if rules else "has no rules"
            raise SettingsError(f"There is no rule {number}: {path.name} {extent}.")
        removed = rules.pop(number - 1)
        document["rules"] = rules
        _write(path, document)
        return removed if isinstance(removed, dict) else {}


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    # The lock is a file of its own: the policy file is replaced.
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    try:
        descriptor = os.open(path.with_name(f"{path.name}.lock"), flags, 0o600)
    except OSError as error:
        raise SettingsError(f"{path.name}.lock cannot be written: {error.strerror}.") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write(path: Path, document: Mapping[str, Any]) -> None:
    text = as_json(document, 2) + "\n"
    if len(text.encode()) > MAX_BYTES:
        raise SettingsError(f"{path.name} would be larger than {MAX_BYTES} bytes.")
    with private_file(path, replace=True) as file:
        file.write(text)
