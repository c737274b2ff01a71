"""Runs the scenarios in turn, and prints what they measured beside the targets."""

from __future__ import annotations

import argparse
import json
import os
import platform
import pstats
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks import scenarios
from benchmarks.durable import durable
from benchmarks.gate import gate_costs, redaction_growth
from benchmarks.process import Process, conductor, echo, pin_load
from benchmarks.scenarios import ToolMetrics
from tests.stand_ins.anthropic_persona import BenchPersona
from tests.stand_ins.anthropic_service import AnthropicService

TARGETS = {
    "turns_10.cpu_ms_a_turn": ("6", "4"),
    "turns_50.cpu_ms_a_turn": ("6", "4"),
    "turns_200.cpu_ms_a_turn": ("6", "4"),
    "turns_500.cpu_ms_a_turn": ("6", "4"),
    "growth.turns_500_over_50": ("1.2", "1.0"),
    "stream.cpu_us_a_token": ("50", "30"),
    "round.cpu_ms_a_round": ("1.5", "0.7"),
    "round.p50_ms": ("1.5", "0.7"),
    "first.p50_ms": ("3", "1"),
    "first.p99_ms": ("10", ""),
    "barge.max_ms": ("100", ""),
    "memory.base_mb": ("95", "60"),
    "memory.kb_a_session_at_2000": ("40", "20"),
    "start.ready_ms": ("1000", "500"),
    "gate.cpu_us_a_safe_call": ("100", ""),
    "durable_sqlite.step_p50_ms": ("0.6", ""),
    "durable_redis.step_p50_ms": ("0.6", ""),
    "durable_sqlite.cpu_over_memory": ("1.3", ""),
    "durable_redis.cpu_over_memory": ("1.3", ""),
}
"""Figure -> what it must reach, and what it should aim at."""


def main(arguments: Sequence[str]) -> int:
    """Run what is asked for; 1 if a target is missed."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument(
        "names",
        nargs="*",
        help="turns stream round first barge memory start gate redaction durable echo; all if none",
    )
    parser.add_argument("--quick", action="store_true", help="short windows: for a look, not for figures")
    parser.add_argument("--seconds", type=float, help="length of a window")
    parser.add_argument("--sessions", default="10,50,200,500", help="sessions of the standard turns")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    parser.add_argument(
        "--profile", type=Path, help="run the server under cProfile, and write its profile there"
    )
    options = parser.parse_args(arguments)
    try:
        import uvloop

        results = uvloop.run(_run(options))
    except KeyboardInterrupt:
        return 130
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    if options.profile is not None:
        pstats.Stats(str(options.profile)).sort_stats("tottime").print_stats(40)
    return _print(results)


async def _run(options: argparse.Namespace) -> dict[str, ToolMetrics]:
    pinned = pin_load()
    seconds = options.seconds or (3.0 if options.quick else 10.0)
    results: dict[str, ToolMetrics] = {}
    wanted = set(options.names)
    profile = str(options.profile.resolve()) if options.profile is not None else None

    async def with_server(
        name: str, run: Callable[[Process, AnthropicService], Awaitable[ToolMetrics]]
    ) -> None:
        if wanted and name.partition("_")[0] not in wanted:
            return
        async with AnthropicService(api_keys=None, keep_requests=0) as service:
            async with conductor(service.base_url, pinned=pinned, profile=profile) as server:
                await _warm_up(server, service)
                results[name] = await run(server, service)
                results[name]["tracebacks"] = server.tracebacks()
            if service.refused:
                results[name]["refused"] = len(service.refused)
        print(f"  {name}: {results[name]}", file=sys.stderr, flush=True)

    if not wanted or "echo" in wanted:
        async with echo(pinned=pinned) as server:
            results["echo"] = await scenarios.echo_messages(server, 50, seconds)
        print(f"  echo: {results['echo']}", file=sys.stderr, flush=True)
    if not wanted or "start" in wanted:
        async with conductor("http://127.0.0.1:9", pinned=pinned) as server:
            results["start"] = {"ready_ms": round(server.started_in * 1000)}
    for name, measure in (("gate", gate_costs), ("redaction", redaction_growth)):
        if not wanted or name in wanted:
            results[name] = measure()
    for count in [int(part) for part in options.sessions.split(",")]:
        await with_server(
            f"turns_{count}", partial(scenarios.standard_turns, sessions=count, seconds=seconds)
        )
    await with_server("stream", partial(scenarios.paced_stream, sessions=100, per_second=50, seconds=seconds))
    await with_server("round", partial(scenarios.tool_round, turns=200))
    await with_server("first", partial(scenarios.first_partial, sessions=100, per_second=50, seconds=seconds))
    await with_server("barge", partial(scenarios.barge_in, times=50))
    if not wanted or "durable" in wanted:
        results |= await durable(pinned=pinned, seconds=seconds)
    await with_server("memory", partial(scenarios.idle_memory, counts=[200, 1000, 2000]))
    if "turns_50" in results and "turns_500" in results:
        ratio = results["turns_500"]["cpu_ms_a_turn"] / results["turns_50"]["cpu_ms_a_turn"]
        results["growth"] = {"turns_500_over_50": round(ratio, 2)}
    return results


async def _warm_up(server: Process, service: AnthropicService) -> None:
    """Have one turn done, so that imports and pools are not what is measured."""
    service.default = BenchPersona(scenarios.ROUNDS, scenarios.TOKENS)
    (phone,) = await scenarios.connected(server, 1, "warm-up")
    for _ in range(3):
        await scenarios.one_turn(phone)
    phone.abort()


def _print(results: dict[str, ToolMetrics]) -> int:
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}\n")
    print(f"| {'figure':<32} | {'measured':>9} | {'target':>7} | {'stretch':>7} |")
    print(f"|{'-' * 34}|{'-' * 11}|{'-' * 9}|{'-' * 9}|")
    missed = 0
    for name, figures in results.items():
        for figure, value in figures.items():
            target, stretch = TARGETS.get(f"{name}.{figure}", ("", ""))
            over = bool(target) and value > float(target)
            missed += over
            row = f"| {name + ' ' + figure:<32} | {value:>9} | {target:>7} | {stretch:>7} |"
            print(f"{row} missed" if over else row)
    return 1 if missed else 0
