"""Sessions that come and go: the memory of a server must not grow with the number of those that came."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator

from benchmarks.nodes import Process
from benchmarks.scenarios import ToolMetrics
from benchmarks.talker import Talker
from tests.models import AnthropicService, BenchPersona

SESSIONS = 20_000
AT_ONCE = 50
"""Sessions that are open at the same time."""
SETTLED = 0.2
"""The part of the sessions after which memory is compared: allocators and pools are full then."""
SAMPLES = 20


async def passing_sessions(server: Process, service: AnthropicService, sessions: int) -> ToolMetrics:
    """Hold a turn with a call in each session; every other client loses its network after it."""
    service.default = BenchPersona(1, 5)
    every = sessions // SAMPLES
    sizes = [server.rss() / 1024]
    for first in range(0, sessions, every):
        numbers = iter(range(first, first + every))
        await asyncio.gather(*(_pass(server, numbers) for _ in range(AT_ONCE)))
        sizes.append(server.rss() / 1024)
        print(f"    {first + every} sessions came and went: {sizes[-1]:.1f} MB", file=sys.stderr, flush=True)
    settled = sizes[round(SAMPLES * SETTLED)]
    return {
        "before_mb": round(sizes[0], 1),
        "settled_mb": round(settled, 1),
        "after_mb": round(sizes[-1], 1),
        "after_over_settled": round(sizes[-1] / settled, 3),
    }


async def _pass(server: Process, numbers: Iterator[int]) -> None:
    for number in numbers:
        talker = Talker(server.url, f"passing-{number}")
        await talker.connect()
        await talker.turn()
        if number % 2:
            talker.socket.cut()
        await talker.close()
