"""The tool ``get_current_time``: the time and date in the user's time zone or another one."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import Field

from conductor.tools import ToolError, tool
from conductor.tools.base import CallContext
from conductor.tools.outcomes import ToolOutcome, succeeded
from conductor.tools.reminders import MAX_ZONE_CHARS, WEEKDAYS, find_zone

UNKNOWN_ZONE = "The app names no time zone that is known, so this is in UTC: tell the user."


def utc_now() -> datetime:
    """Return the time of the wall clock in UTC."""
    return datetime.fromtimestamp(time.time(), UTC)


def clock(now: Callable[[], datetime] = utc_now) -> Callable[..., Any]:
    """Make the tool. ``now`` returns the current time, with an offset."""

    @tool(
        description="Get the current date and time, with weekday and time zone; without timezone, those of "
        "the user. Call it whenever an answer depends on today's date or on the time; do not guess them.",
        risk="safe",
        effect="read",
    )
    async def get_current_time(
        context: CallContext,
        timezone: Annotated[
            str | None,
            Field(
                max_length=MAX_ZONE_CHARS,
                description="IANA name, such as Europe/Berlin. Leave it out for the user's own zone.",
            ),
        ] = None,
    ) -> ToolOutcome:
        """Answer with ``time`` (ISO 8601 with offset, to the second), ``weekday`` and ``time_zone``.

        The zone is ``timezone``, else the session's, else UTC.
        """
        zone = find_zone(timezone or context.time_zone or "")
        if zone is None and timezone:
            message = f"There is no time zone {timezone!r}; use an IANA name such as Europe/Berlin."
            raise ToolError(message, "validation_failed")
        # The model cannot correct an unknown zone of the session: answer in UTC.
        local = now().astimezone(zone or UTC)
        return succeeded(
            {
                "time": local.isoformat(timespec="seconds"),
                "weekday": WEEKDAYS[local.weekday()],
                "time_zone": zone.key if zone else "UTC",
            },
            notes=() if zone else (UNKNOWN_ZONE,),
        )

    return get_current_time
