"""The MCP servers that the operator names: ``mcp.json`` in the ``mcpServers`` form of other MCP clients."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from conductor.config_file import check_fields, check_url, read_json, validate
from conductor.errors import SettingsError
from conductor.settings import Settings, with_environment
from conductor.tools.declarations import SERVER_PREFIXES
from conductor.tools.outcomes import Risk
from conductor.tools.redaction import secrets_in

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}\Z")
_STRICT = ConfigDict(extra="forbid", frozen=True)
_TYPES = {"streamable-http": "http", "streamableHttp": "http"}


class McpServerConfig(BaseModel):
    """One MCP server: a ``command`` to run, or a ``url``.

    With ``trust`` the server's ``annotations`` of its tools count. ``tools`` are globs of the offered tools,
    without the server's name; empty means all tools. ``risk`` replaces the risk of single tools. ``timeout``
    is the time limit of a call in seconds, instead of TOOL_TIMEOUT_MS. With the ``scope`` ``session`` each
    session has its own server. ``oauth``: the server needs a login (`conductor mcp login`). ``revision`` is
    the revision of the protocol. ``secrets`` are the values from the environment,
    and those with the name of a secret.
    """

    model_config = _STRICT

    name: str
    type: Literal["stdio", "http"]
    command: Annotated[str | None, Field(min_length=1)] = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    cwd: str | None = None
    url: str | None = None
    headers: Mapping[str, str] = {}
    trust: bool = False
    tools: tuple[str, ...] = ()
    risk: Mapping[str, Risk] = {}
    timeout: Annotated[float | None, Field(gt=0, le=3_600)] = None
    enabled: bool = True
    scope: Literal["server", "session"] = "server"
    oauth: bool = False
    revision: Literal["auto", "2025-11-25"] = "auto"
    secrets: Annotated[tuple[str, ...], Field(repr=False)] = ()


def mcp_config_path(settings: Settings) -> Path:
    """Return the path of the file: ``mcp.json`` in CONFIG_DIR."""
    return settings.config_file("mcp.json")


def mcp_folder(settings: Settings) -> Path | None:
    """Return the folder for tokens of MCP servers; None without DATA_DIR."""
    return None if settings.data_dir is None else settings.data_dir / "mcp"


def load_mcp_servers(settings: Settings) -> tuple[McpServerConfig, ...]:
    """Read the servers; without a file there are no servers.

    Raises `SettingsError`: one sentence with the file, the server and the mistake.
    """
    path = mcp_config_path(settings)
    document = read_json(path, default='{"mcpServers": {}}')
    if not isinstance(document, dict) or not isinstance(document.get("mcpServers"), dict):
        raise SettingsError(f'{path} must be a JSON object with an object under "mcpServers".')
    check_fields(document, ["mcpServers"], str(path))
    return tuple(_server(path, name, values) for name, values in document["mcpServers"].items())


def _server(path: Path, name: str, values: Any) -> McpServerConfig:
    location = f'{path}, server "{name}"'
    if not _NAME.match(name):
        raise SettingsError(f"{location}: a name is 1 to 32 letters, digits, - and _.")
    if f"{name}." in SERVER_PREFIXES:
        raise SettingsError(f"{location}: this name is the server's own; choose another one.")
    if not isinstance(values, dict):
        raise SettingsError(f"{location} must be a JSON object.")
    fields = [field for field in McpServerConfig.model_fields if field not in ("name", "secrets")]
    check_fields(values, fields, location)
    kind = values.get("type", "http" if "url" in values else "stdio")
    values = {**values, "name": name, "type": _TYPES.get(kind, kind) if isinstance(kind, str) else kind}
    config = validate(McpServerConfig, values, location)
    _check_transport(location, config)
    secrets: list[str] = []
    expanded = {
        field: {
            key: with_environment(location, text, secrets) for key, text in getattr(config, field).items()
        }
        for field in ("env", "headers")
    }
    secrets += [secret for fields in expanded.values() for secret in secrets_in(fields)]
    return config.model_copy(update={**expanded, "secrets": tuple(dict.fromkeys(secrets))})


def _check_transport(location: str, config: McpServerConfig) -> None:
    is_program = config.type == "stdio"
    required = "command" if is_program else "url"
    if getattr(config, required) is None:
        raise SettingsError(f'{location}: "{required}" is missing, which type "{config.type}" needs.')
    for field in ("url", "headers") if is_program else ("command", "args", "env", "cwd"):
        if getattr(config, field):
            raise SettingsError(f'{location}: "{field}" cannot be combined with "{required}".')
    if config.url is not None:
        check_url(config.url, f"{location}: url")
