"""``conductor mcp``: logins that cannot start."""

from __future__ import annotations

import json
from pathlib import Path

from tests.conftest import Main


def test_a_login_to_an_unknown_server_is_an_error(conductor: Main) -> None:
    code, _, error = conductor("mcp", "login", "none")
    assert code == 2 and 'There is no server "none". Servers: -.' in error


def test_an_impossible_login_is_an_error(conductor: Main) -> None:
    Path("mcp.json").write_text(json.dumps({"mcpServers": {"s": {"url": "http://127.0.0.1:1/mcp"}}}))
    code, _, error = conductor("mcp", "login", "s")
    assert code == 2 and "oauth" in error
