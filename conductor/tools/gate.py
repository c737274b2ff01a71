"""What the gate knows of one session, and its verdict on a call."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from conductor.tools.base import ToolSpec
from conductor.tools.permissions import GateOptions, Verdict, decide, is_dry, offered
from conductor.tools.rules import Rule

MAY_HAVE_HAPPENED = "An identical call before may have happened already."


@dataclass(frozen=True, slots=True)
class Gate:
    """Decides about calls by the operator's rules and options and by what the person has granted.

    ``grants`` gives the rules that the person made. ``now`` gives epoch seconds.
    """

    rules: Sequence[Rule] = ()
    options: GateOptions = field(default_factory=GateOptions)
    grants: Callable[[], Sequence[Rule]] = tuple
    now: Callable[[], float] = time.time

    def offers(self, spec: ToolSpec) -> bool:
        """Tell whether the model is to see a tool at all."""
        return offered(spec, self.options, self.rules)

    def is_dry(self, spec: ToolSpec) -> bool:
        """Tell whether a tool only says what it would do."""
        return is_dry(spec, self.options)

    def judge(
        self,
        spec: ToolSpec,
        arguments: Mapping[str, Any],
        *,
        tainted: bool,
        may_have_happened: bool,
        granted: Sequence[Rule] = (),
    ) -> Verdict:
        """Decide about a call with validated arguments; a rule that denies always wins.

        ``may_have_happened`` means that an identical call ended without anybody knowing whether it had;
        ``granted`` are further rules of the person's.
        """
        rules = [*self.rules, *self.grants(), *granted]
        verdict = decide(spec, arguments, rules, now=self.now(), tainted=tainted, options=self.options)
        if verdict.effect == "deny":
            return verdict
        sensitive = None if spec.sensitive is None else spec.sensitive(arguments)
        unknown = MAY_HAVE_HAPPENED if may_have_happened else None
        reasons = [reason for reason in (unknown, sensitive) if reason]
        if not reasons:
            return verdict
        kept = verdict.reasons if verdict.effect == "ask" else ()
        return replace(verdict, effect="ask", reasons=(*reasons, *kept))
