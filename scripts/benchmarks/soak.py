"""A server for a long time, with turns without a pause. Its memory must not grow."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import scenarios
from benchmarks.nodes import Process, pin_load, stand_in_settings
from benchmarks.talker import Talker, connected, disconnect
from tests.models import AnthropicService, BenchPersona

SETTLED_S = 180.0
"""The end is compared with a sample after this time, when pools and histories are full, or after a third."""
EVERY_S = 30.0
REST_S = 6.0
"""A pause before a compared sample: speeches end, and acknowledged events are recorded."""
GROWTH = 1.1
"""The allowed growth of resident memory: allocators move a little."""
SLACK_KB = 3_000


def main(arguments: Sequence[str]) -> int:
    """Run; 1 if something grew, or a session was lost."""
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__)
    parser.add_argument("--sessions", type=int, default=100, help="number of talking sessions (100)")
    parser.add_argument("--minutes", type=float, default=20.0, help="duration (20)")
    parser.add_argument("--json", type=Path, help="also write the samples to this file")
    options = parser.parse_args(arguments)
    import uvloop

    result = uvloop.run(_run(options.sessions, options.minutes * 60))
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    for fault in result["faults"]:
        print(f"FAILED {fault}")
    return int(bool(result["faults"]))


async def _run(sessions: int, seconds: float) -> dict[str, Any]:
    pinned = pin_load()
    with tempfile.TemporaryDirectory(prefix="conductor-soak-") as folder:
        file = Path(folder) / "observed"
        async with AnthropicService(api_keys=None, keep_requests=0) as service:
            service.default = BenchPersona(scenarios.ROUNDS, scenarios.TOKENS)
            async with _observed(service.base_url, file, pinned=pinned) as server:
                soak = _Soak(server, file, seconds)
                faults = await soak.talk(sessions)
                if server.tracebacks():
                    faults.append(f"{server.tracebacks()} tracebacks in the log")
        return {"pinned": pinned, "samples": soak.samples, **soak.notes, "faults": faults}


def _observed(base_url: str, file: Path, *, pinned: bool) -> Process:
    """Start an instrumented server."""
    return Process(
        [sys.executable, "-m", "benchmarks.observed"],
        pinned=pinned,
        environment={**stand_in_settings(base_url), "OBSERVE_FILE": str(file)},
    )


class _Soak:
    def __init__(self, server: Process, file: Path, seconds: float) -> None:
        self._server = server
        self._file = file
        self._seconds = seconds
        self._settled = min(SETTLED_S, seconds / 3)
        self.samples: list[dict[str, Any]] = []
        self.notes: dict[str, Any] = {}

    async def talk(self, count: int) -> list[str]:
        """Have sessions talk without a pause."""
        talkers = await connected(self._server, count, "soak")
        talking = scenarios.Talking(talkers)
        figures, _ = await asyncio.gather(
            talking.run(1.0, self._seconds + REST_S, self._server), self._sample_until_end(talkers, talking)
        )
        self.notes["talk"] = figures
        print(figures, flush=True)
        faults = self._compare(count)
        if talking.errors:
            faults.append(f"{talking.errors} errors in turns")
        faults += [f"{talker.session_id} lost its socket" for talker in talkers if talker.closed.is_set()]
        disconnect(talkers)
        return faults

    async def _sample_until_end(self, talkers: Sequence[Talker], talking: scenarios.Talking) -> None:
        """Take samples. The talkers pause for the two that are compared."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        times = {self._settled, self._seconds, *(n * EVERY_S for n in range(1, int(self._seconds / EVERY_S)))}
        for when in sorted(times):
            await asyncio.sleep(max(0.0, start + when - loop.time()))
            is_compared = when in (self._settled, self._seconds)
            if is_compared:
                await talking.pause()
                await asyncio.sleep(REST_S / 2)
            sample = {
                "s": round(when),
                "rss_mb": round(self._server.rss() / 1024, 1),
                "descriptors": self._server.descriptors(),
                "cpu_s": round(self._server.cpu(), 1),
                "open": sum(not talker.closed.is_set() for talker in talkers),
                **await self._look_inside(),
            }
            self.samples.append(sample)
            print(json.dumps(sample), flush=True)
            if is_compared:
                talking.resume()

    async def _look_inside(self) -> dict[str, Any]:
        before = self._size()
        os.kill(self._server.pid, signal.SIGUSR1)
        async with asyncio.timeout(30):
            while self._size() == before:  # noqa: ASYNC110 -- another process: there is nothing to wait on
                await asyncio.sleep(0.01)
        observation: dict[str, Any] = json.loads(self._file.read_text().splitlines()[-1])
        return observation

    def _size(self) -> int:
        return self._file.stat().st_size if self._file.exists() else 0

    def _compare(self, sessions: int) -> list[str]:
        """Compare the last sample with the one after the server has settled."""
        first = next(sample for sample in self.samples if sample["s"] >= round(self._settled))
        last = self.samples[-1]
        faults = []
        if last["rss_mb"] * 1024 > first["rss_mb"] * 1024 * GROWTH + SLACK_KB:
            faults.append(f"memory grew from {first['rss_mb']} to {last['rss_mb']} MB")
        for name in ("Session", "Connection"):
            # Objects from before the server froze its heap are not counted.
            if last.get(name, 0) > sessions:
                faults.append(f"{last[name]} objects of class {name} for {sessions} sessions")
        for name in ("tasks", "descriptors", "objects"):
            if last[name] > first[name] * GROWTH + sessions:
                faults.append(f"{name} grew from {first[name]} to {last[name]}")
        return faults


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
