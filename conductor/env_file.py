"""The file ``.env``, in which an unreadable line is a mistake: it may be a security setting."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from conductor.config_file import read_text

# In the directory where the server starts.
ENV_FILE = Path(".env")

_LINE = re.compile(
    r"""\s*(?:export\s+)?([A-Za-z_][\w.-]*)\s*=\s*(?:"([^"\\]*)"|'([^']*)'|((?!["'])\S.*?)?)(?:\s+\#.*|\s*)""",
    re.ASCII,
)
# Any other name may be a secret and is not printed.
_SHOWABLE = re.compile(r"[A-Z][A-Z0-9_]*")


@dataclass(frozen=True, slots=True)
class EnvFile:
    """A parsed file: ``values`` by the settings' names, ``others`` by their names, and ``unknown`` names.

    ``mistakes`` are sentences without any value.
    """

    values: Mapping[str, str] = field(default_factory=dict)
    others: Mapping[str, str] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    mistakes: tuple[str, ...] = ()


def read_env_file(path: Path, names: Collection[str]) -> EnvFile | None:
    """Read a file of settings; None without a file. ``names`` are the settings' names, in lower case.

    A line is NAME=value, perhaps after ``export``, with quotes around the value, or a comment after it.
    A quote has no escapes, a value no variables: such lines, and a second value for a setting, are mistakes.

    Raises `SettingsError` for a file that cannot be read.
    """
    if not os.path.lexists(path):
        return None
    values: dict[str, str] = {}
    others: dict[str, str] = {}
    unknown: list[str] = []
    mistakes: list[str] = []
    text = read_text(path, f"The file {path}", allow_pipe=True)
    for number, line in enumerate(io.StringIO(text, newline=None), 1):
        if line.strip().startswith("#") or not line.strip():
            continue
        match = _LINE.fullmatch(line.rstrip())
        if match is None:
            problem = "cannot be read: it must be NAME=value, with a quote closed on the same line"
            mistakes.append(f"Line {number} of {path.name} {problem}.")
            continue
        name, value = match[1].lower(), match[2] or match[3] or match[4] or ""
        if name not in names:
            others[match[1]] = value
            unknown.append(match[1] if _SHOWABLE.fullmatch(match[1]) else f"line {number}")
        elif name in values:
            mistakes.append(f"Line {number} of {path.name} sets {name.upper()} a second time.")
        elif "${" in value and match[3] is None:
            mistakes.append(f"Line {number} of {path.name} refers to a variable; write the value itself.")
        else:
            values[name] = value
    return EnvFile(values, others, tuple(unknown), tuple(mistakes))
