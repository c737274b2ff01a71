"""``conductor policy``: list, change and explain the operator's rules."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from conductor.errors import SettingsError

if TYPE_CHECKING:
    from conductor.settings import Settings
    from conductor.tools.base import ToolSpec
    from conductor.tools.permissions import Step, Verdict
    from conductor.tools.policies import Policies
    from conductor.tools.rules import Rule

_TEXT_PREDICATES = ("glob", "under", "host")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands and their options."""
    commands = parser.add_subparsers(dest="action", required=True, metavar="list|add|remove|explain")
    listing = commands.add_parser("list", help="show the rules, and what is wrong with them")
    listing.add_argument("--json", action="store_true", help="as JSON")
    adding = commands.add_parser("add", help="add a rule at the end")
    adding.add_argument("effect", choices=("allow", "ask", "deny"), help="what happens to the calls")
    adding.add_argument("tool", help="a tool's name; * stands for any characters")
    adding.add_argument("--source", help="only tools from there: device, builtin, mcp:NAME")
    adding.add_argument(
        "--arg",
        action="append",
        default=[],
        metavar="NAME:PRED=VALUE",
        help="only calls with such an argument, for example path:under=/srv/notes; PRED is eq, in, glob, "
        "under, host or max; several must all hold",
    )
    adding.add_argument("--expires", metavar="TIME", help="until then, for example 2030-01-31T18:00:00Z")
    removing = commands.add_parser("remove", help="take a rule out")
    removing.add_argument("number", type=int, help="the rule's number, as list shows it")
    explaining = commands.add_parser("explain", help="say what would happen to a call, and why")
    explaining.add_argument("tool", help="the tool's name")
    explaining.add_argument("arguments", nargs="?", default="{}", help="the call's arguments as JSON ({})")
    explaining.add_argument(
        "--tainted", action="store_true", help="as if text of strangers were in the conversation"
    )
    explaining.add_argument("--json", action="store_true", help="as JSON")


def run(
    options: argparse.Namespace, stdout: TextIO | None = None, now: Callable[[], float] = time.time
) -> int:
    """Run a subcommand; returns the exit code. Raises `SettingsError` for a user's mistake."""
    from conductor.logs import configure_logs
    from conductor.settings import load_settings

    configure_logs("error", "console", cache=False)  # notes on the file are printed by this command
    out = stdout or sys.stdout
    settings = load_settings()
    action = {"list": _list, "add": _add, "remove": _remove, "explain": _explain}[options.action]
    action(options, settings, out, now())
    return 0


def _list(options: argparse.Namespace, settings: Settings, out: TextIO, now: float) -> None:
    from conductor.tools.policies import lint, load, policies_path
    from conductor.tools.rules import rule_object

    policies = load(policies_path(settings))
    findings = lint(policies.rules, _known_tools(settings), now=now)
    if options.json:
        rules = [{"number": number, **rule_object(rule)} for number, rule in enumerate(policies.rules, 1)]
        _print_json({"rules": rules, "notes": policies.notes, "findings": findings}, out)
        return
    if not policies.rules:
        out.write("There are no rules: each tool's risk decides.\n")
    for line in _table(policies.rules):
        out.write(f"{line}\n")
    for line in (*policies.notes, *findings):
        out.write(f"warn  {line}\n")


def _table(rules: Sequence[Rule]) -> list[str]:
    from conductor.tools.rules import describe

    if not rules:
        return []
    rows = [("", "effect", "tool", "source", "when")]
    for number, rule in enumerate(rules, 1):
        said = describe(rule).removeprefix(f"{rule.effect} {rule.tool}")
        said = said.removeprefix(f" from {rule.source}").lstrip(", ") or "always"
        rows.append((str(number), rule.effect, rule.tool, rule.source or "any", said))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return [
        "  ".join([row[0].rjust(widths[0]), *(row[i].ljust(widths[i]) for i in (1, 2, 3)), row[4]])
        for row in rows
    ]


def _add(options: argparse.Namespace, settings: Settings, out: TextIO, now: float) -> None:
    from conductor.tools.policies import add, lint, policies_path
    from conductor.tools.rules import RuleError, describe, parse_rule

    given = {"effect": options.effect, "tool": options.tool, "args": _predicates(options.arg)}
    more = {"source": options.source, "expires": options.expires}
    try:
        rule = parse_rule(given | {name: value for name, value in more.items() if value is not None})
    except RuleError as error:
        raise SettingsError(f"The rule is not valid: {error}.") from None
    number = add(policies_path(settings), rule)
    out.write(f"Rule {number} is now: {describe(rule)}.\n{_taken_up()}\n")
    for finding in lint([rule], _known_tools(settings), now=now):
        out.write(f"warn  {finding.replace('Rule 1', f'Rule {number}', 1)}\n")


def _taken_up() -> str:
    from conductor.tools.policies import REREAD_S

    return f"Running servers take it up within {REREAD_S:g} seconds."


def _predicates(given: Sequence[str]) -> dict[str, dict[str, Any]]:
    args: dict[str, dict[str, Any]] = {}
    for each in given:
        left, equals, value = each.partition("=")
        name, colon, predicate = left.partition(":")
        if not (equals and colon and name):
            raise SettingsError(f"--arg {each!r} must be NAME:PRED=VALUE, for example path:under=/srv/notes.")
        if predicate in args.setdefault(name, {}):
            raise SettingsError(f"--arg {name}:{predicate} is given twice.")
        args[name][predicate] = _value(predicate, value)
    return args


