"""The session stores by name; a module is imported only if the settings choose it."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from conductor.errors import SettingsError, StoreUnavailable
from conductor.settings import Settings
from conductor.stores.addresses import RedisAddress, describe, passwords
from conductor.stores.base import SessionLog

STORES = {
    "memory": "conductor.stores.memory:MemoryStore",
    "sqlite": "conductor.stores.sqlite:SqliteStore",
    "redis": "conductor.plugins.stores.redis:RedisStore",
    "postgres": "conductor.plugins.stores.postgres:PostgresStore",
}
"""Kind of store -> module and class."""


def check_shared(settings: Settings) -> None:
    """Raise `SettingsError` if several processes cannot share the store."""
    if settings.workers > 1 and settings.store_kind == "memory":
        raise SettingsError(
            f"WORKERS is {settings.workers}, but a store in memory belongs to one process: set DATA_DIR or "
            "SESSION_STORE_URL."
        )


def make_store(settings: Settings) -> SessionLog:
    """Make the store that the settings choose; it is not open yet. Raises `SettingsError`."""
    module, _, name = STORES[settings.store_kind].partition(":")
    options: dict[str, object] = {"max_sessions": settings.max_kept_sessions_per_subject}
    if settings.store_kind != "memory":
        options["session_ttl"] = settings.session_ttl_s
    if settings.store_kind == "sqlite":
        options["path"] = settings.store_path
    if settings.store_kind in ("redis", "postgres"):
        options["url"] = settings.store_url
    if settings.store_kind == "redis":
        options["replicas"] = settings.session_store_replicas
    return cast(SessionLog, getattr(import_module(module), name)(**options))


async def open_store(store: SessionLog) -> None:
    """Open the store. Raises `SettingsError`."""
    try:
        await store.open()
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
    """Name the store without its password. Raises `SettingsError` for an invalid URL."""
    if settings.store_kind == "memory":
        return "in memory: they end with the server"
    if settings.store_kind == "sqlite":
        return str(settings.store_path)
    return describe(_server_url(settings))


def store_secrets(settings: Settings) -> list[str]:
    """List the passwords in the store's address. Raises `SettingsError` for an invalid URL."""
    return passwords(_server_url(settings)) if settings.store_kind in ("redis", "postgres") else []


def _server_url(settings: Settings) -> str:
    if settings.store_kind == "redis":
        RedisAddress.parse(settings.store_url)  # only a valid address can be named without its password
    return settings.store_url
