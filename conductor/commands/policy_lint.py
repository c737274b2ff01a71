"""Warnings about the operator's rules and their file."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from conductor.tools.base import ToolSpec, matcher
from conductor.tools.rules import Rule, describe


def file_notes(path: Path) -> list[str]:
    """Return a warning for a file that every user may write."""
    with suppress(OSError):
        if path.stat().st_mode & stat.S_IWOTH:
            return [f"Every user of this machine may write {path.name}. Use chmod 600."]
    return []


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
