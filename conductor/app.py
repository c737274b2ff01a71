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
from conductor.entry_points import AUTH, load
from conductor.env_file import ENV_FILE
from conductor.errors import SettingsError
from conductor.models.base import ModelProvider
from conductor.models.metrics import ModelMetrics
from conductor.models.profiles import load_profiles, models_path
from conductor.models.registry import check_local, make_router
from conductor.models.router import ModelRouter
from conductor.plugins.mcp.config import McpServerConfig, load_mcp_servers, mcp_config_path
from conductor.plugins.mcp.server import check_installed
from conductor.plugins.mcp.toolset import McpToolset
from conductor.plugins.tools.builtin import BuiltinTool, BuiltinToolset, builtin_specs, standard_tools
from conductor.plugins.tools.http_tools import HttpToolset, http_tools_path, load_http_tools
from conductor.plugins.tools.knowledge_index import KnowledgeIndex
from conductor.plugins.tools.python_tools import PythonToolset, python_tools
from conductor.prompts import identify, load_system_prompt
from conductor.rate_limit import DailyBudget
from conductor.server.listener import Listener
from conductor.server.metrics import make_metrics_endpoint
from conductor.server.page import Page
from conductor.server.workers import Worker
from conductor.settings import Settings
from conductor.stores.base import passwords
from conductor.stores.health import HealthCheckedStore
from conductor.stores.registry import make_store, open_store
from conductor.tools.audit import AuditLog
from conductor.tools.base import Toolset, ToolSpec
from conductor.tools.device import known_tools, load_catalog
from conductor.tools.metrics import ToolMetrics
from conductor.tools.permissions import GateOptions
from conductor.tools.policies import REREAD_S, PolicyFile, lint, lint_allowed, policies_path
from conductor.tools.redaction import Redactor
from conductor.tools.rules import Rule

log = structlog.get_logger(__name__)

T = TypeVar("T")

# The knowledge base's index in DATA_DIR.
KNOWLEDGE_FILE = "knowledge.db"
# Thresholds of the three gc generations, in new objects and in collections of the generation below. Reference
# counts free most of a turn's objects, so the collector may run rarely.
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
    store = HealthCheckedStore(make_store(settings), committed=session_metrics.commits.observe)
    model_metrics = ModelMetrics(metrics.registry)
    system_prompt = load_system_prompt(settings.system_prompt_file)
    toolsets: list[Toolset] = [
        BuiltinToolset(builtin_tools(settings)),
        PythonToolset(python_tools(settings.tools_path)),
        HttpToolset(http.tools),
        McpToolset(servers, roots=roots, local_only=settings.local_only, folder=mcp_folder(settings)),
    ]
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
    """Return the folder for tokens and standard error of MCP servers; None without DATA_DIR."""
    return None if settings.data_dir is None else settings.data_dir / "mcp"


def _own_names(settings: Settings) -> list[str]:
    specs = (*builtin_specs(), *(function.spec for function in python_tools(settings.tools_path)))
    return [spec.name for spec in specs]


def mcp_servers(settings: Settings, catalog: Sequence[ToolSpec]) -> tuple[McpServerConfig, ...]:
    """Read the MCP servers. Raises `SettingsError`, also if tools of the device have a server's name."""
    servers = load_mcp_servers(settings)
    for server in servers:
        tool = next((spec.name for spec in catalog if spec.name.startswith(f"{server.name}.")), None)
        if tool is not None:
            raise SettingsError(
                f'{mcp_config_path(settings)}, server "{server.name}": the device has a tool of this name '
                f"({tool}); choose another name."
            )
    return servers


def file_roots(settings: Settings) -> list[Path]:
    """Return the directories that file tools may use.

    Raises `SettingsError` for a path that is not a directory, and for one that contains the server's own
    files: a file tool could read tokens or write rules.
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
        raise SettingsError(f"KNOWLEDGE_DIR: {folder} is not a folder.")
    if settings.data_dir is None:
        raise SettingsError("KNOWLEDGE_DIR needs DATA_DIR, the folder of its index.")
    return KnowledgeIndex(folder, Path(os.path.expanduser(settings.data_dir)) / KNOWLEDGE_FILE)


def notes_dir(settings: Settings) -> Path | None:
    """Return the notes' folder. Raises `SettingsError`, as for `file_roots`."""
    return None if settings.notes_dir is None else _tools_folder("NOTES_DIR", settings.notes_dir, settings)


