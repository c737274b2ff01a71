"""Published MCP servers, run as their users run them: files, memory, everything, time and git.

.ci/run installs them under ``build/mcp``. Without them the test is skipped, or fails if ``CI_REQUIRE_MCP=1``.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conductor.messages import ToolCall
from conductor.plugins.mcp.config import McpServerConfig
from conductor.settings import Limits
from conductor.tools.executor import ToolExecutor
from tests.stand_ins.programs import missing
from tests.system.mcp.test_toolset import CONTEXT, ROOT, WAIT, Host, use

HERE = ROOT / "build" / "mcp"


def by_npx(name: str, *args: str, **values: Any) -> McpServerConfig:
    if shutil.which("npx") is None:
        missing("npx", "MCP")
    package = f"@modelcontextprotocol/server-{name}"
    if not (HERE / "node_modules" / package).is_dir():
        missing(package, "MCP")
    return McpServerConfig(
        name=name, type="stdio", command="npx", args=("-y", package, *args), cwd=str(HERE), **values
    )


def by_pip(name: str, *args: str, **values: Any) -> McpServerConfig:
    program = HERE / "venv" / "bin" / f"mcp-server-{name}"
    if not program.exists():
        missing(program.name, "MCP")
    return McpServerConfig(name=name, type="stdio", command=str(program), args=args, **values)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "a.txt").write_text("Buy milk.")
    if shutil.which("git") is None:
        missing("git", "MCP")
    git = ["git", "-C", str(folder), "-c", "user.email=a@b.example", "-c", "user.name=A"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "the first one"], check=True)
    yield folder


async def test_five_servers_at_once(folder: Path, tmp_path: Path) -> None:
    memory = {"env": {"MEMORY_FILE_PATH": str(tmp_path / "memory.json")}}
    configs = [
        by_npx("filesystem", str(folder), trust=True),
        by_npx("memory", **memory),
        by_npx("everything"),
        by_pip("time", "--local-timezone", "Europe/Berlin", risk={"get_current_time": "safe"}),
        by_pip("git", "--repository", str(folder), trust=True),
    ]
    async with use(*configs, ready="filesystem.read_text_file") as host:
        await host.until(lambda names: len({name.partition(".")[0] for name in names}) == 5)
        specs = {spec.name: spec for spec in host.toolset.specs()}
        assert [specs[f"filesystem.{name}"].risk for name in ("read_text_file", "write_file")] == [
            "safe",
            "high",
        ]
        assert specs["memory.read_graph"].risk == "high" and specs["time.get_current_time"].risk == "safe"
        warnings = [warning for server in host.toolset.connections for warning in server.warnings]
        assert all("task" in warning for warning in warnings), "tools that only run as a task are omitted"
        await _files(host, folder)
        await _other_servers(host, folder)
        await _a_time_limit(host)


async def _files(host: Host, folder: Path) -> None:
    read = await host.call("filesystem.read_text_file", path=str(folder / "a.txt"))
    assert read.success and "Buy milk." in str(read.data)
    outside = await host.call("filesystem.read_text_file", path="/etc/hostname")
    assert (outside.error_type, outside.metadata.reason) == ("tool_error", "tool_error")
    await host.call("filesystem.write_file", path=str(folder / "b.txt"), content="Call Anna.")
    assert (folder / "b.txt").read_text() == "Call Anna."


async def _other_servers(host: Host, folder: Path) -> None:
    entity = {"name": "Anna", "entityType": "person", "observations": ["likes tea"]}
    assert (await host.call("memory.create_entities", entities=[entity])).success
    assert "likes tea" in str((await host.call("memory.read_graph")).data)
    assert (await host.call("everything.echo", message="hi")).data == "Echo: hi"
    assert "[image/png, " in (await host.call("everything.get-tiny-image")).data
    weather = await host.call("everything.get-structured-content", location="New York")
    assert "temperature" in weather.data
    time = await host.call("time.get_current_time", timezone="Asia/Kathmandu")
    assert "+05:45" in str(time.data)
    log = await host.call("git.git_log", repo_path=str(folder))
    assert "the first one" in str(log.data)


async def _a_time_limit(host: Host) -> None:
    executor = ToolExecutor([host.toolset], Limits(tool_timeout=0.3))
    name = "everything.trigger-long-running-operation"
    long = executor.restore(ToolCall("c", name, "{}"), {"duration": 60, "steps": 60})
    assert long is not None
    async with asyncio.timeout(WAIT):
        outcome = await executor.run(long, CONTEXT)
        assert outcome.error_type == "unknown"
        assert (await host.call("everything.echo", message="still there")).success
