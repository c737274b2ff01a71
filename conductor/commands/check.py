"""``conductor check``: test the settings, build the services, try the store and the models."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import aclosing
from dataclasses import asdict
from typing import Any
from urllib.parse import urlsplit

import structlog

from conductor.app import make_authenticator, make_services
from conductor.commands.banner import unknown_names
from conductor.commands.output import Item, as_json, fail, ok, warn, write
from conductor.commands.policy_lint import file_notes, lint, lint_allowed
from conductor.commands.serve import overrides
from conductor.commands.tools import started
from conductor.conversation.records import Commit, encode
from conductor.entry_points import NOUNS, Plugin, plugins
from conductor.env_file import ENV_FILE
from conductor.errors import ModelError, ModelFailure, SettingsError, StoreUnavailable
from conductor.messages import UserMessage
from conductor.models.base import ModelRequest
from conductor.models.failures import ToolsRefused
from conductor.models.health import PROBE_TOOL
from conductor.models.profiles import ModelProfile, load_profiles
from conductor.models.registry import make_provider
from conductor.plugins.api.keys import read_keys
from conductor.plugins.stores import sqlite_backup
from conductor.plugins.webhooks.file import load_webhooks
from conductor.server.address import check_exposure
from conductor.settings import (
    Reading,
    Settings,
    environment_names,
    is_loopback,
    read_settings,
)
from conductor.stores.base import SessionKey
from conductor.stores.memory import MemoryStore
from conductor.stores.registry import check_shared, describe_store, make_store, store_plugin
from conductor.tools.policies import load, policies_path
from conductor.tools.toolsets import all_tools

log = structlog.get_logger(__name__)

# Seconds for the request to a model, and for the store.
MODEL_TIMEOUT_S = 10.0
STORE_TIMEOUT_S = 10.0

_KEY = SessionKey("$check", "check")  # no client can have this subject
_STRONG = re.compile(r"[A-Za-z0-9_-]{16,}")
"""Tokens that are hard to guess, and that a header, a subprotocol and a query transport unchanged."""


def run(options: argparse.Namespace) -> int:
    """Run the checks and print a line for each item; returns the exit code, 0 or 2."""
    items = check(overrides(options), offline=options.offline, insecure=options.insecure_no_auth)
    return asyncio.run(report(items, json=options.json))


async def report(items: AsyncIterator[Item], *, json: bool = False) -> int:
    """Write each item at once, then a summary; with ``json`` each as an object on a line, without a summary.

    Returns 2 if a check failed, else 0.
    """
    counts = Counter[str]()
    async for item in items:
        counts[item.level] += 1
        write(as_json(asdict(item)) if json else item)
    if json:
        return 2 if counts["fail"] else 0
    warnings = "1 warning" if counts["warn"] == 1 else f"{counts['warn']} warnings"
    write("", f"{counts['ok']} ok, {warnings}, {counts['fail']} failed")
    return 2 if counts["fail"] else 0


async def check(
    overrides: Mapping[str, Any], *, offline: bool = False, insecure: bool = False
) -> AsyncIterator[Item]:
    """Run one check after the other; mistakes in the settings end them.

    ``overrides`` take precedence over the environment and ``.env``. ``offline`` skips the model services and
    MCP servers, ``insecure`` permits connections without tokens.
    """
    try:
        reading = read_settings(ENV_FILE, overrides)
    except SettingsError as error:
        yield fail("settings", str(error))
        return
    for item in settings_items(reading):
        yield item
    if not (reading.invalid or (reading.file and reading.file.mistakes)):
        async for item in server_items(reading.settings, offline=offline, insecure=insecure):
            yield item
    for name in unknown_names(reading):
        yield warn("settings", f"{name} in {ENV_FILE} is not a setting.")


async def server_items(settings: Settings, *, offline: bool, insecure: bool) -> AsyncIterator[Item]:
    """Check all that valid settings name; a `SettingsError` becomes a failed item, once."""
    problems: set[str] = set()
    for subject, items in (
        ("plugins", plugin_items()),
        ("services", service_items(settings, offline=offline)),
        ("AUTH_TOKENS", access_items(settings, insecure=insecure)),
        ("sessions", store_items(settings)),
        ("model", model_items(settings, offline=offline)),
    ):
        async for item in reported(subject, items):
            # The services include the store and the models.
            if item.level != "fail" or item.text not in problems:
                yield item
            problems.add(item.text)


async def reported(subject: str, items: AsyncIterator[Item]) -> AsyncIterator[Item]:
    """Yield a check's items; a `SettingsError` becomes a failed item."""
    try:
        async for item in items:
            yield item
    except SettingsError as error:
        yield fail(subject, str(error))


