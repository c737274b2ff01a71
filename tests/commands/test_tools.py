"""``conductor tools``: listed with what happens to a call, disabled, enabled, called by the same rules."""

from __future__ import annotations

import argparse
import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conductor.commands import tools
from conductor.conversation.client_profile import ClientProfile
from conductor.errors import SettingsError
from conductor.settings import load_settings
from conductor.tools.base import ToolSpec
from conductor.tools.builtin import BuiltinToolset
from conductor.tools.device import PendingCalls
from conductor.tools.policies import load, policies_path
from tests.conversation.helpers import make_services

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ran(*arguments: str, said: str = "", code: int = 0) -> str:
    parser = argparse.ArgumentParser()
    tools.add_arguments(parser)
    out = io.StringIO()
    assert tools.run(parser.parse_args(arguments), out, io.StringIO(said)) == code
    return out.getvalue()


def listed(*arguments: str) -> dict[str, dict[str, Any]]:
    return {row["tool"]: row for row in json.loads(ran("list", "--json", *arguments))["tools"]}


def test_each_tool_is_listed_with_what_happens_to_a_call() -> None:
    found = listed()
    assert found["calculator"] == {
        "tool": "calculator",
        "source": "builtin",
        "risk": "safe",
        "effect": "read",
        "call": "allow",
        "why": "It is safe.",
    }
    assert found["schedule_task"]["call"] == "ask"
    assert found["agent.spawn"]["source"] == "device"
    assert ran("list").splitlines()[0].split() == ["tool", "source", "risk", "effect", "call", "why"]


def test_a_disabled_tool_is_gone_until_it_is_enabled() -> None:
    ran("disable", "calc*")
    assert listed()["calculator"]["call"] == "disabled"
    with pytest.raises(SettingsError, match="is disabled"):
        ran("call", "calculator", '{"expression": "1"}')
    ran("enable", "calc*")
    assert listed()["calculator"]["call"] == "allow"
    with pytest.raises(SettingsError, match="No rule disables"):
        ran("enable", "calculator")


def test_a_tool_may_be_disabled_in_one_session() -> None:
    ran("disable", "calculator", "--session", "s-1")
    assert listed()["calculator"]["call"] == "allow"
    assert listed("--session", "s-1")["calculator"]["call"] == "disabled"
    services = make_services(toolsets=[BuiltinToolset()])
    rules = load(policies_path(load_settings(None))).rules

    def offered(session: str) -> ToolSpec | None:
        made = replace(services, rules=rules)
        return ClientProfile(made, session, PendingCalls()).executor.spec("calculator")

    assert offered("s-1") is None
    assert offered("s-2") is not None


def test_a_call_is_checked_and_asked_about_as_any() -> None:
    outcome = json.loads(ran("call", "calculator", '{"expression": "6*7"}'))
    assert (outcome["success"], outcome["data"]) == (True, {"result": "42"})
    wrong = json.loads(ran("call", "calculator", '{"expresion": "1"}', code=2))
    assert wrong["error_type"] == "validation_failed"
    said = ran("call", "schedule_task", '{"text": "x", "in_minutes": 1}', said="n\n", code=2)
    assert "It changes something." in said and said.endswith("Nothing was run.\n")
    done = ran("call", "schedule_task", '{"text": "x", "in_minutes": 1}', said="y\n", code=2)
    assert "cannot keep reminders" in done
    assert "cannot keep reminders" in ran(
        "call", "schedule_task", '{"text": "x", "in_minutes": 1}', "--yes", code=2
    )


@pytest.mark.parametrize(
    ("name", "says"),
    [("agent.spawn", "runs on the device"), ("calculater", "There is no tool 'calculater'")],
)
def test_a_tool_that_cannot_be_called_here_is_one_sentence(name: str, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        ran("call", name)


def test_mcp_servers_are_listed_and_called_and_one_that_is_down_is_said(folder: Path) -> None:
    place = {"command": sys.executable, "args": ["-m", "tests.stand_ins.mcp_server"], "cwd": str(ROOT)}
    servers = {"s": {**place, "trust": True}, "gone": {"command": "no-such-program"}}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    answer = json.loads(ran("list", "--json"))
    assert any(row["source"] == "mcp:s" for row in answer["tools"])
    (problem,) = answer["problems"]
    assert problem.startswith("gone is down: ")
    with pytest.raises(SettingsError, match="gone is down"):
        ran("call", "gone.x")


def test_a_tool_of_python_is_called(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "mine.py").write_text(
        """from conductor.tools.python_tools import tool

@tool(risk="safe", effect="read")
def greet(name: str) -> str:
    'Greet.'
    return f"Hello {name}"
"""
    )
    monkeypatch.setenv("TOOLS_PATH", str(folder / "mine.py"))
    assert json.loads(ran("call", "greet", '{"name": "Ann"}'))["data"] == "Hello Ann"
