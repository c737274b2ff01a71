"""Servers for the end-to-end tests, on loopback and a free port."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from conductor.app import make_services
from conductor.models.base import ModelProvider
from conductor.server.auth import Authenticator
from conductor.server.listener import Listener
from conductor.settings import load_settings
from tests.end_to_end.phone import Phone


class Served:
    """A running server and how to reach it."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.url = f"ws://127.0.0.1:{listener.port}/ws"

    def phone(self, session_id: str = "s-1", **options: Any) -> Phone:
        return Phone(self.url, session_id, **options)


Serve = Callable[..., AbstractAsyncContextManager[Served]]


@pytest.fixture
def serve() -> Serve:
    """Start a server with a model provider; keyword arguments are limits, or ``settings`` overrides."""

    @asynccontextmanager
    async def start(
        provider: ModelProvider, *, tokens: tuple[str, ...] = (), mode: str = "cancel", **limits: Any
    ) -> AsyncIterator[Served]:
        settings = load_settings(None, interruption_mode=mode)
        services = make_services(settings, provider)
        services = replace(services, limits=replace(services.limits, **limits))
        listener = Listener(services, Authenticator(tokens))
        await listener.start("127.0.0.1", 0)
        try:
            yield Served(listener)
        finally:
            await listener.stop(drain_s=0)
            await provider.aclose()

    return start
