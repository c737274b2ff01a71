"""``conductor policy``: rules listed, added, taken out and explained."""

from __future__ import annotations

import argparse
import io
import json
from pathlib import Path
from typing import Any

import pytest

from conductor.commands import policy
from conductor.errors import SettingsError
from conductor.tools.policies import load
from conductor.tools.rules import Rule

NOW = 1_800_000_000.0
FILE = Path("policies.json")
TAKEN_UP = "Running servers take it up within 2 seconds.\n"


def ran(*arguments: str) -> str:
    parser = argparse.ArgumentParser()
    policy.add_arguments(parser)
    out = io.StringIO()
    assert policy.run(parser.parse_args(arguments), out, lambda: NOW) == 0
    return out.getvalue()


def mistake(*arguments: str) -> str:
    with pytest.raises(SettingsError) as caught:
        ran(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def explained(*arguments: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(ran("explain", *arguments, "--json"))
    return answer


# -- list, add, remove


def test_without_a_file_there_are_no_rules() -> None:
    assert ran("list") == "There are no rules: each tool's risk decides.\n"
    assert json.loads(ran("list", "--json")) == {"rules": [], "notes": [], "findings": []}
    assert not FILE.exists()


def test_what_is_added_is_listed_with_its_number_and_can_be_taken_out() -> None:
    ran("add", "deny", "agent.cancel")
    said = ran("add", "ask", "agent.*", "--source", "device", "--arg", "limit:eq=3")
    assert said == f"Rule 2 is now: ask agent.* from device where limit is 3.\n{TAKEN_UP}"
    assert [line.split() for line in ran("list").splitlines()] == [
        ["effect", "tool", "source", "when"],
        ["1", "deny", "agent.cancel", "any", "always"],
        ["2", "ask", "agent.*", "device", "where", "limit", "is", "3"],
    ]
    assert ran("remove", "1") == f"Rule 1 is gone: deny agent.cancel.\n{TAKEN_UP}"
    assert json.loads(ran("list", "--json"))["rules"] == [
        {"number": 1, "effect": "ask", "tool": "agent.*", "source": "device", "args": {"limit": {"eq": 3}}}
    ]


@pytest.mark.parametrize(
    ("given", "args"),
    [
        (["a:eq=3"], {"a": {"eq": 3}}),
        (["a:eq=true"], {"a": {"eq": True}}),
        (["a:eq=x=y:z"], {"a": {"eq": "x=y:z"}}),
        (['a:eq="3"'], {"a": {"eq": "3"}}),
        (["a:eq="], {"a": {"eq": ""}}),
        (["a:in=x, 3,y"], {"a": {"in": ["x", 3, "y"]}}),
        (['a:in=["x,y"]'], {"a": {"in": ["x,y"]}}),
        (["a:in="], {"a": {"in": []}}),
        (["a:glob=3"], {"a": {"glob": "3"}}),
        (
            ["a:under=/srv", "a:glob=*.md", "b:max=1.5"],
            {"a": {"under": "/srv", "glob": "*.md"}, "b": {"max": 1.5}},
        ),
        (["a:host=example.org"], {"a": {"host": "example.org"}}),
    ],
)
def test_predicates_are_read_from_options(given: list[str], args: dict[str, Any]) -> None:
    ran("add", "deny", "x", *(part for each in given for part in ("--arg", each)))
    assert load(FILE).rules == (Rule("deny", "x", args=args),)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["--arg", "path"], "--arg 'path' must be NAME:PRED=VALUE, for example path:under=/srv/notes."),
        (["--arg", ":eq=1"], "--arg ':eq=1' must be NAME:PRED=VALUE, for example path:under=/srv/notes."),
        (
            ["--arg", "a:undr=/x"],
            "The rule is not valid: args.a has the unknown predicate 'undr', "
            "not one of eq, in, glob, under, host, max.",
        ),
        (["--arg", "a:eq=1", "--arg", "a:eq=2"], "--arg a:eq is given twice."),
        (["--arg", "a:max=x"], "The rule is not valid: args.a max must be a number."),
        (
            ["--expires", "2030-01-01"],
            "The rule is not valid: expires needs its offset, as in 2030-01-31T18:00:00Z.",
        ),
    ],
)
def test_a_mistake_in_an_option_is_one_sentence_and_changes_nothing(given: list[str], sentence: str) -> None:
    assert mistake("add", "deny", "x", *given) == sentence
    assert not FILE.exists()


@pytest.mark.parametrize("given", [["a\x01"], ["a", "--source", "\x1b[31m"], ["a", "--arg", "b\n:eq=1"]])
def test_a_name_with_a_control_character_is_refused_and_not_shown_raw(given: list[str]) -> None:
    said = mistake("add", "deny", *given)
    assert "has a character that is not printable" in said and said.isprintable()
    assert not FILE.exists()


def test_a_rule_that_is_not_there_cannot_be_taken_out() -> None:
    assert mistake("remove", "1") == "There is no rule 1: policies.json has no rules."


def test_a_rule_that_makes_no_sense_is_warned_about() -> None:
    said = ran("add", "allow", "agent.status", "--arg", "nme:eq=x")
    assert "warn  Rule 1 (" in said and "takes the argument nme" in said
    assert "warn  Rule 1 (" in ran("list")
    assert len(json.loads(ran("list", "--json"))["findings"]) == 1


def test_a_rule_for_a_misspelt_tool_is_warned_about() -> None:
    said = ran("add", "deny", "agent.cancle")
    assert "no tool of the catalog or the server has this name" in said
    assert "a tool that an app declares may" in said
    assert "may never match" in ran("list")
    assert "can never match" in ran("add", "deny", "calculater", "--source", "builtin")
    assert "warn" not in ran("add", "deny", "read_file"), "it is the server's own, in use or not"


