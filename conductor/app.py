"""Wiring: from settings to a running server."""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import structlog

from conductor.conversation.ledger import SubjectRecords
from conductor.conversation.phrases import FAILURES
from conductor.conversation.services import Services, Webhooks
from conductor.entry_points import ENDPOINTS, plugins
from conductor.models.base import ModelProvider
from conductor.models.budget import Amount, DailyBudget
from conductor.models.metrics import ModelMetrics
from conductor.models.profiles import load_profiles
from conductor.models.registry import make_router
from conductor.observers.tracing import make_tracer
from conductor.observers.turns import SessionMetrics, TurnObservers
from conductor.prompts import identify, load_system_prompt
from conductor.reload import make_authenticator, reload, watch_policies
from conductor.server.api_keys import make_api_keys
from conductor.server.listener import Listener
from conductor.server.metrics import make_metrics_endpoint
from conductor.server.page import make_page
from conductor.server.terminal import Terminal
from conductor.server.webhook_file import load_webhooks
from conductor.server.workers import Worker
from conductor.settings import Settings
from conductor.stores.base import SessionLog
from conductor.stores.health import HealthCheckedStore
from conductor.stores.registry import make_store, open_store
from conductor.tools.audit import AuditLog
from conductor.tools.device import load_catalog
from conductor.tools.metrics import ToolMetrics
from conductor.tools.permissions import GateOptions
from conductor.tools.policies import PolicyFile, policies_path
from conductor.tools.toolsets import make_redactor, make_toolsets

log = structlog.get_logger(__name__)

# Thresholds of the three gc generations, in new objects and in collections of the generation below. Reference
# counts free most of a turn's objects, so the collector may run rarely.
GC_THRESHOLDS = (10_000, 20, 50)


def make_services(settings: Settings, provider: ModelProvider | None = None) -> Services:
    """Make the services that all sessions share; ``provider`` replaces the settings' one.

    Raises `SettingsError`.
    """
    toolsets = make_toolsets(settings)
    policies = PolicyFile(policies_path(settings), required=settings.policies_file is not None)
    catalog = load_catalog(settings.device_tools_file)
    metrics = ToolMetrics()
    session_metrics = SessionMetrics(metrics.registry)
    store = HealthCheckedStore(make_store(settings), committed=session_metrics.commits.observe)
    model_metrics = ModelMetrics(metrics.registry)
    system_prompt = load_system_prompt(settings.system_prompt_file)
    tracer = make_tracer(settings.otel_exporter_otlp_endpoint, content=settings.log_content)
    observers = TurnObservers(session_metrics, tracer, log_content=settings.log_content)
    observers.prompt = identify(settings.system_prompt_file, system_prompt)
    webhooks = load_webhooks(settings)
    for spec in (*catalog, *(spec for toolset in toolsets for spec in toolset.specs())):
        _ = spec.definition  # made now, not in the first turn
    return Services(
        store=store,
        provider=provider or make_router(load_profiles(settings), settings, model_metrics),
        toolsets=toolsets,
        catalog=catalog,
        system_prompt=system_prompt,
        limits=settings.limits,
        interruption_mode=settings.interruption_mode,
        speak_segments=settings.speak_segments == "always",
        bridge_phrases=settings.bridge_phrases,
        summarize_history=settings.summarize_history,
        failures=FAILURES if settings.speak_errors else {},
        metrics=metrics,
        model_metrics=model_metrics,
        local_only=settings.local_only,
        inspect=settings.allows_inspect,
        rules=policies.rules,
        policies=policies,
        gate_options=GateOptions.of(settings),
        audit=AuditLog(settings.audit_log) if settings.audit_log is not None else None,
        observers=observers,
        webhooks=Webhooks(webhooks.events if webhooks is not None else ()),
        redactor=make_redactor(settings, toolsets),
        subject_records=SubjectRecords(store),
        budget=_make_budget(settings, store),
    )


