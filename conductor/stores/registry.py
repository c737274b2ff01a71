"""The session stores by the scheme of their address: entry points, imported if the settings choose them."""

from __future__ import annotations

import structlog

from conductor.entry_points import STORES, Plugin, choose
from conductor.errors import SettingsError, StoreUnavailable
from conductor.settings import Settings
from conductor.stores.base import SessionLog, StoreOptions, describe

log = structlog.get_logger(__name__)


def check_shared(settings: Settings) -> None:
    """Raise `SettingsError` if several processes cannot share the store."""
    if settings.workers > 1 and settings.store_kind == "memory":
        raise SettingsError(
            f"WORKERS is {settings.workers}, but a store in memory belongs to one process: set DATA_DIR or "
            "SESSION_STORE_URL."
        )


def make_store(settings: Settings) -> SessionLog:
    """Make the store that the settings choose; it is not open yet. Raises `SettingsError`."""
    options = StoreOptions(
        settings.session_ttl_s, settings.max_kept_sessions_per_subject, settings.session_store_replicas
    )
    store: SessionLog = store_plugin(settings).make(SessionLog, settings.store_url, options)
    return store


def store_plugin(settings: Settings) -> Plugin:
    """Return the plugin of the store that the settings choose. Raises `SettingsError`."""
    return choose(STORES, settings.store_kind, "SESSION_STORE_URL")


async def open_store(store: SessionLog, settings: Settings) -> None:
    """Open the store, and log its warnings. Raises `SettingsError`."""
    try:
        with store_plugin(settings).guard("cannot be opened"):
            await store.open()
            for warning in await store.warnings():
                log.warning("sessions may be lost", store=describe_store(settings), reason=warning)
    except StoreUnavailable as error:
        raise SettingsError(f"SESSION_STORE_URL: {error}") from None


def check_kept(settings: Settings) -> None:
    """Raise `SettingsError` if only the server itself can read the store."""
    if settings.store_kind == "memory":
        raise SettingsError(
            "Sessions are in memory, and only their server can read them; DATA_DIR or SESSION_STORE_URL "
            "chooses a store that outlives the server."
        )


def describe_store(settings: Settings) -> str:
    """Name the store without its password."""
    if settings.store_kind == "memory":
        return "in memory: they end with the server"
    return str(settings.store_path) if settings.store_kind == "sqlite" else describe(settings.store_url)