def test_the_file_is_where_the_setting_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLICIES_FILE", "other.json")
    ran("add", "deny", "x")
    assert Path("other.json").exists() and not FILE.exists()


@pytest.mark.parametrize(
    "command", [("list",), ("add", "deny", "x"), ("remove", "1"), ("explain", "calculator")]
)
def test_a_damaged_file_is_one_sentence_for_each_command_and_stays_as_it_is(command: tuple[str, ...]) -> None:
    FILE.write_text('{"version": 1, "rules": [],}')
    assert mistake(*command).startswith("policies.json is not valid JSON, line 1, column 28: ")
    assert FILE.read_text() == '{"version": 1, "rules": [],}'
    assert {each.name for each in Path().iterdir()} <= {"policies.json", "policies.json.lock"}


# -- explain


def test_a_call_is_explained_by_the_risk_where_there_are_no_rules() -> None:
    answer = explained("calculator", '{"expression": "1+1"}')
    assert (answer["verdict"], answer["risk"], answer["effect"]) == ("allow", "safe", "read")
    assert (answer["ruleNumber"], answer["rule"], answer["notes"]) == (None, None, [])
    assert [(step["step"], step["verdict"]) for step in answer["steps"]] == [
        ("deny", None),
        ("ask", None),
        ("allow", None),
        ("default", "allow"),
    ]
    assert answer["reasons"] == ["It is safe."]


def test_the_rule_that_decides_is_named_with_its_number_and_each_step_with_its_own() -> None:
    ran("add", "allow", "agent.*")
    ran("add", "ask", "agent.spawn")
    ran("add", "deny", "agent.spawn", "--arg", "repository:glob=https://github.com/octocat/*")
    answer = explained("agent.spawn", '{"prompt": "x", "repository": "octocat/a"}')
    assert (answer["verdict"], answer["ruleNumber"], answer["rule"]["effect"]) == ("deny", 3, "deny")
    assert [(step["verdict"], step["ruleNumber"]) for step in answer["steps"]] == [
        ("deny", 3),
        ("ask", 2),
        ("allow", 1),
        ("allow", None),
    ]
    answer = explained("agent.spawn", '{"prompt": "x", "repository": "me/a"}')
    assert (answer["verdict"], answer["ruleNumber"]) == ("ask", 2)


def test_an_explanation_in_words() -> None:
    ran("add", "ask", "agent.spawn")
    assert ran("explain", "agent.spawn", '{"prompt": "x", "repository": "me/a"}') == (
        "agent.spawn: ask (rule 1)\n"
        "  The operator's rules ask first: ask agent.spawn.\n"
        "\n"
        "risk medium, effect write, source device\n"
        "\n"
        "deny     -      No rule is to deny it.\n"
        "ask      ask    The operator's rules ask first: ask agent.spawn. (rule 1)\n"
        "allow    -      No rule is to allow it.\n"
        "default  allow  The app declares that it needs no approval.\n"
        "\n"
        "What people decided in their sessions is not looked at here.\n"
    )


def test_text_of_strangers_makes_a_write_ask() -> None:
    call = ("agent.spawn", '{"prompt": "x", "repository": "me/a"}')
    assert explained(*call)["verdict"] == "allow"
    answer = explained(*call, "--tainted")
    assert (answer["verdict"], answer["tainted"]) == ("ask", True)
    assert "strangers" in answer["reasons"][0]


def test_the_settings_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLOWED_TOOLS", "agent.*")
    monkeypatch.setenv("DRY_RUN", "true")
    answer = explained("calculator", '{"expression": "1"}')
    assert (answer["verdict"], answer["offered"], answer["dryRun"]) == ("deny", False, False)
    assert "ALLOWED_TOOLS" in answer["reasons"][0]
    said = ran("explain", "agent.spawn", '{"prompt": "x", "repository": "me/a"}')
    assert "DRY_RUN is set" in said and "does not get to see" not in said


def test_an_unknown_tool_cannot_be_explained() -> None:
    assert mistake("explain", "agent.spwan") == "There is no tool 'agent.spwan'."


@pytest.mark.parametrize("text", ["{", "nope", '{"a":1,"a":2}', "[" * 100_000])
def test_arguments_that_are_no_json_are_said(text: str) -> None:
    assert mistake("explain", "calculator", text).startswith("The arguments are not valid JSON: ")


def test_arguments_that_are_no_object_are_said() -> None:
    assert mistake("explain", "calculator", "[]").startswith("The arguments must be a JSON object")


def test_arguments_that_the_tool_refuses_are_said_and_explained_all_the_same() -> None:
    answer = explained("calculator", '{"expresion": "\\ud800"}')
    assert answer["verdict"] == "allow"
    assert answer["notes"][0].startswith("The call would be refused before that. Invalid arguments")
    assert "warn  The call would be refused" in ran("explain", "calculator", '{"expresion": "1"}')


def test_a_device_catalogue_of_the_operators_own_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    lamp = {"name": "lamp.on", "inputSchema": {"type": "object"}, "annotations": {"destructiveHint": True}}
    Path("tools.json").write_text(json.dumps({"tools": [lamp]}))
    monkeypatch.setenv("DEVICE_TOOLS_FILE", "tools.json")
    answer = explained("lamp.on")
    assert (answer["verdict"], answer["warn"], answer["risk"]) == ("ask", True, "high")
    assert "lamp.on: ask, with a warning\n" in ran("explain", "lamp.on")
