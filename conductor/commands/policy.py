"""``conductor policy``: list, change and explain the operator's rules."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from conductor.commands.output import as_json, write_table
from conductor.config_file import parse_json
from conductor.errors import SettingsError
from conductor.logs import configure_logs
from conductor.settings import Settings, load_settings
from conductor.tools.base import ToolSpec
from conductor.tools.device import known_tools
from conductor.tools.permissions import Gate, GateOptions, decide, steps
from conductor.tools.policies import REREAD_S, add, lint, load, policies_path, remove
from conductor.tools.rules import Rule, describe, parse_rule, rule_object
from conductor.tools.validation import Valid, validate

_APPLIED = f"Running servers apply it within {REREAD_S:g} seconds."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands and their options."""
    commands = parser.add_subparsers(dest="action", required=True, metavar="list|add|remove|explain")
    listing = commands.add_parser("list", help="list the rules, and problems with them")
    listing.add_argument("--json", action="store_true", help="as JSON")
    adding = commands.add_parser("add", help="append a rule")
    adding.add_argument("effect", choices=("allow", "ask", "deny"), help="the effect on matching calls")
    adding.add_argument("tool", help="a tool's name; * matches any characters")
    adding.add_argument("--source", help="only tools of this source: device, builtin, mcp:NAME")
    adding.add_argument(
        "--arg",
        action="append",
        default=[],
        metavar="NAME:PRED=VALUE",
        help="only calls with a matching argument, for example path:under=/srv/notes; PRED is eq, in, glob, "
        "under, host or max; repeated options must all match",
    )
    adding.add_argument("--expires", metavar="TIME", help="end of validity, for example 2030-01-31T18:00:00Z")
    removing = commands.add_parser("remove", help="remove a rule")
    removing.add_argument("number", type=int, help="the rule's number in the list")
    explaining = commands.add_parser("explain", help="explain the decision on a call")
    explaining.add_argument("tool", help="the tool's name")
    explaining.add_argument("arguments", nargs="?", default="{}", help="the call's arguments as JSON ({})")
    explaining.add_argument(
        "--tainted", action="store_true", help="as if the conversation contained text of third parties"
    )
    explaining.add_argument("--json", action="store_true", help="as JSON")


def run(
    options: argparse.Namespace, stdout: TextIO | None = None, now: Callable[[], float] = time.time
) -> int:
    """Run a subcommand; returns the exit code. Raises `SettingsError` for a user's mistake."""
    configure_logs("error", "console", cache=False)  # this command prints the notes on the file
    action = {"list": _list, "add": _add, "remove": _remove, "explain": _explain}[options.action]
    action(options, load_settings(), stdout or sys.stdout, now())
    return 0


def _list(options: argparse.Namespace, settings: Settings, out: TextIO, now: float) -> None:
    policies = load(policies_path(settings))
    findings = lint(policies.rules, known_tools(settings), now=now)
    if options.json:
        rules = [{"number": number, **rule_object(rule)} for number, rule in enumerate(policies.rules, 1)]
        out.write(as_json({"rules": rules, "notes": policies.notes, "findings": findings}, indent=2))
        return
    if policies.rules:
        rows = [_row(number, rule) for number, rule in enumerate(policies.rules, 1)]
        write_table(out, ("", "effect", "tool", "source", "when"), rows, numbers=("",))
    else:
        out.write("There are no rules: each tool's risk decides.\n")
    out.writelines(f"warn  {line}\n" for line in (*policies.notes, *findings))


def _row(number: int, rule: Rule) -> tuple[str, ...]:
    when = describe(rule).removeprefix(f"{rule.effect} {rule.tool}")
    when = when.removeprefix(f" from {rule.source}").lstrip(", ") or "always"
    return (str(number), rule.effect, rule.tool, rule.source or "any", when)


def _add(options: argparse.Namespace, settings: Settings, out: TextIO, now: float) -> None:
    fields = {"effect": options.effect, "tool": options.tool, "args": _predicates(options.arg)}
    optional = {"source": options.source, "expires": options.expires}
    rule = parse_rule(fields | {name: value for name, value in optional.items() if value is not None})
    number = add(policies_path(settings), rule)
    out.write(f"Added rule {number}: {describe(rule)}.\n{_APPLIED}\n")
    for finding in lint([rule], known_tools(settings), now=now):
        out.write(f"warn  {finding.replace('Rule 1', f'Rule {number}', 1)}\n")


