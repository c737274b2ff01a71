"""``conductor check``: test settings, files, services and the store without serving."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import stat
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import urlsplit

import structlog

from conductor.commands import check_server
from conductor.commands.banner import REFERRING_FILES
from conductor.commands.output import Item, fail, ok, warn
from conductor.env_file import ENV_FILE
from conductor.errors import ModelError, ModelFailure, SettingsError, StoreUnavailable
from conductor.logs import configure_logs
from conductor.messages import UserMessage
from conductor.models.base import ModelProvider, ModelRequest
from conductor.models.profiles import ModelProfile, load_profiles
from conductor.models.registry import make_provider, provider_names
from conductor.settings import STORE_FILE, Settings, read_settings, referenced_names
from conductor.stores.base import SessionKey, SessionLog
from conductor.stores.registry import check_shared, describe_store, make_store
from conductor.stores.sqlite import SqliteStore

log = structlog.get_logger(__name__)

# Seconds for the request to the model, for closing its provider, and for the check of the store.
MODEL_TIMEOUT_S = 10.0
CLOSE_S = 2.0
STORE_TIMEOUT_S = 10.0
# Bytes of free disk space; less is a warning.
MIN_FREE_BYTES = 100_000_000

# Settings used by the checks of the store and of the model.
STORE_SETTINGS = {"session_store_url", "session_store_replicas", "session_ttl_s", "data_dir", "workers"}
MODEL_SETTINGS = {
    name
    for name in Settings.model_fields
    if name in ("model_effort", "model_provider", "model_thinking", "models_file")
    or name.startswith(tuple(f"{provider}_" for provider in provider_names()))
}

_KEY = SessionKey("$check", "check")  # no client can have this subject


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options; options of ``serve`` have the same meaning."""
    parser.add_argument("--host", help="address to listen on (HOST)")
    parser.add_argument("--port", help="port to listen on (PORT)")
    parser.add_argument("--provider", dest="model_provider", help="model provider (MODEL_PROVIDER)")
    parser.add_argument("--model", help="model (ANTHROPIC_MODEL, OPENAI_MODEL)")
    parser.add_argument("--offline", action="store_true", help="do not send a request to the model")
    parser.add_argument(
        "--insecure-no-auth", action="store_true", help="accept other machines without AUTH_TOKENS"
    )


def run(options: argparse.Namespace, stdout: TextIO | None = None) -> int:
    """Run the checks and print a line for each item; returns the exit code, 0 or 2."""
    # Log lines of the tested parts would repeat the items.
    configure_logs("error", "console", cache=False)
    values = {
        "host": options.host,
        "port": options.port,
        "model_provider": options.model_provider,
        "anthropic_model": options.model,
        "openai_model": options.model,
    }
    overrides = {name: value for name, value in values.items() if value is not None}
    items = check(overrides=overrides, offline=options.offline, insecure=options.insecure_no_auth)
    return asyncio.run(report(items, stdout or sys.stdout))


