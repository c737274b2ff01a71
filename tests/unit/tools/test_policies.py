"""The operator's file: reading, concurrent changes, damage, and lint."""

from __future__ import annotations

import json
import multiprocessing
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import structlog

from conductor.commands.policy import append_rule, remove_rule
from conductor.commands.policy_lint import file_notes, lint
from conductor.config_file import MAX_BYTES
from conductor.errors import SettingsError
from conductor.tools.base import ToolSpec
from conductor.tools.policies import MAX_RULES, PolicyFile, load
from conductor.tools.rules import Rule

NOW = 1_800_000_000.0  # 2027-01-15T08:00:00Z
DENY = {"effect": "deny", "tool": "a.*"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "policies.json"


def write(path: Path, *rules: Any, **fields: Any) -> None:
    path.write_text(json.dumps({"version": 1, "rules": rules, **fields}))
    path.chmod(0o600)


def read(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def refusal(path: Path) -> str:
    before = path.read_bytes() if path.is_file() else b""
    with pytest.raises(SettingsError) as caught:
        load(path)
    assert before == (path.read_bytes() if path.is_file() else b""), "it must stay as it is"
    return str(caught.value)


# -- reading


def test_a_missing_file_has_no_rules_unless_it_is_required(path: Path) -> None:
    assert load(path) == ()
    assert list(path.parent.iterdir()) == []
    with pytest.raises(SettingsError, match="policies.json cannot be read: no such file"):
        load(path, required=True)


def test_the_rules_are_read_in_their_order(path: Path) -> None:
    expected = (Rule("deny", "a.*"), Rule("allow", "b", comment="because"))
    write(path, DENY, {"effect": "allow", "tool": "b", "comment": "because"})
    assert load(path) == expected
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert load(path) == expected


RULES = '{"version": 1, "rules": [\n  {"effect": "deny", "tool": "a.*"},\n  %s\n]}'
INVALID = [
    (
        '{"effect": "allow", "tool": "b", "arg": {"path": {"under": "/srv"}}}',
        'policies.json, rule 2: there is no "arg"; there are: effect, tool, source, session, '
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
    with pytest.raises(SettingsError) as caught:
        append_rule(path, Rule("deny", "b"))
    assert str(caught.value) == sentence
    assert path.read_text() == RULES % rule
    assert sorted(item.name for item in path.parent.iterdir()) == ["policies.json", "policies.json.lock"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "policies.json is not valid JSON, line 1, column 1: expecting value."),
        ('{"version":1}', 'policies.json must be a JSON object with a list under "rules".'),
        ('{"version":1,"rules":{}}', 'policies.json must be a JSON object with a list under "rules".'),
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


def test_too_many_rules_are_refused(path: Path) -> None:
    write(path, *[DENY] * MAX_RULES)
    assert len(load(path)) == MAX_RULES
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
    assert not file.rules and not file.problem
    append_rule(path, Rule("deny", "a"))
    file.refresh()
    rules = file.rules
    assert [rule.tool for rule in rules] == ["a"]
    file.refresh()
    assert file.rules is rules, "an unchanged file is not read again"
    remove_rule(path, 1)
    file.refresh()
    assert not file.rules


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
    assert [rule.tool for rule in file.rules] == ["a.*"]
    assert "policies.json" in file.problem
    assert [(item["log_level"], item["problem"]) for item in logs] == [("error", file.problem)]
    replaced(path, '{"version": 1, "rules": []}')
    file.refresh()
    assert not file.rules and not file.problem


# -- writing


def test_a_rule_is_added_at_the_end_and_the_file_is_the_owners_alone(path: Path) -> None:
    assert append_rule(path, Rule("deny", "a.*")) == 1
    path.chmod(0o666)
    assert append_rule(path, Rule("allow", "b", args={"path": {"under": "/srv"}})) == 2
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read(path) == {
        "version": 1,
        "rules": [DENY, {"effect": "allow", "tool": "b", "args": {"path": {"under": "/srv"}}}],
    }
    assert sorted(item.name for item in path.parent.iterdir()) == ["policies.json", "policies.json.lock"]


def test_unknown_fields_of_the_file_are_preserved(path: Path) -> None:
    odd = {"comment": "ü", **DENY}
    write(path, odd, {"effect": "ask", "tool": "b", "source": None}, team="x", half="\ud800")
    append_rule(path, Rule("deny", "c"))
    remove_rule(path, 2)
    document = read(path)
    assert document == {
        "version": 1,
        "rules": [odd, {"effect": "deny", "tool": "c"}],
        "team": "x",
        "half": "\ud800",
    }
    assert list(document["rules"][0]) == list(odd)


def test_a_link_to_the_file_stays_a_link(path: Path) -> None:
    target = path.with_name("elsewhere.json")
    write(target, DENY)
    path.symlink_to(target)
    append_rule(path, Rule("deny", "b"))
    assert path.is_symlink()
    assert len(read(target)["rules"]) == 2


def test_an_invalid_rule_can_be_removed(path: Path) -> None:
    bad = {"effect": "permit", "tool": "b"}
    write(path, DENY, bad)
    assert remove_rule(path, 2) == bad
    assert load(path) == (Rule("deny", "a.*"),)


@pytest.mark.parametrize("number", [-1, 0, 3])
def test_a_missing_rule_cannot_be_removed(path: Path, number: int) -> None:
    write(path, DENY, DENY)
    with pytest.raises(SettingsError, match=f"^There is no rule {number}: policies.json has rules 1 to 2.$"):
        remove_rule(path, number)


def test_a_file_is_not_made_larger_than_can_be_read(path: Path) -> None:
    write(path, DENY, padding="x" * (MAX_BYTES - 150))
    before = path.read_bytes()
    with pytest.raises(SettingsError, match="would be larger"):
        append_rule(path, Rule("deny", "b" * 200))
    assert path.read_bytes() == before


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, DENY)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SettingsError, match="cannot be written: No space left on device"):
        append_rule(path, Rule("deny", "b"))
    assert read(path)["rules"] == [DENY]
    assert sorted(item.name for item in path.parent.iterdir()) == ["policies.json", "policies.json.lock"]


def _add_many(path: Path, start: Any, name: str, count: int) -> None:
    start.wait(30)
    for number in range(count):
        append_rule(path, Rule("deny", f"{name}.{number}"))


def test_rules_added_by_concurrent_processes_are_all_kept(path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    names, count = ["a", "b"], 15
    start = context.Barrier(len(names))
    processes = [context.Process(target=_add_many, args=(path, start, name, count)) for name in names]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * len(names)
    added = [rule.tool for rule in load(path)]
    assert sorted(added) == sorted(f"{name}.{number}" for name in names for number in range(count))
    for name in names:
        own = [tool for tool in added if tool.startswith(f"{name}.")]
        assert own == [f"{name}.{number}" for number in range(count)]


# -- rules that make no sense


def tool(name: str, source: str = "device", **schema: Any) -> ToolSpec:
    return ToolSpec(name, "", {"type": "object", **schema}, source=source)


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
        (Rule("deny", "clock", expires="2020-01-01T00:00:00Z"), "has expired"),
        (Rule("deny", "file.*", args={"pth": {"eq": "/a"}}), "takes the argument pth"),
        (Rule("allow", "*"), "dangerously wide"),
        (Rule("allow", "*.*", source="mcp:*"), "dangerously wide"),
    ],
)
def test_lint_reports_a_rule_that_is_useless_or_wide(rule: Rule, problem: str) -> None:
    texts = findings(Rule("deny", "file.list", args={"folder": {"eq": "x"}}), rule)
    assert len(texts) == 1
    assert texts[0].startswith("Rule 2 (") and problem in texts[0] and texts[0].endswith(".")


@pytest.mark.parametrize(
    "rule",
    [
        Rule("deny", "clock", expires="2090-01-01T00:00:00Z"),
        Rule("deny", "file.*", args={"folder": {"eq": "/a"}}),
        Rule("allow", "file.write", args={"path": {"in": ["a", "b"], "glob": "b*"}, "limit": {"max": 1}}),
        Rule("deny", "any", args={"x-a": {"eq": 1}}),
        Rule("deny", "*"),
        Rule("allow", "*", args={"path": {"under": "/srv"}}),
        Rule("allow", "*", arguments_digest="d"),
        Rule("deny", "clock", source="mcp:*"),
    ],
)
def test_lint_reports_no_sensible_rule(rule: Rule) -> None:
    assert findings(rule) == []


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        (
            Rule("deny", "file.wirte"),
            "may never match: no tool of the catalog or the server has this name; "
            "a tool that an app declares may.",
        ),
        (
            Rule("deny", "clok", source="builtin"),
            "can never match: no tool of the server has this name.",
        ),
    ],
)
def test_a_rule_for_an_unknown_tool_is_reported(rule: Rule, problem: str) -> None:
    (finding,) = findings(rule)
    assert finding.endswith(problem)
