"""Wiring: from settings to a running server."""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import os
import signal
import sysconfig
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TypeVar

import structlog

from conductor.conversation.fields import SubjectRecords
from conductor.conversation.phrases import FAILURES
from conductor.conversation.services import Services
from conductor.conversation.session_metrics import SessionMetrics
from conductor.conversation.tracing import make_tracer
from conductor.env_file import ENV_FILE
from conductor.errors import SettingsError
from conductor.models.base import ModelProvider
from conductor.models.metrics import ModelMetrics
from conductor.models.profiles import load_profiles, models_path
from conductor.models.registry import check_local, make_router
from conductor.models.router import ModelRouter
from conductor.prompts import identify, load_system_prompt
from conductor.rate_limit import DailyBudget
from conductor.server.access import Authenticator
from conductor.server.listener import Listener
from conductor.server.metrics import make_admin
from conductor.server.page import Page
from conductor.server.workers import Worker
from conductor.settings import Settings, is_loopback
from conductor.stores.health import HealthCheckedStore
from conductor.stores.registry import make_store, open_store, store_secrets
from conductor.tools.audit import AuditLog
from conductor.tools.base import ToolSpec
from conductor.tools.builtin import BuiltinTool, BuiltinToolset, builtin_specs, standard_tools
from conductor.tools.builtin.knowledge_index import KnowledgeIndex
from conductor.tools.device import known_tools, load_catalog
from conductor.tools.http_tools import HttpToolset, http_tools_path, load_http_tools
from conductor.tools.mcp.config import McpServerConfig, load_mcp_servers, mcp_config_path
from conductor.tools.mcp.server import check_installed
from conductor.tools.mcp.toolset import McpToolset
from conductor.tools.metrics import ToolMetrics
from conductor.tools.permissions import GateOptions
from conductor.tools.policies import REREAD_S, PolicyFile, lint, lint_allowed, policies_path
from conductor.tools.python_tools import PythonToolset, python_tools
from conductor.tools.redaction import Redactor
from conductor.tools.rules import Rule

log = structlog.get_logger(__name__)

T = TypeVar("T")

# The name of the knowledge base's index in DATA_DIR.
KNOWLEDGE_FILE = "knowledge.db"
# Thresholds of the three gc generations, in new objects and in collections of the generation below. A turn's
# objects are mostly freed by reference counts, so the collector may run seldom.
GC_THRESHOLDS = (10_000, 20, 50)


def make_services(settings: Settings, provider: ModelProvider | None = None) -> Services:
    """Make the services that all sessions share; ``provider`` replaces the settings' one.

    Raises `SettingsError`.
    """
    roots = file_roots(settings)
    policies = PolicyFile(policies_path(settings), required=settings.policies_file is not None)
    catalog = load_catalog(settings.device_tools_file)
    servers = mcp_servers(settings, catalog)
    http = load_http_tools(settings, _own_names(settings))
    metrics = ToolMetrics()
    session_metrics = SessionMetrics(metrics.registry)
    store = HealthCheckedStore(make_store(settings), committed=session_metrics.committed)
    model_metrics = ModelMetrics(metrics.registry)
    system_prompt = load_system_prompt(settings.system_prompt_file)
    return Services(
        store=store,
        provider=provider or make_router(load_profiles(settings), settings, model_metrics),
        toolsets=[
            BuiltinToolset(builtin_tools(settings)),
            PythonToolset(python_tools(settings.tools_path)),
            HttpToolset(http.tools),
            McpToolset(servers, roots=roots, local_only=settings.local_only, folder=mcp_folder(settings)),
        ],
        catalog=catalog,
        system_prompt=system_prompt,
        limits=settings.limits,
        interruption_mode=settings.interruption_mode,
        log_content=settings.log_content,
        speak_segments=settings.speak_segments == "always",
        bridge_phrases=settings.bridge_phrases,
        summarize_history=settings.summarize_history,
        failures=FAILURES if settings.speak_errors else {},
        metrics=metrics,
        model_metrics=model_metrics,
        session_metrics=session_metrics,
        local_only=settings.local_only,
        rules=policies.rules,
        policies=policies,
        gate_options=GateOptions.of(settings),
        audit=AuditLog(settings.audit_log) if settings.audit_log is not None else None,
        tracer=make_tracer(
            settings.otel_exporter_otlp_endpoint,
            content=settings.log_content,
            prompt=identify(settings.system_prompt_file, system_prompt),
        ),
        redactor=Redactor(secrets(settings), paths=settings.redact_paths),
        subject_records=SubjectRecords(store),
        budget=DailyBudget(settings.daily_token_budget) if settings.daily_token_budget else None,
    )


