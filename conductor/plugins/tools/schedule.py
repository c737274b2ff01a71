"""The tools ``schedule_task``, ``list_scheduled_tasks`` and ``cancel_scheduled_task``: reminders of a person.

A session of the person delivers a reminder when it is due (`conductor.conversation.reminders`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, tzinfo
from typing import Annotated, Any, Literal, TypeAlias, get_args
from zoneinfo import ZoneInfo

import msgspec

from conductor.plugins.tools.clock import find_zone, utc_now
from conductor.plugins.tools.definitions import argument, definition
from conductor.plugins.tools.tasks import TaskError, change_field, no_storage
from conductor.tools.base import CallContext, ToolOutcome, succeeded

FIELD = "reminders"
# Reminders of a person, which are one field, and characters of a reminder.
MAX_REMINDERS = 200
MAX_TEXT_CHARS = 500
# Days until a reminder.
MAX_DAYS = 366 * 5

Repeat: TypeAlias = Literal["daily", "weekdays", "weekends", "weekly", "monthly"]

_WEEKDAYS: Mapping[Repeat, range] = {"daily": range(7), "weekdays": range(5), "weekends": range(5, 7)}


class Reminder(msgspec.Struct, frozen=True, omit_defaults=True):
    """A reminder. ``due_ms`` is epoch milliseconds; ``zone`` is the IANA time zone of its repetitions.

    ``session`` is the session that delivers it, since ``taken_ms``.
    """

    id: Annotated[str, msgspec.Meta(pattern=r"^reminder_[1-9][0-9]{0,5}$")]
    text: str
    due_ms: int
    repeat: Repeat | None = None
    zone: str = "UTC"
    session: str = ""
    taken_ms: int = 0

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


class ScheduleTask:
    """``schedule_task``."""

    spec = definition(
        "schedule_task",
        "Remind the user later: at that time you are told the text and speak to the user. "
        "Give in_minutes or at, and repeat if it shall come again.",
        {
            "text": argument(
                "string", "What to tell the user, or to do, then.", minLength=1, maxLength=MAX_TEXT_CHARS
            ),
            "in_minutes": argument("number", exclusiveMinimum=0, maximum=MAX_DAYS * 24 * 60),
            "at": argument(
                "string", "The user's local time: 2026-05-01T08:00, or 08:00 for the next one.", maxLength=40
            ),
            "repeat": argument("string", enum=list(get_args(Repeat))),
        },
        required=["text"],
        needs_session=True,
        risk="medium",
        effect="write",
        title="Schedule a reminder",
    )

    def __init__(self, now: Callable[[], datetime] = utc_now) -> None:
        self._now = now

    async def run(self, arguments: Mapping[str, Any], context: CallContext) -> ToolOutcome:
        """Answer with the new ``reminder``."""
        now = self._now()
        zone = find_zone(context.time_zone or "UTC") or ZoneInfo("UTC")

        def add(text: str | None) -> tuple[str, ToolOutcome]:
            due, reminders = _due(arguments, now, zone), read_reminders(text)
            if len(reminders) >= MAX_REMINDERS:
                raise TaskError("validation_failed", f"There are {MAX_REMINDERS} reminders already.")
            number = 1 + max((int(item.id.removeprefix("reminder_")) for item in reminders), default=0)
            reminder = Reminder(
                f"reminder_{number}",
                " ".join(arguments["text"].split()),
                epoch_ms(due),
                arguments.get("repeat"),
                zone.key,
            )
            return write_reminders((*reminders, reminder)), succeeded({"reminder": reminder.view})

        return await change_field(context.person, FIELD, "reminders", add)


class ListScheduledTasks:
    """``list_scheduled_tasks``."""

    spec = definition(
        "list_scheduled_tasks",
        "List the user's reminders, the next one first.",
        {},
        needs_session=True,
        risk="safe",
        effect="read",
    )

    async def run(self, arguments: Mapping[str, Any], context: CallContext) -> ToolOutcome:
        """Answer with ``reminders``."""
        if context.person is None:
            return no_storage("reminders")
        reminders = sorted(read_reminders(context.person.get(FIELD)), key=lambda reminder: reminder.due_ms)
        return succeeded({"reminders": [reminder.view for reminder in reminders]})


class CancelScheduledTask:
    """``cancel_scheduled_task``."""

    spec = definition(
        "cancel_scheduled_task",
        "Cancel a reminder of the user, and its repetitions, by its id.",
        {"id": argument("string", maxLength=64)},
        required=["id"],
        needs_session=True,
        risk="safe",
        effect="write",
    )

    async def run(self, arguments: Mapping[str, Any], context: CallContext) -> ToolOutcome:
        """Answer with the ``cancelled`` reminder."""

        def cancel(text: str | None) -> tuple[str, ToolOutcome]:
            reminders = {reminder.id: reminder for reminder in read_reminders(text)}
            cancelled = reminders.pop(arguments["id"], None)
            if cancelled is None:
                ids = ", ".join(list(reminders)[:10]) or "none"
                raise TaskError("not_found", f"There is no such reminder. The ids are: {ids}.")
            return write_reminders(tuple(reminders.values())), succeeded({"cancelled": cancelled.view})

        return await change_field(context.person, FIELD, "reminders", cancel)


def _due(arguments: Mapping[str, Any], now: datetime, zone: tzinfo) -> datetime:
    if ("in_minutes" in arguments) == ("at" in arguments):
        raise TaskError("validation_failed", "Give either in_minutes or at.")
    if "in_minutes" in arguments:
        return now + timedelta(minutes=arguments["in_minutes"])
    local, text = now.astimezone(zone), arguments["at"].strip()
    try:
        if "T" in text.upper() or " " in text or len(text) > len("08:00:00"):
            due = datetime.fromisoformat(text)
            due = due.replace(tzinfo=zone) if due.tzinfo is None else due
        else:
            hour, minute = (int(part) for part in text.split(":"))
            due = local.replace(hour=hour, minute=minute, second=0, microsecond=0)
            due = due if due > local else due + timedelta(days=1)
    except ValueError:
        message = f"{text!r} is no time such as 2026-05-01T08:00 or 08:00."
        raise TaskError("validation_failed", message) from None
    if due <= now:
        time = local.isoformat(timespec="minutes")
        raise TaskError("validation_failed", f"That time has passed: the user's time is {time}.")
    if due - now > timedelta(days=MAX_DAYS):
        raise TaskError("validation_failed", "That is more than five years away.")
    return due
