"""Housekeeping of MCP servers: lists, idle times and limits end no call that runs."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from conductor.plugins.mcp import http, server, toolset
from conductor.plugins.mcp.config import McpServerConfig
from tests.server.wires import until
from tests.system.mcp.test_toolset import use

# A server of one thread: while it works on a call it answers nothing else.
BUSY = """
import json, os, sys, time

def send(number, result):
    print(json.dumps({"jsonrpc": "2.0", "id": number, "result": result}), flush=True)

for line in sys.stdin:
    message = json.loads(line)
    method, number = message["method"], message.get("id")
    if method == "initialize":
        info = {"name": "busy", "version": "1"}
        send(number, {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info})
    elif method == "tools/list":
        send(number, {"tools": [{"name": "wait", "inputSchema": {"type": "object"}}]})
    elif method == "tools/call":
        open(sys.argv[1] + ".begun", "w").close()
        while not os.path.exists(sys.argv[1]):
            time.sleep(0.01)
        send(number, {"content": [{"type": "text", "text": "done"}]})
"""
SHORT_S = 0.2


@pytest.mark.parametrize("scope", ["server", "session"])
async def test_a_server_that_is_busy_with_a_call_is_not_ended(
    scope: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, begun = tmp_path / "gate", tmp_path / "gate.begun"
    config = McpServerConfig(
        name="s",
        type="stdio",
        command=sys.executable,
        args=("-c", BUSY, str(gate)),
        scope=scope,
        revision="2025-11-25",
        trust=True,
    )
    async with use(config, ready="s.wait") as host:
        monkeypatch.setattr(toolset, "SESSION_IDLE_S", SHORT_S / 100)  # it starts for longer
        calling = asyncio.create_task(host.call("s.wait"))
        await until(begun.exists)  # a process that starts lists its tools, too: within the usual limit
        monkeypatch.setattr(server, "LIST_S", SHORT_S)
        for connection in host.toolset.connections:
            connection.check()
        await asyncio.sleep(3 * SHORT_S)  # housekeeping would have ended it
        gate.touch()
        assert json.loads((await calling).content)["data"] == "done"


def test_a_request_over_http_may_be_silent_for_as_long_as_a_call_may_last() -> None:
    longest = McpServerConfig.model_fields["timeout"].metadata
    assert http.READ_S > max(getattr(limit, "le", 0) for limit in longest)