def mcp_folder(settings: Settings) -> Path | None:
    """Return the folder of what MCP servers say on standard error, and of tokens; None without DATA_DIR."""
    return None if settings.data_dir is None else settings.data_dir / "mcp"


def _own_names(settings: Settings) -> list[str]:
    specs = (*builtin_specs(), *(one.spec for one in python_tools(settings.tools_path)))
    return [spec.name for spec in specs]


def mcp_servers(settings: Settings, catalog: Sequence[ToolSpec]) -> tuple[McpServerConfig, ...]:
    """Read the MCP servers. Raises `SettingsError`, also for names that the device's tools begin with."""
    servers = load_mcp_servers(settings)
    for server in servers:
        taken = next((spec.name for spec in catalog if spec.name.startswith(f"{server.name}.")), None)
        if taken is not None:
            raise SettingsError(
                f'{mcp_config_path(settings)}, server "{server.name}": the device has tools of this name '
                f"({taken}); choose another one."
            )
    return servers


def file_roots(settings: Settings) -> list[Path]:
    """Return the directories that file tools may use.

    Raises `SettingsError` for a path that is no directory, and for one that holds the server's own files: a
    file tool could read the tokens there, or write the rules.
    """
    return [_tools_folder("FILE_ROOTS", Path(name), settings) for name in settings.file_roots]


def builtin_tools(settings: Settings) -> tuple[BuiltinTool, ...]:
    """Make the built-in tools that the settings offer. Raises `SettingsError`."""
    return standard_tools(
        file_roots=file_roots(settings),
        notes_dir=notes_dir(settings),
        knowledge=knowledge_index(settings),
        web_fetch=settings.web_fetch,
        web_search=settings.web_search,
    )


def knowledge_index(settings: Settings) -> KnowledgeIndex | None:
    """Make the index of the knowledge base. Raises `SettingsError`."""
    if settings.knowledge_dir is None:
        return None
    folder = Path(os.path.expanduser(settings.knowledge_dir))
    if not os.path.isdir(folder):
        raise SettingsError(f"KNOWLEDGE_DIR names {folder}, which is no folder.")
    if settings.data_dir is None:
        raise SettingsError("KNOWLEDGE_DIR needs DATA_DIR, the folder in which its index is kept.")
    return KnowledgeIndex(folder, Path(os.path.expanduser(settings.data_dir)) / KNOWLEDGE_FILE)


def notes_dir(settings: Settings) -> Path | None:
    """Return the notes' folder. Raises `SettingsError`, as for `file_roots`."""
    return None if settings.notes_dir is None else _tools_folder("NOTES_DIR", settings.notes_dir, settings)


def _tools_folder(setting: str, named: Path, settings: Settings) -> Path:
    folder = Path(os.path.expanduser(named))
    if not os.path.isdir(folder):
        raise SettingsError(f"{setting} names {folder}, which is no folder.")
    if Path(os.path.realpath(folder)).parts[1:2] in (("proc",), ("sys",)):
        raise SettingsError(f"{setting} names {folder}, which holds the machine's state, not files.")
    for what, path in _own_files(settings):
        if path is not None and _holds(folder, path):
            raise SettingsError(
                f"{setting} names {folder}, which holds {what} ({path}): name a folder that does not."
            )
    return folder


def _own_files(settings: Settings) -> Iterator[tuple[str, Path | None]]:
    yield "its settings", ENV_FILE
    yield "the operator's rules", policies_path(settings)
    yield "the sessions", settings.store_path if settings.store_kind == "sqlite" else settings.data_dir
    yield "the system prompt", settings.system_prompt_file
    yield "the models", models_path(settings)
    yield "the catalog of tools", settings.device_tools_file
    yield "the tools' code", settings.tools_path
    yield "the MCP servers", mcp_config_path(settings)
    yield "the HTTP tools", http_tools_path(settings)
    yield "the audit log", settings.audit_log
    # Files that are written there would run with the server's rights at the next start.
    yield "the server's code", Path(__file__).parent
    yield "installed packages", Path(sysconfig.get_path("purelib"))


