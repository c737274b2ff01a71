"""Conductor as an MCP server: a program calls the tools of a person's phone, by the person's yes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp.types import TextContent, jsonrpc_message_adapter
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol

from conductor.app import make_services
from conductor.plugins.auth.tokens import TokenAuthenticator
from conductor.plugins.mcp.config import McpServerConfig
from conductor.plugins.mcp.endpoint import McpEndpoint
from conductor.server.listener import Listener
from conductor.settings import load_settings, program_token
from conductor.tools.base import Toolset
from tests.app import App
from tests.conftest import IOS_CATALOG
from tests.dialogues import DELETE, LOOK, MOVE, begin, decide
from tests.models import ScriptedProvider
from tests.system.mcp.test_toolset import use

ROOT = Path(__file__).resolve().parents[2]
WAIT = 60.0


@dataclass
class Running:
    """A server with its MCP endpoint."""

    listener: Listener
    endpoint: McpEndpoint

    @property
    def http(self) -> int:
        """The port."""
        return self.listener.port

    def phone(self, **options: Any) -> App:
        return App(f"ws://127.0.0.1:{self.listener.port}/ws", **options)


@asynccontextmanager
async def running(
    *tokens: str,
    settings: Mapping[str, Any] = MappingProxyType({}),
    progress_s: float = WAIT,
    idle_s: float = WAIT,
    toolsets: Sequence[Toolset] = (),
    **limits: Any,
) -> AsyncIterator[Running]:
    """Run a server with its endpoint; the other keyword arguments are fields of `Limits`."""
    services = make_services(
        load_settings(None, device_tools_file=IOS_CATALOG, **settings), ScriptedProvider([])
    )
    toolsets = (*services.toolsets, *toolsets)
    services = replace(services, limits=replace(services.limits, **limits), toolsets=toolsets)
    listener = Listener(services, TokenAuthenticator(tokens))
    await services.store.open()
    await listener.start("127.0.0.1", 0)
    endpoint = McpEndpoint(listener, check_s=0.02, progress_s=progress_s, idle_s=idle_s)
    try:
        async with endpoint.serving(), asyncio.timeout(WAIT):
            yield Running(listener, endpoint)
    finally:
        await listener.stop(drain_s=0)
        await services.store.aclose()


# -- clients


@asynccontextmanager
async def over_http(server: Running, token: str = "", **options: Any) -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {program_token(token)}"} if token else {}
    async with httpx2.AsyncClient(headers=headers, timeout=WAIT, trust_env=False) as http:
        transport = streamable_http_client(f"http://127.0.0.1:{server.http}/mcp", http_client=http)
        async with Client(transport, **options) as client:
            yield client


@asynccontextmanager
async def socket_streams(url: str, token: str) -> AsyncIterator[Any]:
    headers = {"Authorization": f"Bearer {program_token(token)}"} if token else {}
    to_client, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, from_client = anyio.create_memory_object_stream[SessionMessage](0)
    async with (
        connect(url, subprotocols=[Subprotocol("mcp")], additional_headers=headers, proxy=None) as socket,
        anyio.create_task_group() as tasks,
    ):

        async def receive() -> None:
            async with to_client:
                async for text in socket:
                    await to_client.send(SessionMessage(jsonrpc_message_adapter.validate_json(text)))

        async def send() -> None:
            async with from_client:
                async for item in from_client:
                    await socket.send(item.message.model_dump_json(by_alias=True, exclude_unset=True))

        tasks.start_soon(receive)
        tasks.start_soon(send)
        yield read, write
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def over_websocket(server: Running, token: str = "", **options: Any) -> AsyncIterator[Client]:
    url = f"ws://127.0.0.1:{server.listener.port}/mcp"
    async with Client(socket_streams(url, token), **options) as client:
        yield client


@asynccontextmanager
async def over_stdio(
    server: Running, token: str = "", path: str = "", **options: Any
) -> AsyncIterator[Client]:
    arguments = ["-m", "conductor", "mcp", "serve", "--url", f"ws://127.0.0.1:{server.listener.port}{path}"]
    arguments += ["--token", token] if token else []
    parameters = StdioServerParameters(command=sys.executable, args=arguments, cwd=str(ROOT))
    async with Client(stdio_client(parameters), **options) as client:
        yield client


def text_of(result: Any) -> str:
    return " ".join(item.text for item in result.content if isinstance(item, TextContent))


async def names(client: Client) -> set[str]:
    return {tool.name for tool in (await client.list_tools()).tools}


# -- what it does


@pytest.mark.parametrize("over", [over_http, over_websocket, over_stdio, partial(over_stdio, path="/mcp")])
async def test_a_program_calls_the_tools_of_the_phone_and_of_the_server(over: Any) -> None:
    tools = {"look": lambda a: f"at {a['path']}"}
    async with running() as server, server.phone(tools=tools) as phone, over(server) as client:
        await begin(phone, tools=[LOOK, MOVE])
        declared_tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert {"look", "move_file", "calculator"} <= set(declared_tools)
        assert declared_tools["look"].annotations.read_only_hint is True
        assert declared_tools["look"].meta["conductor"] == {"source": "device", "risk": "safe"}
        looked = await client.call_tool("look", {"path": "here"})
        assert (looked.is_error, text_of(looked)) == (False, "at here")
        summed = await client.call_tool("calculator", {"expression": "6*7"})
        assert summed.structured_content == {"result": "42"}
        wrong = await client.call_tool("calculator", {"expresion": "6*7"})
        assert wrong.is_error and "(allowed: expression)" in text_of(wrong)
        with pytest.raises(MCPError) as caught:
            await client.call_tool("no.such", {})
        assert caught.value.code == -32602
        assert phone.speeches() == []


@pytest.mark.parametrize("decision", ["allow", "deny"])
async def test_a_write_asks_the_person(decision: str) -> None:
    tools = {"delete_file": lambda a: "deleted"}
    async with running() as server, server.phone(tools=tools) as phone, over_http(server) as client:
        await begin(phone, "approval", tools=[DELETE])
        call = asyncio.create_task(client.call_tool("delete_file", {"path": "old.txt"}))
        card = await phone.until("approval.request", name="delete_file")
        assert phone.runs == [] and not call.done()
        await decide(phone, card, decision)
        result = await call
        assert result.is_error is (decision == "deny")
        assert len(phone.runs) == (decision == "allow")


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize("over", [over_http, over_websocket])
async def test_a_program_hears_that_the_person_thinks(over: Any, mode: str) -> None:
    messages: asyncio.Queue[str | None] = asyncio.Queue()

    async def report(_progress: float, _total: float | None, message: str | None) -> None:
        messages.put_nowait(message)

    tools = {"delete_file": lambda a: "deleted"}
    async with running(progress_s=0.02) as server, server.phone(tools=tools) as phone:
        await begin(phone, "approval", tools=[DELETE])
        async with over(server, mode=mode) as client:
            arguments = {"path": "old.txt"}
            call = asyncio.create_task(client.call_tool("delete_file", arguments, progress_callback=report))
            card = await phone.until("approval.request", name="delete_file")
            while await messages.get() != "Waiting for the person's approval.":
                pass
            await decide(phone, card, "allow")
            assert not (await call).is_error


async def test_without_a_device_only_the_servers_own_safe_tools_are_offered(tmp_path: Path) -> None:
    async with running(settings={"file_roots": [str(tmp_path)]}) as server, over_http(server) as client:
        tools = await names(client)
        assert "calculator" in tools and "agent.spawn" not in tools
        assert not tools & {"add_task", "list_tasks", "update_task", "schedule_task", "list_scheduled_tasks"}
        assert text_of(await client.call_tool("calculator", {"expression": "1+1"})) == '{"result": "2"}'
        outcome = await client.call_tool("read_file", {"path": "x"})
        assert outcome.is_error and "paired device" in text_of(outcome)
        with pytest.raises(MCPError, match="No phone is connected to this server") as caught:
            await client.call_tool("lamp.read", {})
        assert caught.value.code == -32002


@pytest.mark.parametrize("over", [over_http, over_websocket])
async def test_the_list_changes_as_the_device_comes_and_goes(over: Any) -> None:
    changed = asyncio.Event()

    async def messages(message: Any) -> None:
        if "list_changed" in str(getattr(message, "method", message)):
            changed.set()

    async with running() as server:
        async with over(server, message_handler=messages, mode="legacy") as client:
            assert "look" not in await names(client)
            async with server.phone() as phone:
                await begin(phone, tools=[LOOK])
                await changed.wait()
                assert "look" in await names(client)
                changed.clear()
            await changed.wait()
            assert "look" not in await names(client)


async def test_newer_clients_listen_for_changes() -> None:
    async with running() as server, over_http(server) as client:
        await names(client)
        async with client.listen(tools_list_changed=True) as events, server.phone() as phone:
            await begin(phone, tools=[LOOK])
            async for _ in events:
                break
            assert "look" in await names(client)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_call_that_is_given_up_stops_on_the_device(mode: str) -> None:
    async with running() as server, server.phone() as phone, over_http(server, mode=mode) as client:
        await begin(phone, "cancel", tools=[LOOK])
        call = asyncio.create_task(client.call_tool("look", {"path": "x"}))
        await phone.until("tool.call", name="look")
        call.cancel()
        await phone.until("tool.cancel")


async def test_each_token_has_its_own_tools() -> None:
    headers = {"Authorization": "Bearer the-token-of-ann"}
    async with running("the-token-of-ann", "the-token-of-bob") as server:
        async with server.phone(headers=headers) as phone:
            await begin(phone, tools=[LOOK])
            async with (
                over_http(server, "the-token-of-ann") as ann,
                over_websocket(server, "the-token-of-bob") as bob,
            ):
                assert "look" in await names(ann)
                assert "look" not in await names(bob)
        with pytest.raises(InvalidStatus):
            async with connect(f"ws://127.0.0.1:{server.listener.port}/mcp", proxy=None):
                pass
        async with httpx2.AsyncClient(trust_env=False) as http:
            url = f"http://127.0.0.1:{server.http}/mcp"
            assert (await http.post(url, json={})).status_code == 401
            of_a_page = {"Authorization": "Bearer the-token-of-ann", "Origin": "https://evil.example"}
            assert (await http.post(url, json={}, headers=of_a_page)).status_code == 403


async def test_a_page_of_tools_follows_the_other() -> None:
    async with running() as server, server.phone() as phone, over_http(server) as client:
        await begin(phone, tools=[{**LOOK, "name": f"look_{number}"} for number in range(150)])
        first = await client.list_tools()
        assert len(first.tools) == 100
        second = await client.list_tools(cursor=first.next_cursor)
        assert second.next_cursor is None
        assert len({tool.name for tool in (*first.tools, *second.tools)}) == len(first.tools) + len(
            second.tools
        )
        with pytest.raises(MCPError):
            await client.list_tools(cursor="nonsense")


async def test_conductor_uses_another_conductor() -> None:
    async with running() as server, server.phone(tools={"look": lambda a: "seen"}) as phone:
        await begin(phone, tools=[LOOK])
        config = McpServerConfig(name="s", type="http", url=f"http://127.0.0.1:{server.http}/mcp")
        async with use(config, ready="s.look") as toolset:
            assert (await toolset.call("s.look", path="here")).data == "seen"
