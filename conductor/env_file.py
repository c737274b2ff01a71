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

_NAME = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
# Any other name may be a secret and is not printed.
_SHOWABLE = re.compile(r"[A-Z][A-Z0-9_]*")


@dataclass(frozen=True, slots=True)
class EnvFile:
    """A parsed file: ``values`` by the settings' names, and ``unknown`` names.

    ``mistakes`` are sentences without any value.
    """

    values: Mapping[str, str] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    mistakes: tuple[str, ...] = ()


def read_env_file(path: Path, names: Collection[str], environment: Mapping[str, str]) -> EnvFile | None:
    """Read a file of settings; None without a file. ``names`` are the settings' names, in lower case.

    The format is python-dotenv's, with ``export``, quotes, comments and ``${NAME}``. Its silent cases are
    mistakes: a line that is not NAME=value, a quote that is not closed on its line, a variable that is not
    set, a second value for a setting.

    Raises `SettingsError` for a file that cannot be read.
    """
    from dotenv.parser import parse_stream

    if not os.path.lexists(path):
        return None
    text = read_text(path, f"The file {path}", allow_pipe=True)
    bindings = list(parse_stream(io.StringIO(text, newline=None)))
    values: dict[str, str] = {}
    unknown: list[str] = []
    mistakes: list[str] = []
    variables: dict[str, str | None] = {**environment}
    for binding in bindings:
        text = binding.original.string
        line = binding.original.line + text[: len(text) - len(text.lstrip())].count("\n")
        if binding.key is None and not binding.error:  # a comment
            continue
        if (
            binding.key is None
            or binding.value is None
            or not _NAME.fullmatch(binding.key)
            or "\n" in text.strip()
        ):
            problem = "cannot be read: it must be NAME=value, with a quote closed on the same line"
            mistakes.append(f"Line {line} of {path.name} {problem}.")
            continue
        name, value = binding.key.lower(), _resolved(binding.value, variables)
        variables[binding.key] = value
        if name not in names:
            unknown.append(binding.key if _SHOWABLE.fullmatch(binding.key) else f"line {line}")
        elif name in values:
            mistakes.append(f"Line {line} of {path.name} sets {name.upper()} a second time.")
        elif value is None:
            mistakes.append(f"Line {line} of {path.name} refers to a variable that is not set.")
        values.setdefault(name, value or "")
    return EnvFile({name: values[name] for name in values if name in names}, tuple(unknown), tuple(mistakes))


def _resolved(value: str, variables: Mapping[str, str | None]) -> str | None:
    from dotenv.variables import Variable, parse_variables

    atoms = list(parse_variables(value))
    for atom in atoms:
        if isinstance(atom, Variable) and atom.default is None and not variables.get(atom.name):
            return None
    return "".join(atom.resolve(variables) for atom in atoms)
