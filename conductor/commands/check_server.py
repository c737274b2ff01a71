"""The checks of the server: its settings, files, address and access."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from conductor.app import check_exposure, file_roots, is_loopback
from conductor.commands.check_item import Item, fail, ok, warn
from conductor.env_file import misspelt
from conductor.errors import SettingsError
from conductor.prompts import load_system_prompt
from conductor.server.access import why_not_bound
from conductor.settings import Found, Settings, environment_names
from conductor.tools.builtin import BuiltinToolset
from conductor.tools.device import known_tools, load_catalog
from conductor.tools.policies import lint, lint_allowed, load, policies_path

# Seconds to resolve the name in HOST.
BIND_TIMEOUT_S = 5.0

# Characters: a shorter token could be guessed.
MIN_TOKEN_LENGTH = 16

_SENDABLE = re.compile(r"[A-Za-z0-9_-]+")
"""Tokens that a header, a subprotocol and a query carry unchanged."""


def settings_items(env_file: Path | None, found: Found) -> Iterator[Item]:
    """Report the sources of settings, unknown names, and invalid lines and values."""
    file = found.file
    environment = environment_names()
    known = [name for name in environment if name.lower() in Settings.model_fields]
    yield _sources(env_file, found, known)
    for mistake in file.mistakes if file else ():
        yield fail("settings", mistake)
    if env_file and file and file.others:
        names = ", ".join(file.others)
        yield warn("settings", f"in {env_file.name} these are no settings and do nothing: {names}.")
    for name, hint in misspelt(environment, Settings.model_fields):
        yield warn(name, f"is no setting (in the environment); {hint}")
    for name, reason in found.invalid.items():
        yield fail(name.upper(), f"{reason} .env.example says what it takes.")


def _sources(env_file: Path | None, found: Found, environment: list[str]) -> Item:
    text = (
        f"from the environment: {', '.join(environment)}"
        if environment
        else "none comes from the environment"
    )
    if env_file is not None:
        where = "read" if found.file else "not there, which is fine"
        text = f"{env_file.name} is {where}; {text}"
    both = [name for name in environment if found.file and name.lower() in found.file.values]
    if both:
        text += f"; the environment wins over the file for {', '.join(both)}"
    return ok("settings", f"{text}.")


async def server_items(settings: Settings, invalid: Collection[str], insecure: bool) -> AsyncIterator[Item]:
    """Check files, address and access; what depends on an ``invalid`` setting is skipped."""
    if "system_prompt_file" not in invalid:
        yield prompt_item(settings.system_prompt_file)
    if "device_tools_file" not in invalid:
        for item in (*catalog_items(settings.device_tools_file), *policy_items(settings)):
            yield item
    if settings.file_roots and "file_roots" not in invalid:
        yield roots_item(settings)
    if not {"host", "port"} & set(invalid):
        yield await address_item(settings.host, settings.port)
    if not {"host", "auth_tokens"} & set(invalid):
        for item in access_items(settings, insecure):
            yield item


def prompt_item(path: Path | None) -> Item:
    """Check the system prompt."""
    subject = "SYSTEM_PROMPT_FILE"
    try:
        text = load_system_prompt(path)
    except SettingsError as error:
        return fail(subject, str(error))
    return ok(subject, f"{path or 'not set, so the built-in prompt'}, {len(text)} characters.")


def catalog_items(path: Path | None) -> Iterator[Item]:
    """Check the catalog of device tools."""
    subject = "DEVICE_TOOLS_FILE"
    try:
        tools = load_catalog(path)
    except SettingsError as error:
        yield fail(subject, str(error))
        return
    yield ok(subject, f"{path or 'not set, so those of the iOS app'}, {len(tools)} tools.")
    own = {spec.name for spec in BuiltinToolset().specs()}
    taken = [spec.name for spec in tools if spec.name in own]
    if taken:
        yield warn(subject, f"replaces tools of the server's own: {', '.join(taken)}. Rename them there.")


def roots_item(settings: Settings) -> Item:
    """Check the folders of the file tools."""
    try:
        roots = file_roots(settings)
    except SettingsError as error:
        return fail("FILE_ROOTS", str(error))
    return ok("FILE_ROOTS", ", ".join(map(str, roots)) + ".")


def policy_items(settings: Settings) -> Iterator[Item]:
    """Check the operator's rules, and report those that make no sense."""
    subject = "POLICIES_FILE"
    path = policies_path(settings)
    try:
        policies = load(path, required=settings.policies_file is not None)
    except SettingsError as error:
        yield fail(subject, str(error))
        return
    found = f"rules: {len(policies.rules)}" if path.exists() else "not there, which is fine"
    yield ok(subject, f"{path}, {found}.")
    with suppress(SettingsError):  # the catalog's error is reported by its own item
        tools = known_tools(settings.device_tools_file)
        findings = lint(policies.rules, tools, now=time.time())
        yield from (warn(subject, text) for text in (*policies.notes, *findings))
        for text in lint_allowed(settings.allowed_tools, tools):
            yield warn("ALLOWED_TOOLS", f"{text}.")


async def address_item(host: str, port: int) -> Item:
    """Bind the address as the server would, without listening, and release it."""
    subject = "PORT"
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(BIND_TIMEOUT_S):
            server = await loop.create_server(asyncio.Protocol, host, port, start_serving=False)
    except TimeoutError:
        return fail("HOST", f"looking up {host} took longer than {BIND_TIMEOUT_S:g} s.")
    except (OSError, UnicodeError) as error:  # a name that is too long for the resolver is a UnicodeError
        return fail(*why_not_bound(host, port, error))
    server.close()
    await server.wait_closed()
    return ok(subject, f"{host}:{port} is free." if port else f"any free port of {host}.")


def access_items(settings: Settings, insecure: bool) -> Iterator[Item]:
    """Report who may connect, weak tokens, and tokens that some clients could not send."""
    subject = "AUTH_TOKENS"
    try:
        check_exposure(settings, insecure=insecure)
    except SettingsError as error:
        yield fail(subject, str(error))
        return
    tokens = settings.auth_tokens
    if tokens:
        yield ok(subject, f"{len(tokens)} set; one of them is needed to connect.")
    elif is_loopback(settings.host):
        yield ok(subject, "not set, and not needed: only this machine can connect.")
    else:
        yield warn(subject, "not set: everyone who reaches this machine can connect.")
    yield from _token_items(subject, tokens)


def _token_items(subject: str, tokens: Sequence[str]) -> Iterator[Item]:
    # Tokens are secrets: they are named by their position.
    for place, token in enumerate(tokens, 1):
        which = f"token {place} of {len(tokens)}"
        if len(token) < MIN_TOKEN_LENGTH:
            yield warn(subject, f"{which} is shorter than {MIN_TOKEN_LENGTH} characters: take a random one.")
        if not _SENDABLE.fullmatch(token):
            yield warn(
                subject, f'{which} holds more than letters, digits, "-" and "_": browsers cannot send it.'
            )
