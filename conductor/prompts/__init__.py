"""The system prompt: the packaged one or the operator's file, and the additions of a session."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from pathlib import Path

from conductor.config_file import read_text
from conductor.errors import SettingsError
from conductor.lines import in_line

MAX_PROMPT_BYTES = 64 * 1024
# Characters of a value from a client, such as its time zone.
MAX_VALUE_LENGTH = 100
PACKAGED = Path(__file__).with_name("voice.md")
# A place for a variable of the session.
_VARIABLE = re.compile(r"\{\{ *(\w{1,64}) *\}\}")
# The section of a prompt about coding agents, and the tool without which it is of no use.
_AGENTS = re.compile(r"^## Coding agents\n.*?(?=^## |\Z)", re.M | re.S)
AGENT_TOOL = "agent.spawn"


def load_system_prompt(path: Path | None) -> str:
    """Return the system prompt in ``path``, or the packaged one if ``path`` is None.

    Raises `SettingsError` if the file cannot be read, is empty, is larger than 64 KiB or is not UTF-8.
    """
    source = PACKAGED if path is None else path
    label = f"The system prompt file {source}"
    text = read_text(source, label, max_bytes=MAX_PROMPT_BYTES, allow_pipe=True).strip()
    if not text:
        raise SettingsError(f"{label} is empty.")
    return text


def identify(path: Path | None, text: str) -> tuple[str, str]:
    """Return a system prompt's name (of its file) and version (a hash of its text)."""
    return (path or PACKAGED).stem, hashlib.sha256(text.encode()).hexdigest()[:12]


def variables_of(base: str) -> frozenset[str]:
    """Return the names of a prompt's variables."""
    return frozenset(_VARIABLE.findall(base))


def session_prompt(
    base: str,
    *,
    variables: Mapping[str, str] | None = None,
    locale: str | None,
    time_zone: str | None,
    instructions: str | None,
    tools: Collection[str] = (),
) -> str:
    """Return ``base`` and the session's own parts, each under a heading.

    ``{{name}}`` in ``base`` becomes the value of the variable, in one line, and nothing without one; a value
    is never read as such a place. What ``base`` says of coding agents is left out unless `AGENT_TOOL` is
    among ``tools``, the names of the tools that the model is offered.

    ``locale`` is a BCP 47 tag, ``time_zone`` an IANA name, ``instructions`` the app's own text (the
    protocol bounds it to 4 KiB). Parts that are None or blank are left out. The text does not change
    from turn to turn, so that a service can cache it.
    """
    # In the order of how rarely they change, for the service's cache.
    if AGENT_TOOL not in tools:
        base = _AGENTS.sub("", base)
    values = variables or {}
    parts = [_VARIABLE.sub(lambda place: in_line(values.get(place[1], "")), base).rstrip()]
    if tag := _one_line(locale):
        parts.append(
            f"## The user's language\n\nThe device's locale is {tag}. Answer in the language that the user "
            "speaks; when that is unclear, use this locale's."
        )
    if zone := _one_line(time_zone):
        parts.append(
            f"## The user's time zone\n\nThe user is in the time zone {zone}. Times without a place are "
            "meant in it."
        )
    if instructions and (text := instructions.strip()):
        parts.append(f"## Instructions from the app\n\n{text}")
    return "\n\n".join(parts)


def _one_line(value: str | None) -> str:
    # A client's value must not add a heading or fill the prompt.
    return in_line(value or "")[:MAX_VALUE_LENGTH]
