"""The tools ``schedule_task``, ``list_scheduled_tasks`` and ``cancel_scheduled_task``: reminders of a person.

A session of the person delivers a reminder when it is due (`conductor.session.reminders`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, tzinfo
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import msgspec
from pydantic import Field

from conductor.errors import StoreError
from conductor.plugins.tools.clock import UNKNOWN_ZONE, utc_now
from conductor.plugins.tools.stored import change_field, find_item, no_storage
from conductor.tools import ToolError, tool
from conductor.tools.base import CallContext
from conductor.tools.outcomes import ToolOutcome, succeeded
from conductor.tools.reminders import (
    FIELD,
    Reminder,
    Repeat,
    StoredReminders,
    decode_reminders,
    epoch_ms,
    find_zone,
    first_day,
    write_reminders,
)

# Reminders of a person, which are one field, and characters of a reminder.
MAX_REMINDERS = 200
MAX_TEXT_CHARS = 500
# Days until a reminder.
MAX_DAYS = 366 * 5


def scheduler(now: Callable[[], datetime] = utc_now) -> Callable[..., Any]:
    """Make ``schedule_task``. ``now`` returns the current time, with an offset."""

    @tool(
        description="Remind the user later: at that time you are told the text and speak to the user. "
        "Give in_minutes or at, and repeat if it shall come again.",
        needs_session=True,
        risk="medium",
        effect="write",
        title="Schedule a reminder",
    )
    async def schedule_task(
        context: CallContext,
        text: Annotated[
            str,
            Field(
                min_length=1,
                max_length=MAX_TEXT_CHARS,
                description="What to tell the user, or to do, then.",
            ),
        ],
        in_minutes: Annotated[float | None, Field(gt=0, le=MAX_DAYS * 24 * 60)] = None,
        at: Annotated[
            str | None,
            Field(
                max_length=40,
                description="The user's local time: 2026-05-01T08:00, or 08:00 for the next one.",
            ),
        ] = None,
        repeat: Repeat | None = None,
    ) -> ToolOutcome:
        """Answer with the new ``reminder``."""
        moment = now().astimezone(UTC)
        zone = find_zone(context.time_zone or "")
        notes = () if zone else (UNKNOWN_ZONE,)

        def add(stored_text: str | None) -> tuple[str, ToolOutcome]:
            due, note = _due(in_minutes, at, moment, zone or ZoneInfo("UTC"))
            stored = _stored(stored_text)
            if len(stored.reminders) >= MAX_REMINDERS:
                raise ToolError(f"There are {MAX_REMINDERS} reminders already.", "validation_failed")
            reminder = due.reminder(stored.next_id, " ".join(text.split()), repeat)
            reminder = msgspec.structs.replace(reminder, untrusted=context.tainted)
            outcome = succeeded({"reminder": reminder.view}, notes=(*notes, *note))
            return write_reminders((*stored.reminders, reminder), stored_text), outcome

        return await change_field(context.person, FIELD, "reminders", add)

    return schedule_task


@tool(
    description="List the user's reminders, the next one first.",
    needs_session=True,
    risk="safe",
    effect="read",
)
async def list_scheduled_tasks(context: CallContext) -> ToolOutcome:
    """Answer with ``reminders``."""
    if context.person is None:
        raise no_storage("reminders")
    try:
        await context.person.refresh()  # another process may have set one
    except StoreError:
        raise ToolError("The reminders could not be read.", "io_error") from None
    reminders = _stored(context.person.get(FIELD)).reminders
    shown = [item.view for item in sorted(reminders, key=lambda item: item.due_ms)]
    return succeeded({"reminders": shown}, untrusted=any(item.untrusted for item in reminders))


@tool(
    description="Cancel a reminder of the user, and its repetitions, by its id.",
    needs_session=True,
    risk="safe",
    effect="write",
)
async def cancel_scheduled_task(
    context: CallContext, id: Annotated[str, Field(max_length=64)]
) -> ToolOutcome:
    """Answer with the ``cancelled`` reminder."""

    def cancel(text: str | None) -> tuple[str, ToolOutcome]:
        reminders = {reminder.id: reminder for reminder in _stored(text).reminders}
        cancelled = find_item(id, "reminder", reminders)
        del reminders[cancelled.id]
        outcome = succeeded({"cancelled": cancelled.view}, untrusted=cancelled.untrusted)
        return write_reminders(reminders.values(), text), outcome

    return await change_field(context.person, FIELD, "reminders", cancel)


def _stored(text: str | None) -> StoredReminders:
    try:
        return decode_reminders(text)
    except msgspec.DecodeError:
        message = "The reminders were stored by another version of the server, and cannot be read."
        raise ToolError(message, "io_error") from None


@dataclass(frozen=True, slots=True)
class _Due:
    """A time; ``wall`` is the local time that was asked for, which clocks may skip."""

    at: datetime
    wall: datetime
    zone: ZoneInfo

    @classmethod
    def of(cls, at: datetime, zone: ZoneInfo) -> _Due:
        """Take a time with an offset."""
        return cls(at, at.astimezone(zone).replace(tzinfo=None, fold=0), zone)

    def reminder(self, reminder_id: str, text: str, repeat: Repeat | None) -> Reminder:
        wall = first_day(self.wall, repeat)
        at = self.at if wall == self.wall else wall.replace(tzinfo=self.zone)
        repeated = wall if repeat is not None else None
        return Reminder(
            id=reminder_id, text=text, due_ms=epoch_ms(at), repeat=repeat, zone=self.zone.key, wall=repeated
        )


def _due(
    in_minutes: float | None, at: str | None, now: datetime, zone: ZoneInfo
) -> tuple[_Due, Sequence[str]]:
    """Read the time of a reminder, with notes for the model."""
    if in_minutes is not None and at is None:
        return _Due.of(now + timedelta(minutes=in_minutes), zone), ()
    if at is None or in_minutes is not None:
        raise ToolError("Give either in_minutes or at.", "validation_failed")
    text = at.strip()
    try:
        asked = _asked(text, now, zone)
    except ValueError:
        message = f"{text!r} is no time such as 2026-05-01T08:00 or 08:00."
        raise ToolError(message, "validation_failed") from None
    if asked <= now:
        local_time = now.astimezone(zone).isoformat(timespec="minutes")
        raise ToolError(f"That time has passed: the user's time is {local_time}.", "validation_failed")
    if asked - now > timedelta(days=MAX_DAYS):
        raise ToolError("That is more than five years away.", "validation_failed")
    due, notes = _Due(asked, asked.replace(tzinfo=None, fold=0), zone), list[str]()
    if asked.tzinfo is not zone:
        due = _Due.of(asked, zone)
        if asked.utcoffset() != asked.astimezone(zone).utcoffset():
            notes.append(f"{text!r} is {due.wall:%Y-%m-%dT%H:%M} in the user's zone {zone.key}.")
    return due, notes


def _asked(text: str, now: datetime, zone: ZoneInfo) -> datetime:
    """Read a time, by default of ``zone``; a time of day is the next one. Raises `ValueError`."""
    if ":" not in text[:3]:
        moment = datetime.fromisoformat(text)
        return moment if moment.tzinfo is not None else _first([moment], now, zone)
    at = time.fromisoformat(text if text[1:2] != ":" else f"0{text}")
    there = at.tzinfo or zone
    today = now.astimezone(there).date()
    days = (today, today + timedelta(days=1), today + timedelta(days=2))
    return _first([datetime.combine(day, at.replace(tzinfo=None)) for day in days], now, there)


def _first(walls: Sequence[datetime], now: datetime, zone: tzinfo) -> datetime:
    """Return the first of these local times after ``now``; one may come twice when clocks are set back."""
    times = [wall.replace(tzinfo=zone, fold=fold) for wall in walls for fold in (0, 1)]
    return next((moment for moment in times if moment.timestamp() > now.timestamp()), times[0])
