"""Tools of a house: a clock that answers at once, and a door that waits for a person at home."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from conductor.plugin import (
    CallContext,
    Settings,
    SettingsError,
    ToolOutcome,
    Toolset,
    ToolSpec,
    environment_value,
    failed,
    succeeded,
)

SPECS = (
    ToolSpec(
        name="house.time",
        description="Tell the time at the house.",
        input_schema={"type": "object", "properties": {}},
        source="house",
        risk="safe",
        effect="read",
    ),
    ToolSpec(
        name="house.open_door",
        description="Open a door of the house.",
        input_schema={
            "type": "object",
            "properties": {"door": {"enum": ["front", "back"]}},
            "required": ["door"],
        },
        source="house",
        risk="high",
        effect="write",
        interactive=True,  # a person acts, so the time limit is minutes
        spoken="open the {door} door",
    ),
)


class HouseTools(Toolset):
    """The house's tools; ``open_door`` opens a door, and returns when it is open."""

    def __init__(self, open_door: Callable[[str], Any], key: str) -> None:
        self._open_door = open_door
        self._key = key

    def specs(self) -> Sequence[ToolSpec]:
        return SPECS

    def secrets(self) -> Sequence[str]:
        return (self._key,)

    async def call(self, name: str, arguments: Mapping[str, Any], context: CallContext) -> ToolOutcome:
        if name == "house.time":
            return succeeded({"time": datetime.now(UTC).isoformat(timespec="seconds")})
        try:
            await self._open_door(arguments["door"])
        except OSError as error:
            return failed("io_error", f"The door did not open: {error}")
        return succeeded({"open": arguments["door"]})


async def _lock(door: str) -> None:
    await asyncio.sleep(0)  # stands for the request to the lock


def from_settings(settings: Settings) -> HouseTools:
    """Make the tools. Raises `SettingsError` without HOUSE_KEY."""
    key = environment_value("HOUSE_KEY")
    if key is None:
        raise SettingsError("HOUSE_KEY, the key of the house, is not set.")
    return HouseTools(_lock, key)