def _tools_folder(setting: str, name: Path, settings: Settings) -> Path:
    folder = Path(os.path.expanduser(name))
    if not os.path.isdir(folder):
        raise SettingsError(f"{setting}: {folder} is not a folder.")
    if Path(os.path.realpath(folder)).parts[1:2] in (("proc",), ("sys",)):
        raise SettingsError(f"{setting}: {folder} contains the state of the system, not files.")
    for content, path in _own_files(settings):
        if path is not None and _contains(folder, path):
            raise SettingsError(f"{setting}: {folder} contains {content} ({path}); use another folder.")
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
    # A file tool could write code that runs at the next start.
    yield "the server's code", Path(__file__).parent
    yield "installed packages", Path(sysconfig.get_path("purelib"))


def _contains(root: Path, path: Path) -> bool:
    # Compares inodes of the parents, so that case, spelling and links make no difference. A link's location
    # and its target count. A directory that is mounted twice is not recognized.
    for spelling in {os.path.abspath(path), os.path.realpath(path)}:
        for folder in (Path(spelling), *Path(spelling).parents):
            with suppress(OSError):  # it does not exist yet, or may not be read
                if os.path.samefile(folder, root):
                    return True
    return False


def secrets(settings: Settings) -> list[str]:
    """List the secrets in the settings, for redaction of tool results."""
    keys = [profile.api_key for profile in load_profiles(settings).by_name.values()]
    keys += [settings.anthropic_api_key, settings.admin_token]
    values = [key.get_secret_value() for key in keys if key is not None]
    values += [secret for server in load_mcp_servers(settings) for secret in server.secrets]
    return [
        *settings.auth_tokens,
        *values,
        *passwords(settings.store_url),
        *load_http_tools(settings).secrets,
    ]


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
        load(AUTH, settings.auth, "AUTH")(settings),
        settings.allowed_origins,
        make_metrics_endpoint(settings),
        [ipaddress.ip_network(network) for network in settings.trusted_proxies],
        worker.number if worker else None,
        lambda: not isinstance(store, HealthCheckedStore) or store.available,
        Page(token_needed=settings.authenticates) if settings.serves_page else None,
    )
    # Before listening: clients must not connect to a server that cannot save.
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
                # After the endpoint's import: two threads must not import mcp at the same time.
                if mcp is not None:
                    mcp.start(lambda: listener.reload(listener.services))
                yield listener
        finally:
            # In reverse order of the start: turns end before the model and the store close.
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


def _toolset(services: Services, kind: type[T]) -> T | None:
    return next((toolset for toolset in services.toolsets if isinstance(toolset, kind)), None)


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


def reload(settings: Settings, services: Services, listener: Listener) -> None:
    """Reload the prompt, the catalog, the rules, the models, the HTTP tools and the MCP servers.

    A mistake is logged and changes nothing.
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
        toolsets = [http if isinstance(toolset, HttpToolset) else toolset for toolset in services.toolsets]
        redactor = Redactor(secrets(settings), paths=settings.redact_paths)
        mcp = _toolset(services, McpToolset)
        if mcp is not None:
            mcp.reload(servers)
        listener.reload(replace(services, toolsets=toolsets, redactor=redactor))
        if services.tracer is not None:
            services.tracer.prompt = identify(settings.system_prompt_file, services.system_prompt)
    except SettingsError as error:
        log.error("reload failed", reason=str(error))
        return
    log.info("reloaded", sessions=len(listener.registry))


async def watch_policies(settings: Settings, listener: Listener, every: float = REREAD_S) -> None:
    """Reload the operator's rules when their file changes, and log lint findings.

    Checks every ``every`` seconds; never returns.
    """
    policies, checked = listener.services.policies, None
    while policies is not None:
        # In a thread: a network folder may hang.
        await asyncio.to_thread(policies.refresh)
        rules = policies.rules
        if rules is not listener.services.rules:
            listener.reload(replace(listener.services, rules=rules))
            log.info("policies reloaded", rules=len(rules))
        if rules is not checked:
            checked = rules
            for finding in await asyncio.to_thread(_lint, settings, rules):
                log.warning("policy finding", finding=finding)
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

    ``on_stop`` gets the number of running turns. A second signal kills the process, except a ``worker``:
    its supervisor kills it. A worker also ends when its supervisor has ended.
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
