"""The operator's file: read, changed by several at once, damaged; and rules that make no sense."""

from __future__ import annotations

import json
import multiprocessing
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import structlog

from conductor.errors import SettingsError
from conductor.settings import Settings
from conductor.tools.base import ToolSpec
from conductor.tools.permissions import GateOptions, decide
from conductor.tools.policies import MAX_POLICIES_BYTES, Policies, add, lint, load, policies_path, remove
from conductor.tools.rules import Rule

NOW = 1_800_000_000.0  # 2027-01-15T08:00:00Z
DENY = {"effect": "deny", "tool": "a.*"}


def clock() -> float:
    return NOW


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
        load(path, now=clock)
    assert before == (path.read_bytes() if path.is_file() else b""), "it must stay as it is"
    return str(caught.value)


# -- reading


def test_a_missing_file_has_no_rules(path: Path) -> None:
    assert load(path) == Policies()
    assert list(path.parent.iterdir()) == []


def test_the_rules_are_read_in_their_order(path: Path) -> None:
    write(path, DENY, {"effect": "allow", "tool": "b", "comment": "because"})
    assert load(path) == Policies((Rule("deny", "a.*"), Rule("allow", "b")))


def test_a_file_with_a_byte_order_mark_is_read(path: Path) -> None:
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps({"version": 1, "rules": [DENY]}).encode())
    assert load(path).rules == (Rule("deny", "a.*"),)


def test_a_rule_that_is_not_accepted_is_named_by_its_number(path: Path) -> None:
    write(path, DENY, {"effect": "permit", "tool": "b"})
    assert refusal(path) == "Rule 2 of policies.json is not valid: effect must be allow, ask or deny."


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[]", 'policies.json must be a JSON object with a list under "rules".'),
        ('{"version":1}', 'policies.json must be a JSON object with a list under "rules".'),
        ('{"version":1,"rules":{}}', 'policies.json must be a JSON object with a list under "rules".'),
        ('{"rules":[]}', 'policies.json must have "version": 1; it may be from another release.'),
        ('{"version":2,"rules":[]}', 'policies.json must have "version": 1; it may be from another release.'),
        (
            '{"version":true,"rules":[]}',
            'policies.json must have "version": 1; it may be from another release.',
        ),
        (
            '{"version":1,"rules":[],"rules":[]}',
            "policies.json is not valid: the field 'rules' is there twice.",
        ),
        ('{"version":1,"rules":[NaN]}', "policies.json is not valid: NaN is no JSON number."),
    ],
)
def test_json_that_is_no_policies_file_is_refused_and_left_alone(
    path: Path, text: str, sentence: str
) -> None:
    path.write_text(text)
    assert refusal(path) == sentence


def test_a_file_that_is_too_large_is_refused_and_left_alone(path: Path) -> None:
    write(path, DENY, padding="x" * MAX_POLICIES_BYTES)
    assert refusal(path) == f"policies.json is larger than {MAX_POLICIES_BYTES} bytes."


def test_what_is_no_regular_file_is_refused(path: Path) -> None:
    path.mkdir()
    assert refusal(path) == "policies.json is no regular file."
    path.rmdir()
    os.mkfifo(path)
    assert refusal(path) == "policies.json is no regular file."


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"cannot be read: File name too long.$"):
        load(tmp_path / ("x" * 300))


def test_a_link_that_leads_to_itself_is_refused(path: Path) -> None:
    path.symlink_to(path)
    with pytest.raises(SettingsError):
        load(path)


def test_a_file_that_everybody_may_write_is_warned_about(path: Path) -> None:
    write(path, DENY)
    path.chmod(0o666)
    with structlog.testing.capture_logs() as logs:
        policies = load(path)
    assert "chmod 600" in policies.notes[0]
    assert [(each["log_level"], each["note"]) for each in logs] == [("warning", policies.notes[0])]
    path.chmod(0o660)
    assert load(path).notes == ()


def test_the_place_of_the_file_is_a_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert policies_path(Settings()) == Path("policies.json")
    assert policies_path(Settings(policies_file=Path("x.json"))) == Path("x.json")


