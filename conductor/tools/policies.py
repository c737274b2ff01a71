"""The operator's rules and preset in ``policies.json``: reading and reloading.

The file is a JSON object, ``{"version": 1, "preset": "standard", "rules": [...]}``. An invalid file
prevents the start, and a running server keeps its rules: a mistake never permits anything.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import structlog

from conductor.config_file import check_fields, read_json
from conductor.errors import SettingsError
from conductor.settings import Settings
from conductor.tools.presets import PRESETS, Preset
from conductor.tools.rules import Rule, parse_rule

log = structlog.get_logger(__name__)

# Every call is compared with every rule.
MAX_RULES = 1_000
# Seconds between checks for a change of the file.
REREAD_S = 2.0
VERSION = 1

_Signature: TypeAlias = tuple[int, int, int] | None


def policies_path(settings: Settings) -> Path:
    """Return the path of the rules: POLICIES_FILE, or ``policies.json`` in CONFIG_DIR."""
    return settings.config_file("policies.json")


@dataclass(frozen=True, slots=True)
class Policies:
    """The operator's ``rules``, and the ``preset`` that decides where no rule does."""

    rules: tuple[Rule, ...] = ()
    preset: Preset = "standard"


def load(path: Path, *, required: bool = False) -> Policies:
    """Load the operator's policies; a missing file means the standard ones unless ``required``.

    Raises `SettingsError` for a file that cannot be read or is invalid.
    """
    path = Path(os.path.realpath(path))
    document = read_json(path, path.name, None if required else f'{{"version": {VERSION}}}')
    if not isinstance(document, dict):
        raise SettingsError(f"{path.name} must be a JSON object.")
    check_fields(document, ("version", "preset", "rules"), path.name)
    values, name = document.get("rules", []), document.get("preset", "standard")
    preset = next((preset for preset in PRESETS if preset == name), None)
    if not isinstance(values, list):
        raise SettingsError(f'{path.name} must have a list under "rules".')
    if preset is None:
        raise SettingsError(f'{path.name}: "preset" must be one of {", ".join(PRESETS)}.')
    if document.get("version") != VERSION or isinstance(document["version"], bool):
        raise SettingsError(f'{path.name} must have "version": {VERSION}; it may be from another release.')
    if len(values) > MAX_RULES:
        raise SettingsError(f"{path.name} has more than {MAX_RULES} rules.")
    rules = tuple(parse_rule(value, f"{path.name}, rule {n}") for n, value in enumerate(values, 1))
    return Policies(rules, preset)


class PolicyFile:
    """The operator's rules of a running server, reloaded when the file changes.

    ``problem`` says why the present file is not used; ``policies`` then come from the last valid file.
    """

    def __init__(self, path: Path, *, required: bool = False) -> None:
        """Load the file. Raises `SettingsError`."""
        self._path = path
        self._signature = _signature(path)
        self.policies = load(path, required=required)
        self.problem = ""

    def refresh(self) -> None:
        """Reload the file if it has changed; may block."""
        signature = _signature(self._path)
        if signature == self._signature:
            return
        self._signature = signature
        try:
            # A file that disappeared may be a mistake: its rules remain.
            self.policies, self.problem = load(self._path, required=True), ""
        except SettingsError as error:
            self.problem = str(error)
            log.error("policies not reloaded; the earlier rules remain", problem=self.problem)


def _signature(path: Path) -> _Signature:
    try:
        status = path.stat()
    except OSError:
        return None
    # The inode too: a replaced file may have the same size and time.
    return status.st_ino, status.st_size, status.st_mtime_ns
