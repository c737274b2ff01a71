"""A spoken turn with a tool of an MCP server: offered, called, redacted, changed during a turn, and gone."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conductor.app import make_services, running
from conductor.commands.reload import reload
from conductor.errors import SettingsError
from conductor.messages import ToolCall, ToolResult
from conductor.models.base import ModelRequest, TextDelta
from conductor.plugins.mcp.toolset import McpToolset
from conductor.settings import Settings, load_settings
from conductor.tools.base import CallContext
from tests.app import App
from tests.conftest import IOS_CATALOG
from tests.dialogues import begin, decide
from tests.models import Script, ScriptedProvider
from tests.server.wires import get, http

ROOT = Path(__file__).resolve().parents[2]
SECRET = "hunter2-hunter2-hunter2"
WAIT = 60.0


def write(path: Path, **servers: Any) -> Settings:
    path.write_text(json.dumps({"mcpServers": servers}))
    return load_settings(
        None,
        port=0,
        model_provider="demo",
        config_dir=path.parent,
        session_rate_limit_per_min=1_000_000,
        admin_token="operator",
    )


def program() -> dict[str, Any]:
    environment = {"KEY": "${MCP_TEST_KEY}"}
    server = {"command": sys.executable, "args": ["-m", "tests.stand_ins.mcp_server"], "cwd": str(ROOT)}
    return {**server, "env": environment, "trust": True}


def offered(request: ModelRequest) -> set[str]:
    return {tool.name for tool in request.tools if tool.name.startswith("s.")}


async def test_a_turn_uses_a_servers_tools_as_they_are_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MCP_TEST_KEY", SECRET)
    path = tmp_path / "mcp.json"
    settings = write(path, s=program())
    call = ""

    def reply(request: ModelRequest) -> Script:
        if call and not isinstance(request.messages[-1], ToolResult):
            return [ToolCall("c", call, "{}")]
        return [TextDelta("Done.")]

    provider = ScriptedProvider(reply)
    services = make_services(settings, provider)
    async with running(settings, services) as listener, asyncio.timeout(WAIT):
        async with App(f"ws://127.0.0.1:{listener.port}/ws") as phone:
            # The start does not wait for the server.
            while not provider.requests or "s.echo" not in offered(provider.requests[-1]):
                await phone.ask("hi")
            status, figures = await http(listener.port, get("/metrics", "Authorization: Bearer operator"))
            assert status == 200 and 'conductor_mcp_server_up{server="s"} 1.0' in figures
            call = "s.environment"
            await phone.ask("what does it know?")
            result = provider.requests[-1].messages[-1]
            assert isinstance(result, ToolResult) and "KEY=[REDACTED" in result.content
            assert SECRET not in result.content
            call = "s.grow"
            await phone.ask("grow")
            call = ""
            while not any(name.startswith("s.grown_") for name in offered(provider.requests[-1])):
                await phone.ask("hi")
            reload(write(path), services, listener)
            await phone.ask("hi")
            assert not offered(provider.requests[-1])


async def test_another_person_with_the_same_session_id_has_a_server_of_their_own(tmp_path: Path) -> None:
    server = {**program(), "env": {}, "scope": "session"}
    settings = write(tmp_path / "mcp.json", s=server).model_copy(update={"auth_tokens": ("ann", "bob")})
    results: list[str] = []

    def reply(request: ModelRequest) -> Script:
        if isinstance(request.messages[-1], ToolResult):
            results.append(json.loads(request.messages[-1].content)["data"])
            return [TextDelta("Done.")]
        return [ToolCall("c", "s.pid", "{}")] if "s.pid" in offered(request) else [TextDelta("Not yet.")]

    services = make_services(settings, ScriptedProvider(reply))
    async with running(settings, services) as listener, asyncio.timeout(WAIT):
        for token in ("ann", "bob"):
            headers, count = {"Authorization": f"Bearer {token}"}, len(results)
            async with App(f"ws://127.0.0.1:{listener.port}/ws", "s-1", headers=headers) as phone:
                while len(results) == count:
                    await phone.ask("Which process is it?")
    assert len(set(results)) == 2


def test_the_package_is_imported_by_one_thread_at_a_time(tmp_path: Path) -> None:
    """Two threads that import it at once may each see half of it."""
    write(tmp_path / "mcp.json", s={**program(), "env": {}})
    script = """