def _predicates(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    args: dict[str, dict[str, Any]] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        name, colon, predicate = key.partition(":")
        if not (equals and colon and name):
            raise SettingsError(f"--arg {text!r} must be NAME:PRED=VALUE, for example path:under=/srv/notes.")
        if predicate in args.setdefault(name, {}):
            raise SettingsError(f"--arg {name}:{predicate} is repeated.")
        args[name][predicate] = _value(predicate, value)
    return args


def _value(predicate: str, text: str) -> Any:
    # These are always text: a folder named 2024 is not a number.
    if predicate in ("glob", "under", "host"):
        return text
    value = _json_or_text(text)
    if predicate == "in" and not isinstance(value, list):
        return [_json_or_text(part.strip()) for part in text.split(",") if part.strip()]
    return value


def _json_or_text(text: str) -> Any:
    try:
        return parse_json(text)
    except (ValueError, RecursionError):
        return text


def _remove(options: argparse.Namespace, settings: Settings, out: TextIO, now: float) -> None:
    removed = remove(policies_path(settings), options.number)
    try:
        text = describe(parse_rule(removed))
    except SettingsError:  # an invalid rule has no description
        text = json.dumps(removed)
    out.write(f"Removed rule {options.number}: {text}.\n{_APPLIED}\n")


def _explain(options: argparse.Namespace, settings: Settings, out: TextIO, now: float) -> None:
    specs = {spec.name: spec for spec in known_tools(settings)}
    spec = specs.get(options.tool)
    if spec is None:
        raise SettingsError(f"There is no tool {options.tool!r}.")
    arguments, problem = _arguments(spec, options.arguments)
    policies, gate = load(policies_path(settings)), GateOptions.of(settings)
    rules = policies.rules
    trace = steps(spec, arguments, rules, now=now, tainted=options.tainted, options=gate)
    verdict = decide(spec, trace, tainted=options.tainted)

    def number(rule: Rule | None) -> int | None:
        return next((number for number, candidate in enumerate(rules, 1) if candidate is rule), None)

    answer = {
        "tool": spec.name,
        "source": spec.source,
        "risk": spec.risk,
        "effect": spec.effect,
        "approval": spec.approval,
        "arguments": arguments,
        "verdict": verdict.effect,
        "warn": verdict.warn,
        "reasons": verdict.reasons,
        "ruleNumber": number(verdict.rule),
        "rule": rule_object(verdict.rule) if verdict.rule else None,
        "steps": [
            {
                "step": step.name,
                "verdict": step.effect,
                "reasons": step.reasons,
                "ruleNumber": number(step.rule),
            }
            for step in trace
        ],
        "offered": Gate(rules, gate).offers(spec),
        "dryRun": Gate(rules, gate).is_dry(spec),
        "tainted": options.tainted,
        "notes": [*policies.notes, *([problem] if problem else [])],
    }
    out.write(as_json(answer, indent=2) if options.json else _in_words(answer))


def _in_words(answer: Mapping[str, Any]) -> str:
    def of_rule(decision: Mapping[str, Any]) -> str:
        return f" (rule {decision['ruleNumber']})" if decision["ruleNumber"] else ""

    warned = ", with a warning" if answer["warn"] else ""
    lines = [f"{answer['tool']}: {answer['verdict']}{warned}{of_rule(answer)}"]
    lines += [f"  {reason}" for reason in answer["reasons"]]
    lines += ["", f"risk {answer['risk']}, effect {answer['effect']}, source {answer['source']}", ""]
    for step in answer["steps"]:
        reasons = " ".join(step["reasons"])
        lines.append(f"{step['step']:<8} {step['verdict'] or '-':<6} {reasons}{of_rule(step)}")
    lines.append("")
    if not answer["offered"]:
        lines.append("The model does not see this tool.")
    if answer["dryRun"]:
        lines.append("DRY_RUN is set: a call only describes its effect.")
    lines += [f"warn  {note}" for note in answer["notes"]]
    lines.append("Decisions of people in their sessions are not considered.")
    return "\n".join(lines) + "\n"


def _arguments(spec: ToolSpec, text: str) -> tuple[Mapping[str, Any], str]:
    try:
        arguments = parse_json(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"The arguments are not valid JSON: {error}.") from None
    if not isinstance(arguments, dict):
        raise SettingsError('The arguments must be a JSON object, for example {"limit": 3}.')
    checked = validate(spec, text)
    if isinstance(checked, Valid):
        return checked.arguments, ""
    return arguments, f"Validation refuses the call. {checked.error_message}"
