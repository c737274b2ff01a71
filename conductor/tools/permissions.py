"""Permission decisions: whether a call is allowed, asked about or denied, with the reasons.

Pure functions; the time is passed in. Order: deny, ask, allow, the preset. Specificity does not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from conductor.settings import Settings
from conductor.tools.base import ToolSpec, matcher
from conductor.tools.outcomes import Caution
from conductor.tools.predicates import Argument
from conductor.tools.presets import PRESETS, UNDONE, Preset
from conductor.tools.rules import GrantScope, Rule, RuleEffect, arguments_digest, describe, matches

GateEffect: TypeAlias = RuleEffect | Literal["disabled"]
"""The decision about a tool; one that is ``disabled`` is not offered to the model."""


@dataclass(frozen=True, slots=True)
class GateOptions:
    """The operator's options for all tools; ``allowed_tools`` are globs over names, empty for all tools."""

    allowed_tools: tuple[str, ...] = ()
    deny_irreversible: bool = False
    dry_run: bool = False
    local_only: bool = False

    @classmethod
    def of(cls, settings: Settings) -> GateOptions:
        """Take them from the settings."""
        return cls(settings.allowed_tools, settings.deny_irreversible, settings.dry_run, settings.local_only)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The decision about a call. ``reasons``: at least one sentence for people.

    ``rule`` is the first rule that decided, if any. ``warn``: the request for consent carries a warning.
    ``cautions`` are the reasons that a spoken question mentions.
    """

    effect: RuleEffect
    reasons: tuple[str, ...]
    rule: Rule | None
    warn: bool
    cautions: tuple[Caution, ...] = ()


_STRANGERS = "It may come from strangers, whose text is in this conversation, and not from you."
_RULE_WORDS = {
    "deny": "The operator's rules forbid it",
    "ask": "The operator's rules ask first",
    "allow": "It was allowed before",
}


def _refusals(spec: ToolSpec, options: GateOptions) -> tuple[str, ...]:
    reasons = []
    if not _is_listed(spec, options):
        reasons.append(f"ALLOWED_TOOLS does not name {spec.name}.")
    if options.deny_irreversible and spec.effect == "irreversible":
        reasons.append("It cannot be undone, and DENY_IRREVERSIBLE is set.")
    if options.local_only and spec.open_world:
        reasons.append("It reaches the web or a cloud, and LOCAL_ONLY is set.")
    return tuple(reasons)


def _is_listed(spec: ToolSpec, options: GateOptions) -> bool:
    return not options.allowed_tools or any(matcher(glob)(spec.name) for glob in options.allowed_tools)


def grant(spec: ToolSpec, arguments: Mapping[str, Any], *, scope: GrantScope) -> Rule:
    """Make a rule from a person's decision for this session or for always.

    At high risk it covers exactly these arguments, otherwise all. It ends when the tool's definition changes.
    """
    digest = arguments_digest(spec.name, arguments) if spec.risk == "high" else None
    return Rule(
        effect="allow",
        tool=spec.name,
        source=spec.source,
        scope=scope,
        fingerprint=spec.fingerprint,
        arguments_digest=digest,
    )


MAY_HAVE_HAPPENED = "An identical call before may have happened already."


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Decides about calls by the operator's rules and options and by ``grants``, the person's rules.

    ``preset`` decides where no rule does. ``now`` returns epoch seconds.
    """

    rules: Sequence[Rule] = ()
    options: GateOptions = field(default_factory=GateOptions)
    grants: Callable[[], Sequence[Rule]] = tuple
    now: Callable[[], float] = time.time
    preset: Preset = "standard"

    def offers(self, spec: ToolSpec) -> bool:
        """Return whether a tool is offered to the model.

        Not if ALLOWED_TOOLS excludes it, if it uses the network under LOCAL_ONLY, if a deny rule without
        an expiry covers all its calls, or if the preset denies it and no rule is about it.
        """
        options = self.options
        if (options.allowed_tools and not _is_listed(spec, options)) or (
            options.local_only and spec.open_world
        ):
            return False
        for rule in self.rules:
            if rule.effect == "deny" and rule.unconditional and rule.expires is None and rule.covers(spec):
                return False
        is_ruled = any(rule.effect != "deny" and rule.covers(spec) for rule in self.rules)
        return is_ruled or PRESETS[self.preset](spec)[0] != "deny"

    def is_dry(self, spec: ToolSpec) -> bool:
        """Return whether a tool's calls are only simulated: under DRY_RUN, all calls that are not safe."""
        return self.options.dry_run and (spec.risk != "safe" or spec.effect == "irreversible")

    def decide(
        self,
        spec: ToolSpec,
        arguments: Mapping[str, Any],
        *,
        tainted: bool,
        may_have_happened: bool,
        granted: Sequence[Rule] = (),
    ) -> Verdict:
        """Decide about a call with validated arguments; a deny rule always wins. Never raises.

        ``tainted``: untrusted output is in the history window, so a write, an irreversible call or a read of
        the open world asks even if a rule, a grant or the declaration allows it. ``may_have_happened``: an
        identical call ended with an unknown outcome. ``granted`` are further rules of the person.
        """
        verdict = self._judge(spec, arguments, tainted=tainted, granted=granted)
        if verdict.effect == "deny":
            return verdict
        sensitive = None if spec.sensitive is None else spec.sensitive(arguments)
        unknown = MAY_HAVE_HAPPENED if may_have_happened else None
        reasons = [reason for reason in (unknown, sensitive) if reason]
        if not reasons:
            return verdict
        own_reasons = verdict.reasons if verdict.effect == "ask" else ()
        cautions: tuple[Caution, ...] = ("may_have_happened",) if may_have_happened else ()
        cautions += verdict.cautions
        return replace(verdict, effect="ask", reasons=(*reasons, *own_reasons), cautions=cautions)

    def preview(self, spec: ToolSpec, *, tainted: bool) -> tuple[GateEffect, str]:
        """Return the decision on a call without arguments, and the reasons in sentences."""
        verdict = self._judge(spec, {}, tainted=tainted)
        return verdict.effect if self.offers(spec) else "disabled", " ".join(verdict.reasons)

    def _judge(
        self, spec: ToolSpec, arguments: Mapping[str, Any], *, tainted: bool, granted: Sequence[Rule] = ()
    ) -> Verdict:
        call = {name: Argument(value) for name, value in arguments.items()}
        rules, now = [*self.rules, *self.grants(), *granted], self.now()
        # A read of the open world counts: its arguments leave this machine.
        is_tainted = tainted and (spec.effect != "read" or spec.open_world)

        def verdict(effect: RuleEffect, reasons: tuple[str, ...], rule: Rule | None = None) -> Verdict:
            asks = effect == "ask"
            cautions: tuple[Caution, ...] = ("untrusted",) if asks and is_tainted else ()
            return Verdict(
                effect=effect,
                reasons=reasons,
                rule=rule,
                warn=asks and spec.risk == "high",
                cautions=cautions,
            )

        # Before any allow rule: a stranger's text may speak in the person's name.
        taint = (_STRANGERS,) if is_tainted else ()
        default, why = PRESETS[self.preset](spec)
        refusals = _refusals(spec, self.options)
        # A person's grant is no exception to what the preset forbids.
        if default == "deny" and not any(
            r.effect != "deny" and matches(r, spec, call, now) for r in self.rules
        ):
            refusals += (why,)
        order: list[tuple[RuleEffect, tuple[str, ...]]]
        order = [("deny", refusals), ("ask", taint), ("allow", ())]
        for effect, reasons in order:
            matching = (rule for rule in rules if rule.effect == effect and matches(rule, spec, call, now))
            if rule := next(matching, None):
                reasons = (f"{_RULE_WORDS[effect]}: {describe(rule)}.", *reasons)
            if reasons:
                undone = (UNDONE,) if effect == "ask" and spec.effect == "irreversible" else ()
                return verdict(effect, (*reasons, *undone), rule)
        return verdict(default, (why,))
