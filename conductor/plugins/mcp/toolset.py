"""The tools of all MCP servers, as one `Toolset`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from conductor.errors import SettingsError
from conductor.images import MAX_IMAGES, Picture, from_base64
from conductor.plugins.mcp.config import McpServerConfig, load_mcp_servers, mcp_config_path, mcp_folder
from conductor.plugins.mcp.server import RETRY_S, McpConnection, check_installed
from conductor.plugins.mcp.specs import clean
from conductor.plugins.mcp.streams import CURRENT_CALL, UNREADABLE, McpCall
from conductor.settings import Settings
from conductor.tools.base import CallContext, Toolset, ToolSpec
from conductor.tools.declarations import load_catalog
from conductor.tools.media import base64_size
from conductor.tools.media import label as media_label
from conductor.tools.outcomes import (
    Effect,
    Fate,
    NotStarted,
    ToolOutcome,
    broke_off,
    failed,
    returned,
    succeeded,
    without_result,
)

if TYPE_CHECKING:
    from mcp import MCPError
    from mcp.types import CallToolResult

# Seconds for servers to end by themselves; then they are killed.
CLOSE_S = 6.0
_ERROR_CHARS = 2_000
_REASON_CHARS = 200
# Servers of single sessions, and seconds without a call after which one ends.
MAX_SESSION_SERVERS = 100
SESSION_IDLE_S = 600.0
_SessionKey: TypeAlias = tuple[str, str, str]
"""Server, person and session."""


def from_settings(settings: Settings) -> McpToolset:
    """Make the toolset of the servers in mcp.json.

    Raises `SettingsError`, also if tools of the device have a server's name.
    """
    servers = load_mcp_servers(settings)
    catalog = load_catalog(settings.device_tools_file) if servers else ()
    for server in servers:
        tool = next((spec.name for spec in catalog if spec.name.startswith(f"{server.name}.")), None)
        if tool is not None:
            raise SettingsError(
                f'{mcp_config_path(settings)}, server "{server.name}": the device has a tool of this name '
                f"({tool}); choose another name, or set DEVICE_TOOLS_FILE=none."
            )
    return McpToolset(servers, local_only=settings.local_only, folder=mcp_folder(settings))


class McpToolset(Toolset):
    """The tools of all servers that are connected, named ``server.tool``.

    ``folder`` stores tokens. Raises `SettingsError` if the package ``mcp`` is
    needed and not installed.
    """

    def __init__(
        self,
        configs: Sequence[McpServerConfig] = (),
        *,
        local_only: bool = False,
        retry_s: float = RETRY_S,
        folder: Path | None = None,
    ) -> None:
        self._connect = partial(McpConnection, local_only=local_only, retry_s=retry_s, folder=folder)
        self._on_change: Callable[[], None] | None = None
        self._specs: tuple[ToolSpec, ...] = ()
        self._connections: dict[str, McpConnection] = {}
        # In the order of last use, each with the timer of its end.
        self._sessions: dict[_SessionKey, tuple[McpConnection, asyncio.TimerHandle]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._configs = {config.name: config for config in configs if config.enabled}
        if self._configs:
            check_installed()

    @property
    def connections(self) -> Sequence[McpConnection]:
        """The enabled servers, after `start`."""
        return list(self._connections.values())

    async def start(self, on_change: Callable[[], None]) -> None:
        """Connect to the servers, without waiting for them; ``on_change`` is called when `specs` changes."""
        self._on_change = on_change
        self._run()

    def all_specs(self) -> Sequence[ToolSpec]:
        """List nothing: the servers decide."""
        return ()

    def secrets(self) -> Sequence[str]:
        """List the secrets in environments and headers."""
        return [secret for config in self._configs.values() for secret in config.secrets]

    def health(self) -> Mapping[str, bool]:
        """Tell for each server whether it is ready."""
        return {connection.config.name: connection.state == "ready" for connection in self.connections}

    async def ready(self) -> None:
        """Wait for each server's first attempt. Raises `SettingsError` if one is down."""
        for connection in self.connections:
            await connection.wait_for_attempt()
        down = [server for server in self.connections if server.state == "down"]
        if down:
            problems = "; ".join(f"{server.config.name} is down: {server.problem}" for server in down)
            raise SettingsError(f"the MCP server {problems}.")

    def reload(self, new: Toolset) -> Toolset:
        """Take the servers of ``new``; unchanged ones stay connected."""
        assert isinstance(new, McpToolset)
        self._configs = new._configs
        if self._on_change is not None:
            self._run()
        return self

    def _run(self) -> None:
        for name, connection in list(self._connections.items()):
            if self._configs.get(name) != connection.config:
                del self._connections[name]
                self._stop(connection)
                for key in [key for key in self._sessions if key[0] == name]:
                    self._end_session(key)
        for name, config in self._configs.items():
            if name not in self._connections:
                self._connections[name] = self._connect(config, self._changed)
                self._connections[name].start()
        self._changed()

    def _stop(self, connection: McpConnection) -> None:
        task = connection.stop()
        if task is not None:
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def _changed(self) -> None:
        specs = tuple(spec for connection in self._connections.values() for spec in connection.specs)
        if specs != self._specs:
            self._specs = specs
            if self._on_change is not None:
                self._on_change()

    async def aclose(self) -> None:
        """End the connections, and the servers that were started."""
        self._on_change = None
        for connection in self._connections.values():
            self._stop(connection)
        self._connections.clear()
        for key in list(self._sessions):
            self._end_session(key)
        if self._ending:
            await asyncio.wait(self._ending, timeout=CLOSE_S)

    def specs(self) -> Sequence[ToolSpec]:
        """List the tools of the servers that are connected."""
        return self._specs

    async def call(self, name: str, arguments: Mapping[str, Any], context: CallContext) -> ToolOutcome:
        """Run a tool at its server. Cancelling this cancels the call there too."""
        connection = self._connections.get(name.partition(".")[0])
        if connection is None:
            return _not_connected(name, "write")
        if connection.config.scope == "session":
            with _connecting(connection.config.name):
                connection = await self._own(connection.config, context)
        return await call_tool(connection, name, arguments, context)

    async def _own(self, config: McpServerConfig, context: CallContext) -> McpConnection:
        # The shared connection only lists the tools. Clients choose session ids: two may be the same.
        key = (config.name, context.subject, context.session_id)
        if key in self._sessions:
            connection, timer = self._sessions.pop(key)
            timer.cancel()
        else:
            if len(self._sessions) >= MAX_SESSION_SERVERS:
                idle = (key for key, (server, _) in self._sessions.items() if not server.running)
                if (oldest := next(idle, None)) is None:
                    raise NotStarted(f"Too many sessions use the MCP server {config.name}.")
                self._end_session(oldest)
            connection = self._connect(config)
            connection.start()
        self._sessions[key] = connection, self._arm(key)
        connection.running += 1  # a server that starts for a call is not idle
        try:
            await connection.wait_for_attempt()
        finally:
            connection.running -= 1
        return connection

    def _arm(self, key: _SessionKey) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(SESSION_IDLE_S, self._end_idle, key)

    def _end_idle(self, key: _SessionKey) -> None:
        connection, _ = self._sessions[key]
        if connection.running:
            self._sessions[key] = connection, self._arm(key)
        else:
            self._end_session(key)

    def _end_session(self, key: _SessionKey) -> None:
        connection, timer = self._sessions.pop(key)
        timer.cancel()
        self._stop(connection)


