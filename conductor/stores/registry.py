"""The session stores by name; a module is imported only if the settings choose it."""

from __future__ import annotations

import asyncio
import time
from importlib import import_module
from typing import cast

import structlog

from conductor.errors import SettingsError, StoreLocked, StoreUnavailable
from conductor.settings import Settings
from conductor.stores.addresses import RedisAddress, describe_postgres, postgres_passwords
from conductor.stores.base import SessionLog

# Seconds that a start waits for the lock of the store's file.
OPEN_S = 30.0
_PAUSE_S = 0.05

log = structlog.get_logger(__name__)

STORES = {
    "memory": "conductor.stores.memory:from_settings",
    "sqlite": "conductor.stores.sqlite:from_settings",
    "redis": "conductor.stores.redis:from_settings",
    "postgres": "conductor.stores.postgres:from_settings",
}
"""Kind of store -> module and function that makes it from the settings."""


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
    return cast(SessionLog, getattr(import_module(module), name)(settings))


async def open_store(store: SessionLog, seconds: float = OPEN_S) -> None:
    """Open the store; wait up to ``seconds`` while another process locks it. Raises `SettingsError`."""
    deadline = time.monotonic() + seconds
    is_waiting = False
    while True:
        try:
            return await store.open()
        except StoreUnavailable as error:
            if not isinstance(error, StoreLocked) or time.monotonic() >= deadline:
                raise SettingsError(f"SESSION_STORE_URL: {error}") from None
            if not is_waiting:
                log.warning("session store locked by another process; waiting", seconds=seconds)
            is_waiting = True
        await asyncio.sleep(_PAUSE_S)


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
    if settings.store_kind == "postgres":
        return describe_postgres(settings.store_url)
    return str(RedisAddress.parse(settings.store_url))


def store_secrets(settings: Settings) -> list[str]:
    """List the passwords in the store's address. Raises `SettingsError` for an invalid URL."""
    if settings.store_kind == "postgres":
        return postgres_passwords(settings.store_url)
    return RedisAddress.parse(settings.store_url).secrets if settings.store_kind == "redis" else []