# -- a damaged file

DAMAGED = [b"", b"{", b'{"version":1,"rules":[{"effect":"de', b"\xff\xfe\x00", b"\0" * 100, b"[" * 100_000]


@pytest.mark.parametrize("content", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_file_is_moved_aside_and_everything_asks(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with structlog.testing.capture_logs() as logs:
        policies = load(path, now=clock)
    aside = path.with_name("policies.json.corrupt-20270115T080000Z")
    assert aside.read_bytes() == content
    assert policies.ask_all
    assert aside.name in policies.notes[0]
    assert [each["log_level"] for each in logs] == ["warning"]
    safe = ToolSpec("t", "", {"type": "object"}, risk="safe", effect="read")
    verdict = decide(safe, {}, policies.gate_rules, now=NOW, tainted=False, options=GateOptions())
    assert verdict.effect == "ask"


def test_after_a_restart_everything_still_asks_until_the_operator_says_otherwise(path: Path) -> None:
    path.write_text("{")
    load(path, now=clock)
    again = load(path, now=clock)
    assert (again.ask_all, again.gate_rules) == (False, (Rule("ask", "*"),))
    assert "corrupt-20270115T080000Z" in read(path)["rules"][0]["comment"]
    remove(path, 1)
    assert load(path).gate_rules == ()


def test_two_damaged_files_in_one_second_are_both_kept(path: Path) -> None:
    for content in ("{", "["):
        path.write_text(content)
        load(path, now=clock)
    first = path.with_name("policies.json.corrupt-20270115T080000Z")
    second = path.with_name("policies.json.corrupt-20270115T080000Z-2")
    assert (first.read_text(), second.read_text()) == ("{", "[")


def test_a_rule_that_is_added_to_a_damaged_file_stands_beside_the_one_that_asks(path: Path) -> None:
    path.write_text("{")
    assert add(path, Rule("deny", "a"), now=clock) == 2
    assert load(path).rules == (Rule("ask", "*"), Rule("deny", "a"))


def test_a_damaged_file_that_cannot_be_moved_asks_all_the_same(path: Path) -> None:
    path.write_text("{")
    path.with_name("policies.json.lock").mkdir()
    policies = load(path, now=clock)
    assert policies.ask_all
    assert policies.gate_rules == (Rule("ask", "*"),)
    assert "everything asks" in policies.notes[0]
    assert path.read_text() == "{"


def test_where_a_file_cannot_have_two_names_a_damaged_one_is_moved(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    path.write_text("{")
    assert load(path, now=clock).ask_all
    assert path.with_name("policies.json.corrupt-20270115T080000Z").read_text() == "{"
    assert load(path, now=clock).rules == (Rule("ask", "*"),)


def test_the_rule_that_asks_for_everything_is_there_once() -> None:
    ask, deny = Rule("ask", "*"), Rule("deny", "a")
    assert Policies((deny,), ask_all=True).gate_rules == (deny, ask)
    assert Policies((ask, deny), ask_all=True).gate_rules == (ask, deny)
    assert Policies((deny,)).gate_rules == (deny,)


# -- writing


def test_a_rule_is_added_at_the_end_and_the_file_is_the_owners_alone(path: Path) -> None:
    assert add(path, Rule("deny", "a.*")) == 1
    path.chmod(0o666)
    assert add(path, Rule("allow", "b", args={"path": {"under": "/srv"}})) == 2
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read(path) == {
        "version": 1,
        "rules": [DENY, {"effect": "allow", "tool": "b", "args": {"path": {"under": "/srv"}}}],
    }
    assert sorted(each.name for each in path.parent.iterdir()) == ["policies.json", "policies.json.lock"]


def test_fields_that_nobody_knows_are_kept(path: Path) -> None:
    odd = {"comment": "ü", "id": 7, "owner": {"a": [1.50, None]}, **DENY, "half": "\ud800"}
    write(path, odd, {"effect": "ask", "tool": "b", "source": None}, team="x", order=[1])
    add(path, Rule("deny", "c"))
    remove(path, 2)
    document = read(path)
    assert document == {
        "version": 1,
        "rules": [odd, {"effect": "deny", "tool": "c"}],
        "team": "x",
        "order": [1],
    }
    assert list(document["rules"][0]) == list(odd)


def test_a_link_to_the_file_stays_a_link(path: Path) -> None:
    target = path.with_name("elsewhere.json")
    write(target, DENY)
    path.symlink_to(target)
    add(path, Rule("deny", "b"))
    assert path.is_symlink()
    assert len(read(target)["rules"]) == 2


def test_nothing_is_added_to_a_file_that_would_not_load(path: Path) -> None:
    write(path, {"effect": "permit", "tool": "b"})
    before = path.read_bytes()
    with pytest.raises(SettingsError, match=r"^Rule 1 of policies.json"):
        add(path, Rule("deny", "b"))
    assert path.read_bytes() == before


def test_a_rule_that_is_not_accepted_can_be_taken_out(path: Path) -> None:
    bad = {"effect": "permit", "tool": "b"}
    write(path, DENY, bad)
    assert remove(path, 2) == bad
    assert load(path).rules == (Rule("deny", "a.*"),)


@pytest.mark.parametrize("number", [-1, 0, 3])
def test_a_rule_that_is_not_there_cannot_be_taken_out(path: Path, number: int) -> None:
    write(path, DENY, DENY)
    with pytest.raises(SettingsError, match=f"^There is no rule {number}: policies.json has rules 1 to 2.$"):
        remove(path, number)


def test_a_file_is_not_made_larger_than_can_be_read(path: Path) -> None:
    write(path, DENY, padding="x" * (MAX_POLICIES_BYTES - 150))
    before = path.read_bytes()
    with pytest.raises(SettingsError, match="would be larger"):
        add(path, Rule("deny", "b" * 200))
    assert path.read_bytes() == before


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, DENY)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SettingsError, match="cannot be written: No space left on device"):
        add(path, Rule("deny", "b"))
    assert read(path)["rules"] == [DENY]
    assert sorted(each.name for each in path.parent.iterdir()) == ["policies.json", "policies.json.lock"]


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such file or directory"):
        add(tmp_path / "none" / "policies.json", Rule("deny", "b"))


def _add_many(path: Path, start: Any, name: str, count: int) -> None:
    start.wait(30)
    for number in range(count):
        add(path, Rule("deny", f"{name}.{number}"))


def test_what_several_processes_add_at_once_is_all_there(path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    names, count = ["a", "b", "c", "d"], 15
    start = context.Barrier(len(names))
    processes = [context.Process(target=_add_many, args=(path, start, name, count)) for name in names]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * len(names)
    found = [rule.tool for rule in load(path).rules]
    assert sorted(found) == sorted(f"{name}.{number}" for name in names for number in range(count))
    for name in names:
        own = [tool for tool in found if tool.startswith(f"{name}.")]
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


def findings(*rules: Rule, complete: tuple[str, ...] = ()) -> list[str]:
    return lint(rules, SPECS, now=NOW, complete=complete)


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        (Rule("deny", "clock", expires="2020-01-01T00:00:00Z"), "has expired"),
        (Rule("deny", "file.*", args={"pth": {"under": "/a"}}), "takes the argument pth"),
        (Rule("ask", "file.*", args={"path": {"eq": 1}, "folder": {"eq": 1}}), "takes all of its arguments"),
        (Rule("allow", "file.write", args={"limit": {"max": 1}}), "it does not mention path"),
        (Rule("deny", "file.write", args={"path": {"in": []}}), "the list of values for path is empty"),
        (Rule("deny", "file.write", args={"path": {"eq": "a", "in": ["b"]}}), "contradict each other"),
        (Rule("deny", "file.write", args={"path": {"eq": "/a", "under": "/b"}}), "contradict each other"),
        (
            Rule("deny", "file.write", args={"path": {"in": ["a", "b"], "glob": "c*"}}),
            "contradict each other",
        ),
        (Rule("ask", "file.write", args={"limit": {"max": 9}}), "max is meant for allow rules"),
        (Rule("allow", "*"), "dangerously wide"),
        (Rule("allow", "*.*", source="mcp:*"), "dangerously wide"),
    ],
)
def test_a_rule_that_makes_no_sense_is_found(rule: Rule, problem: str) -> None:
    found = findings(Rule("deny", "nothing"), rule)
    assert len(found) == 1
    assert found[0].startswith("Rule 2 (") and problem in found[0] and found[0].endswith(".")