def _make_budget(settings: Settings, store: SessionLog) -> DailyBudget | None:
    person = Amount(settings.daily_token_budget, settings.daily_cost_budget)
    tenant = Amount(settings.tenant_daily_token_budget, settings.tenant_daily_cost_budget)
    if person == tenant == Amount():
        return None
    return DailyBudget(person, tenant, SubjectRecords(store, "$spent"))


@asynccontextmanager
async def running(
    settings: Settings,
    services: Services | None = None,
    when_warm: Callable[[], None] = lambda: None,
    worker: Worker | None = None,
) -> AsyncIterator[Listener]:
    """Run a server during the block; ``when_warm`` is called when the model provider is loaded.

    ``worker`` is this process, if it is one of several. Raises `SettingsError`.
    """
    services = services or make_services(settings)
    store = services.store
    listener = Listener(
        services,
        make_authenticator(settings, store),
        settings.allowed_origins,
        make_metrics_endpoint(settings),
        [ipaddress.ip_network(network) for network in settings.trusted_proxies],
        worker.number if worker else None,
        lambda: not isinstance(store, HealthCheckedStore) or store.available,
        make_page(settings),
    )
    listener.api_keys = make_api_keys(settings)
    # Before listening: clients must not connect to a server that cannot save.
    await open_store(store, settings)
    try:
        await listener.start(settings.host, settings.port)
        # Listen first: importing a model's library may take seconds, and /healthz must answer.
        warming_up = asyncio.create_task(_warm_up(services.provider, when_warm))
        try:
            async with AsyncExitStack() as endpoints:
                for plugin in plugins(ENDPOINTS).values():
                    await endpoints.enter_async_context(plugin.load()(listener, settings))
                for toolset in services.toolsets:
                    await toolset.start(lambda: listener.reload(listener.services))
                yield listener
        finally:
            # In reverse order of the start: turns end before the model and the store close.
            await listener.stop()
            if services.budget is not None:
                await services.budget.aclose()
            await asyncio.to_thread(services.observers.close)
            warming_up.cancel()
            await asyncio.wait([warming_up], timeout=services.limits.close_timeout)
            for toolset in listener.services.toolsets:
                await toolset.aclose()
            await services.provider.aclose()
    finally:
        await store.aclose()


async def _warm_up(provider: ModelProvider, when_warm: Callable[[], None]) -> None:
    try:
        await provider.start()
    except Exception:
        # The first request tries again and reports the error to the client.
        log.exception("model provider did not start", provider=provider.name)
    when_warm()


def settle_memory() -> None:
    """Exempt all imported objects from garbage collection, and collect less often.

    A full collection blocks the event loop for a tenth of a second.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


async def serve(
    settings: Settings,
    read: Callable[[], Settings],
    announce: Callable[[Listener], None],
    worker: Worker | None = None,
    on_stop: Callable[[int], None] = lambda _: None,
) -> None:
    """Serve until SIGTERM or SIGINT, then let running turns end. Raises `SettingsError`.

    ``read`` reads the settings again. ``on_stop`` gets the number of running turns. A second signal kills the
    process, except a ``worker``: its supervisor kills it. A worker also ends when its supervisor has ended.
    """
    stop, terminal = asyncio.Event(), Terminal()
    loop = asyncio.get_running_loop()

    def interrupt(signum: signal.Signals) -> None:
        if stop.is_set() and worker is None:
            signal.signal(signum, signal.SIG_DFL)
            signal.raise_signal(signum)
        stop.set()

    def hang_up() -> None:
        nonlocal settings
        if terminal.is_closed():
            stop.set()
        else:
            settings = reload(settings, services, listener, read)

    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, interrupt, signum)
    if worker is not None:
        worker.watch(stop.set)
    services = make_services(settings)
    async with running(settings, services, settle_memory, worker) as listener:
        loop.add_signal_handler(signal.SIGHUP, hang_up)
        watching = asyncio.create_task(watch_policies(settings, listener))
        announce(listener)
        await stop.wait()
        watching.cancel()
        turns = sum(session.busy for session in listener.registry.sessions)
        log.info("stopping", sessions=len(listener.registry), connections=listener.connections, turns=turns)
        on_stop(turns)
    log.info("stopped")
