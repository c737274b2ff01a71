"""Wiring: from settings to a running server."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import structlog

from conductor.conversation.phrases import FAILURES
from conductor.entry_points import AUTH, ENDPOINTS, choose, plugins
from conductor.errors import SettingsError
from conductor.models.base import ModelProvider
from conductor.models.budget import Amount, DailyBudget
from conductor.models.metrics import ModelMetrics
from conductor.models.profiles import load_profiles
from conductor.models.registry import make_router
from conductor.observers.turns import SessionMetrics, TurnObservers
from conductor.prompts import identify, load_system_prompt
from conductor.server.auth import ONE_TIME, Authenticator, Authenticators
from conductor.server.listener import Listener
from conductor.session.fields import SubjectRecords
from conductor.session.services import Services
from conductor.settings import Settings
from conductor.stores.base import SessionLog
from conductor.stores.health import HealthCheckedStore
from conductor.stores.registry import make_store, open_store
from conductor.tools.audit import AuditLog
from conductor.tools.base import ToolSpec
from conductor.tools.declarations import load_catalog
from conductor.tools.judge import ApprovalJudge
from conductor.tools.metrics import ToolMetrics
from conductor.tools.permissions import GateOptions
from conductor.tools.policies import PolicyFile, policies_path
from conductor.tools.toolsets import make_redactor, make_toolsets

log = structlog.get_logger(__name__)

# Seconds until a server is ready that is not warm: a model's service may be away, or load a model.
WARM_UP_S = 60.0


def make_services(settings: Settings, provider: ModelProvider | None = None) -> Services:
    """Make the services that all sessions share; ``provider`` replaces the settings' one.

    Raises `SettingsError`.
    """
    toolsets = make_toolsets(settings)
    file = PolicyFile(policies_path(settings), required=settings.policies_file is not None)
    catalog = load_catalog(settings.device_tools_file)
    metrics = ToolMetrics()
    session_metrics = SessionMetrics(metrics.registry)
    store = HealthCheckedStore(make_store(settings), committed=session_metrics.commits.observe)
    model_metrics = ModelMetrics(metrics.registry)
    system_prompt = load_system_prompt(settings.system_prompt_file)
    observers = TurnObservers(session_metrics, log_content=settings.log_content)
    observers.prompt = identify(settings.system_prompt_file, system_prompt)
    for spec in (*catalog, *(spec for toolset in toolsets for spec in toolset.specs())):
        _ = spec.definition  # made now, not in the first turn
    return Services(
        store=store,
        provider=provider or make_router(load_profiles(settings), settings, model_metrics),
        toolsets=toolsets,
        catalog=catalog,
        system_prompt=system_prompt,
        catalog_name=settings.device_tools_file.name,
        limits=settings.limits,
        interruption_mode=settings.interruption_mode,
        speak_segments=settings.speak_segments == "always",
        bridge_phrases=settings.bridge_phrases,
        summarize_history=settings.summarize_history,
        failures=FAILURES if settings.speak_errors else {},
        metrics=metrics,
        model_metrics=model_metrics,
        local_only=settings.local_only,
        inspect=settings.inspectors,
        policies=file.policies,
        policy_file=file,
        gate_options=GateOptions.of(settings),
        audit=AuditLog(settings.audit_log) if settings.audit_log is not None else None,
        observers=observers,
        redactor=make_redactor(settings, toolsets),
        subject_records=SubjectRecords(store),
        budget=_make_budget(settings, store),
    )


def _make_budget(settings: Settings, store: SessionLog) -> DailyBudget | None:
    limit = Amount(settings.daily_token_budget, settings.daily_cost_budget)
    return None if limit == Amount() else DailyBudget(limit, SubjectRecords(store, "$spent"))


def make_authenticator(settings: Settings, store: SessionLog) -> Authenticators:
    """Make the authenticators of AUTH, in its order. Raises `SettingsError`."""
    parts = {name: choose(AUTH, name, "AUTH") for name in settings.auth}
    if ONE_TIME in parts and not settings.api_keys:
        raise SettingsError("AUTH lists one_time, and one-time tokens need API_KEYS.")
    return Authenticators(
        {
            name: part.make(Authenticator, store if name == ONE_TIME else settings)
            for name, part in parts.items()
        }
    )


@asynccontextmanager
async def running(
    settings: Settings,
    services: Services | None = None,
    when_warm: Callable[[], None] = lambda: None,
    worker: int | None = None,
) -> AsyncIterator[Listener]:
    """Run a server during the block; its ``ready`` is set once the first turn would find all of it loaded.

    ``when_warm`` is called before. ``worker`` is the number of this process, if there are several. Raises
    `SettingsError`.
    """
    services = services or make_services(settings)
    store = services.store
    listener = Listener(
        services,
        make_authenticator(settings, store),
        settings.allowed_origins,
        [ipaddress.ip_network(network) for network in settings.trusted_proxies],
        worker=worker,
        store_available=lambda: not isinstance(store, HealthCheckedStore) or store.available,
    )
    # Their settings are validated before the port is open; they start behind it.
    endpoints = [plugin.load()(listener, settings) for plugin in plugins(ENDPOINTS).values()]
    # Before listening: clients must not connect to a server that cannot save.
    await open_store(store, settings)
    try:
        # Listen first: importing a model's library may take seconds, and /healthz must answer.
        await listener.start(settings.host, settings.port, ready=False)
        tasks = [warming_up := asyncio.create_task(_warm_up(services, when_warm))]
        try:
            async with AsyncExitStack() as stack:
                for endpoint in endpoints:
                    await stack.enter_async_context(endpoint)
                for toolset in services.toolsets:
                    await toolset.start(lambda: listener.reload(replace(listener.services)))
                tasks.append(asyncio.create_task(_report_ready(listener, warming_up)))
                yield listener
        finally:
            for task in tasks:
                task.cancel()
            # In reverse order of the start: turns end before the model and the store close.
            await listener.stop()
            if services.budget is not None:
                await services.budget.aclose()
            await asyncio.to_thread(services.observers.close)
            await asyncio.wait(tasks, timeout=services.limits.close_timeout)
            for toolset in listener.services.toolsets:
                await toolset.aclose()
            await services.provider.aclose()
    finally:
        await store.aclose()


async def _warm_up(services: Services, when_warm: Callable[[], None]) -> None:
    provider, judges = await asyncio.gather(
        services.provider.start(), asyncio.to_thread(_use_judges, services.judges), return_exceptions=True
    )
    if isinstance(provider, Exception):
        # The first request tries again and reports the error to the client.
        log.error("model provider did not start", provider=services.provider.name, exc_info=provider)
    if isinstance(judges, Exception):
        log.error("judges not ready", exc_info=judges)
    when_warm()


def _use_judges(judges: Mapping[str, ApprovalJudge[Any]]) -> None:
    """Have each judge read its words: the first spoken question must not wait for them."""
    for judge in judges.values():
        question = judge.question(ToolSpec(name="tool", description="", input_schema={}), {})
        judge.prompt(question, 1)
        judge.classify("yes", question)


async def _report_ready(listener: Listener, warming_up: asyncio.Task[None]) -> None:
    await asyncio.wait([warming_up], timeout=WARM_UP_S)
    listener.ready.set()
