"""Restarts the nodes of a cluster one after the other, again and again, while people talk to it."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.cluster import Cluster
from benchmarks.nodes import DidNotStart, redis_program, stand_in_settings
from benchmarks.scenarios import percentile
from conductor.client import Client, Reconnect, ToolRun, connect
from conductor.client.connection import ClientError
from tests.models import AnthropicService, BenchPersona

TURN_S = 60.0
TOOL = "device.look"
TOOLS = [
    {
        "name": TOOL,
        "description": "Looks.",
        "inputSchema": {"type": "object"},
        "annotations": {"destructiveHint": False},
        "_meta": {"conductor": {"approval": "never"}},
    }
]


@dataclass
class Tally:
    """What became of the turns."""

    restarts: int = 0
    turns: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    runs: Counter[str] = field(default_factory=Counter)
    reconnects: int = 0
    times: list[float] = field(default_factory=list)

    @property
    def doubled(self) -> int:
        """Calls that the device ran more than once."""
        return sum(number > 1 for number in self.runs.values())


def main(arguments: Sequence[str]) -> int:
    """Run; 1 if a turn failed or a call ran twice."""
    parser = argparse.ArgumentParser(prog="scripts/rolling", description=__doc__)
    parser.add_argument("--restarts", type=int, default=20, help="number of rolling restarts (%(default)s)")
    parser.add_argument(
        "--sessions",
        type=int,
        default=200,
        help="number of sessions, which talk without a pause (%(default)s)",
    )
    parser.add_argument("--nodes", type=int, default=3, help="number of nodes (%(default)s)")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between two turns (%(default)s)")
    options = parser.parse_args(arguments)
    if redis_program() is None:
        print("rolling: redis-server or valkey-server is needed; install one first.", file=sys.stderr)
        return 2
    try:
        tally = asyncio.run(_run(options))
    except DidNotStart as error:
        print(f"rolling: {error}", file=sys.stderr)
        return 1
    figures = {
        "restarts": tally.restarts,
        "sessions": options.sessions,
        "turns": tally.turns,
        "failed": sum(tally.failed.values()),
        "why": dict(tally.failed),
        "calls": len(tally.runs),
        "doubled": tally.doubled,
        "reconnects": tally.reconnects,
        "turn_p50_s": round(percentile(tally.times, 0.5), 2),
        "turn_p99_s": round(percentile(tally.times, 0.99), 2),
    }
    print(json.dumps(figures, indent=1))
    return 1 if tally.failed or tally.doubled else 0


async def _run(options: argparse.Namespace) -> Tally:
    tally = Tally()
    stop = asyncio.Event()
    with tempfile.TemporaryDirectory(prefix="conductor-rolling-") as folder:
        async with AnthropicService(api_keys=None, keep_requests=0) as service:
            service.default = BenchPersona(2, 20, tool="device_look")
            cluster = Cluster(
                options.nodes,
                Path(folder),
                settings=stand_in_settings(service.base_url),
            )
            connected = asyncio.Barrier(options.sessions + 1)
            async with cluster, asyncio.TaskGroup() as group:
                for number in range(options.sessions):
                    group.create_task(
                        _talk(cluster.balancer.url, number, options.pause, tally, stop, connected)
                    )
                await connected.wait()
                await asyncio.sleep(options.pause)
                for _ in range(options.restarts):
                    for node in cluster.nodes:
                        start = time.perf_counter()
                        await node.restart()
                        elapsed = time.perf_counter() - start
                        progress = f"{node.name} again after {elapsed:.1f} s, {tally.turns} turns"
                        print(f"  {progress}, failed {dict(tally.failed)}", file=sys.stderr, flush=True)
                    tally.restarts += 1
                stop.set()
            for node in cluster.nodes:
                lines = node.text().splitlines()
                print(*(line for line in lines if "turn failed" in line), sep="\n", file=sys.stderr)
            if service.refused:
                tally.failed["invalid history"] += len(service.refused)
    return tally


async def _talk(
    url: str, number: int, pause: float, tally: Tally, stop: asyncio.Event, connected: asyncio.Barrier
) -> None:
    # A first connection is not tried again, so the restarts wait for all of them.
    reconnect = Reconnect(first_s=0.05, most_s=1.0)
    async with connect(url, session_id=f"rolling-{number}", tools=TOOLS, reconnect=reconnect) as client:
        client.on_tool(TOOL, partial(_look, tally))
        await connected.wait()
        await asyncio.sleep(pause * number / 200)
        while not stop.is_set():
            await _turn(client, tally)
            await asyncio.sleep(pause)


def _look(tally: Tally, _: dict[str, object], run: ToolRun) -> str:
    tally.runs[run.call_id] += 1
    return "a heron"


async def _turn(client: Client, tally: Tally) -> None:
    start, started = time.perf_counter(), client.started
    try:
        async with asyncio.timeout(TURN_S):
            result = await (await client.say("go"))
    except (ClientError, TimeoutError) as error:
        tally.failed[type(error).__name__] += 1
        return
    tally.turns += 1
    tally.times.append(time.perf_counter() - start)
    tally.reconnects += client.started is not started
    for failure in result.errors:
        tally.failed[failure.code] += 1
    if not result.finals:
        tally.failed[f"no answer: {result.ending}"] += 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
