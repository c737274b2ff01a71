"""Rules: when they apply, tricks against their predicates, and their JSON form."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.tools.base import ToolSpec
from conductor.tools.rules import (
    PREDICATES,
    Rule,
    RuleError,
    arguments_digest,
    decode_rules,
    describe,
    encode_rules,
    holds,
    match,
    parse_json,
    parse_rule,
)

NOW = 1_800_000_000.0

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["..", "/", "a://b"])
)
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)
plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


def spec(name: str = "file.write", **fields: Any) -> ToolSpec:
    return ToolSpec(name, "Does it", {"type": "object"}, **fields)


def matched(rule: Rule, arguments: dict[str, Any] | None = None, **fields: Any) -> str:
    return match(rule, spec(**fields), arguments or {}, NOW)


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
    assert matched(Rule("deny", glob), name=name) == expected


def test_a_source_narrows_a_rule() -> None:
    assert matched(Rule("deny", "*", source="mcp:*"), source="mcp:files") == "yes"
    assert matched(Rule("deny", "*", source="mcp:*"), source="device") == "no"


def test_a_rule_for_a_definition_does_not_apply_to_another() -> None:
    rule = Rule("allow", "*", fingerprint=spec().fingerprint)
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
    assert matched(Rule("deny", "*", expires=expires)) == expected


# -- predicates

EQUALITY: list[tuple[str, Any, Any, str]] = [
    ("eq", 1, 1, "yes"),
    ("eq", 1, 1.0, "yes"),
    ("eq", 1, True, "no"),
    ("eq", False, 0, "no"),
    ("eq", None, None, "yes"),
    ("eq", "1", 1, "no"),
    ("eq", [1, {"a": [True]}], [1.0, {"a": [True]}], "yes"),
    ("eq", [1, {"a": [True]}], [1, {"a": [1]}], "no"),
    ("eq", {"a": 1}, {"a": 1, "b": 2}, "no"),
    ("eq", [1], [1, 2], "no"),
    ("in", ["a", "b"], "b", "yes"),
    ("in", ["a", "b"], "c", "no"),
    ("in", [1], True, "no"),
    ("in", [], None, "no"),
    ("in", [["a"]], "a", "no"),
    ("glob", "ab*", "abc", "yes"),
    ("glob", "ab*", "xabc", "no"),
    ("glob", "ab", "ab\n", "no"),
    ("glob", "ab*", "ab\ncd", "yes"),
    ("glob", "1", 1, "no"),
    ("glob", "*", ["a"], "no"),
    ("max", 10, 10, "yes"),
    ("max", 10, 10.5, "no"),
    ("max", 10.5, 10**400, "no"),
    ("max", 10, True, "no"),
    ("max", 10, "3", "no"),
    ("max", 10, None, "no"),
    ("max", 10, float("nan"), "no"),
]


@pytest.mark.parametrize(("predicate", "wanted", "value", "expected"), EQUALITY)
def test_a_value_fulfils_a_predicate_or_not(predicate: str, wanted: Any, value: Any, expected: str) -> None:
    assert holds(predicate, wanted, value) == expected


UNDER = [
    ("/srv/notes", "/srv/notes", "yes"),
    ("/srv/notes", "/srv/notes/a/b.txt", "yes"),
    ("/srv/notes/", "/srv/notes/a", "yes"),
    ("/srv/notes", "/srv//notes/./a", "yes"),
    ("/srv/notes", "/srv/x/../notes/a", "yes"),
    ("/srv/notes", "//srv/notes/a", "yes"),
    ("/srv/notes", "/../../srv/notes/a", "yes"),
    ("/srv/notes", "/srv/notes/../notes/a", "yes"),
    ("/", "/etc/passwd", "yes"),
    (".", "a/b", "yes"),
    (".", ".", "yes"),
    ("notes", "notes/a", "yes"),
    ("./notes", "x/../notes/a", "yes"),
    ("/srv/notes", "/srv/notes-private/a", "no"),
    ("/srv/notes", "/srv/notes/../../etc/passwd", "no"),
    ("/srv/notes", "/srv/notes/..", "no"),
    ("/srv/notes", "/srv/notes/a/../../other", "no"),
    ("/srv/notes", "/srv", "no"),
    ("/srv/notes", "/", "no"),
    ("/srv/notes", "//etc/passwd", "no"),
    ("/srv/notes", "/etc/passwd", "no"),
    ("/srv/notes", "", "no"),
    ("notes", "other/notes/a", "no"),
    ("notes", "notes/../other", "no"),
    # What some program may take for another path.
    ("notes", "notes/../../notes/a", "unclear"),
    ("notes", "../notes/a", "unclear"),
    (".", "..", "unclear"),
    (".", "a/../../b", "unclear"),
    (".", "/etc/passwd", "unclear"),
    ("/srv/notes", "notes/a", "unclear"),
    ("/srv/notes", "/srv/notes/..\\..\\etc", "unclear"),
    ("/srv/notes", "/srv/notes/%2e%2e/%2e%2e/etc", "unclear"),
    ("/srv/notes", "/srv/notes/a\0/../../../etc", "unclear"),
    ("/srv/notes", "/srv/notes/a\n", "unclear"),
    ("/srv/notes", "/srv/notes/\u202etxt", "unclear"),
    ("/srv/notes", "/srv/notes/\uff0e\uff0e/\uff0e\uff0e/etc", "unclear"),
    ("/srv/notes", "/srv/notes/..\uff0f..\uff0fetc", "unclear"),
    ("/srv/notes", "/srv/notes/\u2025/etc", "unclear"),
    ("/srv/notes", "/srv/notes/.. /.. /etc", "unclear"),
    ("/srv/notes", "/srv/notes/.../etc", "unclear"),
    ("/srv/notes", "/srv/notes./a", "unclear"),
    ("/srv/notes", "/SRV/Notes/a", "unclear"),
    ("/srv/notes", "/srv/notes/$HOME/a", "unclear"),
    ("/srv/notes", "file:///srv/notes/a", "unclear"),
    ("/srv/notes", "/srv/notes/\ud800", "unclear"),
    (".", "~/a", "unclear"),
    (".", "C:/Windows", "unclear"),
    (".", "C:a", "unclear"),
    (".", "file:///etc/passwd", "unclear"),
    ("/srv/notes", ["/srv/notes/a"], "no"),
    ("/srv/notes", None, "no"),
    ("/srv/notes", 1, "no"),
]


@pytest.mark.parametrize(("folder", "path", "expected"), UNDER)
def test_a_path_is_inside_a_folder_or_not_or_cannot_be_told(folder: str, path: Any, expected: str) -> None:
    assert holds("under", folder, path) == expected


@given(st.lists(st.sampled_from(["..", ".", "a", "notes", "", "srv"]), max_size=8))
def test_a_path_that_is_allowed_never_leads_out_of_the_folder(parts: list[str]) -> None:
    path = "/" + "/".join(parts)
    place: list[str] = []
    for part in parts:
        if part == "..":
            place = place[:-1]
        elif part not in ("", "."):
            place.append(part)
    expected = "yes" if place[:2] == ["srv", "notes"] else "no"
    assert holds("under", "/srv/notes", path) == expected


HOST = [
    ("good.com", "https://good.com", "yes"),
    ("good.com", "https://good.com/", "yes"),
    ("good.com", "HTTPS://GOOD.com./a?b#c", "yes"),
    ("GOOD.com", "https://good.com:8443/x", "yes"),
    ("good.com", "https://a.b.good.com?x", "yes"),
    ("good.com", "wss://good.com#x", "yes"),
    ("good.com", "https://good.com/@evil.com", "yes"),
    ("good.com", "https://good.com/ü", "yes"),
    ("127.0.0.1", "http://127.0.0.1:80/", "yes"),
    ("::1", "http://[0:0::1]/", "yes"),
    ("[::1]", "http://[::1]:80/", "yes"),
    ("xn--bcher-kva.de", "https://xn--bcher-kva.de/", "yes"),
    ("good.com", "https://evil.com", "no"),
    ("good.com", "https://notgood.com", "no"),
    ("good.com", "https://good.com.evil.com/", "no"),
    ("good.com", "https://evil.com/good.com", "no"),
    ("good.com", "https://evil.com?good.com", "no"),
    ("good.com", "https://evil.com#.good.com", "no"),
    ("good.com", "https://evil.com#@good.com", "no"),
    ("good.com", "https://com/", "no"),
    ("good.com", "http://127.0.0.1/", "no"),
    ("127.0.0.1", "http://127.0.0.2/", "no"),
    ("127.0.0.1", "http://good.com/", "no"),
    ("good.com", "", "no"),
    ("good.com", None, "no"),
    ("good.com", {"url": "https://good.com"}, "no"),
    # What programs read in different ways.
    ("good.com", "https://good.com@evil.com/", "unclear"),
    ("good.com", "https://good.com:pw@evil.com/", "unclear"),
    ("good.com", "https://good.com:80@evil.com/", "unclear"),
    ("good.com", "https://evil.com\\@good.com/", "unclear"),
    ("good.com", "https://evil.com\\.good.com/", "unclear"),
    ("good.com", "https:\\\\good.com/", "unclear"),
    ("good.com", "https://good.com\t.evil.com", "unclear"),
    ("good.com", "https://evil.com\n.good.com", "unclear"),
    ("good.com", " https://good.com", "unclear"),
    ("good.com", "https://good.com/\n", "unclear"),
    ("good.com", "https://good.com/a\tb", "unclear"),
    ("good.com", "https://good.com/\\@evil.com", "unclear"),
    ("good.com", "https://evil.com /.good.com", "unclear"),
    ("good.com", "https://evil.com\0.good.com", "unclear"),
    ("good.com", "https://evil.com%2f.good.com", "unclear"),
    ("good.com", "https://evil.com%00.good.com", "unclear"),
    ("good.com", "https://ｇood.com/", "unclear"),
    ("good.com", "https://evil.com\u2100.good.com/", "unclear"),
    ("good.com", "https://evil.com\uff0f.good.com/", "unclear"),
    ("good.com", "https://good\u3002com/", "unclear"),
    ("good.com", "https://g\u00adood.com/", "unclear"),
    ("good.com", "https://evil。good.com/", "unclear"),
    ("good.com", "https://.good.com/", "unclear"),
    ("good.com", "https://a..good.com/", "unclear"),
    ("good.com", "https://good.com../", "unclear"),
    ("good.com", "https://good.com:99999/", "unclear"),
    ("good.com", "https://good.com:80:90/", "unclear"),
    ("good.com", "https://good.com:/", "unclear"),
    ("good.com", "https:///good.com/", "unclear"),
    ("good.com", "https:good.com", "unclear"),
    ("good.com", "//good.com/", "unclear"),
    ("good.com", "good.com", "unclear"),
    ("good.com", "javascript://good.com/%0aalert(1)", "unclear"),
    ("good.com", "file://good.com/etc/passwd", "unclear"),
    ("good.com", "view-source:https://good.com", "unclear"),
    ("good.com", "https://[good.com]/", "unclear"),
    ("good.com", "https://[::1/.good.com", "unclear"),
    ("127.0.0.1", "http://2130706433/", "unclear"),
    ("127.0.0.1", "http://0x7f.1/", "unclear"),
    ("127.0.0.1", "http://127.1/", "unclear"),
    ("127.0.0.1", "http://127.0.0.01/", "unclear"),
    ("127.0.0.1", "http://0177.0.0.1/", "unclear"),
    ("127.0.0.1", "http://1.127.0.0.1/", "unclear"),
    ("127.0.0.1", "http://[::ffff:127.0.0.1]/", "unclear"),
    ("fe80::1", "http://[fe80::1%25eth0]/", "unclear"),
]


@pytest.mark.parametrize(("host", "url", "expected"), HOST)
def test_an_address_is_at_a_host_or_not_or_cannot_be_told(host: str, url: Any, expected: str) -> None:
    assert holds("host", host, url) == expected


WANTED: dict[str, st.SearchStrategy[Any]] = {
    "eq": plain_values,
    "in": st.lists(plain_values, max_size=3),
    "glob": st.text() | st.text("[]!-^&|~*?\\ab:", max_size=12),
    "under": st.sampled_from(["/", ".", "/srv/notes", "notes", "a/../b"]),
    "host": st.sampled_from(["good.com", "127.0.0.1", "::1", "localhost"]),
    "max": st.integers() | st.floats(allow_nan=False, allow_infinity=False),
}
assert WANTED.keys() == PREDICATES.keys()
predicates = st.one_of(*(st.tuples(st.just(name), wanted) for name, wanted in WANTED.items()))
texts = st.text("/.:@\\[]%~$ aA0x\0\uff0e\ud800", max_size=20).map(lambda text: "https://" + text) | st.text(
    "/.\\~ a\uff0f", max_size=20
)


@given(predicates, json_values | texts | st.text("[]!-^&|~*?\\ab:", max_size=12))
def test_a_predicate_never_raises(predicate: tuple[str, Any], value: Any) -> None:
    assert holds(*predicate, value) in ("yes", "no", "unclear")


@given(predicates.filter(lambda each: each[0] in ("glob", "under", "host", "max")), json_values)
def test_a_value_of_a_wrong_type_never_matches(predicate: tuple[str, Any], value: Any) -> None:
    wanted_type: Any = (int, float) if predicate[0] == "max" else str
    if isinstance(value, bool) or not isinstance(value, wanted_type):
        assert holds(*predicate, value) == "no"


def test_a_value_that_is_nested_deep_is_compared_all_the_same() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    assert holds("eq", [[[1]]], deep) == "no"
    assert holds("eq", 1, deep) == "no"


@pytest.mark.parametrize("glob", ["*a" * 30 + "b", "a?" * 50, "[" * 100, "*" * 200 + "b"])
@pytest.mark.timeout(5)
def test_a_pattern_cannot_hold_the_process(glob: str) -> None:
    assert holds("glob", glob, "a" * 60_000) == "no"


@pytest.mark.parametrize(
    "value", ["/" * 60_000, "../" * 20_000, ". " * 30_000, "a" * 60_000, "https://" + "a." * 30_000]
)
@pytest.mark.timeout(5)
def test_a_long_value_cannot_hold_the_process(value: str) -> None:
    for predicate, wanted in (("under", "/srv"), ("under", "a"), ("host", "good.com")):
        holds(predicate, wanted, value)


# -- arguments


def test_all_predicates_of_a_rule_must_hold() -> None:
    rule = Rule("deny", "*", args={"path": {"under": "/srv", "glob": "*.txt"}, "limit": {"max": 3}})
    assert matched(rule, {"path": "/srv/a.txt", "limit": 3}) == "yes"
    assert matched(rule, {"path": "/srv/a.md", "limit": 3}) == "no"
    assert matched(rule, {"path": "/srv/a.txt", "limit": 4}) == "no"
    assert matched(rule, {"path": "/srv/a.txt"}) == "no"


def test_an_allow_rule_with_predicates_is_closed_and_the_others_are_open() -> None:
    arguments = {"path": "/srv/a", "mode": "append"}
    for effect, expected in (("allow", "no"), ("ask", "yes"), ("deny", "yes")):
        rule = parse_rule({"effect": effect, "tool": "*", "args": {"path": {"under": "/srv"}}})
        assert matched(rule, arguments) == expected
        assert matched(rule, {"path": "/srv/a"}) == "yes"


def test_an_allow_rule_without_predicates_takes_any_arguments() -> None:
    assert matched(Rule("allow", "*"), {"a": 1}) == "yes"


@given(st.dictionaries(st.sampled_from("abcd"), json_values), st.sets(st.sampled_from("abc"), min_size=1))
def test_a_closed_rule_never_matches_an_argument_that_it_does_not_mention(
    arguments: dict[str, Any], named: set[str]
) -> None:
    rule = Rule(
        "allow",
        "*",
        args={name: {"eq": arguments[name]} for name in named & arguments.keys() if _plain(arguments[name])},
    )
    if rule.args and matched(rule, arguments) == "yes":
        assert arguments.keys() == rule.args.keys()


def _plain(value: Any) -> bool:
    try:
        Rule("allow", "*", args={"a": {"eq": value}})
    except RuleError:
        return False
    return True


@pytest.mark.parametrize(
    ("predicate", "wanted", "value"),
    [
        ("under", "/etc", "/srv/..\\etc"),
        ("host", "evil.com", "https://x@evil.com"),
        ("under", "/etc", "passwd"),
    ],
)
def test_what_cannot_be_told_opens_nothing_and_is_stopped(predicate: str, wanted: str, value: str) -> None:
    found = {
        effect: match(
            parse_rule({"effect": effect, "tool": "*", "args": {"a": {predicate: wanted}}}),
            spec(),
            {"a": value},
            NOW,
        )
        for effect in ("allow", "ask", "deny")
    }
    assert found == {"allow": "no", "ask": "unclear", "deny": "unclear"}


def test_a_value_that_cannot_be_told_does_not_outweigh_one_that_does_not_fit() -> None:
    rule = Rule("deny", "*", args={"a": {"under": "/etc"}, "b": {"eq": 1}})
    assert matched(rule, {"a": "x\\y", "b": 2}) == "no"


# -- digests


def test_a_digest_is_of_the_name_and_the_canonical_arguments() -> None:
    text = 'file.write\n{"a":{"x":1.0,"y":"ü"},"b":[2,1]}'
    arguments = {"b": [2, 1], "a": {"y": "ü", "x": 1.0}}
    assert arguments_digest("file.write", arguments) == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    "other", [{"a": 1.0}, {"a": "1"}, {"a": True}, {"a": 1, "b": None}, {}, {"a": [1]}, {"A": 1}]
)
def test_other_arguments_have_another_digest(other: dict[str, Any]) -> None:
    assert arguments_digest("t", other) != arguments_digest("t", {"a": 1})
    assert arguments_digest("u", {"a": 1}) != arguments_digest("t", {"a": 1})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800", [{"a": [float("-inf")]}]])
def test_what_is_no_json_has_no_digest(value: Any) -> None:
    with pytest.raises(ValueError):
        arguments_digest("t", {"a": value})


def test_a_rule_for_exactly_these_arguments() -> None:
    digest = arguments_digest("file.write", {"path": "/a"})
    rule = Rule("allow", "*", arguments_digest=digest)
    assert matched(rule, {"path": "/a"}) == "yes"
    assert matched(rule, {"path": "/b"}) == "no"
    assert matched(rule, {"path": "/a", "mode": "x"}) == "no"
    assert matched(rule, {"path": "/a"}, name="file.read") == "no"
    assert matched(rule, {"path": float("nan")}) == "no"
    assert matched(Rule("deny", "*", arguments_digest=digest), {"path": float("nan")}) == "unclear"


@given(st.dictionaries(st.text(), json_values, max_size=3))
def test_matching_never_raises(arguments: dict[str, Any]) -> None:
    for effect in ("allow", "deny"):
        parsed = parse_rule({"effect": effect, "tool": "*", "argumentsDigest": "0" * 64})
        assert matched(parsed, arguments) in ("yes", "no", "unclear")


# -- the form

REFUSED = [
    ([], "a rule must be a JSON object"),
    ({"effect": "deny"}, "tool is missing"),
    ({"tool": "*"}, "effect is missing"),
    ({"effect": "permit", "tool": "*"}, "effect must be allow, ask or deny"),
    ({"effect": ["deny"], "tool": "*"}, "effect must be allow, ask or deny"),
    ({"effect": "deny", "tool": ""}, "tool must be a tool's name or a pattern for names"),
    ({"effect": "deny", "tool": 3}, "tool must be a tool's name or a pattern for names"),
    ({"effect": "deny", "tool": "*", "source": 3}, "source must be text"),
    ({"effect": "deny", "tool": "*", "argumentsDigest": 3}, "argumentsDigest must be text"),
    ({"effect": "deny", "tool": "*", "scope": "once"}, "scope must be session or always"),
    ({"effect": "deny", "tool": "*", "expires": "soon"}, "expires must be a time such as"),
    ({"effect": "deny", "tool": "*", "expires": 5}, "expires must be a time such as"),
    ({"effect": "deny", "tool": "*", "expires": "2030-01-31"}, "expires needs its offset"),
    ({"effect": "deny", "tool": "*", "args": []}, "args must be an object"),
    ({"effect": "deny", "tool": "*", "args": {"a": 1}}, "args.a must be an object with one or more of eq"),
    ({"effect": "deny", "tool": "*", "args": {"a": {}}}, "args.a must be an object with one or more of eq"),
    ({"effect": "deny", "tool": "*", "args": {"a": {"min": 1}}}, "args.a has the unknown predicate 'min'"),
    ({"effect": "deny", "tool": "*", "args": {"a": {"in": "x"}}}, "args.a.in must be a list"),
    ({"effect": "deny", "tool": "*", "args": {"a": {"glob": 1}}}, "args.a.glob must be text"),
    ({"effect": "deny", "tool": "*", "args": {"a": {"max": True}}}, "args.a.max must be a number"),
    ({"effect": "deny", "tool": "*", "args": {"a": {"max": "3"}}}, "args.a.max must be a number"),
    ({"effect": "deny", "tool": "*", "args": {"a": {"under": ""}}}, "args.a.under must be a folder"),
    ({"effect": "deny", "tool": "*", "args": {"a": {"under": "~/x"}}}, "args.a.under must be a folder"),
    ({"effect": "deny", "tool": "*", "args": {"a": {"under": "../x"}}}, "args.a.under must be a folder"),
    ({"effect": "deny", "tool": "*", "args": {"a": {"host": "https://a.b"}}}, "args.a.host must be a host"),
    ({"effect": "deny", "tool": "*", "args": {"a": {"host": "a.b:80"}}}, "args.a.host must be a host"),
    ({"effect": "deny", "tool": "*", "args": {"a": {"host": "bücher.de"}}}, "args.a.host must be a host"),
    ({"effect": "deny", "tool": "*", "args": {"a": {"host": "0x7f.1"}}}, "args.a.host must be a host"),
    ({"effect": "deny", "tool": "*", "args": {"a": {"host": "[1"}}}, "args.a.host must be a host"),
    ({"effect": "deny", "tool": "*", "args": {"a": {"eq": "\ud800"}}}, "a value is no JSON"),
    ({"effect": "allow", "tool": "*", "arg": {}}, "unknown field 'arg'; did you mean 'args'?"),
    ({"effect": "allow", "tool": "*", "Args": {}}, "unknown field 'Args'; did you mean 'args'?"),
    ({"effect": "allow", "tool": "*", "arguments": {}}, "unknown field 'arguments'; did you mean 'args'?"),
    ({"effect": "allow", "tool": "*", "expire": ""}, "unknown field 'expire'; did you mean 'expires'?"),
    ({"effect": "allow", "tool": "*", "finger_print": ""}, "did you mean 'fingerprint'?"),
    ({"effect": "allow", "tool": "*", "arguments_digest": ""}, "did you mean 'argumentsDigest'?"),
]


@pytest.mark.parametrize(("value", "reason"), REFUSED)
def test_a_rule_that_is_not_accepted_is_explained(value: Any, reason: str) -> None:
    with pytest.raises(RuleError) as caught:
        parse_rule(value)
    assert str(caught.value).startswith(reason) or reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_fields_that_nobody_knows_are_passed_over() -> None:
    value = {"effect": "deny", "tool": "*", "comment": "why", "id": 7, "reason": "x", "tags": ["a"]}
    assert parse_rule(value) == Rule("deny", "*")


rules = st.builds(
    Rule,
    st.sampled_from(["allow", "ask", "deny"]),
    st.text(min_size=1),
    source=st.none() | st.text(min_size=1),
    args=st.dictionaries(st.text(), predicates.map(lambda each: dict([each])), max_size=3),
    scope=st.sampled_from(["session", "always"]),
    fingerprint=st.none() | st.text(min_size=1),
    expires=st.none() | st.sampled_from(["2030-01-31T18:00:00Z", "2030-01-31T18:00:00.5+01:00"]),
    arguments_digest=st.none() | st.text(min_size=1),
)


@given(st.lists(rules, max_size=3))
def test_what_is_encoded_is_decoded_again(given_rules: list[Rule]) -> None:
    assert decode_rules(encode_rules(given_rules)) == tuple(given_rules)


def test_no_rules_are_an_empty_text() -> None:
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
    + ["[" * 100_000, '[{"effect":"deny","effect":"allow","tool":"*"}]', '[{"effect":NaN}]', " "],
)
def test_a_damaged_text_is_refused_as_a_whole(text: str) -> None:
    with pytest.raises(ValueError):
        decode_rules(text)


@pytest.mark.parametrize("text", ['{"a":1,"a":2}', '[{"b":{"a":1,"a":1}}]', "[NaN]", "[-Infinity]"])
def test_json_that_could_be_read_in_two_ways_is_refused(text: str) -> None:
    with pytest.raises(RuleError):
        parse_json(text)


def test_the_json_form_leaves_out_what_is_not_said() -> None:
    assert json.loads(encode_rules([Rule("deny", "a.*")])) == [{"effect": "deny", "tool": "a.*"}]


def test_a_rule_is_said_in_words() -> None:
    rule = Rule(
        "allow",
        "file.*",
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
    assert "exactly those" in describe(Rule("allow", "*", arguments_digest="d"))


@given(rules)
def test_the_words_of_a_rule_are_one_line_without_control_characters(rule: Rule) -> None:
    assert not any(character < " " or character == "\x7f" for character in describe(rule))
