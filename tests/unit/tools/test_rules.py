"""Rules: matching, digests of calls, descriptions and the JSON form."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.config_file import parse_json
from conductor.errors import SettingsError
from conductor.tools.base import ToolSpec
from conductor.tools.predicates import Argument
from conductor.tools.rules import (
    Rule,
    arguments_digest,
    decode_rules,
    describe,
    encode_rules,
    matches,
    parse_rule,
)

NOW = 1_800_000_000.0

predicates = st.sampled_from([{"eq": "x"}, {"in": [1, {"a": ["é"]}]}, {"glob": "a*"}])


def spec(name: str = "file.write", **fields: Any) -> ToolSpec:
    return ToolSpec(name=name, description="Does it", input_schema={"type": "object"}, **fields)


def matched(rule: Rule, arguments: dict[str, Any] | None = None, **fields: Any) -> str:
    values = {name: Argument(value) for name, value in (arguments or {}).items()}
    return "yes" if matches(rule, spec(**fields), values, NOW) else "no"


# -- which tools


@pytest.mark.parametrize(
    ("glob", "name", "expected"),
    [
        ("file.write", "file.write", "yes"),
        ("file.*", "file.write", "yes"),
        ("*", "a.b.c", "yes"),
        ("file.*", "files.write", "no"),
        ("FILE.*", "file.write", "no"),
        ("file", "file.write", "no"),
        ("*.write", "file.write\n", "no"),
    ],
)
def test_a_tool_is_named_by_a_pattern_for_its_whole_name(glob: str, name: str, expected: str) -> None:
    assert matched(Rule(effect="deny", tool=glob), name=name) == expected


def test_a_source_narrows_a_rule() -> None:
    assert matched(Rule(effect="deny", tool="*", source="mcp:*"), source="mcp:files") == "yes"
    assert matched(Rule(effect="deny", tool="*", source="mcp:*"), source="device") == "no"


def test_a_rule_with_a_fingerprint_applies_to_one_definition() -> None:
    rule = Rule(effect="allow", tool="*", fingerprint=spec().fingerprint)
    assert matched(rule) == "yes"
    assert matched(rule, risk="high") == "no"


@pytest.mark.parametrize(
    ("expires", "expected"),
    [
        ("2027-01-15T08:00:00Z", "no"),  # this very second
        ("2027-01-15T08:00:01Z", "yes"),
        ("2027-01-15T10:00:00+02:00", "no"),
        ("2027-01-15T08:00:01+00:00", "yes"),
        ("9999-12-31T23:59:59-23:59", "yes"),
        ("0001-01-01T00:00:00+23:59", "no"),
    ],
)
def test_a_rule_ends_when_it_expires(expires: str, expected: str) -> None:
    assert matched(Rule(effect="deny", tool="*", expires=expires)) == expected


# -- arguments


def test_all_predicates_of_a_rule_must_hold() -> None:
    rule = Rule(
        effect="allow", tool="*", args={"path": {"under": "/srv", "glob": "*.txt"}, "limit": {"max": 3}}
    )
    assert matched(rule, {"path": "/srv/a.txt", "limit": 3}) == "yes"
    assert matched(rule, {"path": "/srv/a.md", "limit": 3}) == "no"
    assert matched(rule, {"path": "/srv/a.txt", "limit": 4}) == "no"
    assert matched(rule, {"path": "/srv/a.txt"}) == "no"


def test_only_allow_rules_with_predicates_are_closed() -> None:
    arguments = {"path": "/srv/a", "mode": "append"}
    for effect, expected in (("allow", "no"), ("ask", "yes"), ("deny", "yes")):
        rule = parse_rule({"effect": effect, "tool": "*", "args": {"path": {"glob": "/srv/*"}}})
        assert matched(rule, arguments) == expected
        assert matched(rule, {"path": "/srv/a"}) == "yes"
    assert matched(Rule(effect="allow", tool="*"), arguments) == "yes"


def test_a_disguised_value_matches_only_ask_and_deny_rules() -> None:
    for effect, expected in (("allow", "no"), ("ask", "yes"), ("deny", "yes")):
        rule = parse_rule({"effect": effect, "tool": "*", "args": {"a": {"glob": "/etc/*"}}})
        assert matched(rule, {"a": ["/ETC/ passwd"]}) == expected


# -- digests


def test_a_digest_is_of_the_name_and_the_arguments_in_the_form_of_rfc_8785() -> None:
    text = 'file.write\n{"a":{"x":1,"y":"ü"},"b":[2,1e+21,0.002]}'
    arguments = {"b": [2, 1e21, 2e-3], "a": {"y": "ü", "x": 1.0}}
    assert arguments_digest("file.write", arguments) == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    "arguments", [{"a": 1.5}, {"a": "1"}, {"a": True}, {"a": 1, "b": None}, {}, {"a": [1]}, {"A": 1}]
)
def test_different_arguments_have_a_different_digest(arguments: dict[str, Any]) -> None:
    assert arguments_digest("t", arguments) != arguments_digest("t", {"a": 1})
    assert arguments_digest("u", {"a": 1}) != arguments_digest("t", {"a": 1})


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (2**53 + 1, 2**53),
        (10**4_000, 10**4_000 + 1),
        (float("nan"), None),
        (float("inf"), float("-inf")),
        ("\ud800", "\ud801"),
    ],
)
def test_values_outside_the_canonical_form_have_distinct_digests(first: Any, second: Any) -> None:
    assert arguments_digest("t", {"a": first}) == arguments_digest("t", {"a": first})
    assert arguments_digest("t", {"a": first}) != arguments_digest("t", {"a": second})


def test_a_rule_for_exactly_these_arguments() -> None:
    digest = arguments_digest("file.write", {"path": "/a"})
    rule = Rule(effect="allow", tool="*", arguments_digest=digest)
    assert matched(rule, {"path": "/a"}) == "yes"
    assert matched(rule, {"path": "/b"}) == "no"
    assert matched(rule, {"path": "/a", "mode": "x"}) == "no"
    assert matched(rule, {"path": "/a"}, name="file.read") == "no"


# -- the form

UNDER = "args.a is not valid: under must be a folder, written out"
HOST = "args.a is not valid: host must be a host such as"
REFUSED = [
    ([], "it must be an object"),
    ({"effect": "deny"}, "tool is missing"),
    ({"effect": "permit", "tool": "*"}, "effect is not valid: it must be 'allow', 'ask' or 'deny'"),
    ({"effect": "deny", "tool": ""}, "tool is empty"),
    ({"effect": "deny", "tool": 3}, "tool must be a text"),
    ({"effect": "deny", "tool": "*", "scope": "once"}, "scope is not valid: it must be 'session'"),
    ({"effect": "deny", "tool": "*", "expires": "soon"}, "expires is not valid: it must be a time"),
    ({"effect": "deny", "tool": "*", "expires": "2030-01-31"}, "expires is not valid: it needs its offset"),
    ({"effect": "deny", "tool": "*", "args": []}, "args must be an object"),
    ({"effect": "deny", "tool": "*", "args": {"a": 1}}, "args.a must be an object"),
    (
        {"effect": "deny", "tool": "*", "args": {"a": {}}},
        "args.a is not valid: it must have one or more of eq, in, glob, under, host, max",
    ),
    (
        {"effect": "deny", "tool": "*", "args": {"a": {"regex": "x"}}},
        "args.a is not valid: it must be 'eq', 'in', 'glob', 'under', 'host' or 'max'",
    ),
    ({"effect": "deny", "tool": "*", "args": {"a": {"in": "x"}}}, "args.a is not valid: in must be a list"),
    ({"effect": "deny", "tool": "*", "args": {"a": {"glob": 1}}}, "args.a is not valid: glob must be text"),
    ({"effect": "allow", "tool": "*", "args": {"a": {"max": float("inf")}}}, "max must be a number"),
    ({"effect": "deny", "tool": "*", "args": {"a": {"max": 1}}}, "args of deny rules may have eq, glob, in"),
    ({"effect": "allow", "tool": "*", "args": {"a": {"under": ""}}}, UNDER),
    ({"effect": "allow", "tool": "*", "args": {"a": {"under": "~/x"}}}, UNDER),
    ({"effect": "allow", "tool": "*", "args": {"a": {"host": "https://a.b"}}}, HOST),
    ({"effect": "allow", "tool": "*", "args": {"a": {"host": "a.b:80"}}}, HOST),
    ({"effect": "allow", "tool": "*", "args": {"a": {"host": "bücher.de"}}}, HOST),
    ({"effect": "allow", "tool": "*", "args": {"a": {"host": "0x7f.1"}}}, HOST),
    ({"effect": "deny", "tool": "*", "args": {"a": {"glob": "[ab]*"}}}, "where * is the only wildcard"),
    ({"effect": "deny", "tool": "*", "args": {"a": {"eq": [[1] * 2_000]}}}, "of at most 1000 values each"),
    ({"effect": "deny", "tool": "a\x01"}, r'it has a character that is not printable, "a\u0001"'),
    ({"effect": "deny", "tool": "a\u200b"}, "tool is not valid: it has a character that is not printable"),
    ({"effect": "deny", "tool": "*", "source": "\x1b[31m"}, "source is not valid: it has a character"),
    ({"effect": "deny", "tool": "*", "args": {"a\n": {"eq": 1}}}, "args is not valid: it has a char"),
    ({"effect": "allow", "tool": "*", "arg": {}}, 'there is no "arg"; there are: effect, tool, source'),
]


@pytest.mark.parametrize(("value", "reason"), REFUSED)
def test_an_invalid_rule_is_rejected_with_the_reason(value: Any, reason: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_rule(value)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


printable = st.text(st.characters(exclude_categories=["C", "Z"], include_characters=" "), min_size=1)
rules = st.builds(
    Rule,
    effect=st.sampled_from(["allow", "ask", "deny"]),
    tool=printable,
    source=st.none() | printable,
    args=st.dictionaries(printable, predicates, max_size=3),
    scope=st.sampled_from(["session", "always"]),
    fingerprint=st.none() | printable,
    expires=st.none() | st.sampled_from(["2030-01-31T18:00:00Z", "2030-01-31T18:00:00.5+01:00"]),
    comment=st.none() | st.text(),
    arguments_digest=st.none() | printable,
)


@given(st.lists(rules, max_size=3))
def test_encoded_rules_decode_to_the_same_rules(given_rules: list[Rule]) -> None:
    assert decode_rules(encode_rules(given_rules)) == tuple(given_rules)


def test_no_rules_are_an_empty_text_and_defaults_are_left_out() -> None:
    assert json.loads(encode_rules([Rule(effect="deny", tool="a.*")])) == [{"effect": "deny", "tool": "a.*"}]
    assert encode_rules([]) == ""
    assert decode_rules("") == decode_rules("[]") == ()


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "{}",
        "null",
        "[1]",
        '[{"effect":"allow"}]',
        '[{"effect":"allow","tool":"*"},{"effect":"x","tool":"*"}]',
    ]
    + ["[" * 100_000, '[{"effect":NaN}]', " "],
)
def test_a_damaged_text_is_refused_as_a_whole(text: str) -> None:
    with pytest.raises(ValueError):
        decode_rules(text)


@pytest.mark.parametrize("text", ['{"a":1,"a":2}', '[{"b":{"a":1,"a":1}}]', "[NaN]", "[-Infinity]"])
def test_json_that_could_be_read_in_two_ways_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_json(text)


def test_a_rule_is_described_on_one_line() -> None:
    rule = Rule(
        effect="allow",
        tool="file.*",
        source="mcp:files",
        args={"path": {"under": "/srv"}, "limit": {"max": 3}},
        scope="session",
        fingerprint="f",
        expires="2030-01-31T18:00:00Z",
    )
    assert describe(rule) == (
        'allow file.* from mcp:files where path is under "/srv" and limit is at most 3, '
        "as the tool was defined then, until 2030-01-31T18:00:00Z, for this session"
    )
    assert "exactly the approved ones" in describe(Rule(effect="allow", tool="*", arguments_digest="d"))
    assert "\\u001b" in describe(Rule(effect="allow", tool="*", args={"a": {"eq": "\x1b[31m"}}))