def settings_items(reading: Reading) -> Iterator[Item]:
    """Report the sources of settings, and invalid lines and values."""
    file = reading.file
    names = [name for name in environment_names() if name.lower() in Settings.model_fields]
    text = f"from the environment: {', '.join(names)}" if names else "none from the environment"
    yield ok("settings", f"{ENV_FILE} is {'read' if file else 'optional and missing'}; {text}.")
    for mistake in file.mistakes if file else ():
        yield fail("settings", mistake)
    for name, reason in reading.invalid.items():
        yield fail(name.upper(), reason)


async def plugin_items() -> AsyncIterator[Item]:
    """Name the plugins of each installed package, with its version; each other package's is imported."""
    by_package: dict[str, list[Plugin]] = {}
    for group in NOUNS:
        for plugin in plugins(group).values():
            by_package.setdefault(plugin.package, []).append(plugin)
    for package, offered in by_package.items():
        if not package.startswith("conductor-voice "):  # ours are imported where the settings choose them
            for plugin in offered:
                plugin.load()
        names = {group: [plugin.name for plugin in offered if plugin.group == group] for group in NOUNS}
        kinds = [f"{group.partition('.')[2]} {', '.join(own)}" for group, own in names.items() if own]
        yield ok("plugins", f"{package}: {'; '.join(kinds)}.")


async def service_items(settings: Settings, *, offline: bool) -> AsyncIterator[Item]:
    """Build the services, start the toolsets unless ``offline``, and report the tools and the rules."""
    services = make_services(settings)
    async with started(() if offline else services.toolsets) as problems:
        specs = [spec for toolset in services.toolsets for spec in toolset.specs()]
    counts = Counter(spec.source for spec in (*specs, *services.catalog))
    yield ok("tools", f"{', '.join(f'{count} {source}' for source, count in sorted(counts.items()))}.")
    for problem in problems:
        yield fail("tools", problem)
    if replaced := {spec.name for spec in specs} & {spec.name for spec in services.catalog}:
        text = f"replaces built-in tools: {', '.join(sorted(replaced))}. Rename them in the file."
        yield warn("DEVICE_TOOLS_FILE", text)
    path, tools = policies_path(settings), all_tools(settings)
    policies = load(path)
    loaded = policies.rules
    where = f"{path}, rules: {len(loaded)}" if path.exists() else f"{path.name} is optional and missing"
    yield ok("rules", f"{where}; the preset {policies.preset} decides where no rule does.")
    for text in (*file_notes(path), *lint(loaded, tools, now=time.time())):
        yield warn("rules", text)
    for text in lint_allowed(settings.allowed_tools, tools):
        yield warn("ALLOWED_TOOLS", f"{text}.")


async def access_items(settings: Settings, *, insecure: bool) -> AsyncIterator[Item]:
    """Report who may connect, weak tokens, and tokens that some clients cannot send."""
    subject, tokens = "AUTH_TOKENS", settings.auth_tokens
    make_authenticator(settings, MemoryStore())
    read_keys(settings)
    load_webhooks(settings)
    check_exposure(settings, insecure=insecure)
    if tokens:
        yield ok(subject, f"{len(tokens)} set; a client needs one of them.")
    elif settings.authenticates:
        yield ok("AUTH", f"{', '.join(settings.auth)} authenticates clients.")
    elif is_loopback(settings.host):
        yield ok(subject, "not set, and not needed: only this machine can connect.")
    else:
        yield warn(subject, "not set: every client that reaches this machine can connect.")
    for number, token in enumerate(tokens, 1):  # tokens are secrets
        if not _STRONG.fullmatch(token):
            text = (
                'is weak: use at least 16 random letters, digits, "-" and "_"; browsers cannot send others.'
            )
            yield warn(subject, f"token {number} of {len(tokens)} {text}")


# -- sessions


