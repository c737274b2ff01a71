"""The operator's rules in ``policies.json``: reading and reloading.

The file is a JSON object, ``{"version": 1, "rules": [...]}``. An invalid file
prevents the start, and a running server keeps its rules: a mistake never permits anything.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

import structlog

from conductor.config_file import read_json
from conductor.errors import SettingsError
from conductor.settings import Settings
from conductor.tools.rules import Rule, parse_rule

log = structlog.get_logger(__name__)

# Every call is compared with every rule.
MAX_RULES = 1_000
# Seconds between checks for a change of the file.
REREAD_S = 2.0
VERSION = 1

_Signature: TypeAlias = tuple[int, int, int] | None


def policies_path(settings: Settings) -> Path:
    """Return the path of the rules: POLICIES_FILE, or ``policies.json`` in the working directory."""
    return settings.working_file("policies_file")


def load(path: Path, *, required: bool = False) -> tuple[Rule, ...]:
    """Load the operator's rules; a missing file means no rules unless ``required``.

    Raises `SettingsError` for a file that cannot be read or is invalid.
    """
    path = Path(os.path.realpath(path))
    document = read_json(path, path.name, None if required else f'{{"version": {VERSION}, "rules": []}}')
    if not isinstance(document, dict) or not isinstance(document.get("rules"), list):
        raise SettingsError(f'{path.name} must be a JSON object with a list under "rules".')
    if document.get("version") != VERSION or isinstance(document["version"], bool):
        raise SettingsError(f'{path.name} must have "version": {VERSION}; it may be from another release.')
    if len(document["rules"]) > MAX_RULES:
        raise SettingsError(f"{path.name} has more than {MAX_RULES} rules.")
    numbered = enumerate(document["rules"], 1)
    return tuple(parse_rule(value, f"{path.name}, rule {number}") for number, value in numbered)


class PolicyFile:
    """The operator's rules of a running server, reloaded when the file changes.

    ``problem`` says why the present file is not used; ``rules`` then come from the last valid file.
    """

    def __init__(self, path: Path, *, required: bool = False) -> None:
        """Load the file. Raises `SettingsError`."""
        self._path = path
        self._signature = _signature(path)
        self.rules = load(path, required=required)
        self.problem = ""

    def refresh(self) -> None:
        """Reload the file if it has changed; may block."""
        signature = _signature(self._path)
        if signature == self._signature:
            return
        self._signature = signature
        try:
            # A file that disappeared may be a mistake: its rules remain.
            self.rules, self.problem = load(self._path, required=True), ""
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
