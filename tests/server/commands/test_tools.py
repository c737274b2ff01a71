"""``conductor tools``: list and call tools."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from conductor.plugins.tools.builtin import BuiltinToolset
from conductor.settings import load_settings
from conductor.stores.base import SessionKey
from conductor.tools.policies import load, policies_path
from tests.conftest import IOS_CATALOG
from tests.server.commands.conftest import mistake, run
from tests.session.helpers import make_services, open_session

ROOT = Path(__file__).resolve().parents[3]


run_tools, tools_mistake = partial(run, "tools"), partial(mistake, "tools")


def list_tools(*arguments: str) -> dict[str, dict[str, Any]]:
    return {row["tool"]: row for row in json.loads(run_tools("list", "--json", *arguments))["tools"]}


def test_each_tool_is_listed_with_the_decision_on_a_call() -> None:
    rows = list_tools()
    assert rows["calculator"] == {
        "tool": "calculator",
        "source": "builtin",
        "risk": "safe",
        "effect": "read",
        "call": "allow",
        "why": "It is safe.",
    }
    assert rows["schedule_task"]["call"] == "ask"
    assert run_tools("list").splitlines()[0].split() == ["tool", "source", "risk", "effect", "call", "why"]


def test_a_denied_tool_is_hidden_until_its_rule_is_removed() -> None:
    run("policy", "add", '{"effect": "deny", "tool": "calc*"}')
    assert list_tools()["calculator"]["call"] == "disabled"
    assert "is disabled" in tools_mistake("call", "calculator", '{"expression": "1"}')
    run("policy", "remove", "1")
    assert list_tools()["calculator"]["call"] == "allow"


def test_a_tool_may_be_denied_in_one_session() -> None:
    run("policy", "add", '{"effect": "deny", "tool": "calculator", "session": "s-1"}')
    assert list_tools()["calculator"]["call"] == "allow"
    assert list_tools("--session", "s-1")["calculator"]["call"] == "disabled"
    services = make_services(toolsets=[BuiltinToolset()])
    rules = load(policies_path(load_settings(None)))

    async def offered(session_id: str) -> bool:
        session = await open_session(replace(services, rules=rules), SessionKey("ann", session_id))
        names = [spec.name for spec in session.tools.executor.specs]
        await session.close()
        return "calculator" in names

    assert not asyncio.run(offered("s-1")) and asyncio.run(offered("s-2"))


def test_a_call_is_validated_and_needs_consent() -> None:
    outcome = json.loads(run_tools("call", "calculator", '{"expression": "6*7"}'))
    assert (outcome["success"], outcome["data"]) == (True, {"result": "42"})
    wrong = json.loads(run_tools("call", "calculator", '{"expresion": "1"}', code=2))
    assert wrong["error_type"] == "validation_failed"
    call = ("call", "schedule_task", '{"text": "x", "in_minutes": 1}')
    output = run_tools(*call, answers="n\n", code=2)
    assert "It changes something." in output and output.endswith("The tool did not run.\n")
    assert "cannot keep reminders" in run_tools(*call, answers="y\n", code=2)
    assert "cannot keep reminders" in run_tools(*call, "--yes", code=2)


def test_a_tool_that_cannot_be_called_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEVICE_TOOLS_FILE", str(IOS_CATALOG))
    assert list_tools()["agent.spawn"]["source"] == "device"
    assert "runs on the device" in tools_mistake("call", "agent.spawn")
    assert "There is no tool 'calculater'" in tools_mistake("call", "calculater")


def test_mcp_tools_are_listed_with_the_servers_that_are_down(tmp_path: Path) -> None:
    config = {"command": sys.executable, "args": ["-m", "tests.stand_ins.mcp_server"], "cwd": str(ROOT)}
    servers = {"s": {**config, "trust": True}, "gone": {"command": "no-such-program"}}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    answer = json.loads(run_tools("list", "--json"))
    assert any(row["source"] == "mcp:s" for row in answer["tools"])
    (problem,) = answer["problems"]
    assert problem.startswith("the MCP server gone is down: ")
    assert "gone is down" in tools_mistake("call", "gone.x")


def test_a_tool_of_python_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(
        """from conductor.tools import tool

@tool(risk="safe", effect="read")
def greet(name: str) -> str:
    'Greet.'
    return f"Hello {name}"
"""
    )
    monkeypatch.setenv("TOOLS_PATH", str(tmp_path / "mine.py"))
    assert json.loads(run_tools("call", "greet", '{"name": "Ann"}'))["data"] == "Hello Ann"
