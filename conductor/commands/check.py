"""``conductor check``: test everything that the server needs, without serving."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, TextIO, TypeVar
from urllib.parse import urlsplit

import structlog

from conductor.commands.check_item import Item, fail, ok, warn
from conductor.env_file import ENV_FILE
from conductor.errors import ModelError, ModelFailure, SettingsError, StoreUnavailable
from conductor.messages import UserMessage
from conductor.models.base import ModelProvider, ModelRequest
from conductor.models.registry import make_provider
from conductor.settings import STORE_FILE, Settings
from conductor.stores.base import SessionKey, SessionStore
from conductor.stores.redis import RedisStore
from conductor.stores.registry import check_shared, describe_store, make_store
from conductor.stores.sqlite import SqliteStore
from conductor.stores.sqlite_schema import existing_folder, why_not_made

log = structlog.get_logger(__name__)


SUBJECT = "model"
# Seconds that closing the provider or the store may take.
CLOSE_S = 2.0


async def model_item(settings: Settings, *, offline: bool, seconds: float) -> Item:
    """Send the provider a request of one token, within ``seconds``, and report what came of it."""
    try:
        provider = make_provider(settings.model_copy(update={"anthropic_max_tokens": 1}))
    except SettingsError as error:
        return fail(SUBJECT, str(error))
    except ImportError as error:
        return fail(SUBJECT, f"the package {error.name} is missing, which {settings.provider} needs.")
    if settings.provider == "demo":
        return _demo(settings)
    if offline:
        return ok(SUBJECT, f"{_name(settings)}, not asked (--offline).")
    return await asyncio.create_task(_try(provider, settings, seconds))


async def _try(provider: ModelProvider, settings: Settings, seconds: float) -> Item:
    started = time.monotonic()
    try:
        async with asyncio.timeout(seconds):
            await _ask(provider, seconds)
    except TimeoutError:
        return _failed(settings, ModelError("timeout", "The model service did not answer."), seconds)
    except ModelError as error:
        return _failed(settings, error, seconds)
    except Exception as error:
        log.exception("model provider failed", provider=provider.name)
        return fail(SUBJECT, f"{_name(settings)}: the provider has a bug, {type(error).__name__}; see above.")
    finally:
        await _close(provider)
    return ok(SUBJECT, f"{_name(settings)} answered in {time.monotonic() - started:.1f} s.")


def _demo(settings: Settings) -> Item:
    text = "the demo, a demonstration that knows a few sentences and is no language model"
    if settings.model_provider is None:
        return warn(SUBJECT, f"{text}; set ANTHROPIC_API_KEY for Claude.")
    return ok(SUBJECT, f"{text}.")


async def _ask(provider: ModelProvider, seconds: float) -> None:
    await provider.start()
    request = ModelRequest("", [UserMessage("Hello")], silence_s=seconds, deadline_s=seconds)
    async with aclosing(provider.stream(request)) as stream:
        async for _ in stream:
            pass


async def _close(provider: ModelProvider) -> None:
    try:
        async with asyncio.timeout(CLOSE_S):
            await provider.aclose()
    except TimeoutError:
        pass  # the process is about to end


def _name(settings: Settings) -> str:
    return f"Claude ({settings.anthropic_model})" if settings.provider == "anthropic" else settings.provider


_CLAUDE_MENDS: dict[ModelFailure, str] = {
    "authentication": "Look at ANTHROPIC_API_KEY, and whether its account may use {model}.",
    "protocol": "Look at ANTHROPIC_MODEL ({model}), and at ANTHROPIC_BASE_URL if it is set.",
    "connection": "Asked was {host}: look at the network, at proxies, and at ANTHROPIC_BASE_URL if set.",
    "timeout": "Nothing came from {host} within {seconds:g} s: look at the network, and try again.",
    "overloaded": "Try again later; the settings may be right.",
    "rate_limited": "The key was accepted; wait, or raise the account's limits.",
}


def _failed(settings: Settings, error: ModelError, seconds: float) -> Item:
    # Only the host of an address is shown: the rest may hold a key.
    text = f"{_name(settings)}: {error}"
    if settings.provider == "anthropic" and error.reason in _CLAUDE_MENDS:
        host = urlsplit(settings.anthropic_base_url or "//api.anthropic.com").hostname
        mend = _CLAUDE_MENDS[error.reason]
        text += " " + mend.format(model=settings.anthropic_model, host=host, seconds=seconds)
    return warn(SUBJECT, text) if error.reason == "rate_limited" else fail(SUBJECT, text)


# Seconds for the whole check of the store.
STORE_TIMEOUT_S = 10.0
# Bytes of free disk below which there is a warning.
MIN_FREE_BYTES = 100_000_000

STORE_SETTINGS = frozenset(
    ("session_store_url", "session_store_replicas", "session_ttl_s", "data_dir", "workers")
)
"""Settings that the check of the store depends on."""

_Store = TypeVar("_Store", bound=SessionStore)
_SUBJECT = "sessions"
_KEY = SessionKey("$check", "check")  # no client can have this subject
# Seconds after which the probe's session expires.
_REDIS_TTL_S = 1.0


async def store_items(
    settings: Settings, *, seconds: float = STORE_TIMEOUT_S, min_free: int = MIN_FREE_BYTES
) -> AsyncIterator[Item]:
    """Open the store and write to it, within ``seconds``; less than ``min_free`` bytes is a warning."""
    try:
        name = describe_store(settings)
        async with asyncio.timeout(seconds):
            if settings.store_kind == "memory":
                check_shared(settings)
                items = [ok(_SUBJECT, f"{name}; with DATA_DIR they outlive it.")]
            elif settings.store_kind == "sqlite":
                items = await _sqlite_items(settings.store_path, min_free)
            else:
                items = await _redis_items(settings, name)
    except TimeoutError:
        items = [fail(_SUBJECT, f"{name} did not take a session within {seconds:g} s.")]
    except (SettingsError, StoreUnavailable) as error:
        items = [fail(_SUBJECT, str(error))]
    for item in items:
        yield item


async def _sqlite_items(path: Path, min_free: int) -> list[Item]:
    # Where the file does not exist yet, a temporary one beside it is tried.
    if _there(path):
        tried = ok(_SUBJECT, f"{path}; a write took {await _tried(path)}.")
        return [tried, *_access_items(path), *_space_items(path, min_free)]
    folder = existing_folder(path)
    try:
        with tempfile.TemporaryDirectory(prefix=".conductor-", dir=folder) as trial:
            took = await _tried(Path(trial) / STORE_FILE)
    except OSError as error:
        return [fail(_SUBJECT, why_not_made(path, error))]
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
    free = shutil.disk_usage(existing_folder(path)).free
    if free < min_free:
        yield warn(
            _SUBJECT, f"only {free // 1_000_000} MB are free for {path}; a full disk takes no more sessions."
        )


def _there(path: Path) -> bool:
    return os.path.exists(path)  # False also for a folder without permission


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
        items += [warn(_SUBJECT, f"{warning}.") for warning in await store.client.warnings()]
        return items


@asynccontextmanager
async def _opened(store: _Store) -> AsyncIterator[_Store]:
    try:
        await store.open()
        yield store
    finally:
        await store.aclose()


async def _round_trip(store: SessionStore) -> str:
    # The second claim is the one that is timed: the first one prepares statements.
    await store.claim(_KEY)
    begin = time.perf_counter()
    claim = await store.claim(_KEY)
    took = (time.perf_counter() - begin) * 1000
    await store.release(claim)
    return f"{took:.1f} ms"


# Seconds for the whole request to the model.
MODEL_TIMEOUT_S = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options; those that ``serve`` has too mean the same."""
    parser.add_argument("--host", help="address to listen on (HOST)")
    parser.add_argument("--port", help="port to listen on (PORT)")
    parser.add_argument("--provider", dest="model_provider", help="model provider (MODEL_PROVIDER)")
    parser.add_argument("--model", dest="anthropic_model", help="Claude model (ANTHROPIC_MODEL)")
    parser.add_argument("--offline", action="store_true", help="do not ask the model")
    parser.add_argument(
        "--insecure-no-auth", action="store_true", help="listen to other machines without AUTH_TOKENS"
    )


