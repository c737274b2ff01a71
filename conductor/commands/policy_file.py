"""Changes of ``policies.json``, and lint; fields that are not known are preserved."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from conductor.commands.output import as_json, private_file
from conductor.config_file import MAX_BYTES
from conductor.errors import SettingsError
from conductor.tools.base import ToolSpec, matcher
from conductor.tools.policies import parse_rules, read_document
from conductor.tools.rules import Rule, describe, rule_object


def add(path: Path, rule: Rule) -> int:
    """Append a rule to the file, under a lock; returns the rule's number. Raises `SettingsError`."""
    path = Path(os.path.realpath(path))
    with _locked(path):
        document = read_document(path)
        document["rules"] = [*document["rules"], rule_object(rule)]
        parse_rules(document["rules"], path.name)  # an invalid file is not changed
        _write(path, document)
        return len(document["rules"])


def remove(path: Path, number: int) -> Mapping[str, Any]:
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


def file_notes(path: Path) -> list[str]:
    """Return a warning for a file that every user may write."""
    with suppress(OSError):
        if path.stat().st_mode & stat.S_IWOTH:
            return [f"Every user of this machine may write {path.name}. Use chmod 600."]
    return []


# -- writing


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


# -- lint

_OPEN_KEYWORDS = frozenset("patternProperties allOf anyOf oneOf if then else dependentSchemas $ref".split())
"""Keywords by which a schema may have arguments besides its ``properties``."""
_NO_TOOL = "no tool of the catalog or the server has this name; a tool that an app declares may"


def lint(rules: Sequence[Rule], specs: Sequence[ToolSpec], *, now: float) -> list[str]:
    """Return a warning for each rule that has expired, matches no known tool or is dangerously wide.

    ``specs`` are the tools of the catalog and the server; an app may declare others. Rules are numbered from
    1. ``now`` is in epoch seconds.
    """
    return [
        f"Rule {number} ({describe(rule)}) {problem}."
        for number, rule in enumerate(rules, 1)
        for problem in _problems(rule, specs, now)
    ]


def lint_allowed(globs: Sequence[str], specs: Sequence[ToolSpec]) -> list[str]:
    """Return a warning for each name in ALLOWED_TOOLS that matches no tool; an app may declare others."""
    return [
        f"names {glob}, but {_NO_TOOL}"
        for glob in globs
        if not any(matcher(glob)(spec.name) for spec in specs)
    ]


def _problems(rule: Rule, specs: Sequence[ToolSpec], now: float) -> Iterator[str]:
    if rule.expired(now):
        yield "has expired"
        return
    covered = [spec for spec in specs if rule.covers(spec)]
    if not covered and rule.source == "builtin":
        yield "can never match: no tool of the server has this name"
    elif not covered and not any(matcher(rule.tool)(spec.name) for spec in specs):
        yield f"may never match: {_NO_TOOL}"
    unknown = [name for name in rule.args if covered and not any(_takes(spec, name) for spec in covered)]
    if unknown:
        yield f"can never match: no known tool that it covers takes the argument {', '.join(unknown)}"
    if rule.effect == "allow" and rule.unconditional and not rule.tool.strip("*?."):
        yield "is dangerously wide: it allows every tool that no other rule stops"


def _takes(spec: ToolSpec, name: str) -> bool:
    return name in spec.input_schema.get("properties", {}) or not _OPEN_KEYWORDS.isdisjoint(spec.input_schema)
