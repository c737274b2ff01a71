"""Start Conductor's own MCP server, if MCP_SERVER is set."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module

from conductor.plugins.mcp.server import check_installed
from conductor.server.listener import Listener
from conductor.settings import Settings


@asynccontextmanager
async def serve(listener: Listener, settings: Settings) -> AsyncIterator[None]:
    """Serve MCP clients during the block. Raises `SettingsError`."""
    if not settings.mcp_server:
        yield
        return
    check_installed()
    # In a thread: the import takes a second.
    module = await asyncio.to_thread(import_module, "conductor.plugins.mcp.endpoint")
    async with module.McpEndpoint(listener).serving():
        yield
