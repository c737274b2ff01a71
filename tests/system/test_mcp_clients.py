"""MCP's own conformance suite and the Inspector's command line against Conductor.

.ci/run installs them under ``build/mcp``; without them these tests are skipped, unless ``CI_REQUIRE_MCP=1``.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.dialogues import begin, declared
from tests.stand_ins.programs import launched, missing
from tests.system.mcp.test_real_servers import HERE
from tests.system.test_mcp_server import running

# Scenarios about tools. The others need resources, prompts, images, progress or elicitation, which a device's
# tool does not have.
SCENARIOS = (
    "server-initialize",
    "ping",
    "tools-list",
    "tools-call-simple-text",
    "tools-call-error",
    "server-sse-multiple-streams",
    "dns-rebinding-protection",
)
TOOLS = [declared(name, readOnlyHint=True) for name in ("test_simple_text", "test_error_handling")]


def fails(_: Any) -> str:
    raise ValueError("This tool intentionally returns an error for testing")


ANSWERS = {
    "test_simple_text": lambda a: "This is a simple text response for testing.",
    "test_error_handling": fails,
}


async def ran(program: str, *arguments: str) -> str:
    path = HERE / "node_modules" / ".bin" / program
    if not path.exists():
        missing(program, "MCP")
    pipe, same = asyncio.subprocess.PIPE, asyncio.subprocess.STDOUT
    async with launched("node", path, *arguments, cwd=HERE, stdout=pipe, stderr=same) as process:
        output, _ = await process.communicate()
    text = output.decode()
    assert process.returncode == 0, text[-3_000:]
    return text


async def test_the_conformance_suite_finds_nothing() -> None:
    async with running() as server, server.phone(tools=ANSWERS) as phone:
        await begin(phone, tools=TOOLS)
        url = f"http://127.0.0.1:{server.http}/mcp"
        runs = (ran("conformance", "server", "--url", url, "--scenario", name) for name in SCENARIOS)
        for output in await asyncio.gather(*runs):
            assert " 0 failed" in output


async def test_the_inspector_lists_and_calls_a_tool_of_the_phone() -> None:
    async with running() as server, server.phone(tools=ANSWERS) as phone:
        await begin(phone, tools=TOOLS)
        options = ("--cli", f"http://127.0.0.1:{server.http}/mcp", "--transport", "http", "--method")
        listed = json.loads(await ran("mcp-inspector", *options, "tools/list"))
        assert "test_simple_text" in {tool["name"] for tool in listed["tools"]}
        response = json.loads(
            await ran("mcp-inspector", *options, "tools/call", "--tool-name", "test_simple_text")
        )
        assert response["content"][0]["text"] == "This is a simple text response for testing."
