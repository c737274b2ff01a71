"""Tools of MCP servers: a stand-in over stdio and HTTP that fails, hangs, dies and changes."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from structlog.testing import capture_logs

from conductor.errors import SettingsError
from conductor.messages import ToolCall
from conductor.plugins.mcp.config import McpServerConfig
from conductor.plugins.mcp.server import McpConnection
from conductor.plugins.mcp.streams import is_dense
from conductor.plugins.mcp.toolset import McpToolset
from conductor.plugins.tools.builtin import BuiltinToolset
from conductor.settings import Limits
from conductor.tools.base import CallContext
from conductor.tools.executor import ApprovalNeeded, PreparedCall, ToolExecutor
from conductor.tools.outcomes import ToolOutcome
from conductor.tools.permissions import Gate, grant
from conductor.tools.redaction import Redactor
from tests.stand_ins.mcp_server import TOOLS, stand_in

ROOT = Path(__file__).resolve().parents[3]
CONTEXT = CallContext(session_id="session", call_id="call")
WAIT = 60.0


def program(name: str = "s", scene: str = "", **values: Any) -> McpServerConfig:
    values = {"trust": True, "env": {"SCENE": scene, "GIVEN": "yes"}, **values}
    return McpServerConfig(
        name=name,
        type="stdio",
        command=sys.executable,
        args=("-m", "tests.stand_ins.mcp_server"),
        cwd=str(ROOT),
        **values,
    )


class Host:
    """A running toolset; `until` waits for changes of its tools."""

    def __init__(self, toolset: McpToolset) -> None:
        self.toolset = toolset
        self._changed = asyncio.Event()

    def note(self) -> None:
        self._changed.set()

    async def until(self, condition: Callable[[set[str]], bool]) -> None:
        """Wait until the names of the tools meet a condition."""
        async with asyncio.timeout(WAIT):
            while not condition({spec.name for spec in self.toolset.specs()}):
                self._changed.clear()
                await self._changed.wait()

    async def call(self, tool: str, **arguments: Any) -> ToolOutcome:
        return await self.toolset.call(tool, arguments, CONTEXT)

    def executor(self, gate: Gate | None = None) -> ToolExecutor:
        return ToolExecutor([self.toolset], Limits(), gate)


async def end(connection: McpConnection) -> None:
    task = connection.stop()
    assert task is not None
    await asyncio.wait([task])


@asynccontextmanager
async def use(*configs: McpServerConfig, ready: str = "s.echo") -> AsyncIterator[Host]:
    toolset = McpToolset(configs, retry_s=0.01)
    host = Host(toolset)
    await toolset.start(host.note)
    try:
        await host.until(lambda names: ready in names)
        yield host
    finally:
        await toolset.aclose()


@asynccontextmanager
async def serving(make_app: Callable[[str], Any]) -> AsyncIterator[str]:
    """Serve an app over HTTP in this process; ``make_app`` gets its origin. Yields the URL of MCP."""
    listening = socket.create_server(("127.0.0.1", 0))
    origin = f"http://127.0.0.1:{listening.getsockname()[1]}"
    config = uvicorn.Config(make_app(origin), log_level="error", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve([listening]))
    try:
        yield f"{origin}/mcp"
    finally:
        server.should_exit = True
        await task
        listening.close()


def served(scene: str = "") -> AbstractAsyncContextManager[str]:
    """Serve the stand-in; yields its URL."""
    return serving(lambda origin: stand_in(scene).server.streamable_http_app())


async def test_results_of_every_kind_become_observations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "not-for-servers")
    async with use(program()) as host:
        # All pages of the list.
        assert {spec.name for spec in host.toolset.specs()} == {f"s.{tool.name}" for tool in TOOLS}
        assert (await host.call("s.echo", text="héllo")).data == "héllo"
        failure = await host.call("s.fail")
        assert (failure.success, failure.error_message) == (False, "no such file")
        blocks = (await host.call("s.blocks")).data
        assert blocks.splitlines() == [
            "See:",
            "[image/png, 3 bytes]",
            "[audio/wav, 6 bytes]",
            "[resource report: file:///report]",
            "[resource memo:1, text/plain]",
            "inside",
        ]
        assert (await host.call("s.right")).data == {"n": 1}
        assert (await host.call("s.wrong")).success  # results are not checked against an output schema
        picture = host.executor().to_result("call", await host.call("s.picture"))
        assert picture.content.count("[image/png, 8 KB]") == 2 and "word word" in picture.content
        environment = (await host.call("s.environment")).data
        assert "GIVEN=yes" in environment and "not-for-servers" not in environment
        unknown = await host.call("s.none")
        assert unknown.error_type == "io_error" and "Nothing was run" in (unknown.error_message or "")
        pid = int((await host.call("s.pid")).data)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_killed_server_loses_its_calls_and_is_restarted() -> None:
    async with use(program()) as host:
        write = await host.call("s.crash_write")
        assert (write.error_type, write.metadata.reason) == ("unknown", "connection_lost")
        early = await host.call("s.write")
        assert (early.error_type, early.metadata.reason) == ("io_error", "not_connected")
        await host.until(lambda names: not names)
        await host.until(lambda names: "s.echo" in names)
        read = await host.call("s.crash")
        assert (read.error_type, read.metadata.reason) == ("io_error", "connection_lost")


async def test_noise_is_a_warning_and_an_endless_line_ends_the_call() -> None:
    with capture_logs() as logs:
        async with use(program()) as host:
            assert (await host.call("s.noise")).data == "done"
            async with asyncio.timeout(WAIT):
                outcome = await host.call("s.noise_write")
            assert (outcome.error_type, outcome.metadata.reason) == ("unknown", "connection_lost")
    events = [entry["event"] for entry in logs]
    assert events.count("mcp server wrote a line that is not a message") == 1
    assert events.count("mcp server ended: a line is longer than 4 MiB") == 1


async def test_a_result_of_too_many_values_is_not_parsed() -> None:
    async with served() as url, use(program(), at("h", url)) as host:
        await host.until(lambda names: "h.dense_write" in names)
        for tool in ("s.dense_write", "h.dense_write"):
            outcome = await host.call(tool)
            assert (outcome.error_type, outcome.metadata.reason) == ("unknown", "connection_lost")


def test_values_are_counted_outside_of_strings_only() -> None:
    text = json.dumps({"text": 'a, \\ "b" [{' * 20_000})
    assert not is_dense(text.encode())
    assert is_dense(f"[{text}, {json.dumps([0] * 50_000)}]".encode())


async def test_the_older_revision_can_be_configured() -> None:
    async with use(program(revision="2025-11-25")) as host:
        client = host.toolset.connections[0].client
        assert client is not None and client.protocol_version == "2025-11-25"


@pytest.mark.parametrize(("scene", "revision"), [("", "2026"), ("2025", "2025")])
async def test_a_time_limit_reaches_the_server_and_a_changed_tool_needs_consent_again(
    scene: str, revision: str
) -> None:
    async with use(program(scene=scene, timeout=0.05, risk={"echo": "medium"})) as host:
        client = host.toolset.connections[0].client
        assert client is not None and client.protocol_version.startswith(revision)
        executor = host.executor()
        hanging = executor.restore(ToolCall("c", "s.hang_write", "{}"), {})
        assert hanging is not None
        outcome = await executor.run(hanging, CONTEXT)
        assert (outcome.error_type, outcome.metadata.reason) == ("unknown", "tool_result_timeout")
        async with asyncio.timeout(WAIT):
            while (await host.call("s.cancelled")).data != "1":
                pass
        # The person allows two tools, then the server changes one of them.
        specs = {spec.name: spec for spec in host.toolset.specs()}
        granted = [grant(specs[name], {}, scope="session") for name in ("s.echo", "s.write")]
        gate = Gate(grants=lambda: granted)
        echo, write = ToolCall("c", "s.echo", "{}"), ToolCall("c", "s.write", "{}")
        assert isinstance(host.executor(gate).prepare(echo), PreparedCall)
        await host.call("s.grow")
        # Not until a tool more is there: a list of several pages may be read across the change.
        await host.until(lambda names: isinstance(host.executor(gate).prepare(echo), ApprovalNeeded))
        assert isinstance(host.executor(gate).prepare(write), PreparedCall)


def at(name: str, url: str, **values: Any) -> McpServerConfig:
    return McpServerConfig(name=name, type="http", url=url, trust=True, **values)


async def test_a_result_is_redacted_and_untrusted() -> None:
    async with use(program()) as host:
        executor = ToolExecutor([host.toolset], Limits(), redactor=Redactor(("given-secret",)))
        ready = executor.prepare(ToolCall("call", "s.secret", "{}"))
        assert isinstance(ready, PreparedCall)
        result = executor.to_result("call", await executor.run(ready, CONTEXT), untrusted=True)
        assert "[REDACTED:" in result.content and "sk-ant-" not in result.content
        assert result.untrusted


async def test_servers_cannot_shadow_names() -> None:
    async with served() as url, use(at("calculator", url), at("s", url)) as host:
        await host.until(lambda names: {"s.echo", "calculator.echo"} <= names)
        executor = ToolExecutor([BuiltinToolset(), host.toolset], Limits())
        specs = [executor.spec(name) for name in ("calculator", "calculator.echo", "s.echo")]
        assert [spec.source for spec in specs if spec] == ["builtin", "mcp:calculator", "mcp:s"]


async def test_hostile_lists_and_patterns_do_not_block() -> None:
    async with served("malicious") as bad, served("endless") as endless:
        configs = at("bad", bad, tools=("poison", "greedy")), at("endless", endless)
        async with use(*configs, ready="endless.echo") as host:
            await host.until(lambda names: "bad.greedy" in names)
            # Python's own regular expressions would take years for this result.
            assert (await host.call("bad.greedy")).success


async def test_over_http_with_headers_and_another_set_of_servers_after_a_reload() -> None:
    async with served() as url:
        config = McpServerConfig(name="h", type="http", url=url, headers={"X-Key": "k"}, trust=True)
        missing = McpServerConfig(name="gone", type="http", url="http://127.0.0.1:9/mcp")
        async with use(config, missing, ready="h.echo") as host:
            assert (await host.call("h.echo", text="hi")).data == "hi"
            host.toolset.reload(McpToolset([config.model_copy(update={"name": "h2"})]))
            await host.until(lambda names: "h2.echo" in names and "h.echo" not in names)
            assert (await host.call("h.echo")).metadata.reason == "not_connected"
            host.toolset.reload(McpToolset([config.model_copy(update={"enabled": False})]))
            assert not host.toolset.specs()


async def test_the_tools_of_a_lost_http_server_are_removed() -> None:
    async with served() as url:
        toolset = McpToolset([at("h", url)], retry_s=0.01)
        host = Host(toolset)
        await toolset.start(host.note)
        await host.until(lambda names: "h.write" in names)
    try:
        await host.until(lambda names: not names)
        assert toolset.connections[0].state == "down"
    finally:
        await toolset.aclose()


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (McpServerConfig(name="s", type="stdio", command="/no/such/program"), "no such file"),
        (
            McpServerConfig(name="s", type="stdio", command="sh", args=("-c", "echo oh no >&2")),
            "standard error: oh no",
        ),
        (McpServerConfig(name="s", type="http", url="https://mcp.example/mcp"), "LOCAL_ONLY is set"),
        (McpServerConfig(name="s", type="http", url="http://127.0.0.1:9/mcp"), "connection"),
    ],
)
async def test_an_unreachable_server_is_down_with_a_reason(config: McpServerConfig, reason: str) -> None:
    changed = asyncio.Event()
    connection = McpConnection(config, changed.set, local_only=True, retry_s=60)
    connection.start()
    async with asyncio.timeout(WAIT):
        await changed.wait()
    assert connection.state == "down" and reason in connection.problem
    await end(connection)


def test_a_missing_package_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    McpToolset([program(enabled=False)])
    with pytest.raises(SettingsError, match="pip install 'conductor-voice\\[mcp\\]'"):
        McpToolset([program()])


async def test_progress_renews_the_time_limit() -> None:
    async with use(program(timeout=1.0)) as host:
        executor = host.executor()
        ready = executor.prepare(ToolCall("call", "s.progress", "{}"))
        assert isinstance(ready, PreparedCall)
        outcome = await executor.run(ready, CONTEXT)  # takes 1.4 s
        assert (outcome.success, outcome.data) == (True, "done")


async def test_a_session_may_have_its_own_server() -> None:
    async with use(program(scope="session")) as host:

        async def pid(session: str, subject: str = "ann") -> str:
            context = CallContext(session_id=session, call_id="call", subject=subject)
            return str((await host.toolset.call("s.pid", {}, context)).data)

        first, second, third = await asyncio.gather(pid("one"), pid("two"), pid("one", "bob"))
        assert len({first, second, third}) == 3
        assert await pid("one") == first
        os.kill(int(first), 9)
        restarted = "None"
        async with asyncio.timeout(WAIT):
            while restarted in (first, "None"):  # a call waits for the server, if its loss is known
                restarted = await pid("one")
                await asyncio.sleep(0)
        assert await pid("two") == second
    for process in (first, second, third, restarted):
        with pytest.raises(ProcessLookupError):
            os.kill(int(process), 0)


async def test_the_last_line_of_a_programs_standard_error_is_the_problem() -> None:
    config = McpServerConfig(
        name="s", type="stdio", command="sh", args=("-c", "echo broken \x1b[2Jthing >&2; exit 1")
    )
    connection = McpConnection(config, retry_s=100.0)
    connection.start()
    await connection.wait_for_attempt()
    await end(connection)
    assert connection.problem.endswith("standard error: broken thing")
