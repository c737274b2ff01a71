"""Start the delivery of webhooks, if there is a webhooks.toml."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

from conductor.plugins.addresses import is_local
from conductor.plugins.webhooks.file import WebhookFile, load_webhooks
from conductor.server.listener import Listener
from conductor.session.fields import SubjectRecords
from conductor.settings import Settings

# Seconds after which an event is given up, and the part of the time that a session is kept: its events go
# with it.
PATIENCE_S, KEPT = 86_400.0, 0.9


def serve(listener: Listener, settings: Settings) -> AbstractAsyncContextManager[None]:
    """Deliver the events of sessions during the block. Raises `SettingsError`."""
    file = load_webhooks(settings)
    if file is None:
        return nullcontext()
    listener.services.webhooks.events = file.events
    listener.redact(file.secrets, settings)
    return _delivering(listener, settings, file)


@asynccontextmanager
async def _delivering(listener: Listener, settings: Settings, file: WebhookFile) -> AsyncIterator[None]:
    # Only here: a server without webhooks does not import the HTTP client.
    from conductor.plugins.http_client import AiohttpTransport
    from conductor.plugins.webhooks.delivery import Deliverer
    from conductor.plugins.webhooks.pickup import Pickup

    services = listener.services
    transport = AiohttpTransport(permits=is_local if settings.local_only else None)
    patience_s = min(PATIENCE_S, settings.session_ttl_s * KEPT)
    deliverer = Deliverer(file, transport, SubjectRecords(services.store), patience_s)
    services.webhooks.delivery = deliverer
    for session in listener.registry.sessions:  # that connected before
        if session.state.webhook_events:
            deliverer.wake(session)
    # Sessions in memory end with their process.
    picking_up = asyncio.create_task(Pickup(listener, deliverer).run()) if services.store.durable else None
    try:
        yield
    finally:
        if picking_up is not None:
            picking_up.cancel()
            await asyncio.wait([picking_up], timeout=services.limits.close_timeout)
        services.webhooks.delivery = None
        await deliverer.aclose()
        await transport.aclose()
