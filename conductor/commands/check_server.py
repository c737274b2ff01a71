"""The part of ``conductor check`` that is about the server: its files, its address, and who may come in."""

from __future__ import annotations

import asyncio
import errno
import re
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

from conductor.app import check_exposure, is_loopback
from conductor.commands.check_item import Item, fail, ok, warn
from conductor.errors import SettingsError
from conductor.prompts import load_system_prompt
from conductor.settings import Settings
from conductor.tools.builtin import BuiltinToolset
from conductor.tools.catalog import load_catalog

BIND_TIMEOUT_S = 5.0
"""How long it may take to look up the name in HOST."""

MIN_TOKEN_LENGTH = 16

_SENDABLE = re.compile(r"[A-Za-z0-9_-]+")
"""What passes unchanged through a header, a subprotocol and a query."""

_PRIVILEGED = 1024


def prompt_item(path: Path | None) -> Item:
    """Read the system prompt."""
    subject = "SYSTEM_PROMPT_FILE"
    try:
        text = load_system_prompt(path)
    except SettingsError as error:
        return fail(subject, str(error))
    return ok(subject, f"{path or 'not set, so the built-in prompt'}, {len(text)} characters.")


def catalog_items(path: Path | None) -> Iterator[Item]:
    """Read the catalog of the device's tools."""
    subject = "DEVICE_TOOLS_FILE"
    try:
        tools = load_catalog(path)
    except SettingsError as error:
        yield fail(subject, _sentence(str(error)))
        return
    yield ok(subject, f"{path or 'not set, so those of the iOS app'}, {len(tools)} tools.")
    own = {spec.name for spec in BuiltinToolset().specs()}
    taken = [spec.name for spec in tools if spec.name in own]
    if taken:
        yield warn(subject, f"replaces tools of the server's own: {', '.join(taken)}. Rename them there.")


async def address_item(host: str, port: int) -> Item:
    """Bind the address as the server would, without listening on it, and let go of it."""
    subject = "PORT"
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(BIND_TIMEOUT_S):
            server = await loop.create_server(asyncio.Protocol, host, port, start_serving=False)
    except TimeoutError:
        return fail("HOST", f"looking up {host} took longer than {BIND_TIMEOUT_S:g} s.")
    except (OSError, UnicodeError) as error:  # a name that is too long for the resolver is a UnicodeError
        return _not_bound(host, port, error)
    server.close()
    await server.wait_closed()
    return ok(subject, f"{host}:{port} is free." if port else f"any free port of {host}.")


def _not_bound(host: str, port: int, error: OSError | UnicodeError) -> Item:
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EADDRINUSE:
        return fail(
            "PORT", f"{host}:{port} is taken, perhaps by a running Conductor: stop it, or set another."
        )
    if number in (errno.EACCES, errno.EPERM):
        hint = (
            f"a port below {_PRIVILEGED} needs privileges: set another" if port < _PRIVILEGED else "see why"
        )
        return fail("PORT", f"{host}:{port} may not be listened on; {hint}.")
    if isinstance(error, socket.gaierror | UnicodeError):
        return fail("HOST", f"{host} is no known name or address; 127.0.0.1 is this machine alone.")
    if number == errno.EADDRNOTAVAIL:
        return fail("HOST", f"{host} is no address of this machine; 0.0.0.0 is all that it has.")
    return fail("HOST", f"{host}:{port} cannot be listened on: {(error.strerror or str(error)).lower()}.")


def access_items(settings: Settings, insecure: bool) -> Iterator[Item]:
    """Report who may connect, and tokens that are weak or that some client could not send."""
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
        yield warn(subject, "not set: anybody who reaches this machine can connect.")
    yield from _token_items(subject, tokens)


def _token_items(subject: str, tokens: Sequence[str]) -> Iterator[Item]:
    """Name tokens by their places: they are secrets."""
    for place, token in enumerate(tokens, 1):
        which = f"token {place} of {len(tokens)}"
        if len(token) < MIN_TOKEN_LENGTH:
            yield warn(subject, f"{which} is shorter than {MIN_TOKEN_LENGTH} characters: take a random one.")
        if not _SENDABLE.fullmatch(token):
            yield warn(
                subject, f'{which} holds more than letters, digits, "-" and "_": browsers cannot send it.'
            )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."
