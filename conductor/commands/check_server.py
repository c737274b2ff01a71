"""Checks of the server: settings, files, address and access."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import time
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from conductor.app import file_roots, knowledge_index, notes_dir
from conductor.commands.output import Item, fail, ok, warn
from conductor.errors import SettingsError
from conductor.plugins.mcp.config import load_mcp_servers
from conductor.plugins.mcp.server import check_installed
from conductor.plugins.tools.builtin import BuiltinToolset
from conductor.plugins.tools.http_tools import load_http_tools
from conductor.plugins.tools.python_tools import python_tools
from conductor.prompts import load_system_prompt
from conductor.server.address import check_exposure, why_not_bound
from conductor.settings import Reading, Settings, environment_names, is_loopback
from conductor.tools.device import known_tools, load_catalog
from conductor.tools.policies import lint, lint_allowed, load, policies_path

# Seconds to resolve the name in HOST.
BIND_TIMEOUT_S = 5.0
# Characters of a token; a shorter one can be guessed.
MIN_TOKEN_LENGTH = 16

_SENDABLE = re.compile(r"[A-Za-z0-9_-]+")
"""Tokens that a header, a subprotocol and a query transport unchanged."""


def settings_items(
    env_file: Path | None, reading: Reading, also_used: Collection[str] = ()
) -> Iterator[Item]:
    """Report the sources of settings, unknown names, and invalid lines and values.

    ``also_used`` are names outside `Settings` that the server reads.
    """
    file = reading.file
    names = [name for name in environment_names() if name.lower() in Settings.model_fields]
    text = f"from the environment: {', '.join(names)}" if names else "none from the environment"
    if env_file is not None:
        text = f"{env_file.name} is {'read' if file else 'optional and missing'}; {text}"
    duplicates = [name for name in names if file and name.lower() in file.values]
    if duplicates:
        text += f"; the environment takes precedence over the file for {', '.join(duplicates)}"
    yield ok("settings", f"{text}.")
    for mistake in file.mistakes if file else ():
        yield fail("settings", mistake)
    for name in file.unknown if file else ():
        if env_file is not None and name not in also_used:
            yield warn("settings", f"{name} in {env_file.name} is not a setting.")
    for name, reason in reading.invalid.items():
        yield fail(name.upper(), f"{reason} See .env.example.")


async def prompt_items(settings: Settings) -> AsyncIterator[Item]:
    """Check the system prompt."""
    path = settings.system_prompt_file
    text = load_system_prompt(path)
    yield ok("SYSTEM_PROMPT_FILE", f"{path or 'not set: the built-in prompt'}, {len(text)} characters.")


async def catalog_items(settings: Settings) -> AsyncIterator[Item]:
    """Check the catalog of device tools."""
    subject, path = "DEVICE_TOOLS_FILE", settings.device_tools_file
    tools = load_catalog(path)
    yield ok(subject, f"{path or 'not set: the tools of the iOS app'}, {len(tools)} tools.")
    own = {spec.name for spec in BuiltinToolset().specs()}
    if replaced := ", ".join(spec.name for spec in tools if spec.name in own):
        yield warn(subject, f"replaces built-in tools: {replaced}. Rename them in the file.")


async def policy_items(settings: Settings) -> AsyncIterator[Item]:
    """Check the operator's rules, and report ineffective ones."""
    subject, path = "POLICIES_FILE", policies_path(settings)
    policies = load(path, required=settings.policies_file is not None)
    yield ok(
        subject,
        f"{path}, {f'rules: {len(policies.rules)}' if path.exists() else 'optional and missing'}.",
    )
    with suppress(SettingsError):  # an error of the catalog is reported by its own item
        tools = known_tools(settings)
        for text in (*policies.notes, *lint(policies.rules, tools, now=time.time())):
            yield warn(subject, text)
        for text in lint_allowed(settings.allowed_tools, tools):
            yield warn("ALLOWED_TOOLS", f"{text}.")


