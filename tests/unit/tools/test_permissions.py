"""The gate: the order of rules and settings, and the reasons of a verdict."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.settings import Settings
from conductor.tools.base import ToolSpec
from conductor.tools.permissions import MAY_HAVE_HAPPENED, Gate, GateOptions, Verdict, grant
from conductor.tools.presets import PRESETS, Preset
from conductor.tools.rules import Rule

NOW = 1_800_000_000.0
ALL = GateOptions()


def spec(name: str = "file.write", **fields: Any) -> ToolSpec:
    return ToolSpec(name=name, description="Does it", input_schema={"type": "object"}, **fields)


def verdict(
    tool: ToolSpec,
    *rules: Rule,
    arguments: Mapping[str, Any] | None = None,
    tainted: bool = False,
    unknown: bool = False,
    options: GateOptions = ALL,
) -> Verdict:
    gate = Gate(rules=rules, options=options, now=lambda: NOW)
    return gate.decide(tool, arguments or {}, tainted=tainted, may_have_happened=unknown)


# Tool, and the decisions of read_only, ask_everything, standard and trusted; "-": the model does not see it.
PRESET_TABLE: list[tuple[ToolSpec, str, str, str, str]] = [
    (spec("time.now", risk="safe", effect="read"), "allow", "ask", "allow", "allow"),
    (spec("photo.find", risk="medium", effect="read"), "ask", "ask", "ask", "allow"),
    (spec("file.read", risk="high", effect="read"), "ask", "ask", "ask", "ask"),
    (spec("task.add", risk="safe", effect="write"), "-", "ask", "allow", "allow"),
    (spec("file.write", risk="medium", effect="write"), "-", "ask", "ask", "allow"),
    (spec("lamp", risk="medium", effect="write", approval="never"), "-", "ask", "allow", "allow"),
    (spec("file.wipe", risk="medium", effect="irreversible"), "-", "ask", "ask", "ask"),
    (spec("money.send", risk="high", effect="irreversible"), "-", "ask", "ask", "ask"),
    (spec("money.pay", risk="high", effect="write", approval="never"), "-", "ask", "allow", "allow"),
]


@pytest.mark.parametrize(
    ("tool", "decisions"), [(row[0], row[1:]) for row in PRESET_TABLE], ids=lambda v: getattr(v, "name", "")
)
def test_a_preset_decides_where_no_rule_does(tool: ToolSpec, decisions: tuple[str, ...]) -> None:
    for preset, expected in zip(PRESETS, decisions, strict=True):
        gate = Gate(preset=preset, now=lambda: NOW)
        decision = gate.decide(tool, {}, tainted=False, may_have_happened=False).effect
        assert ("-" if not gate.offers(tool) else decision) == expected, preset
        assert gate.offers(tool) == (decision != "deny")


@pytest.mark.parametrize("preset", PRESETS)
def test_the_operators_rules_come_before_the_preset(preset: Preset) -> None:
    tool = spec("file.write", risk="medium", effect="write")
    for effect in ("allow", "ask", "deny"):
        gate = Gate(rules=[Rule(effect=effect, tool="file.*")], preset=preset, now=lambda: NOW)
        assert gate.decide(tool, {}, tainted=False, may_have_happened=False).effect == effect
        assert gate.offers(tool) == (effect != "deny")


def test_a_persons_grant_is_no_exception_to_what_a_preset_forbids() -> None:
    tool = spec("file.write", risk="medium", effect="write")
    rule = grant(tool, {}, scope="always")
    presets: list[tuple[Preset, str]] = [("read_only", "deny"), ("ask_everything", "allow")]
    for preset, expected in presets:
        gate = Gate(grants=lambda: [rule], preset=preset, now=lambda: NOW)
        for tainted in (False, True):
            decision = gate.decide(tool, {}, tainted=tainted, may_have_happened=tainted).effect
            assert decision == ("ask" if tainted and expected == "allow" else expected)


@pytest.mark.parametrize(
    ("risk", "approval", "effect", "warn"),
    [
        ("safe", None, "allow", False),
        ("medium", None, "ask", False),
        ("high", None, "ask", True),
        ("safe", "never", "allow", False),
        ("medium", "never", "allow", False),
        ("high", "never", "allow", False),
        ("safe", "ask", "ask", False),
        ("medium", "ask", "ask", False),
        ("high", "ask", "ask", True),
    ],
)
def test_without_rules_the_risk_and_the_declaration_decide(
    risk: str, approval: str | None, effect: str, warn: bool
) -> None:
    decision = verdict(spec(risk=risk, approval=approval))
    assert (decision.effect, decision.warn, decision.rule) == (effect, warn, None)
    assert decision.reasons


DENY, ASK, ALLOW = (
    Rule(effect="deny", tool="file.*"),
    Rule(effect="ask", tool="file.*"),
    Rule(effect="allow", tool="file.*"),
)


@pytest.mark.parametrize("approval", [None, "never", "ask"])
@pytest.mark.parametrize("risk", ["safe", "medium", "high"])
@pytest.mark.parametrize(
    ("rules", "effect"),
    [
        ((ALLOW, ASK, DENY), "deny"),
        (
            (
                Rule(effect="allow", tool="file.write"),
                Rule(effect="ask", tool="file.write"),
                Rule(effect="deny", tool="*"),
            ),
            "deny",
        ),
        ((ALLOW, ASK), "ask"),
        ((Rule(effect="allow", tool="file.write"), Rule(effect="ask", tool="*")), "ask"),
        ((ALLOW,), "allow"),
    ],
)
def test_deny_comes_before_ask_before_allow_however_specific_they_are(
    rules: tuple[Rule, ...], effect: str, risk: str, approval: str | None
) -> None:
    for order in (rules, rules[::-1]):
        decision = verdict(spec(risk=risk, approval=approval), *order)
        assert decision.effect == effect
        assert decision.rule is not None and decision.rule.effect == effect
        assert decision.warn == (effect == "ask" and risk == "high")


@pytest.mark.parametrize("rules", [(), (ALLOW,)])
@pytest.mark.parametrize("approval", [None, "never"])
@pytest.mark.parametrize("risk", ["safe", "medium", "high"])
@pytest.mark.parametrize(
    ("effect", "open_world"), [("write", False), ("irreversible", False), ("read", True)]
)
def test_after_untrusted_text_writes_and_open_world_reads_ask(
    effect: str, open_world: bool, risk: str, approval: str | None, rules: tuple[Rule, ...]
) -> None:
    tool = spec(effect=effect, risk=risk, approval=approval, open_world=open_world)
    decision = verdict(tool, *rules, tainted=True)
    assert decision.effect == "ask"
    assert "strangers" in decision.reasons[0]


SETTINGS = [
    (GateOptions(allowed_tools=("agent.*", "calculator")), "ALLOWED_TOOLS"),
    (GateOptions(deny_irreversible=True), "DENY_IRREVERSIBLE"),
    (GateOptions(local_only=True), "LOCAL_ONLY"),
]


@pytest.mark.parametrize(("options", "name"), SETTINGS)
def test_a_setting_overrides_allow_rules(options: GateOptions, name: str) -> None:
    tool = spec(effect="irreversible", risk="high", open_world=True, approval="never")
    decision = verdict(tool, ALLOW, grant(tool, {}, scope="always"), options=options)
    assert (decision.effect, decision.rule, decision.warn) == ("deny", None, False)
    assert name in decision.reasons[0]


@pytest.mark.parametrize(("options", "name"), SETTINGS)
def test_a_setting_does_not_affect_unrelated_tools(options: GateOptions, name: str) -> None:
    assert verdict(spec("agent.list", effect="read", risk="safe"), options=options).effect == "allow"
    assert verdict(spec("agent.spawn"), ALLOW, options=options).effect == "ask"


# -- what a card says


@pytest.mark.parametrize(
    ("tool", "rules", "tainted", "reasons"),
    [
        (spec(effect="read"), [], False, ["It may read something private."]),
        (spec(), [], False, ["It changes something."]),
        (
            spec(effect="read", risk="safe", approval="ask"),
            [],
            False,
            ["The app wants you to be asked each time."],
        ),
        (
            spec(),
            [ASK],
            True,
            [
                "The operator's rules ask first: ask file.*.",
                "It may come from strangers, whose text is in this conversation, and not from you.",
            ],
        ),
        (
            spec(effect="irreversible", risk="high"),
            [],
            True,
            [
                "It may come from strangers, whose text is in this conversation, and not from you.",
                "It cannot be undone.",
            ],
        ),
    ],
)
def test_the_reasons_explain_the_question_without_the_risk_level(
    tool: ToolSpec, rules: list[Rule], tainted: bool, reasons: list[str]
) -> None:
    assert list(verdict(tool, *rules, tainted=tainted).reasons) == reasons


# -- every path is explained

effects = st.sampled_from(["allow", "ask", "deny"])
some_rules = st.lists(
    st.builds(
        Rule,
        effect=effects,
        tool=st.sampled_from(["*", "file.*", "file.write", "agent.*"]),
        source=st.sampled_from([None, "device", "mcp:*"]),
        args=st.dictionaries(
            st.sampled_from(["path", "limit", "mode"]),
            st.sampled_from([{"eq": 3}, {"eq": "a"}, {"glob": "*"}, {"in": []}]),
            max_size=2,
        ),
        expires=st.sampled_from([None, "2020-01-01T00:00:00Z", "2090-01-01T00:00:00Z"]),
    ),
    max_size=5,
)
specs = st.builds(
    spec,
    st.sampled_from(["file.write", "agent.spawn"]),
    risk=st.sampled_from(["safe", "medium", "high"]),
    effect=st.sampled_from(["read", "write", "irreversible"]),
    approval=st.sampled_from([None, "never", "ask"]),
    open_world=st.booleans(),
)
arguments: st.SearchStrategy[dict[str, Any]] = st.dictionaries(
    st.sampled_from(["path", "limit", "mode", "other"]),
    st.sampled_from(["/srv/a", "/etc", "a", 3, 4.5, True, None, [], "x\\y"]),
)
gates = st.builds(
    GateOptions,
    st.sampled_from([(), ("file.*",), ("agent.*",)]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
calls = st.tuples(specs, arguments, some_rules, st.booleans(), gates)
ORDER = {"deny": 0, "ask": 1, "allow": 2}


def decided(call: Any, *more: Rule) -> Verdict:
    tool, given_arguments, rules, tainted, options = call
    return verdict(tool, *rules, *more, arguments=given_arguments, tainted=tainted, options=options)


@given(calls, some_rules)
def test_adding_a_deny_or_ask_rule_never_softens_a_verdict(call: Any, more: list[Rule]) -> None:
    stricter = [rule for rule in more if rule.effect != "allow"]
    assert ORDER[decided(call, *stricter).effect] <= ORDER[decided(call).effect]


@given(calls)
def test_untrusted_text_never_softens_a_verdict(call: Any) -> None:
    tool, given_arguments, rules, _, options = call
    clean, tainted = (
        decided((tool, given_arguments, rules, is_tainted, options)) for is_tainted in (False, True)
    )
    assert ORDER[tainted.effect] <= ORDER[clean.effect]
    if tool.effect == "read" and not tool.open_world:
        assert tainted == clean


# -- grants


def test_a_grant_at_medium_risk_is_for_any_arguments() -> None:
    tool = spec()
    assert verdict(spec(approval="ask"), grant(spec(approval="ask"), {}, scope="session")).effect == "allow"
    decision = verdict(tool, grant(tool, {"path": "/a"}, scope="session"), arguments={"path": "/b"})
    assert decision.effect == "allow"
    assert decision.rule is not None and decision.rule.scope == "session"


def test_a_grant_at_high_risk_is_for_exactly_these_arguments() -> None:
    tool = spec(risk="high", effect="irreversible")
    given_before = grant(tool, {"path": "/a", "n": 1}, scope="always")
    assert verdict(tool, given_before, arguments={"n": 1.0, "path": "/a"}).effect == "allow"
    different: list[dict[str, Any]] = [
        {"path": "/a", "n": 2},
        {"path": "/a"},
        {"path": "/a", "n": 1, "x": None},
    ]
    for different_arguments in different:
        assert verdict(tool, given_before, arguments=different_arguments).effect == "ask"


@pytest.mark.parametrize(
    "changed",
    [{"risk": "safe", "approval": "ask"}, {"effect": "irreversible"}, {"source": "mcp:x"}, {"name": "other"}],
)
def test_a_grant_is_for_this_very_definition(changed: dict[str, Any]) -> None:
    given_before = grant(spec(), {}, scope="always")
    assert verdict(spec(), given_before).effect == "allow"
    assert verdict(spec(**changed), given_before).effect == "ask"


def test_a_grant_takes_signs_in_a_name_literally() -> None:
    tool, similar = spec("a.*[b]?"), spec("a.xb")
    rule = grant(tool, {}, scope="always")
    assert rule.covers(tool)
    assert not Rule(effect="allow", tool=rule.tool, source=rule.source).covers(similar)


# -- the catalogue, and dry runs


def test_tools_that_can_never_be_called_are_not_offered() -> None:
    tool = spec(open_world=True)
    assert Gate(rules=(), options=ALL).offers(tool)
    assert Gate(rules=(), options=GateOptions(allowed_tools=("file.*",))).offers(tool)
    assert not Gate(rules=(), options=GateOptions(allowed_tools=("agent.*",))).offers(tool)
    assert not Gate(rules=(), options=GateOptions(local_only=True)).offers(tool)
    assert Gate(rules=(), options=GateOptions(local_only=True, deny_irreversible=True, dry_run=True)).offers(
        spec()
    )


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (Rule(effect="deny", tool="file.*"), False),
        (Rule(effect="deny", tool="file.*", source="mcp:*"), True),
        (Rule(effect="deny", tool="file.*", args={"path": {"glob": "/etc*"}}), True),
        (Rule(effect="deny", tool="file.*", arguments_digest="d"), True),
        (Rule(effect="deny", tool="file.*", expires="2090-01-01T00:00:00Z"), True),
        (Rule(effect="ask", tool="file.*"), True),
        (Rule(effect="allow", tool="agent.*"), True),
    ],
)
def test_a_tool_is_not_offered_if_a_deny_rule_covers_all_of_its_calls(rule: Rule, expected: bool) -> None:
    assert Gate(rules=[Rule(effect="allow", tool="*"), rule], options=ALL).offers(spec()) == expected


@given(calls)
def test_a_tool_that_is_not_offered_is_denied(call: Any) -> None:
    tool, _, rules, _, options = call
    if not Gate(rules=rules, options=options).offers(tool):
        assert decided(call).effect == "deny"


@pytest.mark.parametrize(
    ("risk", "effect", "expected"),
    [
        ("safe", "read", False),
        ("safe", "write", False),
        ("safe", "irreversible", True),
        ("medium", "write", True),
        ("high", "read", True),
    ],
)
def test_a_dry_run_simulates_calls_that_are_not_safe(risk: str, effect: str, expected: bool) -> None:
    assert (
        Gate(rules=(), options=GateOptions(dry_run=True)).is_dry(
            spec(risk=risk, effect=effect, approval="never")
        )
        == expected
    )
    assert not Gate(rules=(), options=ALL).is_dry(spec(risk=risk, effect=effect))


def test_the_options_come_from_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Settings(allowed_tools=("a",), deny_irreversible=True, dry_run=True, local_only=True)
    assert GateOptions.of(settings) == GateOptions(("a",), True, True, True)


# -- reasons of the conversation

SECRET = "It reads a file that may hold secrets."


def secret(arguments: Mapping[str, Any]) -> str | None:
    return SECRET if arguments.get("path") == ".env" else None


@pytest.mark.parametrize(
    ("tool", "rules"),
    [
        (spec(), [ALLOW]),
        (spec(approval="never"), []),
        (spec(risk="safe"), []),
        (spec(approval="never"), [ALLOW]),
    ],
)
def test_a_call_that_may_have_happened_asks_in_spite_of_an_allow_rule(
    tool: ToolSpec, rules: list[Rule]
) -> None:
    assert verdict(tool, *rules).effect == "allow"
    decision = verdict(tool, *rules, unknown=True)
    assert (decision.effect, decision.reasons) == ("ask", (MAY_HAVE_HAPPENED,))


def test_a_sensitive_argument_asks_in_spite_of_an_allow_rule() -> None:
    tool = spec(approval="never", sensitive=secret)
    assert verdict(tool, ALLOW, arguments={"path": "a.txt"}).effect == "allow"
    decision = verdict(tool, ALLOW, arguments={"path": ".env"})
    assert (decision.effect, decision.reasons) == ("ask", (SECRET,))


def test_the_reasons_of_the_rules_follow_the_reasons_of_the_conversation() -> None:
    tool = spec(sensitive=secret, risk="high")
    decision = verdict(tool, arguments={"path": ".env"}, unknown=True)
    assert decision.reasons == (MAY_HAVE_HAPPENED, SECRET, *verdict(tool).reasons) and decision.warn


def test_a_verdict_lists_the_cautions_of_a_spoken_question() -> None:
    tool = spec(approval="never", sensitive=secret)
    assert verdict(tool, arguments={"path": ".env"}).cautions == ()
    assert verdict(tool, unknown=True).cautions == ("may_have_happened",)
    assert verdict(tool, tainted=True).cautions == ("untrusted",)
    assert verdict(tool, tainted=True, unknown=True).cautions == ("may_have_happened", "untrusted")
    assert verdict(tool, DENY, tainted=True, unknown=True).cautions == ()
    assert verdict(spec(effect="read"), tainted=True).cautions == ()


@pytest.mark.parametrize("refusal", ["rule", "grant", "option"])
def test_a_denial_wins_over_every_reason_to_ask(refusal: str) -> None:
    options = GateOptions(deny_irreversible=refusal == "option")
    denying = () if refusal == "option" else (DENY,)
    tool = spec(approval="never", effect="irreversible", sensitive=secret)
    for tainted, unknown in itertools.product((False, True), repeat=2):
        for rules in itertools.permutations((ALLOW, ASK, *denying)):
            gate = Gate(rules=rules, options=options, grants=lambda: (ALLOW,), now=lambda: NOW)
            if refusal == "grant":
                gate = Gate(rules=(ALLOW, ASK), options=options, grants=lambda: (DENY,), now=lambda: NOW)
            decision = gate.decide(tool, {"path": ".env"}, tainted=tainted, may_have_happened=unknown)
            assert decision.effect == "deny"
            assert MAY_HAVE_HAPPENED not in decision.reasons and SECRET not in decision.reasons


def test_grants_are_read_for_each_decision() -> None:
    granted: list[Rule] = []
    gate = Gate(grants=lambda: granted, now=lambda: NOW)
    assert gate.decide(spec(), {}, tainted=False, may_have_happened=False).effect == "ask"
    further = gate.decide(spec(), {}, tainted=False, may_have_happened=False, granted=(ALLOW,))
    assert further.effect == "allow"
    further = gate.decide(spec(), {}, tainted=True, may_have_happened=False, granted=(ALLOW,))
    assert further.effect == "ask"
    granted.append(ALLOW)
    assert gate.decide(spec(), {}, tainted=False, may_have_happened=False).effect == "allow"
