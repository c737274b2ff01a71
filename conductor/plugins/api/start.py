"""Start the API, if API_KEYS is set."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext

from conductor.plugins.api.keys import ApiKeys
from conductor.server.listener import Listener
from conductor.settings import Settings


def serve(listener: Listener, settings: Settings) -> AbstractAsyncContextManager[None]:
    """Serve the app's backend during the block. Raises `SettingsError`."""
    keys = ApiKeys()
    listener.configure(keys.prepare, settings)
    if not settings.api_keys:
        return nullcontext()
    # Only here: a server without keys does not import the HTTP server.
    from conductor.plugins.api.service import serving_api

    return serving_api(listener, keys)
