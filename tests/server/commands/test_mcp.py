"""``conductor mcp``: its file, and logins."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from tests.conftest import Main


def saved_servers() -> dict[str, object]:
    servers: dict[str, object] = json.loads(Path("mcp.json").read_text())["mcpServers"]
    return servers


def test_servers_are_added_and_removed(conductor: Main) -> None:
    assert conductor("mcp", "add", "--trust", "--env", "A=b=c", "files", "npx", "-y", "x")[0] == 0
    assert conductor("mcp", "add", "--header", "X=y", "web", "https://a.example/mcp")[0] == 0
    assert saved_servers() == {
        "files": {"command": "npx", "args": ["-y", "x"], "env": {"A": "b=c"}, "trust": True},
        "web": {"url": "https://a.example/mcp", "headers": {"X": "y"}},
    }
    assert stat.S_IMODE(Path("mcp.json").stat().st_mode) == 0o600
    assert conductor("mcp", "remove", "files")[0] == 0
    assert list(saved_servers()) == ["web"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["add", "a.b", "x"], 'mcp.json, server "a.b": a name is 1 to 32'),
        (["add", "a", "https://"], "url must begin with"),
        (["add", "--env", "novalue", "a", "x"], "novalue must be NAME=VALUE"),
        (["remove", "none"], 'There is no server "none". Servers: -.'),
        (["login", "none"], 'There is no server "none"'),
    ],
)
def test_an_error_changes_nothing(conductor: Main, arguments: list[str], says: str) -> None:
    code, _, err = conductor("mcp", *arguments)
    assert code == 2 and says in err
    assert not list(Path().iterdir())


def test_an_impossible_login_is_an_error(conductor: Main) -> None:
    conductor("mcp", "add", "s", "http://127.0.0.1:1/mcp")
    code, _, error = conductor("mcp", "login", "s")
    assert code == 2 and "oauth" in error
