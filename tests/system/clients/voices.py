"""Runs apps with a voice model in front: ``voices.js``, by Node."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.stand_ins.openai_live import LiveService
from tests.system.clients.programs import CLIENTS, node_packages, program, started

LONG = 1200.0
"""Bound for hundreds of conversations."""
QUIET_MS = 120
"""The silence that ends an utterance here; the fragments of one are sent at once."""
LIFE_MS = 800
"""The silence that ends one in life, on a voice session's own clock."""


def seconds(own_ms: float, quiet_ms: int = QUIET_MS) -> float:
    """Tell how long a time of a voice session's clock takes here."""
    return own_ms * quiet_ms / LIFE_MS / 1000


async def converse(
    server: Mapping[str, str],
    service: LiveService,
    apps: Sequence[Mapping[str, Any]],
    quiet_ms: int = QUIET_MS,
) -> dict[str, Any]:
    """Run apps with a voice in front; returns what each has seen, by its key.

    ``server`` names Conductor in environment variables. An app's ``card`` is "show", "tap" or empty.
    """
    plan = {"voice": service.url, "quietMs": quiet_ms, "apps": list(apps)}
    environment = {"NODE_PATH": node_packages(), "VOICES": json.dumps(plan), **server}
    command = [program("node"), str(CLIENTS / "voices.js")]
    async with started(command, environment=environment) as process:
        output, errors = await asyncio.wait_for(process.communicate(), LONG)
    assert process.returncode == 0, output.decode() + errors.decode()
    return {seen["key"]: seen for seen in json.loads(output)}
