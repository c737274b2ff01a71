"""Conductor as an MCP server: the tools of a person's session, for a program such as an IDE.

A call is made in the person's session (`Session.request`): by the same rules, asked about on their device,
recorded. Without a connected device there are only the server's own tools, and none that asks.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import parse_qs

import msgspec
import structlog
import uvicorn
from mcp.server import Server, ServerRequestContext
from mcp.server.lowlevel import NotificationOptions
from mcp.server.session import ServerSession
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import ToolsListChanged
from mcp.types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolAnnotations,
)
from websockets.datastructures import Headers
from websockets.http11 import Request

from conductor import __version__
from conductor.conversation.services import Services
from conductor.conversation.session import Session
from conductor.errors import SettingsError
from conductor.events.envelope import new_call_id
from conductor.messages import ToolCall
from conductor.server.access import Access, Refusal, why_not_bound
from conductor.server.sessions import SessionRegistry
from conductor.server.websocket import Socket
from conductor.tools.audit import SessionAudit
from conductor.tools.base import CallContext, ToolOutcome, ToolSpec, failed
from conductor.tools.executor import ApprovalNeeded, DryRun, PreparedCall, ToolExecutor
from conductor.tools.mcp.websocket import socket_streams
from conductor.tools.permissions import Gate

log = structlog.get_logger(__name__)

# Tools of a page.
PAGE = 100
# Connections that are told of changes; the oldest is no longer told.
MAX_CONNECTIONS = 1_000
# Seconds between two looks whether the tools have changed, while a program is connected.
LOOK_S = 1.0
_INSTRUCTIONS = (
    "These are the tools of a person's phone and of their voice assistant. What changes something is asked "
    "of the person, who may take minutes or say no."
)
_NEEDS_DEVICE = (
    "This call needs the person's yes on the paired device, and none is connected. Nothing was run."
)


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose tools a program may use, and of which session if it names one."""

    subject: str
    session_id: str | None = None


_Context: TypeAlias = ServerRequestContext[Any, Any]


