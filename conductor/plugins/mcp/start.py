"""Start Conductor's own MCP server, if MCP_SERVER is set."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module

import structlog

from conductor.errors import SettingsError
from conductor.plugins.mcp.server import check_installed
from conductor.server.listener import Listener
from conductor.settings import Settings

log = structlog.get_logger(__name__)


@asynccontextmanager
async def serve(listener: Listener, settings: Settings) -> AsyncIterator[None]:
    """Serve MCP clients during the block. Raises `SettingsError`."""
    if not settings.mcp_server:
        yield
        return
    check_installed()
    if settings.mcp_port is not None and settings.workers > 1:
        raise SettingsError("MCP_PORT needs a single process; set WORKERS=1 or unset MCP_PORT.")
    # In a thread: the import takes a second.
    module = await asyncio.to_thread(import_module, "conductor.plugins.mcp.endpoint")
    endpoint = module.McpEndpoint(listener)
    listener.serve_mcp = endpoint.serve_socket
    try:
        if settings.mcp_port is None:
            yield
        else:
            async with endpoint.serving_http(settings.host, settings.mcp_port) as port:
                log.info("MCP server listening", port=port)
                yield
    finally:
        listener.serve_mcp = None
