"""Repeated reminders against the calendar of dateutil: two years in zones with all kinds of clock changes."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from itertools import product
from typing import get_args
from zoneinfo import ZoneInfo

import pytest
from dateutil import rrule

from conductor.plugins.tools.schedule import scheduler
from conductor.tools.base import CallContext
from conductor.tools.reminders import FIELD, Reminder, Repeat, epoch_ms, read_reminders
from tests.unit.tools.builtin.conftest import run
from tests.unit.tools.builtin.test_tasks import Fields

ZONES = (
    "Europe/Berlin",  # an hour, at 02:00
    "America/New_York",
    "America/Santiago",  # at midnight, in the southern winter
    "America/Scoresbysund",  # before midnight: 23:30 is skipped, or comes twice
    "Australia/Lord_Howe",  # half an hour
    "Asia/Kolkata",  # none
)
TIMES = ("00:00", "00:30", "01:59:30", "02:00", "02:15", "02:30", "03:00", "08:00", "23:00", "23:30")
STARTS = ("2026-01-31", "2026-03-28", "2026-10-24", "2028-02-29")
WEEK = {"weekdays": range(5), "weekends": range(5, 7)}
RULES: dict[str, int] = {"weekly": rrule.WEEKLY, "monthly": rrule.MONTHLY}


def calendar(start: datetime, repeat: Repeat, end: datetime, zone: ZoneInfo) -> list[int]:
    """List the moments in epoch milliseconds: the rule's local times, as RFC 5545 makes moments of them."""
    rule = rrule.rrule(RULES.get(repeat, rrule.DAILY), dtstart=start, until=end, byweekday=WEEK.get(repeat))
    return [epoch_ms(local.replace(tzinfo=zone)) for local in rule]


async def reminders(start: datetime, repeat: Repeat, end: datetime, zone: ZoneInfo) -> list[int]:
    """List the moments at which a reminder is told that was set on the evening before."""
    fields = Fields()
    evening = (start - timedelta(days=1)).replace(hour=18, minute=0, second=0, tzinfo=zone)
    arguments = {"text": "x", "at": start.isoformat(), "repeat": repeat}
    context = CallContext(session_id="s", call_id="c", time_zone=zone.key, person=fields)
    assert (await run(scheduler(lambda: evening), arguments, context)).success
    reminder: Reminder | None
    (reminder,) = read_reminders(fields.get(FIELD))
    last, moments = epoch_ms(end.replace(tzinfo=zone)), list[int]()
    while reminder is not None and reminder.due_ms <= last:
        moments.append(reminder.due_ms)
        reminder = reminder.next(reminder.due_ms)
    return moments


CASES = list(product(ZONES, STARTS, TIMES, get_args(Repeat)))


@pytest.mark.parametrize(
    ("part", "least"), [(40, 4_000), pytest.param(len(CASES), 300_000, marks=pytest.mark.extended)]
)
async def test_repeated_reminders_agree_with_the_calendar_for_two_years(part: int, least: int) -> None:
    compared = 0
    for name, day, clock, repeat in random.Random(42).sample(CASES, part):
        zone, start = ZoneInfo(name), datetime.fromisoformat(f"{day}T{clock}")
        end = (start + timedelta(days=730)).replace(hour=12)
        expected = calendar(start, repeat, end, zone)
        assert await reminders(start, repeat, end, zone) == expected, (name, day, clock, repeat)
        compared += len(expected)
    assert compared > least
