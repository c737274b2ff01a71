"""The file ``.env``, read strictly: an unreadable line may be a security setting, so it is a mistake."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from conductor.errors import SettingsError

# In the directory where the server starts.
ENV_FILE = Path(".env")

_NAME = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
# Anything else may be a secret in the place of a name, and is not shown.
_SHOWABLE = re.compile(r"[A-Z][A-Z0-9_]*")


@dataclass(frozen=True, slots=True)
class EnvFile:
    """A parsed file: ``values`` by the settings' names, and ``unknown`` names, which are no settings.

    ``mistakes`` are sentences without any value.
    """

    values: Mapping[str, str] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    mistakes: tuple[str, ...] = ()


def read_env_file(path: Path, known: Collection[str], environment: Mapping[str, str]) -> EnvFile | None:
    """Read a file of settings; None if there is none. ``known`` are the settings' names, in lower case.

    The format is python-dotenv's: ``export``, quotes, comments and ``${NAME}`` are supported. What it ignores
    silently is a mistake here: a line that is not NAME=value, a quote that is not closed on its line, a
    variable that is not set, a second value for the same setting.

    Raises `SettingsError` for a file that cannot be read.
    """
    from dotenv.parser import parse_stream

    if not os.path.lexists(path):
        return None
    try:
        with path.open(encoding="utf-8-sig") as file:
            bindings = list(parse_stream(file))
    except UnicodeDecodeError:
        raise SettingsError(f"The file {path} cannot be read: it is not UTF-8 text.") from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise SettingsError(f"The file {path} cannot be read: {reason}.") from None
    values: dict[str, str] = {}
    unknown: list[str] = []
    mistakes: list[str] = []
    variables: dict[str, str | None] = {**environment}
    for one in bindings:
        text = one.original.string
        line = one.original.line + text[: len(text) - len(text.lstrip())].count("\n")
        if one.key is None and not one.error:  # a comment
            continue
        if one.key is None or one.value is None or not _NAME.fullmatch(one.key) or "\n" in text.strip():
            why = "cannot be read: it must be NAME=value, with a quote closed on the same line"
            mistakes.append(f"Line {line} of {path.name} {why}.")
            continue
        name, value = one.key.lower(), _resolved(one.value, variables)
        variables[one.key] = value
        if name not in known:
            unknown.append(one.key if _SHOWABLE.fullmatch(one.key) else f"line {line}")
        elif name in values:
            mistakes.append(f"Line {line} of {path.name} sets {name.upper()} a second time.")
        elif value is None:
            mistakes.append(f"Line {line} of {path.name} needs a variable that is not set.")
        values.setdefault(name, value or "")
    return EnvFile({name: values[name] for name in values if name in known}, tuple(unknown), tuple(mistakes))


def _resolved(value: str, variables: Mapping[str, str | None]) -> str | None:
    from dotenv.variables import Variable, parse_variables

    atoms = list(parse_variables(value))
    for atom in atoms:
        if isinstance(atom, Variable) and atom.default is None and not variables.get(atom.name):
            return None
    return "".join(atom.resolve(variables) for atom in atoms)
