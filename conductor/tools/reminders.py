"""Reminders as they are stored with a person."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_DAYS: Mapping[Repeat | None, range] = {"weekdays": range(5), "weekends": range(5, 7)}


class Reminder(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """A reminder. ``due_ms`` is epoch milliseconds of the wall clock; ``zone`` is an IANA time zone.

    ``session`` is the session that delivers it, since ``taken_ms``. ``announced_ms``: its ``due_ms`` of which
    the app's backend was told. ``wall`` is the local time that a repeated one was asked for: where clocks
    skip that time it is due later, but only on that day.
    ``untrusted``: third parties may have caused it, or written its text.
    """

    id: Annotated[str, msgspec.Meta(pattern=r"^reminder_[1-9][0-9]{0,5}$")]
    text: str
    due_ms: int
    repeat: Repeat | None = None
    zone: str = "UTC"
    session: str = ""
    taken_ms: int = 0
    announced_ms: int = 0
    wall: datetime | None = None
    untrusted: bool = False

    @property
    def view(self) -> dict[str, str]:
        """The reminder as the model reads it; its time is local."""
        local = self.local
        at = local.isoformat(timespec="seconds" if local.second else "minutes")
        repeat = {"repeat": self.repeat} if self.repeat is not None else {}
        return {"id": self.id, "text": self.text, "at": at, "weekday": WEEKDAYS[local.weekday()], **repeat}

    @property
    def local(self) -> datetime:
        """Its local time."""
        return datetime.fromtimestamp(self.due_ms / 1000, ZoneInfo(self.zone))

    def is_taken(self, wall_ms: int) -> bool:
        """Return whether a session delivers it; a time in the future comes from a clock that was set back."""
        return bool(self.session) and 0 <= wall_ms - self.taken_ms < TAKEN_MS

    def next(self, wall_ms: int) -> Reminder | None:
        """Return its first repetition after ``wall_ms``, taken by no session; None if there is none."""
        if self.repeat is None:
            return None
        wall, due_ms = self.wall or self.local.replace(tzinfo=None, fold=0), self.due_ms
        while due_ms <= max(wall_ms, self.due_ms):
            wall = _repeated(wall, self.repeat)
            due_ms = epoch_ms(wall.replace(tzinfo=ZoneInfo(self.zone)))
        return msgspec.structs.replace(self, due_ms=due_ms, wall=wall, session="", taken_ms=0)


def first_day(wall: datetime, repeat: Repeat | None) -> datetime:
    """Move a local time to the first day of its repetitions, from its own day on."""
    while wall.weekday() not in _DAYS.get(repeat, range(7)):
        wall += timedelta(days=1)
    return wall


def _repeated(wall: datetime, repeat: Repeat) -> datetime:
    if repeat == "weekly":
        return wall + timedelta(days=7)
    following = first_day(wall + timedelta(days=1), repeat)
    # A month without the day is left out, as in RFC 5545.
    while repeat == "monthly" and following.day != wall.day:
        following += timedelta(days=1)
    return following


class StoredReminders(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The reminders of a person, and the number of the last id: no later reminder gets it again."""

    last: int = 0
    reminders: tuple[Reminder, ...] = ()

    @property
    def next_id(self) -> str:
        """The id of the next reminder."""
        return f"reminder_{self.last + 1}"


def decode_reminders(text: str | None) -> StoredReminders:
    """Decode stored reminders. Raises `msgspec.DecodeError`: another version may have written them."""
    return msgspec.json.decode(text, type=StoredReminders) if text else StoredReminders()


def read_reminders(text: str | None) -> tuple[Reminder, ...]:
    """Decode stored reminders; a text that cannot be read has none for this version."""
    try:
        return decode_reminders(text).reminders
    except msgspec.DecodeError:
        return ()


def write_reminders(reminders: Iterable[Reminder], former: str | None = None) -> str:
    """Encode reminders in place of the stored text ``former``. Raises as `decode_reminders` does."""
    reminders = tuple(reminders)
    numbers = [int(reminder.id.rpartition("_")[2]) for reminder in reminders]
    last = max([decode_reminders(former).last, *numbers])
    return msgspec.json.encode(StoredReminders(last, reminders)).decode() if last else ""


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