@pytest.mark.parametrize(
    "rule",
    [
        Rule("deny", "clock", expires="2090-01-01T00:00:00Z"),
        Rule("deny", "file.*", args={"folder": {"under": "/a"}}),
        Rule("allow", "file.write", args={"path": {"in": ["a", "b"], "glob": "b*"}, "limit": {"max": 1}}),
        Rule("deny", "file.write", args={"path": {"eq": "a", "in": ["a"]}}),
        Rule("deny", "any", args={"x-a": {"eq": 1}}),
        Rule("deny", "*"),
        Rule("allow", "*", args={"path": {"under": "/srv"}}),
        Rule("allow", "*", arguments_digest="d"),
        Rule("deny", "unknown.tool"),
    ],
)
def test_a_rule_that_makes_sense_is_not_found(rule: Rule) -> None:
    assert findings(rule) == []


def test_a_rule_about_no_tool_is_only_found_where_all_tools_are_known() -> None:
    rule = Rule("deny", "unknown.tool")
    assert findings(rule) == []
    assert "it covers no tool" in findings(rule, complete=("*",))[0]
    assert "it covers no tool" in findings(Rule("deny", "x", source="builtin"), complete=("builtin",))[0]
    assert findings(Rule("deny", "x", source="mcp:a"), complete=("builtin",)) == []


