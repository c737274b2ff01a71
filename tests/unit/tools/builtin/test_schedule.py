"""The schedule tools: times in a person's words, repetitions by local time, and limits."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest

from conductor.plugins.tools.schedule import (
    MAX_REMINDERS,
    cancel_scheduled_task,
    list_scheduled_tasks,
    scheduler,
)
from conductor.tools.base import CallContext
from conductor.tools.outcomes import ToolOutcome
from conductor.tools.reminders import FIELD, Reminder, Repeat, epoch_ms, read_reminders, write_reminders
from tests.unit.tools.builtin.conftest import run
from tests.unit.tools.builtin.test_tasks import Fields

BERLIN = ZoneInfo("Europe/Berlin")
NOW = datetime(2026, 3, 27, 9, 30, tzinfo=BERLIN)  # a Friday; the clocks change on Sunday


async def schedule(
    fields: Fields | None, zone: str | None = "Europe/Berlin", now: datetime = NOW, **arguments: Any
) -> ToolOutcome:
    context = CallContext(session_id="s", call_id="c", time_zone=zone, person=fields)
    return await run(scheduler(lambda: now), {"text": "water the plants", **arguments}, context)


def stored(fields: Fields) -> tuple[Reminder, ...]:
    return read_reminders(fields.get(FIELD))


@pytest.mark.parametrize(
    ("arguments", "due"),
    [
        ({"in_minutes": 10}, NOW + timedelta(minutes=10)),
        ({"at": "10:15"}, datetime(2026, 3, 27, 10, 15, tzinfo=BERLIN)),
        ({"at": "9:30"}, datetime(2026, 3, 28, 9, 30, tzinfo=BERLIN)),
        ({"at": "8:00:30"}, datetime(2026, 3, 28, 8, 0, 30, tzinfo=BERLIN)),
        ({"at": "9:31"}, datetime(2026, 3, 27, 9, 31, tzinfo=BERLIN)),
        ({"at": "12:00Z"}, datetime(2026, 3, 27, 13, 0, tzinfo=BERLIN)),
        ({"at": "14:00+05:00"}, datetime(2026, 3, 27, 10, 0, tzinfo=BERLIN)),
        ({"at": "00:30-11:00"}, datetime(2026, 3, 27, 12, 30, tzinfo=BERLIN)),
        ({"at": "2026-04-01T07:05:00+09:00"}, datetime(2026, 4, 1, 0, 5, tzinfo=BERLIN)),
        ({"at": "02:30", "repeat": "weekends"}, datetime(2026, 3, 28, 2, 30, tzinfo=BERLIN)),
        ({"at": "2026-03-29T02:30"}, datetime(2026, 3, 29, 3, 30, tzinfo=BERLIN)),
        ({"in_minutes": 60 * 48}, datetime(2026, 3, 29, 10, 30, tzinfo=BERLIN)),
        ({"at": "08:00"}, datetime(2026, 3, 28, 8, 0, tzinfo=BERLIN)),
        ({"at": "2026-04-01T07:05"}, datetime(2026, 4, 1, 7, 5, tzinfo=BERLIN)),
        ({"at": "2026-04-01"}, datetime(2026, 4, 1, tzinfo=BERLIN)),
        ({"at": "2026-04-01T07:05:00Z"}, datetime(2026, 4, 1, 9, 5, tzinfo=BERLIN)),
    ],
)
async def test_times_are_in_the_persons_zone(arguments: dict[str, Any], due: datetime) -> None:
    fields = Fields(twice=True)
    outcome = await schedule(fields, **arguments)
    (reminder,) = stored(fields)
    assert reminder.due_ms == epoch_ms(due)
    assert outcome.data["reminder"] == reminder.view
    assert reminder.view["id"] == "reminder_1"


@pytest.mark.parametrize(
    ("now", "arguments", "expected"),
    [
        ("2026-03-27T20:00", {"at": "8:00", "repeat": "weekdays"}, "Monday 2026-03-30T08:00+02:00"),
        ("2026-03-27T07:00", {"at": "8:00", "repeat": "weekdays"}, "Friday 2026-03-27T08:00+01:00"),
        ("2026-03-30T07:00", {"at": "8:00", "repeat": "weekends"}, "Saturday 2026-04-04T08:00+02:00"),
        (
            "2026-03-28T07:00",
            {"at": "2026-04-04T08:00", "repeat": "weekdays"},
            "Monday 2026-04-06T08:00+02:00",
        ),
        ("2026-03-27T20:00", {"in_minutes": 600, "repeat": "weekdays"}, "Monday 2026-03-30T06:00+02:00"),
        ("2026-03-30T07:00", {"at": "23:30Z", "repeat": "weekdays"}, "Tuesday 2026-03-31T01:30+02:00"),
    ],
)
async def test_a_repetition_begins_on_the_first_day_of_its_set(
    now: str, arguments: dict[str, Any], expected: str
) -> None:
    outcome = await schedule(Fields(), now=datetime.fromisoformat(now).replace(tzinfo=BERLIN), **arguments)
    assert "{weekday} {at}".format(**outcome.data["reminder"]) == expected


@pytest.mark.parametrize(
    ("now", "at", "expected"),
    [  # clocks go back from 03:00 (+02:00) to 02:00 (+01:00)
        ("2026-10-25T01:50+02:00", "02:30", "2026-10-25T02:30+02:00"),
        ("2026-10-25T02:40+02:00", "02:30", "2026-10-25T02:30+01:00"),
        ("2026-10-25T02:10+01:00", "02:30", "2026-10-25T02:30+01:00"),
        ("2026-10-25T02:40+02:00", "2026-10-25T02:30", "2026-10-25T02:30+01:00"),
        ("2026-10-25T02:40+01:00", "02:30", "2026-10-26T02:30+01:00"),
    ],
)
async def test_a_time_that_comes_twice_is_the_next_one(now: str, at: str, expected: str) -> None:
    outcome = await schedule(Fields(), now=datetime.fromisoformat(now), at=at)
    assert outcome.data["reminder"]["at"] == expected


async def test_the_model_reads_what_became_of_an_offset_and_of_an_unknown_zone() -> None:
    def notes(outcome: ToolOutcome) -> str:
        return " ".join(outcome.metadata.notes)

    assert "2026-03-27T13:00 in the user's zone Europe/Berlin" in notes(await schedule(Fields(), at="12:00Z"))
    assert notes(await schedule(Fields(), at="12:00+01:00")) == ""
    assert notes(await schedule(Fields(), at="12:00")) == ""
    for zone in ("Middle/Earth", None):
        assert "in UTC" in notes(await schedule(Fields(), zone=zone, at="12:00"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "either"),
        ({"at": ":"}, "no time"),
        ({"at": "0001-01-01T00:00+14:00"}, "has passed"),
        ({"at": "9999-12-31T23:59-12:00"}, "five years"),
        ({"in_minutes": 1, "at": "10:00"}, "either"),
        ({"at": "tomorrow"}, "no time"),
        ({"at": "25:00"}, "no time"),
        ({"at": "2026-03-27T09:00"}, "2026-03-27T09:30+01:00"),
        ({"at": "9999-12-31T23:59"}, "five years"),
    ],
)
async def test_an_invalid_time_is_refused_with_a_reason(arguments: dict[str, Any], words: str) -> None:
    fields = Fields()
    outcome = await schedule(fields, **arguments)
    assert outcome.error_type == "validation_failed" and words in (outcome.error_message or "")
    assert stored(fields) == ()


@pytest.mark.parametrize(
    ("repeat", "due", "following"),
    [
        # The clocks change on the 29th.
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
    reminder = Reminder(
        id="reminder_1",
        text="x",
        due_ms=epoch_ms(due.replace(tzinfo=BERLIN)),
        repeat=repeat,
        zone="Europe/Berlin",
    )
    for expected in following:
        after = reminder.next(reminder.due_ms)
        assert after is not None
        reminder = after
        assert reminder.local == expected.replace(tzinfo=BERLIN)


async def test_a_time_that_clocks_skip_is_late_on_that_day_only() -> None:
    fields = Fields()
    await schedule(fields, at="2026-03-29T02:30", repeat="daily")
    (reminder,) = stored(fields)
    locals_ = [reminder.local.isoformat(timespec="minutes")]
    for _ in range(2):
        after = reminder.next(reminder.due_ms)
        assert after is not None
        reminder = msgspec.json.decode(msgspec.json.encode(after), type=Reminder)
        locals_.append(reminder.local.isoformat(timespec="minutes"))
    assert locals_ == ["2026-03-29T03:30+02:00", "2026-03-30T02:30+02:00", "2026-03-31T02:30+02:00"]


def test_missed_repetitions_are_left_out() -> None:
    due = datetime(2026, 3, 20, 8, tzinfo=BERLIN)
    reminder = Reminder(
        id="reminder_1",
        text="x",
        due_ms=epoch_ms(due),
        repeat="daily",
        zone="Europe/Berlin",
        session="s-1",
        taken_ms=5,
    )
    after = reminder.next(epoch_ms(NOW))
    assert after is not None and after.local == datetime(2026, 3, 28, 8, tzinfo=BERLIN)
    assert (after.session, after.taken_ms) == ("", 0)
    assert msgspec.structs.replace(reminder, repeat=None).next(0) is None


async def test_reminders_are_listed_by_time_and_cancelled_by_id() -> None:
    fields = Fields()
    await schedule(fields, at="12:00", text="lunch", repeat="weekdays")
    await schedule(fields, in_minutes=1)
    context = CallContext(session_id="s", call_id="c", person=fields)
    reminders = (await run(list_scheduled_tasks, {}, context)).data["reminders"]
    assert [reminder["id"] for reminder in reminders] == ["reminder_2", "reminder_1"]
    assert reminders[1] == {
        "id": "reminder_1",
        "text": "lunch",
        "at": "2026-03-27T12:00+01:00",
        "weekday": "Friday",
        "repeat": "weekdays",
    }
    wrong = await run(cancel_scheduled_task, {"id": "reminder_7"}, context)
    assert wrong.error_type == "not_found" and "reminder_1, reminder_2" in (wrong.error_message or "")
    outcome = await run(cancel_scheduled_task, {"id": "reminder_1"}, context)
    assert outcome.data["cancelled"]["text"] == "lunch"
    assert [reminder.id for reminder in stored(fields)] == ["reminder_2"]


async def test_no_two_reminders_of_a_person_have_the_same_id() -> None:
    fields = Fields()
    context = CallContext(session_id="s", call_id="c", person=fields)
    for _ in range(2):
        await schedule(fields, in_minutes=1)
    await run(cancel_scheduled_task, {"id": "reminder_2"}, context)
    assert (await schedule(fields, in_minutes=1)).data["reminder"]["id"] == "reminder_3"
    for name in ("reminder_1", "reminder_3"):
        await run(cancel_scheduled_task, {"id": name}, context)
    assert stored(fields) == ()
    assert (await schedule(fields, in_minutes=1)).data["reminder"]["id"] == "reminder_4"


@pytest.mark.parametrize(
    "of_later",
    ['{"version": 9}', "[{", '{"reminders":[{"id":"reminder_1","text":"x","due_ms":1,"colour":"red"}]}'],
)
async def test_a_list_of_another_version_is_not_overwritten(of_later: str) -> None:
    fields = Fields()
    fields.texts[FIELD] = of_later
    context = CallContext(session_id="s", call_id="c", person=fields)
    for outcome in (
        await schedule(fields, in_minutes=1),
        await run(cancel_scheduled_task, {"id": "reminder_1"}, context),
        await run(list_scheduled_tasks, {}, context),
    ):
        assert outcome.error_type == "io_error" and "another version" in (outcome.error_message or "")
    assert fields.texts[FIELD] == of_later
    with pytest.raises(msgspec.DecodeError):
        write_reminders((), of_later)


async def test_the_number_of_reminders_is_bounded_and_an_unknown_zone_is_utc() -> None:
    full = tuple(Reminder(id=f"reminder_{number + 1}", text="x", due_ms=1) for number in range(MAX_REMINDERS))
    fields = Fields()
    fields.texts[FIELD] = write_reminders(full)
    assert (await schedule(fields, in_minutes=1)).error_type == "validation_failed"
    assert stored(fields) == full
    fields = Fields()
    await schedule(fields, zone="Middle/Earth", in_minutes=1)
    assert stored(fields)[0].zone == "UTC"


async def test_a_store_that_fails_is_an_outcome() -> None:
    assert (await schedule(Fields(fails=True), in_minutes=1)).error_type == "unknown"
    assert (await schedule(None, in_minutes=1)).error_type == "io_error"
    nowhere = CallContext(session_id="s", call_id="c")
    assert (await run(list_scheduled_tasks, {}, nowhere)).error_type == "io_error"
    assert read_reminders("[{") == ()
