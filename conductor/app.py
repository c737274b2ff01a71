"""Wiring: from settings to a running server."""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

import structlog

from conductor.conversation.lasting import LastingGrants
from conductor.conversation.sentences import FAILURES
from conductor.conversation.services import Services
from conductor.errors import SettingsError, StoreUnavailable
from conductor.models.base import ModelProvider
from conductor.models.registry import make_provider
from conductor.prompts import load_system_prompt
from conductor.server.admin import make_admin
from conductor.server.auth import Authenticator
from conductor.server.listener import Listener
from conductor.server.worker import Worker
from conductor.settings import Settings
from conductor.stores.registry import make_store
from conductor.stores.watched import WatchedStore
from conductor.tools.builtin import BuiltinToolset, standard_tools
from conductor.tools.catalog import load_catalog
from conductor.tools.permissions import GateOptions
from conductor.tools.policies import load as load_policies
from conductor.tools.policies import policies_path
from conductor.tools.redaction import Redactor

log = structlog.get_logger(__name__)

GC_THRESHOLDS = (10_000, 20, 50)
"""Objects until a collection of the youngest, and how many of those until one of the next and of all."""


def make_services(settings: Settings, provider: ModelProvider | None = None) -> Services:
    """Put together what all sessions share; ``provider`` stands in for the settings' one.

    Raises `SettingsError`.
    """
    if settings.policies_file is not None and not settings.policies_file.exists():
        raise SettingsError(f"POLICIES_FILE names {settings.policies_file}, which is not there.")
    policies = load_policies(policies_path(settings))
    store = WatchedStore(make_store(settings))
    return Services(
        store=store,
        provider=provider or make_provider(settings),
        toolsets=[BuiltinToolset(standard_tools(file_roots=file_roots(settings)))],
        catalog=load_catalog(settings.device_tools_file),
        system_prompt=load_system_prompt(settings.system_prompt_file),
        limits=settings.limits,
        interruption_mode=settings.interruption_mode,
        log_content=settings.log_content,
        failures=FAILURES if settings.speak_errors else {},
        rules=policies.gate_rules,
        gate_options=GateOptions.of(settings),
        redactor=Redactor(secrets(settings), paths=settings.redact_paths),
        lasting_grants=LastingGrants(store),
    )


def file_roots(settings: Settings) -> list[Path]:
    """Give the folders that file tools may use. Raises `SettingsError` for one that is none."""
    roots = [Path(name).expanduser() for name in settings.file_roots]
    for root in roots:
        if not root.is_dir():
            raise SettingsError(f"FILE_ROOTS names {root}, which is no folder.")
    return roots


def secrets(settings: Settings) -> list[str]:
    """List the secrets that the process knows, so that no tool's output shows one to anybody."""
    known = [settings.anthropic_api_key, settings.admin_token]
    given = [secret.get_secret_value() for secret in known if secret is not None]
    password = urlsplit(settings.store_url).password
    return [*settings.auth_tokens, *given, *([unquote(password)] if password else [])]


@asynccontextmanager
async def running(
    settings: Settings,
    services: Services | None = None,
    when_warm: Callable[[], None] = lambda: None,
    worker: Worker | None = None,
) -> AsyncIterator[Listener]:
    """Run a server for the time of the block; ``when_warm`` is called once all is loaded.

    ``worker`` is this process's part where several are one server. Raises `SettingsError`.
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
        lambda: not isinstance(store, WatchedStore) or store.available,
    )
    try:
        await store.open()
    except StoreUnavailable as error:
        raise SettingsError(f"SESSION_STORE_URL: {error}") from None
    try:
        await listener.start(settings.host, settings.port, worker.sockets() if worker else ())
        # The port is open at once; a large SDK is imported meanwhile.
        warming_up = asyncio.create_task(_warm_up(services.provider, when_warm))
        try:
            yield listener
        finally:
            await listener.stop()
            warming_up.cancel()
            await asyncio.wait([warming_up], timeout=services.limits.close_timeout)
            await services.provider.aclose()
    finally:
        await store.aclose()


async def _warm_up(provider: ModelProvider, when_warm: Callable[[], None]) -> None:
    try:
        await provider.start()
    except Exception:
        # The first request tries again, and then the user is told.
        log.exception("model provider not ready", provider=provider.name)
    when_warm()


def settle_memory() -> None:
    """Keep the garbage collector from looking through all that was imported, again and again.

    Each time that took a tenth of a second, in which nobody was served. What a turn leaves is mostly freed
    without the collector, so it may also run less often.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def check_exposure(settings: Settings, *, insecure: bool) -> None:
    """Refuse to listen to strangers without tokens, unless the user insists."""
    if settings.auth_tokens or insecure or is_loopback(settings.host):
        return
    raise SettingsError(
        f"Listening on {settings.host} lets anybody on the network in: set AUTH_TOKENS, "
        "or give --insecure-no-auth if that is meant."
    )


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def reload(settings: Settings, services: Services, listener: Listener) -> None:
    """Read the prompt, the catalog and the rules again; a mistake in them changes nothing and is logged."""
    try:
        listener.reload(
            replace(
                services,
                catalog=load_catalog(settings.device_tools_file),
                rules=load_policies(policies_path(settings)).gate_rules,
                system_prompt=load_system_prompt(settings.system_prompt_file),
            )
        )
    except SettingsError as error:
        log.error("not reloaded", why=str(error))
        return
    log.info("reloaded", sessions=len(listener.hub))


async def serve(
    settings: Settings, announce: Callable[[Listener], None], worker: Worker | None = None
) -> None:
    """Serve until SIGTERM or SIGINT, then let running turns end. Raises `SettingsError`.

    A ``worker`` ends when its parent is gone, too.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)
    if worker is not None:
        worker.watch(stop.set)
    services = make_services(settings)
    async with running(settings, services, settle_memory, worker) as listener:
        loop.add_signal_handler(signal.SIGHUP, reload, settings, services, listener)
        announce(listener)
        await stop.wait()
        if worker is not None:
            worker.leave()
        log.info("stopping", sessions=len(listener.hub), connections=listener.connections)