async def report(items: AsyncIterator[Item], out: TextIO) -> int:
    """Write each item at once, then a summary; returns 2 if a check failed, else 0."""
    counts = Counter[str]()
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

    ``overrides`` take precedence over the environment and ``env_file``. ``offline`` skips the model service,
    ``insecure`` permits connections without tokens. Checks of invalid settings are skipped.
    """
    try:
        sources = read_settings(env_file, overrides or {})
    except SettingsError as error:
        yield fail("settings", str(error))
        return
    for item in check_server.settings_items(env_file, sources, _referenced_names(sources.settings)):
        yield item
    if sources.file and sources.file.mistakes:
        return  # an unreadable line may belong to another setting
    settings = sources.settings
    checks: list[tuple[str, set[str], AsyncIterator[Item]]] = [
        ("SYSTEM_PROMPT_FILE", {"system_prompt_file"}, check_server.prompt_items(settings)),
        ("DEVICE_TOOLS_FILE", {"device_tools_file"}, check_server.catalog_items(settings)),
        ("POLICIES_FILE", {"device_tools_file"}, check_server.policy_items(settings)),
        ("FILE_ROOTS", {"file_roots"}, check_server.roots_items(settings)),
        ("NOTES_DIR", {"notes_dir"}, check_server.notes_items(settings)),
        ("KNOWLEDGE_DIR", {"knowledge_dir", "data_dir"}, check_server.knowledge_items(settings)),
        ("TOOLS_PATH", {"tools_path"}, check_server.function_items(settings)),
        ("HTTP_TOOLS_FILE", {"http_tools_file"}, check_server.http_items(settings)),
        ("MCP_CONFIG_FILE", {"mcp_config_file"}, check_server.mcp_items(settings)),
        ("PORT", {"host", "port"}, check_server.address_items(settings)),
        ("AUTH_TOKENS", {"host", "auth_tokens"}, check_server.access_items(settings, insecure)),
        ("sessions", STORE_SETTINGS, store_items(settings)),
        ("model", MODEL_SETTINGS, model_items(settings, offline=offline, seconds=model_timeout_s)),
    ]
    for subject, names, items in checks:
        if names.isdisjoint(sources.invalid):
            async for item in reported(subject, items):
                yield item


def _referenced_names(settings: Settings) -> set[str]:
    # Errors of the files are reported by their own checks.
    for load in REFERRING_FILES:
        with suppress(SettingsError):
            load(settings)
    return referenced_names


async def reported(subject: str, items: AsyncIterator[Item]) -> AsyncIterator[Item]:
    """Yield a check's items; a `SettingsError` becomes a failed item."""
    try:
        async for item in items:
            yield item
    except SettingsError as error:
        yield fail(subject, str(error))


async def model_items(settings: Settings, *, offline: bool, seconds: float) -> AsyncIterator[Item]:
    """Send a request of one token to each profile's provider, within ``seconds``, and report the result."""
    profiles = load_profiles(settings)
    if profiles.file is not None:
        yield ok(
            "models", f"{profiles.file} has {', '.join(profiles.by_name)}; {profiles.default} is the default."
        )
    for profile in profiles.by_name.values():
        async for item in reported("model", _profile_items(profile, settings, offline, seconds)):
            yield item


async def _profile_items(
    profile: ModelProfile, settings: Settings, offline: bool, seconds: float
) -> AsyncIterator[Item]:
    try:
        # One token: the check must be almost free.
        provider = make_provider(profile.model_copy(update={"max_tokens": 1}), settings)
    except ImportError as error:
        yield fail("model", f"{profile.provider} needs the package {error.name}, which is not installed.")
        return
    if profile.provider == "demo":
        text = "the demo, which knows a few sentences and is not a language model"
        if profile.file is None and settings.model_provider is None:
            yield warn("model", f"{text}; set ANTHROPIC_API_KEY for Claude.")
        else:
            yield ok("model", f"{text}.")
    elif offline:
        yield ok("model", f"{profile.heading}, not tested (--offline).")
    else:
        yield await _ask(provider, profile, seconds)


async def _ask(provider: ModelProvider, profile: ModelProfile, seconds: float) -> Item:
    started = time.monotonic()
    try:
        async with asyncio.timeout(seconds):
            await provider.start()
            request = ModelRequest("", [UserMessage("Hello")], silence_s=seconds, deadline_s=seconds)
            async with aclosing(provider.stream(request)) as stream:
                async for _ in stream:
                    pass
    except TimeoutError:
        return _failed(profile, ModelError("timeout", "The model service did not answer."), seconds)
    except ModelError as error:
        return _failed(profile, error, seconds)
    except Exception as error:
        log.exception("model provider failed", provider=provider.name)
        return fail(
            "model", f"{profile.heading}: the provider has a bug, {type(error).__name__}; see the log."
        )
    finally:
        with suppress(TimeoutError):  # the process is about to end
            async with asyncio.timeout(CLOSE_S):
                await provider.aclose()
    return ok("model", f"{profile.heading} answered in {time.monotonic() - started:.1f} s.")


_MODEL_OR_ADDRESS = "Check {model_label} ({model}), and {base_url} if it is set."
_REMEDIES: dict[ModelFailure, str] = {
    "authentication": "Check {api_key}, and whether its account may use {model}.",
    "protocol": _MODEL_OR_ADDRESS,
    "undecodable": _MODEL_OR_ADDRESS,
    "connection": "Check whether {host} is running, the network, proxies, and {base_url} if it is set.",
    "timeout": "No answer from {host} within {seconds:g} s. Check the network, and try again.",
    "overloaded": "Try again later.",
    "rate_limited": "The key is valid. Wait, or raise the account's limits.",
}