def _holds(root: Path, path: Path) -> bool:
    # Compares inodes of the parents, so that another case, spelling or link makes no difference. The
    # place of a link and its target both count. It does not see a directory that is mounted twice.
    for spelling in {os.path.abspath(path), os.path.realpath(path)}:
        for folder in (Path(spelling), *Path(spelling).parents):
            with suppress(OSError):  # it does not exist yet, or may not be read
                if os.path.samefile(folder, root):
                    return True
    return False


def secrets(settings: Settings) -> list[str]:
    """List the secrets in the settings, for redaction of tool results."""
    keys = [profile.api_key for profile in load_profiles(settings).by_name.values()]
    known = [settings.anthropic_api_key, *keys, settings.admin_token]
    given = [secret.get_secret_value() for secret in known if secret is not None]
    taken = [secret for server in load_mcp_servers(settings) for secret in server.secrets]
    taken += load_http_tools(settings).secrets
    return [*settings.auth_tokens, *given, *store_secrets(settings), *taken]


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
        Authenticator(settings.auth_tokens),
        settings.allowed_origins,
        make_admin(settings),
        [ipaddress.ip_network(network) for network in settings.trusted_proxies],
        worker.number if worker else None,
        lambda: not isinstance(store, HealthCheckedStore) or store.available,
        Page(token_needed=bool(settings.auth_tokens)) if settings.serves_page else None,
    )
    # Before listening: a client must not be told to speak to a server that cannot save.
    await open_store(store)
    try:
        await listener.start(settings.host, settings.port)
        # Listen first: importing a model's library may take seconds, and /healthz must answer.
        warming_up = asyncio.create_task(_warm_up(services.provider, when_warm))
        builtin, mcp = _toolset(services, BuiltinToolset), _toolset(services, McpToolset)
        if builtin is not None:
            builtin.start()
        try:
            async with _mcp_server(settings, listener):
                # Once the endpoint has been imported: two threads that import mcp at once may see half of it.
                if mcp is not None:
                    mcp.start(lambda: listener.reload(listener.services))
                yield listener
        finally:
            # The order of the start backwards: turns end while the model and the store are still there.
            await listener.stop()
            if services.tracer is not None:
                await asyncio.to_thread(services.tracer.close)
            warming_up.cancel()
            await asyncio.wait([warming_up], timeout=services.limits.close_timeout)
            if builtin is not None:
                await builtin.aclose()
            if mcp is not None:
                await mcp.aclose()
            await services.provider.aclose()
    finally:
        await store.aclose()


@asynccontextmanager
async def _mcp_server(settings: Settings, listener: Listener) -> AsyncIterator[None]:
    if not settings.mcp_server:
        yield
        return
    check_installed()
    if settings.mcp_port is not None and settings.workers > 1:
        raise SettingsError("MCP_PORT needs one process: unset WORKERS, or leave MCP_PORT out.")
    # In a thread: the import takes a second.
    module = await asyncio.to_thread(import_module, "conductor.server.mcp_endpoint")
    endpoint = module.McpEndpoint(listener)
    listener.mcp = endpoint
    try:
        if settings.mcp_port is None:
            yield
        else:
            async with endpoint.serving_http(settings.host, settings.mcp_port) as port:
                log.info("MCP over HTTP", port=port)
                yield
    finally:
        listener.mcp = None
        endpoint.close()


def _toolset(services: Services, kind: type[T]) -> T | None:
    return next((toolset for toolset in services.toolsets if isinstance(toolset, kind)), None)


async def _warm_up(provider: ModelProvider, when_warm: Callable[[], None]) -> None:
    try:
        await provider.start()
    except Exception:
        # The first request tries again, and reports the error to the client.
        log.exception("model provider not ready", provider=provider.name)
    when_warm()


