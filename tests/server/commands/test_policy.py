"""``conductor policy``: list and explain rules."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import IOS_CATALOG
from tests.server.commands.conftest import mistake, run

FILE = Path("policies.json")
run_policy, policy_mistake = partial(run, "policy"), partial(mistake, "policy")


@pytest.fixture(autouse=True)
def offer_the_catalog(remove_settings: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offer the tools of the iOS app."""
    monkeypatch.setenv("DEVICE_TOOLS_FILE", str(IOS_CATALOG))


def add(effect: str, tool: str, **fields: Any) -> None:
    """Add a rule to the file."""
    rules = json.loads(FILE.read_text())["rules"] if FILE.exists() else []
    rule = {"effect": effect, "tool": tool, **fields}
    FILE.write_text(json.dumps({"version": 1, "rules": [*rules, rule]}))


def explain(*arguments: str) -> tuple[str, str]:
    """Return the first line of an explanation, and the rest."""
    head, _, rest = run_policy("explain", *arguments).partition("\n")
    return head, rest


def test_without_a_file_there_are_no_rules() -> None:
    assert run_policy("list").startswith(
        "There are no rules.\nThe preset standard decides where no rule does: "
    )
    assert not FILE.exists()


def test_rules_are_listed() -> None:
    add("deny", "agent.cancel")
    add("ask", "agent.*", source="device", args={"limit": {"eq": 3}})
    assert [line.split() for line in run_policy("list").splitlines()[:-1]] == [
        ["rule", "effect", "tool", "source", "when"],
        ["1", "deny", "agent.cancel", "any", "always"],
        ["2", "ask", "agent.*", "device", "where", "limit", "is", "3"],
    ]


def test_the_preset_is_named_where_it_decides() -> None:
    FILE.write_text('{"version": 1, "preset": "read_only"}')
    assert "The preset read_only decides" in run_policy("list")
    head, rest = explain("agent.cancel")
    assert head == "agent.cancel: deny" and "The preset read_only allows reads alone." in rest
    rows = [line.split() for line in run_policy("presets").splitlines()]
    assert rows[0][3:] == ["read_only", "ask_everything", "standard", "trusted"]
    assert ["agent.cancel", "medium", "write", "disabled", "ask", "allow", "allow"] in rows


@pytest.mark.parametrize(
    "fields",
    [{"tool": "a\x01"}, {"tool": "a", "source": "\x1b[31m"}, {"tool": "a", "args": {"b\n": {"eq": 1}}}],
)
def test_a_control_character_in_a_name_is_refused_and_escaped(fields: dict[str, Any]) -> None:
    add("deny", **fields)
    message = policy_mistake("list")
    assert "has a character that is not printable" in message and message.isprintable()


def test_an_ineffective_rule_is_a_warning() -> None:
    add("allow", "agent.status", args={"nme": {"eq": "x"}})
    output = run_policy("list")
    assert "warn  Rule 1 (" in output and "takes the argument nme" in output


@pytest.mark.parametrize("command", [("list",), ("explain", "calculator")])
def test_an_invalid_file_is_an_error(command: tuple[str, ...]) -> None:
    FILE.write_text('{"version": 1, "rules": [],}')
    assert policy_mistake(*command).startswith("policies.json is not valid JSON, line 1, column 28: ")


def test_without_rules_the_risk_decides() -> None:
    head, rest = explain("calculator", '{"expression": "1+1"}')
    assert head == "calculator: allow"
    assert rest.startswith("  It is safe.\n\nrisk safe, effect read, source builtin\n")


def test_the_deciding_rule_has_its_number() -> None:
    add("allow", "agent.*")
    add("ask", "agent.spawn")
    add("deny", "agent.spawn", args={"repository": {"glob": "https://github.com/octocat/*"}})
    head, _ = explain("agent.spawn", '{"prompt": "x", "repository": "octocat/a"}')
    assert head == "agent.spawn: deny (rule 3)"
    head, _ = explain("agent.spawn", '{"prompt": "x", "repository": "me/a"}')
    assert head == "agent.spawn: ask (rule 2)"


def test_an_explanation_in_words() -> None:
    add("ask", "agent.spawn")
    assert run_policy("explain", "agent.spawn", '{"prompt": "x", "repository": "me/a"}') == (
        "agent.spawn: ask (rule 1)\n"
        "  The operator's rules ask first: ask agent.spawn.\n"
        "\n"
        "risk medium, effect write, source device\n"
        "\n"
        "Decisions of people in their sessions are not considered.\n"
    )


def test_text_of_third_parties_makes_a_write_ask() -> None:
    call = ("agent.spawn", '{"prompt": "x", "repository": "me/a"}')
    assert explain(*call)[0] == "agent.spawn: allow"
    head, rest = explain(*call, "--tainted")
    assert head == "agent.spawn: ask" and "strangers" in rest


def test_the_settings_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLOWED_TOOLS", "agent.*")
    monkeypatch.setenv("DRY_RUN", "true")
    head, rest = explain("calculator", '{"expression": "1"}')
    assert head == "calculator: deny" and "ALLOWED_TOOLS" in rest
    assert "does not see this tool" in rest and "DRY_RUN" not in rest
    _, rest = explain("agent.spawn", '{"prompt": "x", "repository": "me/a"}')
    assert "DRY_RUN is set" in rest and "does not see" not in rest


def test_an_unknown_tool_is_an_error() -> None:
    assert policy_mistake("explain", "agent.spwan") == "There is no tool 'agent.spwan'."


@pytest.mark.parametrize("text", ["{", "nope", '{"a":1,"a":2}', "[" * 100_000])
def test_arguments_must_be_json(text: str) -> None:
    assert policy_mistake("explain", "calculator", text).startswith("The arguments must be valid JSON: ")


def test_arguments_must_be_an_object() -> None:
    assert policy_mistake("explain", "calculator", "[]").startswith("The arguments must be a JSON object")


def test_invalid_arguments_are_explained_with_a_note() -> None:
    head, rest = explain("calculator", '{"expresion": "\\ud800"}')
    assert head == "calculator: allow" and "warn  Validation refuses the call. Invalid arguments" in rest


def test_tools_of_the_operators_catalog_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    lamp = {"name": "lamp.on", "inputSchema": {"type": "object"}, "annotations": {"destructiveHint": True}}
    Path("tools.json").write_text(json.dumps({"tools": [lamp]}))
    monkeypatch.setenv("DEVICE_TOOLS_FILE", "tools.json")
    head, rest = explain("lamp.on")
    assert head == "lamp.on: ask, with a warning" and "\nrisk high" in rest
