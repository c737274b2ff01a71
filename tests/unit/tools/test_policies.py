"""The operator's file: reading, damage, and lint."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import structlog

from conductor.commands.policy_lint import file_notes, lint
from conductor.config_file import MAX_BYTES
from conductor.errors import SettingsError
from conductor.tools.base import ToolSpec
from conductor.tools.policies import MAX_RULES, Policies, PolicyFile, load
from conductor.tools.rules import Rule

NOW = 1_800_000_000.0  # 2027-01-15T08:00:00Z
DENY = {"effect": "deny", "tool": "a.*"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "policies.json"


def write(path: Path, *rules: Any, **fields: Any) -> None:
    path.write_text(json.dumps({"version": 1, "rules": rules, **fields}))
    path.chmod(0o600)


def refusal(path: Path) -> str:
    before = path.read_bytes() if path.is_file() else b""
    with pytest.raises(SettingsError) as caught:
        load(path)
    assert before == (path.read_bytes() if path.is_file() else b""), "it must stay as it is"
    return str(caught.value)


# -- reading


def test_a_missing_file_has_no_rules_unless_it_is_required(path: Path) -> None:
    assert load(path) == Policies()
    assert list(path.parent.iterdir()) == []
    with pytest.raises(SettingsError, match="policies.json cannot be read: no such file"):
        load(path, required=True)


def test_the_rules_are_read_in_their_order(path: Path) -> None:
    expected = (Rule(effect="deny", tool="a.*"), Rule(effect="allow", tool="b", comment="because"))
    write(path, DENY, {"effect": "allow", "tool": "b", "comment": "because"})
    assert load(path) == Policies(expected)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert load(path) == Policies(expected)


RULES = '{"version": 1, "rules": [\n  {"effect": "deny", "tool": "a.*"},\n  %s\n]}'
INVALID = [
    (
        '{"effect": "allow", "tool": "b", "arg": {"path": {"under": "/srv"}}}',
        'policies.json, rule 2: there is no "arg"; there are: effect, tool, source, '
        "args, scope, fingerprint, expires, argumentsDigest, comment.",
    ),
    (
        '{"effect": "deny", "tool": "b"},',
        "policies.json is not valid JSON, line 4, column 1: expecting value.",
    ),
    (
        '{"effect": "deny", "tool": "b",}',
        "policies.json is not valid JSON, line 3, column 34: "
        "expecting property name enclosed in double quotes.",
    ),
    (
        '{"effect": "deny", "effect": "allow", "tool": "b"}',
        "policies.json is not valid: the field 'effect' occurs twice.",
    ),
    ("1" * 5_000, "policies.json is not valid JSON: a number is too long, or lists too deep."),
    ("[" * 100_000, "policies.json is not valid JSON: a number is too long, or lists too deep."),
]


@pytest.mark.parametrize(("rule", "sentence"), INVALID, ids=range(len(INVALID)))
def test_a_mistake_is_one_sentence_and_the_file_is_unchanged(path: Path, rule: str, sentence: str) -> None:
    path.write_text(RULES % rule)
    assert refusal(path) == sentence


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "policies.json is not valid JSON, line 1, column 1: expecting value."),
        ("[]", "policies.json must be a JSON object."),
        ('{"version":1,"rules":{}}', 'policies.json must have a list under "rules".'),
        ('{"version":1,"rule":[]}', 'policies.json: there is no "rule"; there are: version, preset, rules.'),
        (
            '{"version":1,"preset":"yolo"}',
            'policies.json: "preset" must be one of read_only, ask_everything, standard, trusted.',
        ),
        (
            '{"version":1,"preset":[]}',
            'policies.json: "preset" must be one of read_only, ask_everything, standard, trusted.',
        ),
        ('{"version":2,"rules":[]}', 'policies.json must have "version": 1; it may be from another release.'),
        (
            '{"version":true,"rules":[]}',
            'policies.json must have "version": 1; it may be from another release.',
        ),
    ],
)
def test_json_that_is_no_policies_file_is_refused_and_left_alone(
    path: Path, text: str, sentence: str
) -> None:
    path.write_text(text)
    assert refusal(path) == sentence


def test_a_preset_needs_no_rules(path: Path) -> None:
    path.write_text('{"version": 1, "preset": "read_only"}')
    assert load(path) == Policies((), "read_only")


def test_too_many_rules_are_refused(path: Path) -> None:
    write(path, *[DENY] * MAX_RULES)
    assert len(load(path).rules) == MAX_RULES
    write(path, *[DENY] * (MAX_RULES + 1))
    assert refusal(path) == f"policies.json has more than {MAX_RULES} rules."


def test_a_file_that_is_too_large_is_refused_and_left_alone(path: Path) -> None:
    write(path, DENY, padding="x" * MAX_BYTES)
    assert refusal(path) == f"policies.json is larger than {MAX_BYTES} bytes."


def test_no_other_kind_of_file_is_read(path: Path) -> None:
    path.mkdir()
    assert refusal(path) == "policies.json is not a regular file."
    path.rmdir()
    os.mkfifo(path)
    assert refusal(path) == "policies.json is not a regular file."
    path.unlink()
    path.symlink_to(path)
    assert refusal(path).startswith("policies.json cannot be read: ")
    path.unlink()
    path.write_bytes(b"\0\xff" * 100)
    assert refusal(path) == "policies.json cannot be read: it is not UTF-8 text."
    with pytest.raises(SettingsError, match=r"cannot be read: file name too long.$"):
        load(path.with_name("x" * 300))


def test_a_file_that_everybody_may_write_is_warned_about(path: Path) -> None:
    write(path, DENY)
    path.chmod(0o666)
    assert "chmod 600" in file_notes(path)[0]
    path.chmod(0o660)
    assert file_notes(path) == []


# -- while a server runs


def replaced(path: Path, text: str) -> None:
    """Replace a file as editors do: the inode changes within one tick of the clock."""
    path.with_name("new").write_text(text)
    path.with_name("new").replace(path)


def test_a_changed_file_is_read_again(path: Path) -> None:
    file = PolicyFile(path)
    assert not file.policies.rules and not file.problem
    write(path, {"effect": "deny", "tool": "a"})
    file.refresh()
    rules = file.policies.rules
    assert [rule.tool for rule in rules] == ["a"]
    file.refresh()
    assert file.policies.rules is rules, "an unchanged file is not read again"
    write(path)
    file.refresh()
    assert not file.policies.rules


@pytest.mark.parametrize(
    "broken", ["{", '{"version": 1, "rules": [{"effect": "permit", "tool": "*"}]}', None]
)
def test_an_invalid_or_deleted_file_keeps_the_earlier_rules(path: Path, broken: str | None) -> None:
    write(path, DENY)
    file = PolicyFile(path)
    if broken is None:
        path.unlink()
    else:
        replaced(path, broken)
    with structlog.testing.capture_logs() as logs:
        file.refresh()
        file.refresh()
    assert [rule.tool for rule in file.policies.rules] == ["a.*"]
    assert "policies.json" in file.problem
    assert [(item["log_level"], item["problem"]) for item in logs] == [("error", file.problem)]
    replaced(path, '{"version": 1, "rules": []}')
    file.refresh()
    assert not file.policies.rules and not file.problem


# -- rules that make no sense


def tool(name: str, source: str = "device", **schema: Any) -> ToolSpec:
    return ToolSpec(name=name, description="", input_schema={"type": "object", **schema}, source=source)


PROPERTIES = {"path": {"type": "string"}, "limit": {"type": "integer"}}
SPECS = [
    tool("file.write", properties=PROPERTIES, required=["path"]),
    tool("file.list", properties={"folder": {"type": "string"}}),
    tool("clock", "builtin", properties={}),
    tool("any", properties={}, patternProperties={"^x-": {}}),
]


def findings(*rules: Rule) -> list[str]:
    return lint(rules, SPECS, now=NOW)


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        (Rule(effect="deny", tool="clock", expires="2020-01-01T00:00:00Z"), "has expired"),
        (Rule(effect="deny", tool="file.*", args={"pth": {"eq": "/a"}}), "takes the argument pth"),
        (Rule(effect="allow", tool="*"), "dangerously wide"),
        (Rule(effect="allow", tool="*.*", source="mcp:*"), "dangerously wide"),
    ],
)
def test_lint_reports_a_rule_that_is_useless_or_wide(rule: Rule, problem: str) -> None:
    texts = findings(Rule(effect="deny", tool="file.list", args={"folder": {"eq": "x"}}), rule)
    assert len(texts) == 1
    assert texts[0].startswith("Rule 2 (") and problem in texts[0] and texts[0].endswith(".")


@pytest.mark.parametrize(
    "rule",
    [
        Rule(effect="deny", tool="clock", expires="2090-01-01T00:00:00Z"),
        Rule(effect="deny", tool="file.*", args={"folder": {"eq": "/a"}}),
        Rule(
            effect="allow",
            tool="file.write",
            args={"path": {"in": ["a", "b"], "glob": "b*"}, "limit": {"max": 1}},
        ),
        Rule(effect="deny", tool="any", args={"x-a": {"eq": 1}}),
        Rule(effect="deny", tool="*"),
        Rule(effect="allow", tool="*", args={"path": {"under": "/srv"}}),
        Rule(effect="allow", tool="*", arguments_digest="d"),
        Rule(effect="deny", tool="clock", source="mcp:*"),
    ],
)
def test_lint_reports_no_sensible_rule(rule: Rule) -> None:
    assert findings(rule) == []


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        (
            Rule(effect="deny", tool="file.wirte"),
            "may never match: no tool of the catalog or the server has this name; "
            "a tool that an app declares may.",
        ),
        (
            Rule(effect="deny", tool="clok", source="builtin"),
            "can never match: no tool of the server has this name.",
        ),
    ],
)
def test_a_rule_for_an_unknown_tool_is_reported(rule: Rule, problem: str) -> None:
    (finding,) = findings(rule)
    assert finding.endswith(problem)