class McpEndpoint:
    """Serves MCP over WebSockets and streamable HTTP. ``look_s`` is the pause between looks at the tools."""

    def __init__(
        self,
        registry: SessionRegistry,
        services: Callable[[], Services],
        access: Access,
        look_s: float = LOOK_S,
    ) -> None:
        self._registry = registry
        self._services = services
        self._access = access
        self._look_s = look_s
        self._bus = InMemorySubscriptionBus()
        # Connections of the 2025 revision, which are told of changes: each by its id, with its last session.
        self._connections: dict[object, ServerSession] = {}
        self._callers: dict[Caller, tuple[str, ...]] = {}
        self._watching: asyncio.Task[None] | None = None

    def close(self) -> None:
        """Stop looking at the tools."""
        if self._watching is not None:
            self._watching.cancel()

    # -- WebSocket

    async def serve_socket(self, socket: Socket, path: str) -> None:
        """Serve one WebSocket with the subprotocol ``mcp`` until it closes."""
        caller = Caller(socket.client.subject, _session_id(path.partition("?")[2]))
        server = self._server(lambda _: caller, lambda _: socket)
        options = server.create_initialization_options(NotificationOptions(tools_changed=True))
        try:
            async with socket_streams(socket) as (read, write):
                await server.run(read, write, options)
        finally:
            self._connections.pop(socket, None)

    # -- streamable HTTP

    @asynccontextmanager
    async def serving_http(self, host: str, port: int) -> AsyncIterator[int]:
        """Serve ``/mcp`` over streamable HTTP during the block, which gets the port.

        Raises `SettingsError` if it cannot be bound.
        """
        server = self._server(_caller_of_request, _http_session)
        app = server.streamable_http_app(host=host)

        async def guarded(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                admitted = self._admit(scope)
                if isinstance(admitted, Refusal):
                    await _refuse(admitted, send)
                    return
                scope["caller"] = admitted
            await app(scope, receive, send)

        try:
            listening = socket.create_server((host, port), family=_family(host))
        except OSError as error:
            raise SettingsError(": ".join(("MCP_PORT", why_not_bound(host, port, error)[1]))) from None
        config = uvicorn.Config(guarded, log_config=None, access_log=False, server_header=False, ws="none")
        web = _Uvicorn(config)
        task = asyncio.create_task(web.serve(sockets=[listening]))
        try:
            yield int(listening.getsockname()[1])
        finally:
            web.should_exit = web.force_exit = True
            await asyncio.wait([task])
            listening.close()

    def _admit(self, scope: Any) -> Caller | Refusal:
        query = scope["query_string"].decode("ascii", "replace")
        headers = Headers(
            (name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]
        )
        peer = scope["client"][0] if scope["client"] else ""
        decision = self._access.decide(Request(f"{scope['path']}?{query}", headers), peer)
        return decision if isinstance(decision, Refusal) else Caller(decision.subject, _session_id(query))

    # -- tools

    def _server(
        self, caller: Callable[[_Context], Caller], connection: Callable[[_Context], object]
    ) -> Server[Any]:
        async def list_tools(context: _Context, params: PaginatedRequestParams | None) -> ListToolsResult:
            who = caller(context)
            self._watch(who, connection(context), context.session)
            return self._list(who, params.cursor if params else None)

        async def call_tool(context: _Context, params: CallToolRequestParams) -> CallToolResult:
            return await self._call(caller(context), params.name, params.arguments or {})

        return Server(
            "conductor",
            version=__version__,
            instructions=_INSTRUCTIONS,
            on_list_tools=list_tools,
            on_call_tool=call_tool,
            on_subscriptions_listen=ListenHandler(self._bus),
        )

    def _session(self, caller: Caller) -> Session | None:
        return self._registry.connected(caller.subject, caller.session_id)

    def _specs(self, caller: Caller) -> Sequence[ToolSpec]:
        session = self._session(caller)
        return self._own_tools().specs if session is None else session.tools

    def _own_tools(self) -> ToolExecutor:
        services = self._services()
        gate = Gate([rule for rule in services.rules if rule.session is None], services.gate_options)
        return ToolExecutor(services.toolsets, services.limits, gate, services.redactor)

    def _list(self, caller: Caller, cursor: str | None) -> ListToolsResult:
        specs = self._specs(caller)
        if cursor is not None and not (cursor.isascii() and cursor.isdecimal() and len(cursor) < 9):
            raise MCPError(INVALID_PARAMS, "The cursor is none of this server's.")
        first = int(cursor or 0)
        more = str(first + PAGE) if first + PAGE < len(specs) else None
        return ListToolsResult(tools=[_tool(spec) for spec in specs[first : first + PAGE]], next_cursor=more)

    async def _call(self, caller: Caller, name: str, arguments: dict[str, Any]) -> CallToolResult:
        if name not in (spec.name for spec in self._specs(caller)):
            raise MCPError(INVALID_PARAMS, f"There is no tool {name[:128]!r}.")
        session = self._session(caller)
        if session is None:
            content = await self._call_own(caller, name, json.dumps(arguments))
        else:
            content = (await session.request(name, json.dumps(arguments))).content
        return _result(content)

    async def _call_own(self, caller: Caller, name: str, arguments: str) -> str:
        executor, call_id = self._own_tools(), new_call_id()
        audit = SessionAudit(self._services().audit, caller.subject, "mcp")
        prepared = executor.prepare(ToolCall(call_id, name, arguments))
        if isinstance(prepared, ApprovalNeeded):
            ready = prepared.ready
            audit.decided(ready.spec, ready.arguments, prepared.verdict)
            outcome = failed("permission_denied", _NEEDS_DEVICE)
        elif isinstance(prepared, PreparedCall):
            outcome = await executor.run(prepared, CallContext("mcp", call_id))
            audit.ended(prepared.spec, prepared.arguments, outcome)
        elif isinstance(prepared, DryRun):
            outcome = await executor.dry_run(prepared.ready)
        else:
            outcome = prepared
        return executor.to_result(call_id, outcome).content

    # -- changes

    def _watch(self, caller: Caller, connection: object, session: ServerSession) -> None:
        if connection is not None:
            self._connections[connection] = session
            if len(self._connections) > MAX_CONNECTIONS:
                del self._connections[next(iter(self._connections))]
        if len(self._callers) < MAX_CONNECTIONS:
            self._callers[caller] = self._fingerprints(caller)
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._look())

    def _fingerprints(self, caller: Caller) -> tuple[str, ...]:
        return tuple(spec.fingerprint for spec in self._specs(caller))

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(self._look_s)
            now = {caller: self._fingerprints(caller) for caller in self._callers}
            if now == self._callers:
                continue
            self._callers = now
            await self._bus.publish(ToolsListChanged())
            for connection, session in list(self._connections.items()):
                try:
                    await session.send_tool_list_changed()
                except Exception:  # of the package: the connection has closed
                    self._connections.pop(connection, None)


def _tool(spec: ToolSpec) -> Tool:
    return Tool(
        name=spec.name,
        title=spec.title,
        description=spec.description,
        input_schema=dict(spec.input_schema),
        annotations=ToolAnnotations(
            read_only_hint=spec.effect == "read",
            destructive_hint=spec.effect == "irreversible",
            open_world_hint=spec.open_world,
        ),
        _meta={"conductor": {"source": spec.source, "risk": spec.risk}},
    )


def _result(content: str) -> CallToolResult:
    outcome = msgspec.json.decode(content, type=ToolOutcome)
    data = outcome.data if outcome.success else outcome.error_message
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    notes = [TextContent(type="text", text=note) for note in outcome.metadata.notes]
    return CallToolResult(
        content=[TextContent(type="text", text=text or ""), *notes],
        structured_content=outcome.data if isinstance(outcome.data, dict) else None,
        is_error=not outcome.success,
        _meta={"conductor": {"errorType": outcome.error_type, "ms": outcome.metadata.execution_time_ms}},
    )


def _session_id(query: str) -> str | None:
    return next(iter(parse_qs(query).get("session", ())), None)


def _http_session(context: _Context) -> object:
    return context.request.headers.get("mcp-session-id") if context.request is not None else None


def _caller_of_request(context: _Context) -> Caller:
    assert context.request is not None  # over HTTP there is one
    caller: Caller = context.request.scope["caller"]
    return caller


class _Uvicorn(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # signals are this server's own


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


async def _refuse(refusal: Refusal, send: Any) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8")]
    if refusal.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": refusal.status.value, "headers": headers})
    await send({"type": "http.response.body", "body": f"{refusal.text}\n".encode()})
