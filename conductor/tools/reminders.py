"""Reminders as they are stored with a person."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Annotated, Literal, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

# Characters of a zone's name; the longest has 32.
MAX_ZONE_CHARS = 64
FIELD = "reminders"
# Milliseconds: a session that took a reminder and has not told it since is gone.
TAKEN_MS = 10 * 60 * 1000

Repeat: TypeAlias = Literal["daily", "weekdays", "weekends", "weekly", "monthly"]

_WEEKDAYS: Mapping[Repeat, range] = {"daily": range(7), "weekdays": range(5), "weekends": range(5, 7)}


class Reminder(msgspec.Struct, frozen=True, omit_defaults=True):
    """A reminder. ``due_ms`` is epoch milliseconds; ``zone`` is the IANA time zone of its repetitions.

    ``session`` is the session that delivers it, since ``taken_ms``. ``announced_ms``: its ``due_ms`` of which
    the app's backend was told.
    """

    id: Annotated[str, msgspec.Meta(pattern=r"^reminder_[1-9][0-9]{0,5}$")]
    text: str
    due_ms: int
    repeat: Repeat | None = None
    zone: str = "UTC"
    session: str = ""
    taken_ms: int = 0
    announced_ms: int = 0

    @property
    def view(self) -> dict[str, str]:
        """The reminder as the model reads it; its time is local."""
        repeat = {"repeat": self.repeat} if self.repeat is not None else {}
        return {"id": self.id, "text": self.text, "at": self.local.isoformat(timespec="minutes"), **repeat}

    @property
    def local(self) -> datetime:
        """Its local time."""
        return datetime.fromtimestamp(self.due_ms / 1000, ZoneInfo(self.zone))

    def next(self, now_ms: int) -> Reminder | None:
        """Return its first repetition after ``now_ms``, taken by no session; None if it has no repetition."""
        if self.repeat is None:
            return None
        due = self.local
        while due.timestamp() * 1000 <= max(now_ms, self.due_ms):
            due = _repeated(due, self.repeat)
        return msgspec.structs.replace(self, due_ms=epoch_ms(due), session="", taken_ms=0)


def _repeated(due: datetime, repeat: Repeat) -> datetime:
    # Local arithmetic: the time of day stays the same when the clocks change.
    if repeat == "weekly":
        return due + timedelta(days=7)
    due, day = due + timedelta(days=1), due.day
    # A month without the day is left out, as in RFC 5545.
    while due.day != day if repeat == "monthly" else due.weekday() not in _WEEKDAYS[repeat]:
        due += timedelta(days=1)
    return due


Reminders: TypeAlias = tuple[Reminder, ...]


def read_reminders(text: str | None) -> Reminders:
    """Decode stored reminders; a text that cannot be read has no reminders."""
    try:
        return msgspec.json.decode(text, type=Reminders) if text else ()
    except msgspec.DecodeError:
        return ()


def write_reminders(reminders: Reminders) -> str:
    """Encode reminders for the store."""
    return msgspec.json.encode(reminders).decode() if reminders else ""


def epoch_ms(time: datetime) -> int:
    """Convert to epoch milliseconds."""
    return round(time.timestamp() * 1000)


@lru_cache(maxsize=256)
def find_zone(name: str) -> ZoneInfo | None:
    """Return the time zone of an IANA name, or None."""
    # The name comes from a model or a client, and becomes a path among the zone files.
    if len(name) > MAX_ZONE_CHARS:
        return None
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # unknown; a path; a folder
        return None
