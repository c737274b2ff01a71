"""The session stores by name; each module is imported only when chosen."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, cast

from conductor.errors import SettingsError
from conductor.settings import Settings
from conductor.stores.admin import SessionAdmin
from conductor.stores.base import SessionStore
from conductor.stores.redis_url import RedisAddress

STORES = {
    "memory": "conductor.stores.memory:from_settings",
    "sqlite": "conductor.stores.sqlite:from_settings",
    "redis": "conductor.stores.redis:from_settings",
}
"""Kind of store -> module and function that makes it from the settings."""

ADMINS = {
    "sqlite": "conductor.stores.sqlite_admin:SqliteAdmin",
    "redis": "conductor.stores.redis_admin:RedisAdmin",
}
"""Kind of store -> module and class that lets an operator look at it, and delete from it."""


def check_shared(settings: Settings) -> None:
    """Raise `SettingsError` if several processes cannot share the store."""
    if settings.workers > 1 and settings.store_kind == "memory":
        raise SettingsError(
            f"WORKERS is {settings.workers}, but sessions that are kept in memory belong to one process: "
            "set DATA_DIR or SESSION_STORE_URL."
        )


def make_store(settings: Settings) -> SessionStore:
    """Make the store that the settings choose; it is not open yet. Raises `SettingsError`."""
    return cast(SessionStore, _find(STORES, settings)(settings))


def make_session_admin(settings: Settings, store: SessionStore) -> SessionAdmin:
    """Make the operator's view of an open store.

    Raises `SettingsError` for a store that only its own process can see.
    """
    if settings.store_kind not in ADMINS:
        raise SettingsError(
            "Sessions are kept in memory, where only their own server sees them; "
            "DATA_DIR or SESSION_STORE_URL names a store that outlives it."
        )
    return cast(SessionAdmin, _find(ADMINS, settings)(store))


def describe_store(settings: Settings) -> str:
    """Name the store for people, without its password. Raises `SettingsError` for an invalid URL."""
    if settings.store_kind == "memory":
        return "in memory: they end with the server"
    if settings.store_kind == "sqlite":
        return str(settings.store_path)
    return str(RedisAddress.parse(settings.store_url))


def _find(known: dict[str, str], settings: Settings) -> Callable[[Any], Any]:
    module, _, name = known[settings.store_kind].partition(":")
    return cast(Callable[[Any], Any], getattr(import_module(module), name))