async def call_tool(
    connection: McpConnection,
    name: str,
    arguments: Mapping[str, Any],
    context: CallContext | None = None,
) -> ToolOutcome:
    """Run a tool of one server; ``name`` begins with the server's."""

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        if context is not None:
            context.alive()

    spec = next((spec for spec in connection.specs if spec.name == name), None)
    client = connection.client
    if spec is None or client is None:
        return _not_connected(name, "write")
    from mcp import MCPError

    _, _, tool = name.partition(".")
    may_repeat = True
    while True:
        # Of this attempt alone: a refusal of the first one says nothing of the second.
        call = McpCall(context.ask if context else None)
        try:
            with asking(connection, call):
                result = await client.call_tool(tool, dict(arguments), progress_callback=on_progress)
            return to_outcome(result, spec.effect)
        except asyncio.CancelledError:
            if call.is_sent is False:
                raise NotStarted(f"{_server(connection)} could not be reached in time.") from None
            raise
        except MCPError as error:
            is_replaced = call.refusal and connection.client is not client
            if not may_repeat or not (call.session_lost or is_replaced):
                connection.check()
                return _to_failure(error, call, spec, connection)
        except (ValueError, RuntimeError) as error:  # the result violates the protocol
            connection.check()
            why = clean(str(error))[:_REASON_CHARS]
            fate: Fate = "not_run" if call.is_sent is False else "ran"
            return without_result(fate, why, effect=spec.effect, reason="unreadable")
        # As the protocol requires for a restarted server: a new session, and the call again.
        may_repeat = False
        with _connecting(connection.config.name):
            await connection.renew(client)
        client = connection.client
        if client is None:
            return _not_connected(name, spec.effect)


