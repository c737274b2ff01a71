"""The part of ``conductor check`` that reads the settings, and finds names that were meant to be settings."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dotenv.parser import parse_stream
from pydantic import ValidationError
from pydantic_settings import EnvSettingsSource

from conductor.commands.check_item import Item, fail, ok, warn
from conductor.settings import Settings

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
        "SYSTEM_PROMPT": "SYSTEM_PROMPT_FILE",
    }
)
"""Names that mean one of our settings elsewhere, or meant it once -> its name here."""

PREFIX = "CONDUCTOR_"
"""What people put before names that have no prefix here."""

_LIKENESS = 0.84
"""How alike a misspelt name must be (`difflib`): one with a slip or two is, ``HOSTNAME`` is not ``HOST``."""

_SHOWABLE = re.compile(r"[A-Z][A-Z0-9_]*")


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the settings' file that sets something; ``name`` is None where it cannot be read."""

    number: int
    name: str | None


@dataclass(frozen=True, slots=True)
class Found:
    """The settings, with the defaults in the places of those that are ``invalid`` (name -> why)."""

    settings: Settings
    invalid: Mapping[str, str]


def read_settings(env_file: Path | None, overrides: Mapping[str, Any]) -> Found:
    """Read the settings as the server does, but find all that is wrong with them.

    ``overrides`` win over the environment and the file. Raises OSError and UnicodeDecodeError for a file
    that cannot be read.
    """
    try:
        return Found(Settings(_env_file=env_file, **overrides), {})
    except ValidationError as error:
        invalid = {
            str(one["loc"][0]): _reason(one["msg"])
            for one in error.errors(include_url=False, include_input=False, include_context=False)
        }
    defaults = {name: Settings.model_fields[name].get_default() for name in invalid}
    return Found(Settings(_env_file=env_file, **{**overrides, **defaults}), invalid)


def _reason(message: str) -> str:
    text = message.removeprefix("Value error, ").rstrip(".")
    return text[:1].lower() + text[1:]


def settings_items(env_file: Path | None, found: Found) -> Iterator[Item]:
    """Report where settings come from, which names are none, and which values are wrong."""
    lines = read_lines(env_file)
    environment = [name.upper() for name in EnvSettingsSource(Settings).env_vars]
    yield _sources(env_file, lines, environment)
    yield from name_items(lines or [], environment, env_file.name if env_file else "")
    for name, reason in found.invalid.items():
        yield fail(name.upper(), f"is not valid: {reason}. .env.example says what it takes.")


def read_lines(env_file: Path | None) -> list[Line] | None:
    """Read the lines of the settings' file that set something; None if there is no file."""
    if env_file is None or not env_file.is_file():
        return None
    with env_file.open(encoding=Settings.model_config.get("env_file_encoding")) as file:
        return [
            Line(one.original.line, None if one.error or one.value is None else one.key)
            for one in parse_stream(file)
            if one.error or one.key is not None
        ]


def _sources(env_file: Path | None, lines: list[Line] | None, environment: list[str]) -> Item:
    known = [name for name in environment if name.lower() in Settings.model_fields]
    text = "none comes from the environment"
    if known:
        text = f"from the environment: {', '.join(sorted(known))}"
    if env_file is not None:
        where = "read" if lines is not None else "not there, which is fine"
        text = f"{env_file.name} is {where}; {text}"
    both = sorted({line.name.upper() for line in lines or [] if line.name} & set(known))
    if both:
        text += f"; the environment wins over the file for {', '.join(both)}"
    return ok("settings", f"{text}.")


def name_items(lines: list[Line], environment: list[str], file_name: str) -> Iterator[Item]:
    """Warn of names that were meant to be settings, and of lines of the file that set nothing.

    The environment is full of other programs' names, so there only those count that look like ours. What
    cannot be a setting's name is not repeated: somebody may have put a key in its place.
    """
    strangers: list[str] = []
    for line in lines:
        where = f"line {line.number} of {file_name}"
        if line.name is None:
            yield warn(where, "sets nothing: it is not NAME=value.")
        elif line.name.lower() not in Settings.model_fields:
            shown = line.name if _SHOWABLE.fullmatch(line.name) else None
            hint = hint_for(line.name)
            if hint is None:
                strangers.append(shown or where)
            else:
                yield warn(shown or where, f"is no setting{f' ({where})' if shown else ''}; {hint}")
    if strangers:
        yield warn(
            "settings", f"in {file_name} these are no settings and do nothing: {', '.join(strangers)}."
        )
    for name in environment:
        if name.lower() not in Settings.model_fields and _SHOWABLE.fullmatch(name):
            hint = hint_for(name)
            if hint is not None:
                yield warn(name, f"is no setting (in the environment); {hint}")


def hint_for(name: str) -> str | None:
    """Guess which setting a name that is none was meant to be, and say so."""
    name = name.upper()
    known = [field.upper() for field in Settings.model_fields]
    if name in OTHER_NAMES:
        return f"here that is {OTHER_NAMES[name]}."
    if name.removeprefix(PREFIX) in known:
        return f"names have no prefix here: {name.removeprefix(PREFIX)}."
    close = difflib.get_close_matches(name, known, 1, _LIKENESS)
    return f"did you mean {close[0]}?" if close else None
