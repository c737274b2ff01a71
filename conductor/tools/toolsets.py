"""The installed toolsets, and the tools of a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from pydantic import SecretStr

from conductor.entry_points import TOOLSETS, plugins
from conductor.errors import SettingsError
from conductor.models.profiles import load_profiles
from conductor.settings import Settings, program_token
from conductor.stores.base import passwords
from conductor.tools.base import Toolset, ToolSpec
from conductor.tools.declarations import load_catalog
from conductor.tools.outcomes import Effect, Risk
from conductor.tools.redaction import Redactor, secrets_in


def make_toolsets(settings: Settings) -> list[Toolset]:
    """Make the toolsets of all entry points, in the order of their names.

    Raises `SettingsError`, also if two toolsets have a tool of one name.
    """
    toolsets: list[Toolset] = []
    owners: dict[str, str] = {}
    for name, plugin in plugins(TOOLSETS).items():
        toolset: Toolset = plugin.make(Toolset, settings)
        toolsets.append(toolset)
        with plugin.guard("cannot list its tools"):
            specs = toolset.all_specs()
        for spec in specs:
            if problem := mistake(spec):
                raise SettingsError(f"The tool {spec.name} of {plugin.label} cannot be offered: {problem}.")
            owner = owners.setdefault(spec.name, name)
            if owner != name:
                raise SettingsError(f'The toolsets "{owner}" and "{name}" both have a tool {spec.name}.')
    return toolsets


def mistake(spec: ToolSpec) -> str:
    """Return in one clause why a toolset cannot offer a tool; empty if it can."""
    for name, values in (("risk", get_args(Risk)), ("effect", get_args(Effect))):
        if getattr(spec, name) not in values:
            return f"its {name} must be one of {', '.join(values)}"
    if spec.source in ("", "device"):
        return "its source must be the name of the toolset; the client runs the tools of the source device"
    return ""


def all_tools(settings: Settings) -> tuple[ToolSpec, ...]:
    """List the tools of the server and of the catalog. Raises `SettingsError`."""
    specs = [spec for toolset in make_toolsets(settings) for spec in toolset.all_specs()]
    return (*specs, *load_catalog(settings.device_tools_file))


def make_redactor(settings: Settings, toolsets: Sequence[Toolset]) -> Redactor:
    """Make the redactor of the secrets in the settings and of the toolsets. Raises `SettingsError`."""
    profiles = load_profiles(settings).by_name.values()
    keys = [key for profile in profiles for key in (profile.api_key, *profile.header_secrets)]
    fields = [getattr(settings, name) for name in Settings.model_fields]
    values = [key.get_secret_value() for key in (*keys, *fields) if isinstance(key, SecretStr)]
    values += [password for text in fields if isinstance(text, str) for password in passwords(text)]
    values += [entry.partition(":")[2].rpartition(":")[0] for entry in settings.api_keys]
    values += [secret for profile in profiles for secret in secrets_in(profile.own_headers)]
    values += [secret for toolset in toolsets for secret in toolset.secrets()]
    values += [token for app in settings.auth_tokens for token in (app, program_token(app))]
    return Redactor(values, paths=settings.redact_paths)
