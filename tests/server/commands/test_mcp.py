"""``conductor mcp``: its file, and tests of servers."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import pytest

from tests.conftest import Main

ROOT = Path(__file__).resolve().parents[3]
STAND_IN = ["-m", "tests.stand_ins.mcp_server"]


def saved_servers() -> dict[str, object]:
    servers: dict[str, object] = json.loads(Path("mcp.json").read_text())["mcpServers"]
    return servers


def test_servers_are_added_listed_and_removed(conductor: Main) -> None:
    assert conductor("mcp", "add", "--trust", "--env", "A=b=c", "files", "npx", "-y", "x")[0] == 0
    assert conductor("mcp", "add", "--header", "X=y", "web", "https://a.example/mcp")[0] == 0
    assert saved_servers() == {
        "files": {"command": "npx", "args": ["-y", "x"], "env": {"A": "b=c"}, "trust": True},
        "web": {"url": "https://a.example/mcp", "headers": {"X": "y"}},
    }
    assert stat.S_IMODE(Path("mcp.json").stat().st_mode) == 0o600
    lines = conductor("mcp", "list")[1].splitlines()
    assert [line.split() for line in lines] == [
        ["server", "type", "place", "used"],
        ["files", "stdio", "npx", "-y", "x", "trusted"],
        ["web", "http", "https://a.example/mcp", "yes"],
    ]
    assert conductor("mcp", "remove", "files")[0] == 0
    assert list(saved_servers()) == ["web"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["add", "a.b", "x"], 'mcp.json, server "a.b": a name is 1 to 32'),
        (["add", "a", "https://"], "url must begin with"),
        (["add", "--env", "novalue", "a", "x"], "novalue must be NAME=VALUE"),
        (["remove", "none"], 'There is no server "none". Servers: -.'),
        (["test", "none"], 'There is no server "none"'),
    ],
)
def test_an_error_changes_nothing(conductor: Main, arguments: list[str], says: str) -> None:
    code, _, err = conductor("mcp", *arguments)
    assert code == 2 and says in err
    assert not list(Path().iterdir())


def test_a_server_is_tested(conductor: Main) -> None:
    options = ["--trust", "--env", f"PYTHONPATH={ROOT}"]
    assert conductor("mcp", "add", *options, "s", sys.executable, *STAND_IN)[0] == 0
    code, out, _ = conductor("mcp", "test", "s")
    assert code == 0
    assert "protocol 2026-07-28" in out and "s.echo" in out and "s.echo answered 4 bytes in" in out


def test_a_program_that_is_not_a_server_is_an_error(conductor: Main) -> None:
    assert conductor("mcp", "add", "s", "sh", "-c", "echo broken >&2")[0] == 0
    code, out, _ = conductor("mcp", "test", "s")
    assert code == 2 and "standard error: broken" in out


def test_an_impossible_login_is_an_error(conductor: Main) -> None:
    conductor("mcp", "add", "s", "http://127.0.0.1:1/mcp")
    code, _, error = conductor("mcp", "login", "s")
    assert code == 2 and "oauth" in error
