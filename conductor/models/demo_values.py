"""JSON values, times and identifiers in words, for the ear."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

MAX_SPOKEN = 300
MAX_ITEMS = 5
_LABELS = (
    "name",
    "title",
    "fullName",
    "full_name",
    "repository",
    "path",
    "description",
    "text",
    "id",
    "agentId",
)
ZONE_NAMES = ("timezone", "time_zone", "timeZone", "zone", "tz")


def spoken_time(moment: datetime) -> str:
    """Say a time of day: "3:42 in the afternoon", "noon", "7 o'clock in the evening"."""
    hour, minute = moment.hour, moment.minute
    if minute == 0 and hour in (0, 12):
        return "noon" if hour else "midnight"
    clock = f"{(hour - 1) % 12 + 1}:{minute:02}" if minute else f"{(hour - 1) % 12 + 1} o'clock"
    if hour < 5 or hour >= 22:
        return f"{clock} at night"
    part = "morning" if hour < 12 else "afternoon" if hour < 18 else "evening"
    return f"{clock} in the {part}"


def spoken(value: Any) -> str:
    """Say any JSON value in a few words, at most about 300 characters; what is left out is not hidden."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "yes" if value else "no"
        case int() | float():
            return f"minus {_number(-value)}" if value < 0 else _number(value)
        case str():
            return _shortened(" ".join(value.split())) or "nothing"
        case list():
            return _shortened(series(value)) if value else "none"
        case dict():
            if (items := items_of(value)) is not None:
                return spoken(items)
            plain = {
                key: part
                for key, part in value.items()
                if not isinstance(part, (dict, list)) and part is not None
            }
            words = [f"{titled(key).lower()} is {spoken(part)}" for key, part in list(plain.items())[:6]]
            return _shortened(_joined(words)) if words else "nothing that can be said in words"
        case _:
            return str(value)


def picked_repository(data: Any) -> str | None:
    """Return owner/name of a repository picker's result, None if nothing was picked."""
    value = (
        data
        if isinstance(data, str)
        else first_of(data, "repository", "fullName", "full_name", "repo", "name", "url")
    )
    if isinstance(value, dict):
        value = first_of(value, "fullName", "full_name", "name", "url")
    text = str(value or "").removeprefix("https://").removeprefix("github.com/").strip()
    return text if is_repository(text) else None


def agent_id(data: Any) -> str | None:
    """Return the id in an agent tool's result."""
    if isinstance(data, dict) and isinstance(data.get("agent"), dict):
        data = data["agent"]
    found = first_of(data, "id", "agentId", "agent_id")
    return None if found is None else str(found)


def is_repository(text: str) -> bool:
    """Say whether the text is owner/name."""
    return bool(re.fullmatch(r"[\w.-]+/[\w.-]+", text))


def _number(value: int | float) -> str:
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def moment_in(data: Any) -> datetime | None:
    """Find a time in a result: a local one rather than universal time."""
    candidates = [data] if isinstance(data, str) else []
    if isinstance(data, dict):
        candidates = [data[key] for key in sorted(data, key=lambda key: "utc" in key.casefold())]
    for text in candidates:
        if isinstance(text, str) and "T" in text:
            try:
                return datetime.fromisoformat(text)
            except ValueError:
                continue
    return None


def is_utc(data: Any, moment: datetime) -> bool:
    """Say whether a time result is in universal time."""
    zone = first_of(data, *ZONE_NAMES)
    return zone in ("UTC", "Etc/UTC") or (zone is None and moment.utcoffset() == timedelta(0))


def first_of(data: Any, *names: str) -> Any:
    """Return the first of these fields that has a value, None if ``data`` has none."""
    if not isinstance(data, dict):
        return None
    return next((data[name] for name in names if data.get(name) is not None), None)


def items_of(data: Any) -> list[Any] | None:
    """Return the list that a result is, or the only list it holds."""
    lists = [data] if isinstance(data, list) else []
    if isinstance(data, dict):
        lists = [part for part in data.values() if isinstance(part, list)]
    return lists[0] if len(lists) == 1 else None


def series(items: Sequence[Any]) -> str:
    """Say a list: its first items, and how many more there are."""
    words = [_label(item) for item in items[:MAX_ITEMS]]
    if len(items) > MAX_ITEMS:
        words.append(f"{len(items) - MAX_ITEMS} more")
    return _joined(words)


def _label(item: Any) -> str:
    if not isinstance(item, dict):
        return (
            str(item) if isinstance(item, str) else "another list" if isinstance(item, list) else spoken(item)
        )
    label, status = first_of(item, *_LABELS), first_of(item, "status", "state")
    words = str(label) if isinstance(label, (str, int)) else "one without a name"
    return f"{words}, which is {lowered(status)}" if status else words


def _joined(words: Sequence[str]) -> str:
    separator = "; " if any(", " in word for word in words) else ", "
    return separator.join([*words[:-2], " and ".join(words[-2:])])


def lowered(status: Any) -> str:
    """Say a status: "IN_PROGRESS" is "in progress"."""
    return str(status).replace("_", " ").lower()


def titled(name: str) -> str:
    """Say an identifier: "battery.level" and "batteryLevel" are "Battery level"."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name.replace(".", " ").replace("_", " ")).lower()
    return words[:1].upper() + words[1:]


def sentence(text: str) -> str:
    """Make one sentence or more of any text: short, and ended."""
    text = _shortened(" ".join(text.split()))
    return text if text.endswith((".", "!", "?", "\u2026")) else f"{text}."


def _shortened(text: str) -> str:
    if len(text) <= MAX_SPOKEN:
        return text
    return text[:MAX_SPOKEN].rpartition(" ")[0] + ", and there is more."


def unwrapped(data: Any) -> Any:
    """Read a device's text result that is JSON itself."""
    return decoded(data) if isinstance(data, str) and data[:1] in "{[" else data


def decoded(text: str) -> Any:
    """Read JSON, or leave the text as it is."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text
