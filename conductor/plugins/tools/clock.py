"""The tool ``get_current_time``: the time and date in the user's time zone or another one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from conductor.plugins.tools.definitions import argument, definition
from conductor.tools.base import CallContext
from conductor.tools.outcomes import ToolOutcome, failed, succeeded
from conductor.tools.reminders import MAX_ZONE_CHARS, WEEKDAYS, find_zone

UNKNOWN_ZONE = "The app names no time zone that is known, so this is in UTC: tell the user."


def utc_now() -> datetime:
    """Return the time of the wall clock in UTC."""
    return datetime.fromtimestamp(time.time(), UTC)


class CurrentTime:
    """``get_current_time``. ``now`` returns the current time, with an offset."""

    spec = definition(
        "get_current_time",
        "Get the current date and time, with weekday and time zone; without timezone, those of the user. "
        "Call it whenever an answer depends on today's date or on the time; do not guess them.",
        {
            "timezone": argument(
                "string",
                "IANA name, such as Europe/Berlin. Leave it out for the user's own zone.",
                maxLength=MAX_ZONE_CHARS,
            ),
        },
        risk="safe",
        effect="read",
    )

    def __init__(self, now: Callable[[], datetime] = utc_now) -> None:
        self._now = now

    async def run(self, arguments: Mapping[str, Any], context: CallContext) -> ToolOutcome:
        """Answer with ``time`` (ISO 8601 with offset, to the second), ``weekday`` and ``time_zone``.

        The zone is ``timezone``, else the session's, else UTC.
        """
        name = arguments.get("timezone")
        zone = find_zone(name or context.time_zone or "")
        if zone is None and name:
            message = f"There is no time zone {name!r}; use an IANA name such as Europe/Berlin."
            return failed("validation_failed", message)
        # The model cannot correct an unknown zone of the session: answer in UTC.
        local = self._now().astimezone(zone or UTC)
        return succeeded(
            {
                "time": local.isoformat(timespec="seconds"),
                "weekday": WEEKDAYS[local.weekday()],
                "time_zone": zone.key if zone else "UTC",
            },
            notes=() if zone else (UNKNOWN_ZONE,),
        )