async def roots_items(settings: Settings) -> AsyncIterator[Item]:
    """Check the folders of the file tools."""
    if settings.file_roots:
        yield ok("FILE_ROOTS", f"{', '.join(map(str, file_roots(settings)))}.")


async def notes_items(settings: Settings) -> AsyncIterator[Item]:
    """Check the notes' folder."""
    folder = notes_dir(settings)
    if folder is not None and os.access(folder, os.W_OK):
        yield ok("NOTES_DIR", f"{folder}.")
    elif folder is not None:
        yield fail("NOTES_DIR", f"the server has no permission to write to {folder}.")


async def knowledge_items(settings: Settings) -> AsyncIterator[Item]:
    """Check the knowledge base's folder."""
    if knowledge_index(settings) is not None:
        yield ok("KNOWLEDGE_DIR", f"{settings.knowledge_dir}.")
        if find_spec("pypdf") is None:
            yield warn("KNOWLEDGE_DIR", "PDF files are skipped: they need the package pypdf.")


async def function_items(settings: Settings) -> AsyncIterator[Item]:
    """Load the tools in Python."""
    tools = python_tools(settings.tools_path)
    if tools or settings.tools_path is not None:
        names = ", ".join(tool.spec.name for tool in tools) or "no function has the decorator @tool"
        yield ok("TOOLS_PATH", f"{names}.")


async def http_items(settings: Settings) -> AsyncIterator[Item]:
    """Read the HTTP tools."""
    tools = load_http_tools(settings).tools
    if tools:
        yield ok("HTTP_TOOLS_FILE", f"{', '.join(tool.name for tool in tools)}.")


async def mcp_items(settings: Settings) -> AsyncIterator[Item]:
    """Read the MCP servers and find their programs, without starting them."""
    servers = load_mcp_servers(settings)
    if servers:
        check_installed()
    for server in servers:
        if server.enabled and server.command is not None and shutil.which(server.command) is None:
            yield fail("MCP_CONFIG_FILE", f"{server.name}: program not found: {server.command}.")
        elif server.enabled:
            yield ok("MCP_CONFIG_FILE", f"{server.name}: {server.url or server.command}.")


async def address_items(settings: Settings) -> AsyncIterator[Item]:
    """Bind the address as the server would, without listening, and release it."""
    host, port = settings.host, settings.port
    loop = asyncio.get_running_loop()
    try:
        # HOST may be a name, and resolving it may take a minute.
        async with asyncio.timeout(BIND_TIMEOUT_S):
            # Not listening: a client must not connect to the check.
            server = await loop.create_server(asyncio.Protocol, host, port, start_serving=False)
    except TimeoutError:
        yield fail("HOST", f"the lookup of {host} took longer than {BIND_TIMEOUT_S:g} s.")
    except (OSError, UnicodeError) as error:  # UnicodeError: the name is too long for the resolver
        yield fail(*why_not_bound(host, port, error))
    else:
        server.close()
        await server.wait_closed()
        yield ok("PORT", f"{host}:{port} is free." if port else f"any free port of {host}.")


async def access_items(settings: Settings, insecure: bool) -> AsyncIterator[Item]:
    """Report who may connect, weak tokens, and tokens that some clients cannot send."""
    subject, tokens = "AUTH_TOKENS", settings.auth_tokens
    check_exposure(settings, insecure=insecure)
    if tokens:
        yield ok(subject, f"{len(tokens)} set; a client needs one of them.")
    elif is_loopback(settings.host):
        yield ok(subject, "not set, and not needed: only this machine can connect.")
    else:
        yield warn(subject, "not set: every client that reaches this machine can connect.")
    for number, token in enumerate(tokens, 1):  # tokens are secrets
        which = f"token {number} of {len(tokens)}"
        if len(token) < MIN_TOKEN_LENGTH:
            yield warn(subject, f"{which} has fewer than {MIN_TOKEN_LENGTH} characters: use a random one.")
        if not _SENDABLE.fullmatch(token):
            yield warn(
                subject,
                f'{which} has other characters than letters, digits, "-" and "_": browsers cannot send it.',
            )
