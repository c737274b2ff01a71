"""The part of ``conductor check`` that opens the session store, writes to it, and leaves nothing in it."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from conductor.commands.check_item import Item, fail, ok, warn
from conductor.errors import SettingsError, StoreUnavailable
from conductor.settings import STORE_FILE, Settings
from conductor.stores.base import SessionKey, SessionStore
from conductor.stores.redis import RedisStore
from conductor.stores.registry import describe_store, make_store
from conductor.stores.sqlite import SqliteStore

STORE_TIMEOUT_S = 10.0
MIN_FREE_BYTES = 100_000_000

STORE_SETTINGS = frozenset(
    ("session_store_url", "session_store_replicas", "session_ttl_s", "data_dir", "workers")
)
"""What the check rests on."""

_Store = TypeVar("_Store", bound=SessionStore)
_SUBJECT = "sessions"
_KEY = SessionKey("$check", "check")  # nobody's: no client has such a subject
_REDIS_TTL_S = 1.0


async def store_items(
    settings: Settings, *, seconds: float = STORE_TIMEOUT_S, min_free: int = MIN_FREE_BYTES
) -> AsyncIterator[Item]:
    """Open the store and write to it, within some ``seconds``; less than ``min_free`` bytes is a warning."""
    try:
        name = describe_store(settings)
        async with asyncio.timeout(seconds):
            if settings.store_scheme == "memory":
                items = list(_memory_items(settings, name))
            elif settings.store_scheme == "sqlite":
                items = await _sqlite_items(settings.store_path, min_free)
            else:
                items = await _redis_items(settings, name)
    except TimeoutError:
        items = [fail(_SUBJECT, f"{name} did not take a session within {seconds:g} s.")]
    except (SettingsError, StoreUnavailable) as error:
        items = [fail(_SUBJECT, str(error))]
    for item in items:
        yield item


def _memory_items(settings: Settings, name: str) -> Iterator[Item]:
    if settings.workers > 1:
        yield fail(
            _SUBJECT,
            f"{settings.workers} processes (WORKERS) cannot share sessions in memory: "
            "set DATA_DIR or SESSION_STORE_URL.",
        )
    else:
        yield ok(_SUBJECT, f"{name}; with DATA_DIR they outlive it.")


async def _sqlite_items(path: Path, min_free: int) -> list[Item]:
    """Try the store's file, or where it is not there yet, one beside it that is taken away again."""
    if _there(path):
        tried = ok(_SUBJECT, f"{path}; a write took {await _tried(path)}.")
        return [tried, *_access_items(path), *_space_items(path, min_free)]
    folder = _folder(path)
    try:
        with tempfile.TemporaryDirectory(prefix=".conductor-", dir=folder) as trial:
            took = await _tried(Path(trial) / STORE_FILE)
    except OSError as error:
        return [fail(_SUBJECT, f"{path} cannot be made in {folder}: {error.strerror}.")]
    return [
        ok(_SUBJECT, f"{path}, which is not there yet; a write to such a file took {took}."),
        *_space_items(path, min_free),
    ]


def _access_items(path: Path) -> Iterator[Item]:
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        yield warn(
            _SUBJECT, f"others on this machine may open {path}: take that right from them (chmod 600)."
        )


def _space_items(path: Path, min_free: int) -> Iterator[Item]:
    free = shutil.disk_usage(_folder(path)).free
    if free < min_free:
        yield warn(
            _SUBJECT, f"only {free // 1_000_000} MB are free for {path}; a full disk takes no more sessions."
        )


def _there(path: Path) -> bool:
    return os.path.exists(path)  # False, too, where the folder may not be looked into


def _folder(path: Path) -> Path:
    """Find what is there of the way to the file: its folder, or what that would be made in."""
    return next((each for each in path.absolute().parents if _there(each)), Path("/"))


async def _tried(path: Path) -> str:
    async with _opened(SqliteStore(path)) as store:
        took = await _round_trip(store)
        await store.delete(_KEY.subject)
        return took


async def _redis_items(settings: Settings, name: str) -> list[Item]:
    # It cannot be deleted without a trace, which a server that still held it would need; so it expires.
    store = make_store(settings.model_copy(update={"session_ttl_s": _REDIS_TTL_S}))
    assert isinstance(store, RedisStore)
    async with _opened(store):
        items = [ok(_SUBJECT, f"{name}; a write took {await _round_trip(store)}.")]
        items += [warn(_SUBJECT, f"{complaint}.") for complaint in await store.client.complaints()]
        return items


@asynccontextmanager
async def _opened(store: _Store) -> AsyncIterator[_Store]:
    try:
        await store.open()
        yield store
    finally:
        await store.aclose()


async def _round_trip(store: SessionStore) -> str:
    """Claim a session twice; the second claim is timed, since the first one prepares things."""
    await store.claim(_KEY)
    begin = time.perf_counter()
    claim = await store.claim(_KEY)
    took = (time.perf_counter() - begin) * 1000
    await store.release(claim)
    return f"{took:.1f} ms"
