"""The shipped app, which declares nothing, at a server without settings."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.app import App
from tests.dialogues import LOOK, begin
from tests.models import AnthropicService
from tests.server.test_cli import START, server
from tests.serving import configured

REPOSITORY = "https://github.com/acme/website"
AGENTS = {"agent.spawn", "agent.status", "agent.cancel", "agent.followup", "agent.list"}
IOS = AGENTS | {"repositories.list", "repositories.select"}


def offered(claude: AnthropicService) -> set[str]:
    """Name the tools of the catalog that the last request offers."""
    names = {tool["name"].replace("_", ".", 1) for tool in claude.requests[-1]["tools"]}
    return names & IOS


async def test_the_shipped_app_reaches_all_of_its_tools_on_the_defaults(tmp_path: Path) -> None:
    tools = {name: lambda _: json.dumps({"id": "bc-1"}) for name in IOS}
    async with server(tmp_path) as served:
        async with App(served.url, tools=tools, start_fields={"githubToken": "ghp_x"}) as app:
            for sentence in (
                "List my repositories.",
                "Start an agent to fix the tests in acme/website.",
                "How is agent bc-1 doing?",
                "Tell agent bc-1 to add a test.",
                "List my agents.",
                "Let me choose a repository.",
                "Cancel agent bc-1.",
            ):
                await app.ask(sentence)
            assert app.runs == [
                ("repositories.list", {}),
                ("agent.spawn", {"prompt": "fix the tests", "repository": REPOSITORY}),
                ("agent.status", {"id": "bc-1"}),
                ("agent.followup", {"id": "bc-1", "prompt": "add a test"}),
                ("agent.list", {}),
                ("repositories.select", {}),
                ("agent.cancel", {"id": "bc-1"}),
            ]
        assert await served.end(signal.SIGTERM) == 0
        assert served.process.stderr is not None
        log = (await asyncio.wait_for(served.process.stderr.read(), START)).decode()
    (line,) = [line for line in log.splitlines() if "catalog offered" in line]
    assert "catalog=ios" in line and "tools=7" in line


@pytest.mark.parametrize(
    ("setting", "names"), [("ios", IOS), ("iOS", IOS), ("none", set()), ("mine.json", {"agent.list"})]
)
async def test_the_catalog_is_named_from_any_folder(
    claude: AnthropicService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, names: set[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tool = {"name": "agent.list", "inputSchema": {"type": "object"}}
    (tmp_path / "mine.json").write_text(json.dumps({"tools": [tool]}))
    async with configured(claude, tmp_path, device_tools_file=setting) as served, served.phone() as app:
        await app.ask("hi")
    assert offered(claude) == names


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({}, IOS),
        ({"capabilities": ["resume", "approval"]}, IOS),
        ({"tools": [LOOK]}, IOS),  # without the capability
        ({"capabilities": ["tools"]}, set()),
        ({"capabilities": ["tools"], "tools": []}, set()),
        ({"capabilities": ["tools"], "tools": [LOOK]}, set()),
    ],
)
async def test_the_catalog_is_for_apps_that_cannot_declare(
    claude: AnthropicService, tmp_path: Path, fields: dict[str, Any], names: set[str]
) -> None:
    async with configured(claude, tmp_path) as served, served.phone(start_fields=fields) as app:
        await app.ask("hi")
        assert offered(claude) == names
        await app.cut()
        await app.open()
        await app.ask("hi again")
    assert offered(claude) == names


async def test_the_prompt_speaks_of_coding_agents_only_while_they_are_offered(
    claude: AnthropicService, tmp_path: Path
) -> None:
    async with configured(claude, tmp_path) as served, served.phone() as app:
        await app.ask("hi")
        with_agents = system_of(claude)
        await begin(app, tools=[LOOK])
        await app.ask("hi")
        without = system_of(claude)
    assert "## Coding agents" in with_agents and "autoCreatePr" in with_agents
    assert "oding agent" not in without and "autoCreatePr" not in without
    assert "## Tools\n" in without and "found in them.\n\n## Notes\n" in without
    async with configured(claude, tmp_path, allowed_tools="calculator") as served, served.phone() as app:
        await app.ask("hi")
    assert "oding agent" not in system_of(claude)


def system_of(claude: AnthropicService) -> str:
    return "\n".join(block["text"] for block in claude.requests[-1]["system"])
