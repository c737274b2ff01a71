"""Servers for the end-to-end tests, on loopback and a free port."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conductor.app import make_services, running
from conductor.commands.reload import reload
from conductor.models.base import ModelProvider
from conductor.plugins.auth.tokens import TokenAuthenticator
from conductor.plugins.models.anthropic import AnthropicProvider
from conductor.server.listener import Listener
from conductor.session.services import Services
from conductor.settings import Settings, load_settings
from tests.app import App
from tests.conftest import IOS_CATALOG
from tests.models import AnthropicService
from tests.server.wires import until


class Served:
    """A running server and how to reach it."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.url = f"ws://127.0.0.1:{listener.port}/ws"

    def phone(self, session_id: str = "s-1", **options: Any) -> App:
        return App(self.url, session_id, **options)

    async def quiet(self) -> None:
        """Wait until no session has a turn running."""
        await until(lambda: not any(session.busy for session in self.listener.registry.sessions))

    async def empty(self) -> None:
        """Wait until the server has noticed that every connection is gone."""
        await until(lambda: not self.listener.connections)


@asynccontextmanager
async def serving(
    provider: ModelProvider,
    *,
    tokens: tuple[str, ...] = (),
    mode: str = "cancel",
    speak_errors: bool = True,
    **limits: Any,
) -> AsyncIterator[Served]:
    """Run a server; the other keyword arguments are fields of `Limits`."""
    settings = load_settings(
        None, interruption_mode=mode, speak_errors=speak_errors, device_tools_file=IOS_CATALOG
    )
    limits.setdefault("turns_per_minute", 1e6)
    limits.setdefault("subject_turns_per_minute", 1e6)
    limits.setdefault("calls_per_minute", 1e6)
    limits.setdefault("open_microphone", 0.0)
    limits.setdefault("model_retry", 0.001)
    services = make_services(settings, provider)
    services = replace(services, limits=replace(services.limits, **limits))
    listener = Listener(services, TokenAuthenticator(tokens))
    await services.store.open()
    await listener.start("127.0.0.1", 0)
    await provider.start()
    try:
        yield Served(listener)
    finally:
        await listener.stop(drain_s=0)
        await services.store.aclose()
        await provider.aclose()


@pytest.fixture
async def claude() -> AsyncIterator[AnthropicService]:
    """Run the strict stand-in for Claude; a request that it refuses fails the test."""
    async with AnthropicService() as service:
        yield service
        assert not service.refused, list(service.refused)


def provider_for(service: AnthropicService, **options: Any) -> AnthropicProvider:
    """Make the real provider of the stand-in."""
    return service.provider(**options)


# -- a server by its settings


class Configured(Served):
    """A running server, wired by the settings alone."""

    def __init__(self, listener: Listener, settings: Settings, services: Services) -> None:
        super().__init__(listener)
        self.settings = settings
        self.services = services

    def reload(self) -> None:
        """Reload, as SIGHUP does."""
        reload(self.settings, self.services, self.listener)


@asynccontextmanager
async def configured(claude: AnthropicService, folder: Path, **values: Any) -> AsyncIterator[Configured]:
    """Run a server as the program does, with a rules file in ``folder``; ``values`` are settings."""
    if not (folder / "policies.json").exists():
        write_rules(folder)
    rules = folder / "policies.json"
    settings = load_settings(
        None, port=0, policies_file=rules, session_rate_limit_per_min=1_000_000, **values
    )
    provider = provider_for(claude)
    await provider.start()
    services = make_services(settings, provider)
    services = replace(services, limits=replace(services.limits, open_microphone=0.0))
    async with running(settings, services) as listener:
        yield Configured(listener, settings, services)


def write_rules(folder: Path, *rules: dict[str, Any]) -> None:
    (folder / "policies.json").write_text(json.dumps({"version": 1, "rules": list(rules)}))
