"""The gate's verdict on a call, by all that it knows: what denies always wins, and doubt asks."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest

from conductor.tools.base import ToolSpec
from conductor.tools.permissions import MAY_HAVE_HAPPENED, Gate, GateOptions, Verdict
from conductor.tools.rules import Rule, RuleEffect

NOW = 1_800_000_000.0
ALLOW, ASK, DENY = Rule("allow", "file.*"), Rule("ask", "file.*"), Rule("deny", "file.*")
SECRET = "It reads a file that may hold secrets."


def spec(name: str = "file.write", **fields: Any) -> ToolSpec:
    return ToolSpec(name, "Does it", {"type": "object"}, **fields)


def secret(arguments: Mapping[str, Any]) -> str | None:
    return SECRET if arguments.get("path") == ".env" else None


def judge(
    tool: ToolSpec,
    *rules: Rule,
    arguments: Mapping[str, Any] | None = None,
    tainted: bool = False,
    unknown: bool = False,
    options: GateOptions | None = None,
) -> Verdict:
    gate = Gate(rules, options or GateOptions(), now=lambda: NOW)
    return gate.decide(tool, arguments or {}, tainted=tainted, may_have_happened=unknown)


@pytest.mark.parametrize(
    ("tool", "rules"),
    [
        (spec(), [ALLOW]),
        (spec(approval="never"), []),
        (spec(risk="safe"), []),
        (spec(approval="never"), [ALLOW]),
    ],
)
def test_what_may_have_happened_asks_although_it_is_allowed(tool: ToolSpec, rules: list[Rule]) -> None:
    assert judge(tool, *rules).effect == "allow"
    verdict = judge(tool, *rules, unknown=True)
    assert (verdict.effect, verdict.reasons) == ("ask", (MAY_HAVE_HAPPENED,))


def test_a_sensitive_argument_asks_although_it_is_allowed() -> None:
    tool = spec(approval="never", sensitive=secret)
    assert judge(tool, ALLOW, arguments={"path": "a.txt"}).effect == "allow"
    verdict = judge(tool, ALLOW, arguments={"path": ".env"})
    assert (verdict.effect, verdict.reasons) == ("ask", (SECRET,))


def test_a_tainted_conversation_asks_about_a_write_although_it_is_allowed() -> None:
    assert judge(spec(approval="never"), ALLOW, tainted=True).effect == "ask"
    assert judge(spec(approval="never", effect="read"), ALLOW, tainted=True).effect == "allow"


def test_a_question_that_stands_anyway_keeps_its_reasons_behind_these() -> None:
    tool = spec(sensitive=secret, risk="high")
    verdict = judge(tool, arguments={"path": ".env"}, unknown=True)
    assert verdict.reasons[:2] == (MAY_HAVE_HAPPENED, SECRET)
    assert len(verdict.reasons) > 2 and verdict.warn
    assert verdict.reasons[2:] == judge(tool).reasons


def test_the_verdict_says_which_of_its_reasons_a_person_hears_before_the_question() -> None:
    tool = spec(approval="never", sensitive=secret)
    assert judge(tool, arguments={"path": ".env"}).cautions == ()
    assert judge(tool, unknown=True).cautions == ("may_have_happened",)
    assert judge(tool, tainted=True).cautions == ("untrusted",)
    assert judge(tool, tainted=True, unknown=True).cautions == ("may_have_happened", "untrusted")
    assert judge(tool, DENY, tainted=True, unknown=True).cautions == ()
    assert judge(spec(effect="read"), tainted=True).cautions == ()


@pytest.mark.parametrize("refusal", ["rule", "grant", "option"])
def test_what_denies_wins_over_everything(refusal: str) -> None:
    options = GateOptions(deny_irreversible=refusal == "option")
    denying = () if refusal == "option" else (DENY,)
    tool = spec(approval="never", effect="irreversible", sensitive=secret)
    for tainted, unknown in itertools.product((False, True), repeat=2):
        for others in itertools.permutations((ALLOW, ASK, *denying)):
            gate = Gate(others, options, lambda: (ALLOW,), lambda: NOW)
            if refusal == "grant":
                gate = Gate((ALLOW, ASK), options, lambda: (DENY,), lambda: NOW)
            found = gate.decide(tool, {"path": ".env"}, tainted=tainted, may_have_happened=unknown)
            assert found.effect == "deny"
            assert MAY_HAVE_HAPPENED not in found.reasons and SECRET not in found.reasons


@pytest.mark.parametrize(("operators", "verdict"), [("ask", "ask"), ("deny", "deny"), ("allow", "allow")])
def test_what_a_person_has_granted_is_asked_about_again_where_the_operator_says_so(
    operators: RuleEffect, verdict: RuleEffect
) -> None:
    gate = Gate((Rule(operators, "file.*"),), grants=lambda: (ALLOW,), now=lambda: NOW)
    assert gate.decide(spec(), {}, tainted=False, may_have_happened=False).effect == verdict


def test_grants_are_looked_up_anew_each_time() -> None:
    granted: list[Rule] = []
    gate = Gate(grants=lambda: granted, now=lambda: NOW)
    assert gate.decide(spec(), {}, tainted=False, may_have_happened=False).effect == "ask"
    granted.append(ALLOW)
    assert gate.decide(spec(), {}, tainted=False, may_have_happened=False).effect == "allow"


def test_what_would_be_granted_can_be_tried_out() -> None:
    gate = Gate(now=lambda: NOW)
    verdict = gate.decide(spec(), {}, tainted=False, may_have_happened=False, granted=(ALLOW,))
    assert verdict.effect == "allow"


def test_a_tool_that_a_rule_always_denies_is_not_offered() -> None:
    assert Gate((ALLOW,)).offers(spec()) and not Gate((DENY,)).offers(spec())


def test_a_rule_that_has_expired_is_none() -> None:
    rule = Rule("allow", "file.*", expires="2027-01-15T08:00:00Z")  # which is NOW

    def effect(now: float) -> RuleEffect:
        gate = Gate((rule,), now=lambda: now)
        return gate.decide(spec(), {}, tainted=False, may_have_happened=False).effect

    assert (effect(NOW - 1), effect(NOW + 1)) == ("allow", "ask")