def settle_memory() -> None:
    """Exempt all imported objects from garbage collection, and collect less often.

    A full collection blocked the event loop for a tenth of a second.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def check_exposure(settings: Settings, *, insecure: bool) -> None:
    """Refuse to listen beyond loopback without tokens, unless ``insecure``."""
    if settings.auth_tokens or insecure or is_loopback(settings.host):
        return
    raise SettingsError(
        f"Listening on {settings.host} lets everyone on the network in: set AUTH_TOKENS, "
        "or give --insecure-no-auth if that is meant."
    )


def reload(settings: Settings, services: Services, listener: Listener) -> None:
    """Reload the prompt, the catalog, the rules, the models, the HTTP tools and the MCP servers.

    On a mistake log it and change nothing.
    """
    try:
        services = replace(
            services,
            catalog=load_catalog(settings.device_tools_file),
            system_prompt=load_system_prompt(settings.system_prompt_file),
        )
        servers = mcp_servers(settings, services.catalog)
        if services.policies is not None:
            services.policies.refresh()
            if services.policies.problem:
                raise SettingsError(services.policies.problem)
            services = replace(services, rules=services.policies.rules)
        if isinstance(services.provider, ModelRouter):
            profiles = load_profiles(settings)
            check_local(profiles, settings)
            services.provider.reload(profiles)
        http = HttpToolset(load_http_tools(settings, _own_names(settings)).tools)
        toolsets = [http if isinstance(one, HttpToolset) else one for one in services.toolsets]
        redactor = Redactor(secrets(settings), paths=settings.redact_paths)  # there may be other keys
        mcp = _toolset(services, McpToolset)
        if mcp is not None:
            mcp.reload(servers)
        listener.reload(replace(services, toolsets=toolsets, redactor=redactor))
        if services.tracer is not None:
            services.tracer.prompt = identify(settings.system_prompt_file, services.system_prompt)
    except SettingsError as error:
        log.error("not reloaded", why=str(error))
        return
    log.info("reloaded", sessions=len(listener.registry))


async def watch_policies(settings: Settings, listener: Listener, every: float = REREAD_S) -> None:
    """Reload the operator's rules when their file changes, and log lint findings.

    Checks every ``every`` seconds; never returns.
    """
    policies, checked = listener.services.policies, None
    while policies is not None:
        # In a thread: a folder on a network may hang.
        await asyncio.to_thread(policies.refresh)
        rules = policies.rules
        if rules is not listener.services.rules:
            listener.reload(replace(listener.services, rules=rules))
            log.info("policies reloaded", rules=len(rules))
        # Findings are logged once for each version of the rules.
        if rules is not checked:
            checked = rules
            for finding in await asyncio.to_thread(_lint, settings, rules):
                log.warning("policies", note=finding)
        await asyncio.sleep(every)


def _lint(settings: Settings, rules: Sequence[Rule]) -> list[str]:
    try:
        tools = known_tools(settings)
    except SettingsError:  # `reload` reports an invalid catalog
        return []
    allowed = [f"ALLOWED_TOOLS {finding}." for finding in lint_allowed(settings.allowed_tools, tools)]
    return [*lint(rules, tools, now=time.time()), *allowed]


async def serve(
    settings: Settings,
    announce: Callable[[Listener], None],
    worker: Worker | None = None,
    on_stop: Callable[[int], None] = lambda _: None,
) -> None:
    """Serve until SIGTERM or SIGINT, then let running turns end. Raises `SettingsError`.

    ``on_stop`` gets the number of running turns; a second signal kills the process. A ``worker`` leaves that
    to its parent, and also ends when the parent has ended.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def interrupt(signum: signal.Signals) -> None:
        if stop.is_set() and worker is None:
            signal.signal(signum, signal.SIG_DFL)
            signal.raise_signal(signum)
        stop.set()

    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, interrupt, signum)
    if worker is not None:
        worker.watch(stop.set)
    services = make_services(settings)
    async with running(settings, services, settle_memory, worker) as listener:
        loop.add_signal_handler(signal.SIGHUP, reload, settings, services, listener)
        watching = asyncio.create_task(watch_policies(settings, listener))
        announce(listener)
        await stop.wait()
        watching.cancel()
        turns = sum(session.busy for session in listener.registry.sessions)
        log.info("stopping", sessions=len(listener.registry), connections=listener.connections, turns=turns)
        on_stop(turns)