import asyncio, sys, threading
from pathlib import Path
from conductor.app import running
from conductor.settings import load_settings
from conductor.plugins.mcp.toolset import McpToolset

threads = []

class Importers:
    def find_spec(self, name, path=None, target=None):
        thread = threading.current_thread()
        if name.startswith("mcp") and thread not in (threading.main_thread(), *threads[-1:]):
            threads.append(thread)

async def main():
    values = {"port": 0, "model_provider": "demo", "mcp_server": True, "config_dir": Path()}
    settings = load_settings(None, **values)
    async with running(settings) as listener:
        toolset = next(one for one in listener.services.toolsets if isinstance(one, McpToolset))
        while not toolset.specs():
            await asyncio.sleep(0.01)

sys.meta_path.insert(0, Importers())
asyncio.run(main())
assert len(threads) == len(set(threads)), threads
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert process.returncode == 0, process.stderr


def test_a_server_named_as_the_devices_tools_are_is_refused(tmp_path: Path) -> None:
    settings = write(tmp_path / "mcp.json", agent={"command": "x"})
    settings = settings.model_copy(update={"device_tools_file": IOS_CATALOG})
    with pytest.raises(SettingsError, match=r'server "agent": the device has a tool of this name \(agent\.'):
        make_services(settings)


@pytest.mark.parametrize("scene", ["", "2025"])
@pytest.mark.parametrize(
    ("decision", "fields", "answer"),
    [
        ("edit", {"editedArguments": {"name": "Ann", "size": 2}}, "accept {'name': 'Ann', 'size': 2}"),
        ("allow", {}, "decline None"),  # the name is missing
        ("deny", {}, "decline None"),
    ],
)
async def test_a_server_asks_the_person_by_a_card(
    tmp_path: Path, scene: str, decision: str, fields: dict[str, Any], answer: str
) -> None:
    server = program()
    server["env"] = {"SCENE": scene}
    settings = write(tmp_path / "mcp.json", s=server)
    call = ""

    def reply(request: ModelRequest) -> Script:
        if call and not isinstance(request.messages[-1], ToolResult):
            return [ToolCall("c", call, "{}")]
        return [TextDelta("Done.")]

    provider = ScriptedProvider(reply)
    async with running(settings, make_services(settings, provider)) as listener, asyncio.timeout(WAIT):
        async with App(f"ws://127.0.0.1:{listener.port}/ws") as phone:
            await begin(phone, "approval", tools=[])
            while not provider.requests or "s.ask" not in offered(provider.requests[-1]):
                await phone.ask("hi")
            call = "s.ask"
            since = len(phone.log)
            phone.say("ask me")
            card = await phone.until("approval.request", since=since)
            card_payload = card["payload"]
            assert card_payload["name"] == "s.question" and card_payload["scopes"] == ["once"]
            assert card_payload["arguments"] == {"name": None, "size": 3}
            assert card_payload["reasons"] == ["s asks: Who are you?"]
            await decide(phone, card, decision, **fields)
            await phone.until("assistant.speech.final", since=since)
            result = provider.requests[-1].messages[-1]
            assert isinstance(result, ToolResult) and answer in json.loads(result.content)["data"]


async def test_without_cards_a_server_gets_no_answer(tmp_path: Path) -> None:
    settings = write(tmp_path / "mcp.json", s={**program(), "env": {}})
    toolset = next(
        mcp_toolset for mcp_toolset in make_services(settings).toolsets if isinstance(mcp_toolset, McpToolset)
    )
    ready = asyncio.Event()
    await toolset.start(ready.set)
    try:
        async with asyncio.timeout(WAIT):
            while not toolset.specs():
                ready.clear()
                await ready.wait()
            outcome = await toolset.call("s.ask", {}, CallContext(session_id="s-1", call_id="c"))
            assert outcome.data == "decline None"
    finally:
        await toolset.aclose()