async def store_items(settings: Settings, *, seconds: float = STORE_TIMEOUT_S) -> AsyncIterator[Item]:
    """Open the store and write to it, within ``seconds``. A missing SQLite file is not created."""
    name = describe_store(settings)
    check_shared(settings)
    if settings.store_kind == "sqlite" and not os.path.exists(settings.store_path):  # noqa: ASYNC240 -- alone
        yield ok("sessions", f"{name}, not created yet.")
        return
    try:
        store = make_store(settings)
        async with asyncio.timeout(seconds), aclosing(store):
            with store_plugin(settings).guard("cannot store a session"):
                await store.open()
                start = time.perf_counter()
                claim = await store.claim(_KEY)
                await store.append(claim, "check", encode(Commit()))
                await store.read(_KEY)
                await store.release(claim)
                await store.delete(_KEY.subject, _KEY.session_id)
                took_ms = (time.perf_counter() - start) * 1000
                warnings = await store.warnings()
        if settings.store_kind == "sqlite":  # a large file takes longer
            await asyncio.to_thread(sqlite_backup.check_pages, settings.store_path)
        yield ok("sessions", f"{name}; writes took {took_ms:.1f} ms.")
        for warning in warnings:
            yield warn("sessions", f"{warning}.")
    except TimeoutError:
        yield fail("sessions", f"{name} did not store a session within {seconds:g} s.")
    except (SettingsError, StoreUnavailable) as error:
        yield fail("sessions", str(error))


# -- models


async def model_items(
    settings: Settings, *, offline: bool, seconds: float = MODEL_TIMEOUT_S
) -> AsyncIterator[Item]:
    """Ask each profile's provider for one token, within ``seconds``, and report the result.

    A tool is offered: some servers take none, and would refuse every turn.
    """
    profiles = load_profiles(settings)
    if profiles.file is not None:
        text = f"{profiles.file} has {', '.join(profiles.by_name)}; {profiles.default} is the default."
        yield ok("models", text)
    for profile in profiles.by_name.values():
        yield await _profile_item(profile, settings, offline, seconds)


async def _profile_item(profile: ModelProfile, settings: Settings, offline: bool, seconds: float) -> Item:
    if profile.provider == "demo":
        is_chosen = profile.file is not None or settings.model_provider is not None
        text = "the demo, which knows a few sentences and is not a language model"
        return (
            ok("model", f"{text}.")
            if is_chosen
            else warn("model", f"{text}; set ANTHROPIC_API_KEY for Claude.")
        )
    start = time.monotonic()
    try:
        provider = make_provider(profile, settings)
        if offline:
            return ok("model", f"{profile.heading}, not tested (--offline).")
        request = ModelRequest(
            "",
            [UserMessage("Hello")],
            [PROBE_TOOL] if profile.kind != "text" else [],
            deadline_s=seconds,
            max_tokens=1,  # the check must be almost free
        )
        async with aclosing(provider), asyncio.timeout(seconds):
            await provider.start()
            async with aclosing(provider.stream(request)) as stream:
                async for _ in stream:
                    pass
    except SettingsError as error:
        return fail("model", str(error))
    except TimeoutError:
        return _failed(profile, ModelError("timeout", f"No answer within {seconds:g} s."))
    except ToolsRefused as error:
        if profile.kind == "auto":
            return ok("model", f"{profile.heading} answered; it takes no tools, so its calls are text.")
        return fail("model", f"{profile.heading}: {error} {_FLAGS}")
    except ModelError as error:
        if error.reason != "malformed":  # one token makes no call
            return _failed(profile, error)
    except Exception as error:
        log.exception("model provider failed", provider=profile.provider)
        text = f"{profile.heading}: the provider has a bug, {type(error).__name__}; see the log."
        return fail("model", text)
    return ok("model", f"{profile.heading} answered in {time.monotonic() - start:.1f} s.")


_FLAGS = "vLLM takes them with --enable-auto-tool-choice and --tool-call-parser, llama.cpp with --jinja."
_WRONG_NAME = "Check {model}, and {base_url} if it is set."
_NO_ANSWER = "Check whether the service runs, the network, proxies, and {base_url} if it is set."
_REMEDIES: dict[ModelFailure, str] = {
    "authentication": "Check {api_key}, and whether its account may use the model.",
    "protocol": _WRONG_NAME,
    "undecodable": _WRONG_NAME,
    "connection": _NO_ANSWER,
    "timeout": _NO_ANSWER,
    "overloaded": "Try again later.",
    "rate_limited": "The key is valid. Wait, or raise the account's limits.",
}


def _failed(profile: ModelProfile, error: ModelError) -> Item:
    labels = {field: profile.label(field) for field in ("api_key", "base_url", "model")}
    text = f"{profile.heading}: {error} {_REMEDIES.get(error.reason, '').format(**labels)}".rstrip()
    has_path = urlsplit(profile.base_url or "/v1").path not in ("", "/")
    if profile.provider == "openai" and error.reason == "protocol" and not has_path:
        text += " The address usually ends in /v1."
    return warn("model", text) if error.reason == "rate_limited" else fail("model", text)
