"""The example with an OpenAPI document: a session calls an operation of it through FastMCP.

.ci/run installs FastMCP under ``build/mcp``. Without it the test is skipped, unless ``CI_REQUIRE_MCP=1``.
"""

from __future__ import annotations

import asyncio
import os

import pytest

from conductor.app import make_services, running
from conductor.messages import ToolCall, ToolResult
from conductor.models.base import ModelRequest, TextDelta
from conductor.settings import load_settings
from tests.app import App
from tests.models import Script, ScriptedProvider
from tests.stand_ins.programs import missing
from tests.stand_ins.web_site import site
from tests.system.mcp.test_real_servers import HERE
from tests.system.mcp.test_toolset import ROOT

WAIT = 60.0  # FastMCP takes seconds to import


async def test_a_session_calls_an_operation_of_the_document(monkeypatch: pytest.MonkeyPatch) -> None:
    programs = HERE / "venv" / "bin"
    if not (programs / "fastmcp").exists():
        missing("fastmcp", "MCP")
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)

    def offered(request: ModelRequest) -> set[str]:
        return {tool.name for tool in request.tools if tool.name.startswith("pets.")}

    def reply(request: ModelRequest) -> Script:
        if offered(request) and not isinstance(request.messages[-1], ToolResult):
            return [ToolCall("c", "pets.getPet", '{"petId": 7}')]
        return [TextDelta("Done.")]

    provider = ScriptedProvider(reply)
    async with site(lambda request: {"id": 7, "name": "Rex", "weight": 12.5}) as pets, asyncio.timeout(WAIT):
        monkeypatch.setenv("PETS_URL", pets.url("/v1"))
        settings = load_settings(
            None,
            port=0,
            model_provider="demo",
            config_dir=ROOT / "examples" / "openapi",
            session_rate_limit_per_min=1_000_000,
        )
        async with running(settings, make_services(settings, provider)) as listener:
            async with App(f"ws://127.0.0.1:{listener.port}/ws") as phone:
                while not provider.requests or not offered(provider.requests[-1]):
                    await phone.ask("Which pet is number seven?")
    assert offered(provider.requests[-1]) == {"pets.getPet", "pets.updatePet"}
    update = next(tool for tool in provider.requests[-1].tools if tool.name == "pets.updatePet")
    assert {"petId", "name", "weight"} <= update.input_schema["properties"].keys()
    assert [request[:2] for request in pets.asked] == [("GET", "/v1/pets/7")]
    result = provider.requests[-1].messages[-1]
    assert isinstance(result, ToolResult) and '"name":"Rex"' in result.content
