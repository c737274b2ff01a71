"""The tools ``schedule_task``, ``list_scheduled_tasks`` and ``cancel_scheduled_task``: reminders of a person.

A session of the person delivers a reminder when it is due (`conductor.conversation.background`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, time, timedelta, tzinfo
from typing import Any, get_args
from zoneinfo import ZoneInfo

from conductor.plugins.tools.clock import utc_now
from conductor.plugins.tools.definitions import ToolFailure, argument, definition
from conductor.plugins.tools.tasks import change_field, find_item, next_id, no_storage
from conductor.tools.base import CallContext, ToolOutcome, succeeded
from conductor.tools.reminders import (
    FIELD,
    Reminder,
    Repeat,
    epoch_ms,
    find_zone,
    read_reminders,
    write_reminders,
)

# Reminders of a person, which are one field, and characters of a reminder.
MAX_REMINDERS = 200
MAX_TEXT_CHARS = 500
# Days until a reminder.
MAX_DAYS = 366 * 5


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
                raise ToolFailure("validation_failed", f"There are {MAX_REMINDERS} reminders already.")
            reminder = Reminder(
                next_id("reminder", {reminder.id: reminder for reminder in reminders}),
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
            return no_storage("reminders").outcome
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
            cancelled = find_item(arguments["id"], "reminder", reminders)
            del reminders[cancelled.id]
            return write_reminders(tuple(reminders.values())), succeeded({"cancelled": cancelled.view})

        return await change_field(context.person, FIELD, "reminders", cancel)


def _due(arguments: Mapping[str, Any], now: datetime, zone: tzinfo) -> datetime:
    if ("in_minutes" in arguments) == ("at" in arguments):
        raise ToolFailure("validation_failed", "Give either in_minutes or at.")
    if "in_minutes" in arguments:
        return now + timedelta(minutes=arguments["in_minutes"])
    local, text = now.astimezone(zone), arguments["at"].strip()
    try:
        if ":" in text[:3]:  # a time of day
            due = datetime.combine(local, time.fromisoformat(text.zfill(5)), zone)
            due = due if due > local else due + timedelta(days=1)
        else:
            due = datetime.fromisoformat(text)
            due = due.replace(tzinfo=due.tzinfo or zone)
    except ValueError:
        message = f"{text!r} is no time such as 2026-05-01T08:00 or 08:00."
        raise ToolFailure("validation_failed", message) from None
    if due <= now:
        local_time = local.isoformat(timespec="minutes")
        raise ToolFailure("validation_failed", f"That time has passed: the user's time is {local_time}.")
    if due - now > timedelta(days=MAX_DAYS):
        raise ToolFailure("validation_failed", "That is more than five years away.")
    return due