SHADOWED = [
    (Rule("deny", "file.*"), Rule("allow", "file.write"), True),
    (Rule("deny", "file.*"), Rule("allow", "file.w*"), True),
    (Rule("deny", "*"), Rule("ask", "file.*", args={"path": {"eq": "a"}}), True),
    (Rule("ask", "file.*"), Rule("allow", "file.*"), True),
    (Rule("deny", "file.*", source="device"), Rule("allow", "file.*", source="device"), True),
    (Rule("deny", "file.*", source="mcp:*"), Rule("allow", "file.*", source="mcp:a"), True),
    (Rule("deny", "file.*", source="device"), Rule("allow", "file.*"), False),
    (Rule("deny", "file.w*"), Rule("allow", "file.*"), False),
    (Rule("deny", "file.?"), Rule("allow", "file.*"), False),
    (Rule("deny", "*b]"), Rule("allow", "[ab]"), False),
    (Rule("ask", "file.*"), Rule("deny", "file.write"), False),
    (Rule("deny", "file.*", args={"path": {"eq": "a"}}), Rule("allow", "file.*"), False),
    (Rule("deny", "file.*", arguments_digest="d"), Rule("allow", "file.*"), False),
    (Rule("deny", "file.*", fingerprint="f"), Rule("allow", "file.*"), False),
    (Rule("deny", "file.*", fingerprint="f"), Rule("allow", "file.*", fingerprint="f"), True),
    (Rule("deny", "file.*", expires="2090-01-01T00:00:00Z"), Rule("allow", "file.*"), False),
    (Rule("deny", "file.*", expires="2020-01-01T00:00:00Z"), Rule("allow", "file.*"), False),
]


@pytest.mark.parametrize(("earlier", "later", "expected"), SHADOWED)
def test_a_rule_that_another_always_comes_before_is_found(earlier: Rule, later: Rule, expected: bool) -> None:
    for rules in ((earlier, later), (later, earlier)):
        found = [each for each in findings(*rules) if "can never decide" in each]
        assert len(found) == expected
        if expected:
            assert f"rule {rules.index(earlier) + 1} is to {earlier.effect} all" in found[0]