def _value(predicate: str, text: str) -> Any:
    if predicate in _TEXT_PREDICATES:
        return text
    value = _json_or_text(text)
    if predicate == "in" and not isinstance(value, list):
        return [_json_or_text(part.strip()) for part in text.split(",") if part.strip()]
    return value


def _json_or_text(text: str) -> Any:
    from conductor.tools.rules import parse_json

    try:
        return parse_json(text)
    except (ValueError, RecursionError):
        return text


def _remove(options: argparse.Namespace, settings: Settings, out: TextIO, now: float) -> None:
    from conductor.tools.policies import policies_path, remove
    from conductor.tools.rules import RuleError, describe, parse_rule

    removed = remove(policies_path(settings), options.number)
    try:
        said = describe(parse_rule(removed))
    except RuleError:
        said = json.dumps(removed)
    out.write(f"Rule {options.number} is gone: {said}.\n{_taken_up()}\n")


# -- explain


def _explain(options: argparse.Namespace, settings: Settings, out: TextIO, now: float) -> None:
    from conductor.tools.permissions import GateOptions, decide, steps
    from conductor.tools.policies import load, policies_path

    spec = _find(options.tool, _known_tools(settings))
    arguments, problem = _arguments(spec, options.arguments)
    policies = load(policies_path(settings))
    given = {"now": now, "tainted": options.tainted, "options": GateOptions.of(settings)}
    verdict = decide(spec, arguments, policies.rules, **given)
    found = steps(spec, arguments, policies.rules, **given)
    answer = _answer(spec, arguments, verdict, found, policies, settings)
    notes = [*policies.notes, *([problem] if problem else [])]
    if options.json:
        _print_json({**answer, "tainted": options.tainted, "notes": notes}, out)
    else:
        out.write(_in_words(answer, notes))


def _answer(
    spec: ToolSpec,
    arguments: Mapping[str, Any],
    verdict: Verdict,
    found: Sequence[Step],
    policies: Policies,
    settings: Settings,
) -> dict[str, Any]:
    from conductor.tools.permissions import GateOptions, is_dry, offered
    from conductor.tools.rules import rule_object

    options = GateOptions.of(settings)
    return {
        "tool": spec.name,
        "source": spec.source,
        "risk": spec.risk,
        "effect": spec.effect,
        "approval": spec.approval,
        "arguments": arguments,
        "verdict": verdict.effect,
        "warn": verdict.warn,
        "reasons": verdict.reasons,
        "ruleNumber": _number(verdict.rule, policies),
        "rule": rule_object(verdict.rule) if verdict.rule else None,
        "steps": [
            {
                "step": step.name,
                "verdict": step.effect,
                "reasons": step.reasons,
                "ruleNumber": _number(step.rule, policies),
            }
            for step in found
        ],
        "offered": offered(spec, options, policies.rules),
        "dryRun": is_dry(spec, options),
    }


def _number(rule: Rule | None, policies: Policies) -> int | None:
    return next((number for number, each in enumerate(policies.rules, 1) if each is rule), None)


def _in_words(answer: Mapping[str, Any], notes: Sequence[str]) -> str:
    number = f" (rule {answer['ruleNumber']})" if answer["ruleNumber"] else ""
    warned = ", with a warning" if answer["warn"] else ""
    lines = [f"{answer['tool']}: {answer['verdict']}{warned}{number}"]
    lines += [f"  {reason}" for reason in answer["reasons"]]
    lines += ["", f"risk {answer['risk']}, effect {answer['effect']}, source {answer['source']}", ""]
    for step in answer["steps"]:
        number = f" (rule {step['ruleNumber']})" if step["ruleNumber"] else ""
        lines.append(f"{step['step']:<8} {step['verdict'] or '-':<6} {' '.join(step['reasons'])}{number}")
    lines.append("")
    if not answer["offered"]:
        lines.append("The model does not get to see this tool.")
    if answer["dryRun"]:
        lines.append("DRY_RUN is set: a call only says what it would do.")
    lines += [f"warn  {note}" for note in notes]
    lines.append("What people decided in their sessions is not looked at here.")
    return "\n".join(lines) + "\n"


def _known_tools(settings: Settings) -> tuple[ToolSpec, ...]:
    from conductor.tools.device import known_tools

    return known_tools(settings.device_tools_file)


def _find(name: str, specs: Sequence[ToolSpec]) -> ToolSpec:
    from conductor.tools.rules import hint

    by_name = {spec.name: spec for spec in specs}
    if name in by_name:
        return by_name[name]
    raise SettingsError(f"There is no tool {name!r}{hint(name, by_name)}.")


def _arguments(spec: ToolSpec, text: str) -> tuple[Mapping[str, Any], str]:
    from conductor.tools.rules import parse_json
    from conductor.tools.validation import Valid, validate

    try:
        arguments = parse_json(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"The arguments are not valid JSON: {error}.") from None
    if not isinstance(arguments, dict):
        raise SettingsError('The arguments must be a JSON object, for example {"limit": 3}.')
    checked = validate(spec, text)
    if isinstance(checked, Valid):
        return checked.arguments, ""
    return arguments, f"The call would be refused before that. {checked.error_message}"


def _print_json(value: Any, out: TextIO) -> None:
    # A lone surrogate stays a JSON escape: a terminal cannot encode it.
    text = json.dumps(value, indent=2, ensure_ascii=False)
    out.write(text.encode(errors="backslashreplace").decode() + "\n")
