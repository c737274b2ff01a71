"""Sessions that come and go: the memory of a server must not grow with the number of those that came."""

from __future__ import annotations

import asyncio
import sys

from benchmarks.nodes import Process
from benchmarks.scenarios import ToolMetrics
from benchmarks.talker import BATCH, connected, disconnect
from tests.models import AnthropicService, BenchPersona

SESSIONS = 20_000
WAVE = 1_000
"""Sessions that are open at the same time: older objects, which the garbage collector rarely looks at."""
SETTLED = 0.5
"""The part of the sessions after which memory is compared: allocators and pools are full then."""


async def passing_sessions(server: Process, service: AnthropicService, sessions: int) -> ToolMetrics:
    """Hold a turn with a call in each session; every other client loses its network after it."""
    service.default = BenchPersona(1, 5)
    wave = min(WAVE, sessions // 10)
    sizes = [server.rss() / 1024]
    for first in range(0, sessions, wave):
        talkers = await connected(server, wave, f"wave-{first}")
        for start in range(0, wave, BATCH):
            await asyncio.gather(*(talker.turn() for talker in talkers[start : start + BATCH]))
        disconnect(talkers[::2])
        await asyncio.gather(*(talker.close() for talker in talkers))
        sizes.append(server.rss() / 1024)
        print(f"    {first + wave} sessions came and went: {sizes[-1]:.1f} MB", file=sys.stderr, flush=True)
    settled = sizes[round((len(sizes) - 1) * SETTLED)]
    return {
        "before_mb": round(sizes[0], 1),
        "settled_mb": round(settled, 1),
        "after_mb": round(sizes[-1], 1),
        "after_over_settled": round(sizes[-1] / settled, 3),
    }
