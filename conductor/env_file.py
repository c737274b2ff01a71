"""The file ``.env``, read strictly: an unreadable line may be a security setting, so it is a mistake."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from conductor.errors import SettingsError

# In the directory where the server starts.
ENV_FILE = Path(".env")

# Names that other programs or former versions use for one of these settings -> its name here.
OTHER_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "ANTHROPIC_AUTH_TOKEN": "ANTHROPIC_API_KEY",
        "ANTHROPIC_API_URL": "ANTHROPIC_BASE_URL",
        "ANTHROPIC_KEY": "ANTHROPIC_API_KEY",
        "ANTHROPIC_TOKEN": "ANTHROPIC_API_KEY",
        "API_TOKENS": "AUTH_TOKENS",
        "BEARER_TOKENS": "AUTH_TOKENS",
        "CATALOG_FILE": "DEVICE_TOOLS_FILE",
        "CLAUDE_API_KEY": "ANTHROPIC_API_KEY",
        "CLAUDE_MODEL": "ANTHROPIC_MODEL",
        "LLM_PROVIDER": "MODEL_PROVIDER",
        "OPENAI_API_BASE": "OPENAI_BASE_URL",
        "OPENAI_API_URL": "OPENAI_BASE_URL",
        "OPENAI_KEY": "OPENAI_API_KEY",
        "SYSTEM_PROMPT": "SYSTEM_PROMPT_FILE",
    }
)

# A prefix that users add by mistake: the settings' names have none.
PREFIX = "CONDUCTOR_"

# Similarity (`difflib`) of a misspelt name: one or two typos pass, ``HOSTNAME`` does not pass for ``HOST``.
_LIKENESS = 0.84

_NAME = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
# Anything else may be a secret in the place of a name, and is not shown.
_SHOWABLE = re.compile(r"[A-Z][A-Z0-9_]*")


@dataclass(frozen=True, slots=True)
class EnvFile:
    """A parsed file: ``values`` by the settings' names, ``others`` are names of no setting.

    ``mistakes`` are sentences without any value.
    """

    values: Mapping[str, str] = field(default_factory=dict)
    others: tuple[str, ...] = ()
    mistakes: tuple[str, ...] = ()


def read_env_file(path: Path, known: Collection[str], environment: Mapping[str, str]) -> EnvFile | None:
    """Read a file of settings; None if there is none. ``known`` are the settings' names, in lower case.

    The format is python-dotenv's: ``export``, quotes, comments and ``${NAME}`` are supported. What it ignores
    silently is a mistake here: a line that is not NAME=value, a quote that is not closed on its line, a
    variable that is not set, a second value for the same setting, a name that is nearly a setting's.

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
    others: list[str] = []
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
            hint = hint_for(name, known)
            if hint:
                mistakes.append(f"Line {line} of {path.name} has a name that is no setting: {hint}")
            else:
                others.append(one.key if _SHOWABLE.fullmatch(one.key) else f"line {line}")
        elif name in values:
            mistakes.append(f"Line {line} of {path.name} sets {name.upper()} a second time.")
        elif value is None:
            mistakes.append(f"Line {line} of {path.name} needs a variable that is not set.")
        values.setdefault(name, value or "")
    return EnvFile({name: values[name] for name in values if name in known}, tuple(others), tuple(mistakes))


def _resolved(value: str, variables: Mapping[str, str | None]) -> str | None:
    from dotenv.variables import Variable, parse_variables

    atoms = list(parse_variables(value))
    for atom in atoms:
        if isinstance(atom, Variable) and atom.default is None and not variables.get(atom.name):
            return None
    return "".join(atom.resolve(variables) for atom in atoms)


def hint_for(name: str, known: Collection[str]) -> str | None:
    """Return a hint which setting an unknown name may stand for; None if there is no guess."""
    name = name.upper()
    names = [each.upper() for each in known]
    if name in OTHER_NAMES:
        return f"here that is {OTHER_NAMES[name]}."
    if name.removeprefix(PREFIX) in names:
        return f"names have no prefix here: {name.removeprefix(PREFIX)}."
    close = difflib.get_close_matches(name, names, 1, _LIKENESS)
    return f"did you mean {close[0]}?" if close else None


def misspelt(names: Iterable[str], known: Collection[str]) -> Iterator[tuple[str, str]]:
    """Find misspelt settings in the environment, each with a hint.

    The environment holds other programs' names, so these are only warned about.
    """
    for name in names:
        if name.lower() not in known and _SHOWABLE.fullmatch(name):
            hint = hint_for(name, known)
            if hint:
                yield name, hint
