"""Talkers next to hostile peers: the talkers' times, and the server's memory.

The server has one core, everything else the other. The peers are a separate process that runs only when the
talkers and the model's stand-in are idle, on the same core. On a busy machine the time that the server itself
worked during a turn is the better figure: for the talker's events and all events before them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks import scenarios
from benchmarks.nodes import Process, conductor, pin_load
from benchmarks.peers import KINDS
from benchmarks.talker import Talker, connected, disconnect
from tests.models import AnthropicService, BenchPersona

COUNTS = {
    "never_reads": 100,
    "vanishes": 100,
    "floods": 50,
    "dribbles": 50,
    "shreds": 10,
    "pings": 10,
    "burdens": 5,
}
PAUSE_S = 1.0
"""The mean between two turns of a talker: fifty of them take about half of a core."""
SEED = 20261121
TURN_S = 30.0
SETTLE_S = 5.0


def main(arguments: Sequence[str]) -> int:
    """Run; 1 if a talker failed or the server logged a traceback."""
    parser = argparse.ArgumentParser(prog="scripts/hostile", description=__doc__)
    parser.add_argument(
        "kinds", nargs="*", help=f"{' '.join(KINDS)}; default: all of them; NAME=COUNT sets a count"
    )
    parser.add_argument("--talkers", type=int, default=50)
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="duration of the measurement with the peers (60)"
    )
    parser.add_argument(
        "--alone", type=float, default=10.0, help="seconds of each measurement without them (10)"
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args(arguments)
    counts = dict(COUNTS)
    if options.kinds:
        pairs = (kind.partition("=") for kind in options.kinds)
        counts = {name: int(count or COUNTS.get(name, 0)) for name, _, count in pairs}
    if not set(counts) <= set(KINDS):
        parser.error(f"no such kind among {', '.join(counts)}")
    import uvloop

    figures = uvloop.run(_run(options.talkers, options.alone, options.seconds, counts))
    text = json.dumps(figures, indent=1)
    print(text)
    if options.json is not None:
        options.json.write_text(text + "\n")
    return int(bool(figures["failures"] or figures["tracebacks"]))


async def _run(talkers: int, alone: float, seconds: float, counts: dict[str, int]) -> dict[str, Any]:
    pinned = pin_load()
    figures: dict[str, Any] = {"peers": counts, "cores": os.cpu_count(), "pinned": pinned, "talkers": talkers}
    async with AnthropicService(api_keys=None, keep_requests=0) as service:
        service.default = BenchPersona(scenarios.ROUNDS, scenarios.TOKENS)
        async with conductor(service.base_url, pinned=pinned) as server:
            apps = await connected(server, talkers, "talker")
            talk = _Talk(apps, server)
            await talk.measure(3.0)  # imports and pools
            figures["alone"] = await talk.measure(alone)
            base = server.rss()
            most = [base]
            command = [sys.executable, "-m", "benchmarks.peers", server.host, str(server.port)]
            kinds = (f"{name}={count}" for name, count in counts.items())
            async with _process([*command, str(seconds + 5), *kinds]) as peers:
                assert peers.stdout is not None
                if not await asyncio.wait_for(peers.stdout.readline(), 30):
                    sys.exit("the hostile peers did not connect")
                watching = asyncio.create_task(_watch_memory(server, most))
                figures["with_peers"] = await talk.measure(seconds)
                watching.cancel()
            await asyncio.sleep(SETTLE_S)
            figures["after"] = await talk.measure(alone)
            figures["memory_mb"] = {
                "before": round(base / 1024, 1),
                "most": round(most[0] / 1024, 1),
                "after": round(server.rss() / 1024, 1),
            }
            figures["failures"] = talk.failures + sum(talker.closed.is_set() for talker in apps)
            figures["tracebacks"] = server.tracebacks()
            disconnect(apps)
    return figures


class _Talk:
    """Talkers that pause between their turns."""

    def __init__(self, talkers: Sequence[Talker], server: Process) -> None:
        self._talkers = talkers
        self._server = server
        self.failures = 0

    async def measure(self, seconds: float) -> scenarios.ToolMetrics:
        """Talk; returns the times of turns and the server's share of a core."""
        loop = asyncio.get_running_loop()
        chance = random.Random(SEED)  # equal pauses would put them in step
        start, cpu = loop.time(), self._server.cpu()
        times: list[float] = []
        worked: list[float] = []

        async def talk(talker: Talker, after: float) -> None:
            await asyncio.sleep(after)
            while loop.time() < start + seconds and not talker.closed.is_set():
                spoken_at, before = loop.time(), self._server.worked()
                try:
                    await talker.turn()
                except TimeoutError:
                    self.failures += 1
                times.append(loop.time() - spoken_at)
                worked.append(self._server.worked() - before)
                await asyncio.sleep(chance.uniform(0, 2 * PAUSE_S))

        await asyncio.gather(*(talk(talker, chance.uniform(0, 2 * PAUSE_S)) for talker in self._talkers))
        load = (self._server.cpu() - cpu) / (loop.time() - start)
        worst = round(max(times, default=float("nan")) * 1000, 3)
        return {
            **scenarios.milliseconds(times),
            "max_ms": worst,
            "server_worked_max_ms": round(max(worked, default=float("nan")) * 1000, 3),
            "server_worked_p99_ms": scenarios.milliseconds(worked)["p99_ms"],
            "turns": len(times),
            "server_load": round(load, 3),
        }


async def _watch_memory(server: Process, most: list[float]) -> None:
    """Keep the server's largest resident memory in ``most``, in KB."""
    while True:
        most[0] = max(most[0], server.rss())
        await asyncio.sleep(0.5)


@asynccontextmanager
async def _process(command: Sequence[str]) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a process for the time of the block, on the load's core unless it chooses another."""
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
