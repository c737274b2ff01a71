"""The tools on the device: declared by a catalog or by the client, run through ``tool.call``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from conductor.config_file import read_json
from conductor.errors import SettingsError
from conductor.tools.base import CallContext, ToolOutcome, Toolset, ToolSpec
from conductor.tools.declarations import parse_declarations


class DeviceToolset(Toolset):
    """The device's tools: the app runs them, once the commit that records a call has sent it."""

    def __init__(self, specs: Sequence[ToolSpec]) -> None:
        self._specs = tuple(specs)

    def specs(self) -> Sequence[ToolSpec]:
        """List the tools offered now."""
        return self._specs

    async def call(self, name: str, arguments: Mapping[str, Any], context: CallContext) -> ToolOutcome:
        """Raise: no tool of the device runs here."""
        raise AssertionError(name)


def read_catalog(path: Path | None) -> list[Any]:
    """Read a catalog's declarations: a list under ``tools`` of a JSON object; none without a catalog.

    Raises `SettingsError` for a file that cannot be read.
    """
    if path is None:
        return []
    catalog = read_json(path, f"The tool catalog {path.name}")
    declarations = catalog.get("tools") if isinstance(catalog, dict) else None
    if not isinstance(declarations, list):
        raise SettingsError(f'The tool catalog {path.name} must be a JSON object with a list under "tools".')
    return declarations


def load_catalog(path: Path | None) -> tuple[ToolSpec, ...]:
    """Read the tools of a catalog; raises `SettingsError`, also for the first tool that is rejected."""
    accepted, rejected = parse_declarations(read_catalog(path))
    if path is not None and rejected:
        tool, reason = rejected[0]
        raise SettingsError(
            f"The tool catalog {path.name} has a tool that is not accepted, {tool or '?'}: "
            f"{reason.rstrip('.')}."
        )
    # The operator's catalog is trusted; a client's declarations are not.
    return tuple(replace(spec, untrusted=False) for spec in accepted)
