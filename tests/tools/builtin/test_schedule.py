"""The schedule tools: times as people say them, repetitions by the person's clock, and bounds."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest

from conductor.tools.base import CallContext, ToolOutcome
from conductor.tools.builtin.schedule import (
    FIELD,
    MAX_REMINDERS,
    CancelScheduledTask,
    ListScheduledTasks,
    Reminder,
    Repeat,
    ScheduleTask,
    epoch_ms,
    read_reminders,
    write_reminders,
)
from tests.tools.builtin.test_tasks import Fields

BERLIN = ZoneInfo("Europe/Berlin")
NOW = datetime(2026, 3, 27, 9, 30, tzinfo=BERLIN)  # a Friday; the clocks change on Sunday


async def schedule(fields: Fields | None, zone: str | None = "Europe/Berlin", **given: Any) -> ToolOutcome:
    context = CallContext("s", "c", zone, person=fields)
    return await ScheduleTask(lambda: NOW).run({"text": "water the plants", **given}, context)


def kept(fields: Fields) -> tuple[Reminder, ...]:
    return read_reminders(fields.get(FIELD))


@pytest.mark.parametrize(
    ("given", "due"),
    [
        ({"in_minutes": 10}, NOW + timedelta(minutes=10)),
        ({"in_minutes": 0.5}, NOW + timedelta(seconds=30)),
        ({"at": "10:15"}, datetime(2026, 3, 27, 10, 15, tzinfo=BERLIN)),
        ({"at": "9:30"}, datetime(2026, 3, 28, 9, 30, tzinfo=BERLIN)),
        ({"at": "08:00"}, datetime(2026, 3, 28, 8, 0, tzinfo=BERLIN)),
        ({"at": "2026-04-01T07:05"}, datetime(2026, 4, 1, 7, 5, tzinfo=BERLIN)),
        ({"at": "2026-04-01 07:05"}, datetime(2026, 4, 1, 7, 5, tzinfo=BERLIN)),
        ({"at": "2026-04-01"}, datetime(2026, 4, 1, tzinfo=BERLIN)),
        ({"at": "2026-04-01T07:05:00Z"}, datetime(2026, 4, 1, 9, 5, tzinfo=BERLIN)),
    ],
)
async def test_times_are_the_persons(given: dict[str, Any], due: datetime) -> None:
    fields = Fields()
    outcome = await schedule(fields, **given)
    (reminder,) = kept(fields)
    assert reminder.due_ms == epoch_ms(due)
    assert outcome.data["reminder"] == reminder.view
    assert reminder.view["id"] == "reminder_1"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "either"),
        ({"in_minutes": 1, "at": "10:00"}, "either"),
        ({"at": "tomorrow"}, "no time"),
        ({"at": "25:00"}, "no time"),
        ({"at": "10"}, "no time"),
        ({"at": "2026-03-27T09:00"}, "2026-03-27T09:30+01:00"),
        ({"at": "9999-12-31T23:59"}, "five years"),
    ],
)
async def test_what_is_no_time_is_refused_with_a_reason(given: dict[str, Any], says: str) -> None:
    fields = Fields()
    outcome = await schedule(fields, **given)
    assert outcome.error_type == "validation_failed" and says in (outcome.error_message or "")
    assert kept(fields) == ()


@pytest.mark.parametrize(
    ("repeat", "due", "following"),
    [
        # Eight o'clock stays eight o'clock when the clocks change.
        ("daily", datetime(2026, 3, 28, 8), [datetime(2026, 3, 29, 8), datetime(2026, 3, 30, 8)]),
        ("weekdays", datetime(2026, 3, 27, 8), [datetime(2026, 3, 30, 8), datetime(2026, 3, 31, 8)]),
        ("weekends", datetime(2026, 3, 28, 8), [datetime(2026, 3, 29, 8), datetime(2026, 4, 4, 8)]),
        ("weekly", datetime(2026, 3, 27, 8), [datetime(2026, 4, 3, 8), datetime(2026, 4, 10, 8)]),
        ("monthly", datetime(2026, 3, 31, 8), [datetime(2026, 5, 31, 8), datetime(2026, 7, 31, 8)]),
    ],
)
def test_repetitions_follow_the_persons_clock(
    repeat: Repeat, due: datetime, following: list[datetime]
) -> None:
    reminder = Reminder("reminder_1", "x", epoch_ms(due.replace(tzinfo=BERLIN)), repeat, "Europe/Berlin")
    for expected in following:
        after = reminder.next(reminder.due_ms)
        assert after is not None
        reminder = after
        assert reminder.local == expected.replace(tzinfo=BERLIN)


def test_repetitions_that_were_missed_are_left_out() -> None:
    due = datetime(2026, 3, 20, 8, tzinfo=BERLIN)
    reminder = Reminder("reminder_1", "x", epoch_ms(due), "daily", "Europe/Berlin", "s-1", 5)
    after = reminder.next(epoch_ms(NOW))
    assert after is not None and after.local == datetime(2026, 3, 28, 8, tzinfo=BERLIN)
    assert (after.session, after.taken_ms) == ("", 0)
    assert msgspec.structs.replace(reminder, repeat=None).next(0) is None


async def test_reminders_are_listed_by_time_and_cancelled_by_id() -> None:
    fields = Fields()
    await schedule(fields, at="12:00", text="lunch", repeat="weekdays")
    await schedule(fields, in_minutes=1)
    context = CallContext("s", "c", person=fields)
    listed = (await ListScheduledTasks().run({}, context)).data["reminders"]
    assert [one["id"] for one in listed] == ["reminder_2", "reminder_1"]
    assert listed[1] == {
        "id": "reminder_1",
        "text": "lunch",
        "at": "2026-03-27T12:00+01:00",
        "repeat": "weekdays",
    }
    wrong = await CancelScheduledTask().run({"id": "reminder_7"}, context)
    assert wrong.error_type == "not_found" and "reminder_1, reminder_2" in (wrong.error_message or "")
    gone = await CancelScheduledTask().run({"id": "reminder_1"}, context)
    assert gone.data["cancelled"]["text"] == "lunch"
    assert [one.id for one in kept(fields)] == ["reminder_2"]


async def test_the_number_of_reminders_is_bounded() -> None:
    full = tuple(Reminder(f"reminder_{number + 1}", "x", 1) for number in range(MAX_REMINDERS))
    fields = Fields()
    fields.texts[FIELD] = write_reminders(full)
    assert (await schedule(fields, in_minutes=1)).error_type == "validation_failed"
    assert kept(fields) == full


async def test_a_change_that_is_made_twice_adds_one() -> None:
    fields = Fields(twice=True)
    await schedule(fields, in_minutes=1)
    assert len(kept(fields)) == 1


async def test_what_cannot_be_kept_is_said() -> None:
    assert (await schedule(Fields(fails=True), in_minutes=1)).error_type == "io_error"
    assert (await schedule(None, in_minutes=1)).error_type == "io_error"
    nowhere = CallContext("s", "c")
    assert (await ListScheduledTasks().run({}, nowhere)).error_type == "io_error"
    assert read_reminders("[{") == ()


async def test_an_unknown_zone_counts_as_utc() -> None:
    fields = Fields()
    await schedule(fields, zone="Middle/Earth", in_minutes=1)
    assert kept(fields)[0].zone == "UTC"