@contextmanager
def _connecting(server: str) -> Iterator[None]:
    """Say of a call that is cancelled in the block that it has not started."""
    try:
        yield
    except asyncio.CancelledError:
        raise NotStarted(f"The MCP server {server} could not be reached in time.") from None


@contextmanager
def asking(connection: McpConnection, call: McpCall) -> Iterator[None]:
    """Make ``call`` the current call of the task; during the block the server may ask the person."""
    token = CURRENT_CALL.set(call)
    connection.running += 1
    if call.ask is not None:
        connection.asks.append(call.ask)
    try:
        yield
    finally:
        connection.running -= 1
        CURRENT_CALL.reset(token)
        if call.ask is not None:
            connection.asks.remove(call.ask)


def _to_failure(error: MCPError, call: McpCall, spec: ToolSpec, connection: McpConnection) -> ToolOutcome:
    from mcp.types import CONNECTION_CLOSED, INTERNAL_ERROR, INVALID_REQUEST, PARSE_ERROR, REQUEST_TIMEOUT

    message, server = clean(error.message)[:_ERROR_CHARS], _server(connection)
    if call.refusal or call.is_sent is False:
        why = f"{server} did not run the call, {call.refusal or 'it was not sent'}: {message}."
        return without_result("not_run", why, effect=spec.effect, reason="refused")
    if error.code == UNREADABLE:
        return without_result("ran", message, effect=spec.effect, reason="unreadable")
    lost_codes = [CONNECTION_CLOSED, REQUEST_TIMEOUT]
    if connection.config.url:
        # A gateway lost its server, or the answer is not a message, for which the package makes an error.
        lost_codes += [INTERNAL_ERROR, INVALID_REQUEST, PARSE_ERROR]
    if error.code in lost_codes:
        why = f"The connection to {server[0].lower()}{server[1:]} was lost before the result came."
        return without_result("unknown", why, effect=spec.effect, reason="connection_lost")
    if error.code in _REFUSALS:
        message = f"{server} refused the call: {message}"
        return failed("tool_error", message, reason="mcp_error")
    message = f"{server} reported an error: {message}."
    return broke_off(message, effect=spec.effect, error_type="tool_error", reason="mcp_error")


# JSON-RPC's codes of a request that is not carried out: it is invalid, or its method or arguments are.
_REFUSALS = frozenset({-32600, -32601, -32602})


def _server(connection: McpConnection) -> str:
    return f"The MCP server {connection.config.name}"


def _not_connected(name: str, effect: Effect) -> ToolOutcome:
    server = name.partition(".")[0]
    why = f"The MCP server {server} is not connected, or no longer has this tool."
    return without_result("not_run", why, effect=effect, reason="not_connected")


def to_outcome(result: CallToolResult, effect: Effect) -> ToolOutcome:
    """Make the outcome of a result: its structured content or its texts; other blocks are described."""
    texts = [block.text for block in result.content if block.type == "text"]
    descriptions = []
    pictures: list[Picture] = []
    for block in result.content:
        match block.type:
            case "image" | "audio":
                if block.type == "image" and len(pictures) <= MAX_IMAGES:
                    picture = from_base64(block.mime_type, block.data)
                    pictures += [picture] if isinstance(picture, Picture) else []
                descriptions.append(media_label(block.mime_type, base64_size(block.data)))
            case "resource_link":
                descriptions.append(f"[resource {block.name}: {block.uri}]")
            case "resource":
                text = getattr(block.resource, "text", None)
                label = f"[resource {block.resource.uri}, {block.resource.mime_type or 'of unknown type'}]"
                descriptions.append(label if text is None else f"{label}\n{text}")
    text = "\n".join([*texts, *descriptions])
    if result.is_error:
        message = text[:_ERROR_CHARS] or "The tool reported an error without a message."
        outcome = failed("tool_error", message, reason="tool_error")
    elif result.structured_content is None:
        outcome = succeeded(text)
    else:
        notes = [clean(description)[:_ERROR_CHARS] for description in descriptions]
        outcome = returned(result.structured_content, effect, notes)
    return msgspec.structs.replace(outcome, pictures=tuple(pictures))
