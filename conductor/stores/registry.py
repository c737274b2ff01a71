"""Which session stores there are: one line each, imported only when chosen."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, cast

from conductor.errors import SettingsError
from conductor.settings import Settings
from conductor.stores.admin import SessionAdmin
from conductor.stores.base import SessionStore

STORES = {
    "memory": "conductor.stores.memory:from_settings",
    "sqlite": "conductor.stores.sqlite:from_settings",
    "redis": "conductor.stores.redis:from_settings",
    "rediss": "conductor.stores.redis:from_settings",
    "valkey": "conductor.stores.redis:from_settings",
    "valkeys": "conductor.stores.redis:from_settings",
}
"""Scheme of SESSION_STORE_URL -> module and function that makes the store from the settings."""

ADMINS = {
    "sqlite": "conductor.stores.sqlite_admin:SqliteAdmin",
    "redis": "conductor.stores.redis_admin:RedisAdmin",
    "rediss": "conductor.stores.redis_admin:RedisAdmin",
    "valkey": "conductor.stores.redis_admin:RedisAdmin",
    "valkeys": "conductor.stores.redis_admin:RedisAdmin",
}
"""Scheme -> module and class that lets an operator look at such a store, and delete from it."""


def make_store(settings: Settings) -> SessionStore:
    """Make the store that the settings ask for; it is not open yet. Raises `SettingsError`."""
    return cast(SessionStore, _find(STORES, settings)(settings))


def make_session_admin(settings: Settings, store: SessionStore) -> SessionAdmin:
    """Make what an operator looks at an open store with.

    Raises `SettingsError` for a store that only its own process can see.
    """
    if settings.store_scheme not in ADMINS:
        raise SettingsError(
            "Sessions are kept in memory, where only their own server sees them; "
            "DATA_DIR or SESSION_STORE_URL names a store that outlives it."
        )
    return cast(SessionAdmin, _find(ADMINS, settings)(store))


def describe_store(settings: Settings) -> str:
    """Name the store for people, without its password. Raises `SettingsError` for a URL that is none."""
    scheme = settings.store_scheme
    if scheme == "memory":
        return "in memory: they end with the server"
    if scheme == "sqlite":
        return str(settings.store_path)
    from conductor.stores.redis_connection import Endpoint

    return f"{scheme}://{str(Endpoint.parse(settings.store_url)).partition('://')[2]}"


def _find(known: dict[str, str], settings: Settings) -> Callable[[Any], Any]:
    module, _, name = known[settings.store_scheme].partition(":")
    return cast(Callable[[Any], Any], getattr(import_module(module), name))
