"""The server's output at the start, and the address, token and QR code of ``serve --lan``."""

from __future__ import annotations

import io
import ipaddress
import os
import shlex
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from conductor.env_file import ENV_FILE
from conductor.errors import SettingsError
from conductor.models.profiles import load_profiles
from conductor.plugins.mcp.config import load_mcp_servers
from conductor.plugins.tools import http_tools
from conductor.plugins.webhooks.file import load_webhooks
from conductor.settings import Reading, Settings, read_settings, referenced_names
from conductor.stores.registry import describe_store
from conductor.version import __version__

_REMOTE_ADDRESS = ("192.0.2.1", 9)
"""An address for documentation (RFC 5737). Nothing is sent; its route gives this machine's address."""


def banner(settings: Settings, port: int, lan_token: str | None) -> str:
    """Format the lines. They contain no configured token, only the token of ``--lan``, new for each run."""
    lines = [
        f"Conductor {__version__}",
        *([f"  open      {page}"] if (page := _page(settings, port)) else []),
        f"  model     {_model(settings)}",
        f"  sessions  {describe_store(settings)}",
    ]
    if settings.workers > 1:
        lines.append(f"  workers   {settings.workers} processes")
    servers = load_mcp_servers(settings)
    if servers:
        names = (server.name if server.enabled else f"{server.name} (disabled)" for server in servers)
        lines.append(f"  mcp       {', '.join(names)}")
    url = f"ws://{_authority(settings.host, port)}/ws"
    auth = f"?token={lan_token}" if lan_token else "  (bearer token needed)" * settings.authenticates
    lines.append(f"  connect   {url}{auth or '  (no token needed)'}")
    lines.append(f"  try       {shlex.join(_talk(settings, port, lan_token))}")
    if lan_token is not None:
        # The page reads the token from the fragment, which browsers do not send.
        lines += ["", qr_code(f"{page}#token={lan_token}" if page else url + auth)]
    return "\n".join(lines)


def facts(settings: Settings, port: int) -> dict[str, Any]:
    """Describe a started server for the log."""
    return {
        "version": __version__,
        "address": f"ws://{_authority(settings.host, port)}/ws",
        **({"page": page} if (page := _page(settings, port)) else {}),
        "store": settings.store_kind if settings.store_kind == "memory" else describe_store(settings),
        "models": [profile.heading for profile in load_profiles(settings).by_name.values()],
        "mcp": [server.name for server in load_mcp_servers(settings) if server.enabled],
        "workers": settings.workers,
        "tokens": len(settings.auth_tokens),
    }


def _authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def unknown_names(reading: Reading) -> list[str]:
    """List the names in ``.env`` that are no settings and that no configuration file refers to."""
    for load in (load_profiles, load_mcp_servers, load_webhooks, http_tools.from_settings):
        with suppress(SettingsError):  # `check` reports it
            load(reading.settings)  # adds to `referenced_names`
    return [name for name in reading.file.unknown if name not in referenced_names] if reading.file else []


def _page(settings: Settings, port: int) -> str | None:
    return f"http://{_authority(_reachable(settings.host), port)}/" if settings.serves_page else None


def _model(settings: Settings) -> str:
    profiles = load_profiles(settings)
    profile = profiles.main
    if profiles.file is not None:
        return f"{profile.name}: {profile.title}"
    if profile.provider == "demo" and settings.anthropic_api_key is None:
        return "demo, a scripted stand-in; set ANTHROPIC_API_KEY for Claude"
    return profile.title


def _talk(settings: Settings, port: int, lan_token: str | None) -> list[str]:
    # The other terminal reads the file ``.env``, but not this environment.
    file = read_settings(ENV_FILE, {}).file
    values = file.values if file else {}
    command = [python_command(), "-m", "conductor", "talk"]
    if _reachable(settings.host) != _reachable(values.get("host") or "127.0.0.1"):
        command += ["--host", settings.host]
    if str(port) != (values.get("port") or "8080"):
        command += ["--port", str(port)]
    # A token of the environment is not printed, because terminals keep logs.
    token = values.get("auth_tokens", "").partition(",")[0].strip()
    if settings.auth_tokens and token not in settings.auth_tokens:
        command.append(f"--token={lan_token or 'TOKEN'}")  # with =, because a token may begin with a dash
    return command


def python_command() -> str:
    """Return the path of this Python, relative if it is in the working folder."""
    executable = Path(sys.executable)
    folder = Path.cwd()
    return os.fspath(executable.relative_to(folder) if executable.is_relative_to(folder) else executable)


def server_address(settings: Settings) -> str:
    """Return host and port for a client of the server. Raises `SettingsError`."""
    if not settings.port:
        raise SettingsError("PORT is 0, which is any free port: give the port.")
    return _authority(_reachable(settings.host), settings.port)


def _reachable(host: str) -> str:
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "localhost": "127.0.0.1"}.get(host, host)


def lan_address() -> str:
    """Find this machine's address in the local network. Raises `SettingsError` without a network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # UDP: connecting selects a route and sends nothing.
            probe.connect(_REMOTE_ADDRESS)
            address = str(probe.getsockname()[0])
        except OSError:
            raise SettingsError("--lan: this machine has no network.") from None
    return private_address(address)


def private_address(address: str) -> str:
    """Return the address if it belongs to a local network. Raises `SettingsError`."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        raise SettingsError(f"--lan: {address!r} is not an address.") from None
    if not parsed.is_private or parsed.is_loopback or parsed.is_unspecified:
        raise SettingsError(f"--lan: {address} is not in a local network; use --host and AUTH_TOKENS.")
    return address


def qr_code(text: str) -> str:
    """Draw a QR code for a terminal, or name the package that is missing for it."""
    try:
        import segno
    except ImportError:
        return "For a QR code here: pip install 'conductor-voice[terminal]'\n"

    out = io.StringIO()
    segno.make(text, error="l").terminal(out, border=2, compact=True)
    return out.getvalue()
