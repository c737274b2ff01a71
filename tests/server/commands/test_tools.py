"""``conductor tools``: list and call tools."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import IOS_CATALOG
from tests.server.commands.conftest import mistake, run

ROOT = Path(__file__).resolve().parents[3]


run_tools, tools_mistake = partial(run, "tools"), partial(mistake, "tools")


def decisions() -> dict[str, str]:
    """List the tools; return the decision on a call of each."""
    lines = run_tools("list").splitlines()[1:]
    return {line.split()[0]: line.split()[4] for line in lines if not line.startswith("warn ")}


def test_each_tool_is_listed_with_the_decision_on_a_call() -> None:
    head, *lines = [line.split(maxsplit=5) for line in run_tools("list").splitlines()]
    assert head == ["tool", "source", "risk", "effect", "call", "why"]
    assert ["calculator", "builtin", "safe", "read", "allow", "It is safe."] in lines
    assert decisions()["schedule_task"] == "ask"


def write_rule(**rule: str) -> None:
    Path("policies.json").write_text(json.dumps({"version": 1, "rules": [rule]}))


def test_a_denied_tool_is_disabled() -> None:
    write_rule(effect="deny", tool="calc*")
    assert decisions()["calculator"] == "disabled"
    assert "is disabled" in tools_mistake("call", "calculator", '{"expression": "1"}')


def test_a_call_is_validated_and_needs_consent() -> None:
    outcome = json.loads(run_tools("call", "calculator", '{"expression": "6*7"}'))
    assert (outcome["success"], outcome["data"]) == (True, {"result": "42"})
    wrong = json.loads(run_tools("call", "calculator", '{"expresion": "1"}', code=2))
    assert wrong["error_type"] == "validation_failed"
    call = ("call", "schedule_task", '{"text": "x", "in_minutes": 1}')
    output = run_tools(*call, answers="n\n", code=2)
    assert "It changes something." in output and output.endswith("The tool did not run.\n")
    assert "cannot keep reminders" in run_tools(*call, answers="y\n", code=2)
    assert "cannot keep reminders. Nothing was changed." in run_tools(*call, "--yes", code=2)


def test_a_tool_that_cannot_be_called_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEVICE_TOOLS_FILE", str(IOS_CATALOG))
    assert "agent.spawn" in decisions()
    assert "runs on the device" in tools_mistake("call", "agent.spawn")
    assert "There is no tool 'calculater'" in tools_mistake("call", "calculater")


def test_mcp_tools_are_listed_with_the_servers_that_are_down(tmp_path: Path) -> None:
    config = {"command": sys.executable, "args": ["-m", "tests.stand_ins.mcp_server"], "cwd": str(ROOT)}
    servers = {"s": {**config, "trust": True}, "gone": {"command": "no-such-program"}}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    output = run_tools("list")
    assert " mcp:s " in output
    assert output.splitlines()[-1].startswith("warn  the MCP server gone is down: ")
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
