"""The system prompt: the packaged one or a file of the operator's, and what a session adds to it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from conductor.errors import SettingsError

MAX_PROMPT_BYTES = 64 * 1024
# Characters of a value from a client, such as its time zone: it must not fill the prompt.
MAX_VALUE_LENGTH = 100
PACKAGED = Path(__file__).with_name("voice.md")


def load_system_prompt(path: Path | None) -> str:
    """Return the system prompt in ``path``, or the packaged one if ``path`` is None.

    Raises `SettingsError` if the file cannot be read, is empty, is larger than 64 KiB or is not UTF-8.
    """
    source = PACKAGED if path is None else path
    try:
        with source.open("rb") as file:
            # One byte more than is allowed tells "too large" without reading all of a huge file.
            content = file.read(MAX_PROMPT_BYTES + 1)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise SettingsError(f"The system prompt file {source} cannot be read: {reason}.") from error
    if len(content) > MAX_PROMPT_BYTES:
        raise SettingsError(f"The system prompt file {source} is larger than {MAX_PROMPT_BYTES // 1024} KiB.")
    try:
        text = content.decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise SettingsError(f"The system prompt file {source} is not UTF-8 text.") from error
    if not text:
        raise SettingsError(f"The system prompt file {source} is empty.")
    return text


def identify(path: Path | None, text: str) -> tuple[str, str]:
    """Return a system prompt's name, that of its file, and its version, which changes with its text."""
    return (path or PACKAGED).stem, hashlib.sha256(text.encode()).hexdigest()[:12]


def session_prompt(base: str, *, locale: str | None, time_zone: str | None, instructions: str | None) -> str:
    """Return ``base`` followed by what the session told of itself, each part under its heading.

    ``locale`` is a BCP 47 tag, ``time_zone`` an IANA name, ``instructions`` the app's own text (the
    protocol bounds it to 4 KiB). Parts that are None or blank are left out. The text holds nothing that
    changes from turn to turn, so that a service can cache it.
    """
    # What changes least comes first, so that the service's cache holds as much as possible.
    parts = [base.rstrip()]
    if where := _one_line(locale):
        parts.append(
            f"## The user's language\n\nThe device's locale is {where}. Answer in the language that the user "
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
    # Keep a client's value from opening a heading of its own, or from filling the prompt.
    return " ".join((value or "").split())[:MAX_VALUE_LENGTH]
