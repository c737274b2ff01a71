"""What may happen to a call: allowed, asked about or denied, and why.

All of it is pure: the time is passed in. Order: deny, ask, allow, the risk's default; never by how specific a
rule is (tools, "Permissions").
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias

from conductor.settings import Settings
from conductor.tools.base import ToolSpec
from conductor.tools.rules import Rule, RuleEffect, Scope, arguments_digest, describe, match

StepName: TypeAlias = Literal["deny", "ask", "allow", "default"]


@dataclass(frozen=True, slots=True)
class GateOptions:
    """What the operator set for all tools; ``allowed_tools`` are globs over names, none means all."""

    allowed_tools: tuple[str, ...] = ()
    deny_irreversible: bool = False
    dry_run: bool = False
    local_only: bool = False

    @classmethod
    def of(cls, settings: Settings) -> GateOptions:
        """Take them from the settings."""
        return cls(settings.allowed_tools, settings.deny_irreversible, settings.dry_run, settings.local_only)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What happens to a call. ``reasons`` are sentences for people, at least one.

    ``rule`` is the first one that led to it, None where none did. ``warn`` means that the question comes with
    a warning.
    """

    effect: RuleEffect
    reasons: tuple[str, ...]
    rule: Rule | None
    warn: bool


@dataclass(frozen=True, slots=True)
class Step:
    """What one step of the order says of a call; ``effect`` is None where it says nothing."""

    name: StepName
    effect: RuleEffect | None
    reasons: tuple[str, ...]
    rule: Rule | None = None


def decide(
    spec: ToolSpec,
    arguments: Mapping[str, Any],
    rules: Sequence[Rule],
    *,
    now: float,
    tainted: bool,
    options: GateOptions,
) -> Verdict:
    """Decide on a call with validated arguments: the first step that says anything.

    ``rules`` are the operator's and the person's together, in any order but for the wording: the first that
    matches is named. ``now`` is in epoch seconds. ``tainted`` means that untrusted output is in the history
    window: then a write or irreversible call asks even if a rule, a grant or the declaration allows it. Never
    raises.
    """
    all_steps = steps(spec, arguments, rules, now=now, tainted=tainted, options=options)
    step = next(each for each in all_steps if each.effect is not None)
    effect = step.effect or "ask"  # the default always says something; mypy cannot know
    return Verdict(effect, step.reasons, step.rule, effect == "ask" and spec.risk == "high")


def steps(
    spec: ToolSpec,
    arguments: Mapping[str, Any],
    rules: Sequence[Rule],
    *,
    now: float,
    tainted: bool,
    options: GateOptions,
) -> tuple[Step, ...]:
    """Say what each step of `decide` says, also those after the one that decides."""

    def step(effect: RuleEffect, others: tuple[str, ...] = ()) -> Step:
        for rule in (each for each in rules if each.effect == effect):
            found = match(rule, spec, arguments, now)
            if found != "no":
                return Step(effect, effect, (_rule_reason(rule, found == "unclear"), *others), rule)
        return (
            Step(effect, effect, others) if others else Step(effect, None, (f"No rule is to {effect} it.",))
        )

    taint = tainted and spec.effect != "read"
    return (
        step("deny", _refusals(spec, options)),
        step("ask", (TAINTED[spec.effect],) if taint else ()),
        step("allow"),
        _default(spec),
    )


TAINTED = {
    "write": "This conversation holds text that strangers wrote, and the call changes something.",
    "irreversible": "This conversation holds text that strangers wrote, and the call cannot be undone.",
}
_RULE_WORDS = {"deny": "A rule denies it", "ask": "A rule asks first", "allow": "A rule allows it"}


def _rule_reason(rule: Rule, unclear: bool) -> str:
    doubt = " (an argument can be read in more ways than one, and counts as meant)" if unclear else ""
    return f"{_RULE_WORDS[rule.effect]}: {describe(rule)}{doubt}."


def _refusals(spec: ToolSpec, options: GateOptions) -> tuple[str, ...]:
    reasons = []
    if not _listed(spec, options):
        reasons.append(f"ALLOWED_TOOLS does not name {spec.name}.")
    if options.deny_irreversible and spec.effect == "irreversible":
        reasons.append("It cannot be undone, and DENY_IRREVERSIBLE is set.")
    if options.local_only and spec.open_world:
        reasons.append("It reaches the web or a cloud, and LOCAL_ONLY is set.")
    return tuple(reasons)


def _listed(spec: ToolSpec, options: GateOptions) -> bool:
    return not options.allowed_tools or any(fnmatchcase(spec.name, each) for each in options.allowed_tools)


def _default(spec: ToolSpec) -> Step:
    if spec.approval == "ask":
        return Step("default", "ask", ("The tool is declared to ask each time.",))
    if spec.approval == "never":
        return Step("default", "allow", ("The tool is declared to need no approval.",))
    if spec.risk == "safe":
        return Step("default", "allow", ("Its risk is safe.",))
    return Step("default", "ask", (f"Its risk is {spec.risk}.",))


def offered(spec: ToolSpec, options: GateOptions, rules: Sequence[Rule] = ()) -> bool:
    """Tell whether the model gets to see a tool at all.

    Not if ALLOWED_TOOLS leaves it out, if it reaches out under LOCAL_ONLY, or if a deny rule covers all of
    its calls for good; one that expires leaves it in the catalogue.
    """
    if not _listed(spec, options) or (options.local_only and spec.open_world):
        return False
    return not any(
        rule.effect == "deny" and rule.unconditional and rule.expires is None and rule.covers(spec)
        for rule in rules
    )


def is_dry(spec: ToolSpec, options: GateOptions) -> bool:
    """Tell whether a call only reports what it would do: under DRY_RUN, whatever is more than safe."""
    return options.dry_run and (spec.risk != "safe" or spec.effect == "irreversible")


def grant(spec: ToolSpec, arguments: Mapping[str, Any], *, scope: Scope, expires: str | None = None) -> Rule:
    """Make a rule of a person's decision for this session or for always.

    At high risk it is for exactly these arguments, otherwise for any (tools, "Approvals"). It is void once
    the tool is defined in another way. ``expires`` is an ISO 8601 time with its offset. Raises `RuleError`
    for another, and at high risk what `arguments_digest` raises.
    """
    digest = arguments_digest(spec.name, arguments) if spec.risk == "high" else None
    return Rule(
        "allow",
        _literally(spec.name),
        source=_literally(spec.source),
        scope=scope,
        fingerprint=spec.fingerprint,
        expires=expires,
        arguments_digest=digest,
    )


def _literally(name: str) -> str:
    return re.sub(r"[*?[]", lambda sign: f"[{sign[0]}]", name)
