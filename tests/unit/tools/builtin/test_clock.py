"""``get_current_time``: the user's zone, another zone, and unknown zones."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.plugins.tools.clock import clock
from conductor.tools.base import CallContext
from conductor.tools.outcomes import ToolOutcome
from tests.unit.tools.builtin.conftest import run

NOON = datetime(2026, 7, 1, 12, 30, 15, 999_999, tzinfo=UTC)


async def ask(timezone: str | None = None, own: str | None = None) -> ToolOutcome:
    arguments = {} if timezone is None else {"timezone": timezone}
    return await run(clock(lambda: NOON), arguments, CallContext(session_id="s", call_id="c", time_zone=own))


@pytest.mark.parametrize(
    ("timezone", "own", "time", "zone"),
    [
        (None, None, "2026-07-01T12:30:15+00:00", "UTC"),
        (None, "Europe/Berlin", "2026-07-01T14:30:15+02:00", "Europe/Berlin"),
        ("Asia/Kathmandu", None, "2026-07-01T18:15:15+05:45", "Asia/Kathmandu"),
        ("", "Europe/Berlin", "2026-07-01T14:30:15+02:00", "Europe/Berlin"),
        (None, "Nowhere/Land", "2026-07-01T12:30:15+00:00", "UTC"),
    ],
)
async def test_the_time_is_in_the_requested_zone_or_the_users(
    timezone: str | None, own: str | None, time: str, zone: str
) -> None:
    outcome = await ask(timezone, own)
    assert outcome.data == {"time": time, "weekday": "Wednesday", "time_zone": zone}
    is_told = any("in UTC" in note for note in outcome.metadata.notes)
    assert is_told == (zone == "UTC")


@pytest.mark.parametrize("name", ["Berlin", "../../etc/passwd", "/etc/passwd", "Europe", ".", "\0"])
async def test_an_invalid_zone_is_an_outcome(name: str) -> None:
    outcome = await ask(name)
    assert outcome.error_type == "validation_failed"
    assert outcome.error_message == f"There is no time zone {name!r}; use an IANA name such as Europe/Berlin."


@given(st.text(st.characters(), max_size=70))  # half a surrogate, too
async def test_no_text_raises(name: str) -> None:
    assert (await ask(name)).error_type in ("none", "validation_failed")