def _failed(profile: ModelProfile, error: ModelError, seconds: float) -> Item:
    text = f"{profile.heading}: {error}"
    if error.reason in _REMEDIES:
        url = urlsplit(profile.base_url or "")
        # Only the host of an address is shown, because the rest may contain a key.
        text += " " + _REMEDIES[error.reason].format(
            api_key=profile.label("api_key"),
            base_url=profile.label("base_url"),
            model_label=profile.label("model"),
            model=profile.model,
            host=url.netloc or "the service",
            seconds=seconds,
        )
        lacks_path = bool(url.netloc) and url.path in ("", "/")
        if lacks_path and profile.provider == "openai" and error.reason == "protocol":
            text += " The address usually ends in /v1."
    return warn("model", text) if error.reason == "rate_limited" else fail("model", text)


async def store_items(
    settings: Settings, *, seconds: float = STORE_TIMEOUT_S, min_free: int = MIN_FREE_BYTES
) -> AsyncIterator[Item]:
    """Open the store and write to it, within ``seconds``; less than ``min_free`` bytes is a warning."""
    name = describe_store(settings)
    try:
        async with asyncio.timeout(seconds):
            if settings.store_kind == "memory":
                check_shared(settings)
                items = [ok("sessions", f"{name}; set DATA_DIR to keep them.")]
            elif settings.store_kind == "sqlite":
                text = await _sqlite_text(settings.store_path)
                items = [ok("sessions", text), *_file_warnings(settings.store_path, min_free)]
            else:
                items = await _server_items(settings, name)
    except TimeoutError:
        items = [fail("sessions", f"{name} did not store a session within {seconds:g} s.")]
    except StoreUnavailable as error:
        items = [fail("sessions", str(error))]
    for item in items:
        yield item


async def _sqlite_text(path: Path) -> str:
    # If the file does not exist, a temporary file in the same folder is tested.
    if _exists(path):
        return f"{path}; a write took {await _try_file(path)}."
    try:
        with tempfile.TemporaryDirectory(prefix=".conductor-", dir=_folder(path)) as trial:
            duration = await _try_file(Path(trial) / STORE_FILE)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise SettingsError(f"The session store's file {path} cannot be made: {reason}.") from None
    return f"{path}, not created yet; a write in its folder took {duration}."


def _file_warnings(path: Path, min_free: int) -> Iterator[Item]:
    if _exists(path) and stat.S_IMODE(path.stat().st_mode) & 0o077:
        text = f"other users may read {path}: run chmod 600."
        yield warn("sessions", text)
    free = shutil.disk_usage(_folder(path)).free
    if free < min_free:
        text = f"only {free // 1_000_000} MB are free for {path}; a full disk stores no sessions."
        yield warn("sessions", text)


def _folder(path: Path) -> Path:
    # The deepest folder above the file that exists.
    return next((folder for folder in path.absolute().parents if os.path.exists(folder)), Path("/"))


def _exists(path: Path) -> bool:
    return os.path.exists(path)  # False also for a folder without permission


async def _server_items(settings: Settings, name: str) -> list[Item]:
    # Some stores keep a tombstone of a deleted session for this time.
    settings = settings.model_copy(update={"session_ttl_s": 1.0})
    async with aclosing(make_store(settings)) as store:
        items = [ok("sessions", f"{name}; a write took {await _round_trip(store)}.")]
        await store.delete(_KEY.subject, _KEY.session_id)
        return items + [warn("sessions", f"{warning}.") for warning in await store.warnings()]


async def _try_file(path: Path) -> str:
    async with aclosing(SqliteStore(path)) as store:
        duration = await _round_trip(store)
        await store.delete(_KEY.subject)
        return duration


async def _round_trip(store: SessionLog) -> str:
    await store.open()
    await store.claim(_KEY)  # prepares statements; the second claim is timed
    start = time.perf_counter()
    claim = await store.claim(_KEY)
    duration = (time.perf_counter() - start) * 1000
    await store.release(claim)
    return f"{duration:.1f} ms"