def run(options: argparse.Namespace, stdout: TextIO | None = None) -> int:
    """Run the checks, and print a line for each item; returns the exit code, 0 or 2."""
    from conductor.logs import configure_logs

    configure_logs("error", "console", cache=False)
    names = ("host", "port", "model_provider", "anthropic_model")
    overrides = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    items = check(overrides=overrides, offline=options.offline, insecure=options.insecure_no_auth)
    return asyncio.run(report(items, stdout or sys.stdout))


async def report(items: AsyncIterator[Item], out: TextIO) -> int:
    """Write each item as it comes, then a summary; returns 2 if one failed, else 0."""
    counts = {"ok": 0, "warn": 0, "fail": 0}
    async for item in items:
        counts[item.level] += 1
        out.write(f"{item}\n")
        out.flush()
    warnings = "1 warning" if counts["warn"] == 1 else f"{counts['warn']} warnings"
    out.write(f"\n{counts['ok']} ok, {warnings}, {counts['fail']} failed\n")
    return 2 if counts["fail"] else 0


async def check(
    env_file: Path | None = ENV_FILE,
    *,
    overrides: Mapping[str, Any] | None = None,
    offline: bool = False,
    insecure: bool = False,
    model_timeout_s: float = MODEL_TIMEOUT_S,
) -> AsyncIterator[Item]:
    """Run one check after the other.

    ``overrides`` are settings that win over the environment and ``env_file``. ``offline`` skips the model
    service, ``insecure`` permits connections without tokens. Checks that depend on an invalid setting are
    skipped.
    """
    from conductor.commands.check import STORE_SETTINGS, model_item, store_items
    from conductor.commands.check_server import server_items, settings_items
    from conductor.settings import read_settings

    try:
        found = read_settings(env_file, overrides or {})
    except SettingsError as error:
        yield fail("settings", str(error))
        return
    for item in settings_items(env_file, found):
        yield item
    if found.file and found.file.mistakes:
        return  # with a line unread, the other settings may not be what was meant
    settings, invalid = found.settings, set(found.invalid)
    async for item in server_items(settings, invalid, insecure):
        yield item
    if not invalid & STORE_SETTINGS:
        async for item in store_items(settings):
            yield item
    if not any(name.startswith(("anthropic_", "model_provider")) for name in invalid):
        yield await model_item(settings, offline=offline, seconds=model_timeout_s)
