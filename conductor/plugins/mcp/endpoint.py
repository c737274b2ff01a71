"""Conductor as an MCP server: the tools of a person's session, for a program such as an IDE.

A call runs in the person's session (`Session.request`): under the same rules, with approval on their device,
and recorded. Without a connected device, only the server's own tools that need no approval run.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from functools import lru_cache, partial
from typing import Any, TypeAlias

import msgspec
import structlog
from mcp.server import Server, ServerRequestContext
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import NotificationOptions
from mcp.server.models import InitializationOptions
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import ToolsListChanged
from mcp.types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    SubscriptionsListenRequestParams,
    SubscriptionsListenResult,
    TextContent,
    Tool,
    ToolAnnotations,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from conductor.events.envelope import new_call_id
from conductor.messages import ToolCall
from conductor.plugins.mcp.endpoint_http import SESSION_IDLE_S, Caller, HttpServer, Person, caller_of
from conductor.plugins.mcp.streams import message_streams
from conductor.server.access import MCP_PATH, MCP_SUBPROTOCOL
from conductor.server.connection import POLICY_VIOLATION
from conductor.server.listener import Listener
from conductor.server.websocket import Socket
from conductor.session import programs
from conductor.session.session import Session
from conductor.tools.audit import SessionAudit
from conductor.tools.base import CallContext, ToolSpec
from conductor.tools.executor import ApprovalNeeded, DryRun, PreparedCall, ToolExecutor
from conductor.tools.outcomes import ToolOutcome, failed
from conductor.version import __version__

log = structlog.get_logger(__name__)

# Tools of a page.
PAGE = 100
# Persons whose limits are kept; the one unused for longest is forgotten.
MAX_PERSONS = 1_000
# Seconds between two progress reports of a call: programs give up after 60 s of silence.
PROGRESS_S = 10.0
# The error code for an unknown tool while no phone is connected.
NO_PHONE = -32002
# Seconds between two checks for changed tools while a program is connected.
CHECK_S = 1.0
_INSTRUCTIONS = (
    "These are the tools of a person's phone and of their voice assistant. The person is asked before a call "
    "changes something; the answer may take minutes, and may be no."
)
_NEEDS_DEVICE = (
    "This call needs the person's approval on the paired device, and no device is connected. It was not run."
)
_NO_PHONE = (
    "No phone is connected to this server, which offers only its own tools. "
    "With several servers, connect to the phone's server."
)

_Context: TypeAlias = ServerRequestContext[Any, Any]


class _Server(Server[Any]):
    def create_initialization_options(
        self, notification_options: NotificationOptions | None = None, *args: Any, **options: Any
    ) -> InitializationOptions:
        # The package calls this for each session over HTTP.
        tools_changed = NotificationOptions(tools_changed=True)
        return super().create_initialization_options(notification_options or tools_changed, *args, **options)


class McpEndpoint:
    """Serves MCP over WebSockets and streamable HTTP.

    Seconds: ``check_s`` between two checks for changed tools, ``progress_s`` between two reports on a call,
    ``idle_s`` until an MCP session over HTTP without a request ends.
    """

    def __init__(
        self,
        listener: Listener,
        *,
        check_s: float = CHECK_S,
        progress_s: float = PROGRESS_S,
        idle_s: float = SESSION_IDLE_S,
    ) -> None:
        self._listener = listener
        self._registry = listener.registry
        self._limits = listener.services.limits
        self._check_s = check_s
        self._progress_s = progress_s
        self._idle_s = idle_s
        self._person = lru_cache(MAX_PERSONS)(partial(Person, self._limits))
        self._watchers: set[asyncio.Task[None]] = set()

    @property
    def watchers(self) -> int:
        """The number of connections and subscriptions that get changes of the tools."""
        return len(self._watchers)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serve WebSockets and, unless processes share the port, HTTP at ``/mcp`` during the block."""
        self._listener.sockets[MCP_PATH] = self._serve_socket
        self._listener.subprotocols.append(Subprotocol(MCP_SUBPROTOCOL))
        server = self._server(_caller_of_request)
        server.middleware.append(self._count_session)
        door = HttpServer(self._listener, self._person, server, self._idle_s)
        try:
            # A session over HTTP is known to one process.
            async with door.serving() if self._listener.worker is None else nullcontext():
                yield
        finally:
            del self._listener.sockets[MCP_PATH]

    async def _serve_socket(self, socket: Socket, path: str) -> None:
        """Serve one WebSocket with the subprotocol ``mcp`` until it closes."""
        peer = socket.remote_address[0] if socket.remote_address else ""
        caller = caller_of(socket.client, peer, path.partition("?")[2])

        async def messages() -> AsyncIterator[bytes]:
            with suppress(ConnectionClosed):
                while True:
                    text = await socket.recv(decode=False)
                    await self._listener.services.admission.enter()
                    if not await self._person(caller.person).rate.admit(len(text)):
                        await socket.close(POLICY_VIOLATION, "too many messages")
                        return
                    yield text

        async def send(text: str) -> None:
            try:
                async with asyncio.timeout(self._limits.send_timeout):
                    await socket.send(text)
            except (TimeoutError, ConnectionClosed) as error:
                socket.transport.abort()  # the program does not read
                raise ConnectionError from error

        server = self._server(lambda _: caller)
        async with message_streams(messages(), send) as (read, write):
            await server.run(read, write, server.create_initialization_options())

    async def _count_session(self, ctx: _Context, call_next: CallNext) -> HandlerResult:
        if ctx.method == "initialize":
            caller = _caller_of_request(ctx)
            caller.has_opened = True  # it was counted when it was admitted
            _exit_stack(ctx).callback(self._person(caller.person).end_session)
        return await call_next(ctx)

    # -- tools

    def _server(self, caller: Callable[[_Context], Caller]) -> Server[Any]:
        async def list_tools(context: _Context, params: PaginatedRequestParams | None) -> ListToolsResult:
            program = caller(context)
            # The revision of 2026 announces changes to subscriptions only.
            state = context.session._connection.state
            if context.protocol_version not in MODERN_PROTOCOL_VERSIONS and "watcher" not in state:
                state["watcher"] = self._watch(program, context.session.send_tool_list_changed)
                _exit_stack(context).callback(state["watcher"].cancel)
            return self._list(program, params.cursor if params else None)

        async def call_tool(context: _Context, params: CallToolRequestParams) -> CallToolResult:
            program = caller(context)
            # A program gives up after a minute of silence; a person may take longer.
            reporting = asyncio.create_task(self._report(context, program, params.name))
            try:
                return await self._call(program, params.name, params.arguments or {})
            finally:
                reporting.cancel()

        async def listen(
            context: _Context, params: SubscriptionsListenRequestParams
        ) -> SubscriptionsListenResult:
            program, bus = caller(context), InMemorySubscriptionBus()
            person = self._person(program.person)
            if person.subscriptions >= self._limits.max_connections_per_subject:
                raise MCPError(INTERNAL_ERROR, "Too many subscriptions.")
            watcher = self._watch(program, lambda: bus.publish(ToolsListChanged()))
            person.subscriptions += 1
            try:
                return await ListenHandler(bus)(context, params)
            finally:
                person.subscriptions -= 1
                watcher.cancel()

        return _Server(
            "conductor",
            version=__version__,
            instructions=_INSTRUCTIONS,
            on_list_tools=list_tools,
            on_call_tool=call_tool,
            on_subscriptions_listen=listen,
        )

    async def _report(self, context: _Context, caller: Caller, name: str) -> None:
        for count in itertools.count(1):
            await asyncio.sleep(self._progress_s)
            session = self._session(caller)
            asks = session is not None and bool(session.state.questions)
            message = "Waiting for the person's approval." if asks else f"Waiting for {name[:128]}."
            # The package sends nothing to a program that did not ask for reports.
            await context.session.report_progress(count, message=message)

    def _session(self, caller: Caller) -> Session | None:
        return self._registry.connected(caller.subject, caller.session_id)

    def _specs(self, caller: Caller) -> Sequence[ToolSpec]:
        session = self._session(caller)
        if session is not None:
            return session.gate.executor.specs
        return [spec for spec in self._own_tools(caller).specs if not spec.needs_session]

    def _own_tools(self, caller: Caller) -> ToolExecutor:
        return self._listener.services.executor.scoped(self._person(caller.person).tool_rates)

    def _list(self, caller: Caller, cursor: str | None) -> ListToolsResult:
        specs = self._specs(caller)
        if cursor is not None and not (cursor.isascii() and cursor.isdecimal() and len(cursor) < 9):
            raise MCPError(INVALID_PARAMS, "The cursor is not valid.")
        first = int(cursor or 0)
        more = str(first + PAGE) if first + PAGE < len(specs) else None
        return ListToolsResult(tools=[_tool(spec) for spec in specs[first : first + PAGE]], next_cursor=more)

    async def _call(self, caller: Caller, name: str, arguments: dict[str, Any]) -> CallToolResult:
        session = self._session(caller)
        if name not in (spec.name for spec in self._specs(caller)):
            text = f"There is no tool {name[:128]!r}."
            if session is None:
                raise MCPError(NO_PHONE, f"{text} {_NO_PHONE}")
            raise MCPError(INVALID_PARAMS, text)
        if session is None:
            content = await self._call_own(caller, name, json.dumps(arguments))
        else:
            content = (await programs.request(session, name, json.dumps(arguments))).content
        return _result(content)

    async def _call_own(self, caller: Caller, name: str, arguments: str) -> str:
        executor, call_id = self._own_tools(caller), new_call_id()
        audit = SessionAudit(self._listener.services.audit, caller.subject, "mcp")
        prepared = executor.prepare(ToolCall(call_id, name, arguments))
        if isinstance(prepared, ApprovalNeeded):
            ready = prepared.ready
            audit.record_decision(ready.spec, ready.arguments, prepared.verdict)
            outcome = failed("permission_denied", _NEEDS_DEVICE)
        elif isinstance(prepared, PreparedCall):
            session_id = f"$mcp {caller.person}"
            context = CallContext(
                session_id=session_id, call_id=call_id, subject=caller.subject, tainted=True
            )
            outcome = await executor.run(prepared, context)
            audit.record_end(prepared.spec, prepared.arguments, outcome)
        elif isinstance(prepared, DryRun):
            outcome = await executor.dry_run(prepared.ready)
        else:
            outcome = prepared
        return executor.to_result(call_id, outcome).content

    # -- changes

    def _watch(self, caller: Caller, announce: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        async def watch(fingerprints: tuple[str, ...]) -> None:
            while True:
                await asyncio.sleep(self._check_s)
                await self._listener.services.admission.enter()
                former, fingerprints = fingerprints, self._fingerprints(caller)
                if fingerprints != former:
                    with suppress(Exception):  # the connection has closed
                        await announce()

        watcher = asyncio.create_task(watch(self._fingerprints(caller)))
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)
        return watcher

    def _fingerprints(self, caller: Caller) -> tuple[str, ...]:
        return tuple(spec.fingerprint for spec in self._specs(caller))


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


def _exit_stack(context: _Context) -> AsyncExitStack:
    # What is pushed to it runs when the connection or its MCP session ends. No public attribute has it.
    return context.session._connection.exit_stack


def _caller_of_request(context: _Context) -> Caller:
    assert context.request is not None
    caller: Caller = context.request.scope["caller"]
    return caller
