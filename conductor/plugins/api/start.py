"""Start the API, if API_KEYS is set."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from conductor.server.listener import Listener
from conductor.settings import Settings


@asynccontextmanager
async def serve(listener: Listener, settings: Settings) -> AsyncIterator[None]:
    """Serve the app's backend during the block."""
    if not settings.api_keys:
        yield
        return
    # Only here: a server without keys does not import the HTTP server.
    from conductor.plugins.api.service import serving_api

    async with serving_api(listener):
        yield
