"""Measures a running server from outside, and prints the figures with their targets."""

from __future__ import annotations

import argparse
import json
import os
import platform
import pstats
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import scenarios
from benchmarks.judge import judge_costs
from benchmarks.knowledge import DOCUMENTS, knowledge_base
from benchmarks.nodes import DURABLE, Process, conductor, pin_load, postgres_program, redis_program
from benchmarks.passing import SESSIONS as PASSING
from benchmarks.passing import passing_sessions
from benchmarks.people import people
from benchmarks.scenarios import ToolMetrics
from benchmarks.talker import connected, disconnect
from conductor.conversation.records import Commit, ReplyLogged, encode
from conductor.conversation.state import Call
from conductor.messages import AssistantMessage, ToolCall
from conductor.plugins.stores.postgres import PostgresStore
from conductor.plugins.stores.redis import RedisStore
from conductor.plugins.stores.sqlite import SqliteStore
from conductor.settings import Limits
from conductor.stores.base import SessionKey, SessionLog
from conductor.tools.base import CallContext, Toolset, ToolSpec
from conductor.tools.executor import PreparedCall, ToolExecutor
from conductor.tools.outcomes import ToolOutcome, succeeded
from conductor.tools.permissions import Gate
from conductor.tools.redaction import Redactor
from conductor.tools.rules import Rule, RuleEffect
from tests.models import AnthropicService, BenchPersona
from tests.services.postgres_server import PostgresServer
from tests.services.redis_server import RedisServer

ECHO = """
import asyncio, sys, uvloop
from websockets.asyncio.server import serve
async def handle(socket):
    async for message in socket:
        await socket.send(message)
async def main():
    async with serve(handle, "127.0.0.1", 0, compression=None) as server:
        print("ws://127.0.0.1:%d" % server.sockets[0].getsockname()[1], file=sys.stderr, flush=True)
        await asyncio.get_running_loop().create_future()
uvloop.run(main())
"""
"""The yardstick: a bare echo on the same WebSocket library and loop."""

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
    "speech.p50_ms": ("50", ""),
    "barge.max_ms": ("100", ""),
    "halves.waiting_over_without": ("1.2", "1.0"),
    "burst.longest_over_cpu": ("1.5", "1.1"),
    "burst.longest_over_median": ("2", ""),
    "memory.base_mb": ("95", "60"),
    "memory.kb_a_session_at_2000": ("40", "20"),
    "passing.after_over_settled": ("1.1", "1.0"),
    "start.ready_ms": ("1000", "500"),
    "gate.cpu_us_a_safe_call": ("100", ""),
    "judge.first_ms": ("5", ""),
    "judge.question_max_ms": ("5", ""),
    "judge.answer_max_ms": ("5", ""),
    "knowledge.update_s": ("1", ""),
    "knowledge.query_p99_ms": ("50", ""),
    "knowledge.query_loop_max_ms": ("50", ""),
    "durable_sqlite.step_p50_ms": ("0.6", ""),
    "durable_redis.step_p50_ms": ("0.6", ""),
    "durable_sqlite.cpu_over_memory": ("1.3", ""),
    "durable_redis.cpu_over_memory": ("1.3", ""),
    "people_all.cpu_over_plain": ("1.05", ""),
    "people_wanted.max_ms": ("1000", ""),
}
"""Figure -> the limit and the goal."""

DEFAULT = (
    *("turns", "stream", "round", "first", "speech", "barge", "pause", "halves", "burst", "memory"),
    *("start", "gate", "judge", "knowledge", "durable", "echo"),
)
"""The scenarios of a run without names."""


def main(arguments: Sequence[str]) -> int:
    """Run the chosen scenarios; 1 if a limit is missed."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument(
        "names",
        nargs="*",
        help=f"default: {' '.join(DEFAULT)}; also, for minutes: people passing",
    )
    parser.add_argument(
        "--quick", action="store_true", help="short windows, for a quick look; not for published figures"
    )
    parser.add_argument("--seconds", type=float, help="length of a window")
    parser.add_argument("--sessions", default="10,50,200,500", help="sessions of the standard turns")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
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
    names = set(options.names or DEFAULT)
    profile = str(options.profile.resolve()) if options.profile is not None else None

    async def with_server(
        name: str, run: Callable[[Process, AnthropicService], Awaitable[ToolMetrics]], **environment: str
    ) -> None:
        if name.partition("_")[0] not in names:
            return
        async with AnthropicService(api_keys=None, keep_requests=0) as service:
            async with conductor(service.base_url, pinned=pinned, profile=profile, **environment) as server:
                await _warm_up(server, service)
                results[name] = await run(server, service)
                results[name]["tracebacks"] = server.tracebacks()
            if service.refused:
                results[name]["refused"] = len(service.refused)
        print(f"  {name}: {results[name]}", file=sys.stderr, flush=True)

    if "echo" in names:
        async with Process([sys.executable, "-c", ECHO], pinned=pinned) as server:
            results["echo"] = await scenarios.echo_messages(server, 50, seconds)
        print(f"  echo: {results['echo']}", file=sys.stderr, flush=True)
    if "start" in names:
        async with conductor("http://127.0.0.1:9", pinned=pinned) as server:
            results["start"] = {"ready_ms": round(server.started_in * 1000)}
    in_process: dict[str, Callable[[], ToolMetrics]] = {"gate": gate_costs, "judge": judge_costs}
    results |= {name: measure() for name, measure in in_process.items() if name in names}
    if "knowledge" in names:
        results["knowledge"] = await knowledge_base(1_000 if options.quick else DOCUMENTS)
    for count in [int(part) for part in options.sessions.split(",")]:
        await with_server(
            f"turns_{count}", partial(scenarios.standard_turns, sessions=count, seconds=seconds)
        )
    await with_server("stream", partial(scenarios.paced_stream, sessions=100, per_second=50, seconds=seconds))
    await with_server("round", partial(scenarios.tool_round, turns=200))
    await with_server("first", partial(scenarios.first_partial, sessions=100, per_second=50, seconds=seconds))
    await with_server(
        "speech", partial(scenarios.first_speech, sessions=50, turns=20), SPEAK_SEGMENTS="always"
    )
    await with_server("barge", partial(scenarios.barge_in, times=50))
    await with_server("pause", partial(scenarios.paused_barge_in, times=50))
    await with_server("halves", partial(scenarios.whole_sentences, sessions=10, turns=50))
    await with_server("burst", partial(scenarios.first_words, sessions=500))
    if "people" in names:
        results |= await people(pinned=pinned, seconds=seconds)
    count = 2_000 if options.quick else PASSING
    await with_server("passing", partial(passing_sessions, sessions=count), SESSION_GRACE_S="0")
    if "durable" in names:
        results |= await durable(pinned=pinned, seconds=seconds)
    await with_server("memory", partial(scenarios.idle_memory, counts=[200, 1000, 2000]))
    if "turns_50" in results and "turns_500" in results:
        ratio = results["turns_500"]["cpu_ms_a_turn"] / results["turns_50"]["cpu_ms_a_turn"]
        results["growth"] = {"turns_500_over_50": round(ratio, 2)}
    return results


async def _warm_up(server: Process, service: AnthropicService) -> None:
    """Run some turns first, so that imports and pools do not count."""
    service.default = BenchPersona(scenarios.ROUNDS, scenarios.TOKENS)
    talkers = await connected(server, 1, "warm-up")
    for _ in range(3):
        await talkers[0].turn()
    disconnect(talkers)


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


# -- the cost of durable sessions: a commit, and the CPU of a turn against memory

STEPS = 2_000
SESSIONS = 50


async def durable(*, pinned: bool, seconds: float) -> dict[str, ToolMetrics]:
    """Measure a step of each engine, and standard turns with each."""
    results: dict[str, ToolMetrics] = {}
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="conductor-bench-")))
        stores: dict[str, tuple[str, SessionLog | None]] = {
            "memory": ("memory://", None),
            "sqlite": (f"sqlite:///{folder}/turns.db", SqliteStore(folder / "steps.db")),
        }
        if redis_program() is None:
            print("  durable: no redis-server here, so Redis is left out", file=sys.stderr)
        else:
            redis = RedisServer(folder / "redis", *DURABLE)
            redis.start()
            stack.callback(redis.kill)
            stores["redis"] = (redis.url, RedisStore(redis.url, prefix="steps"))
        if postgres_program("initdb") is None:
            print("  durable: no PostgreSQL here, so it is left out", file=sys.stderr)
        else:
            postgres = PostgresServer()
            postgres.start()
            stack.callback(postgres.stop)
            stores["postgres"] = (postgres.url, PostgresStore(postgres.url))
        for name, (url, store) in stores.items():
            figures = await _steps(store) if store is not None else {}
            figures |= await _turns(url, pinned=pinned, seconds=seconds)
            if results:
                memory = results["durable_memory"]["cpu_ms_a_turn"]
                figures["cpu_over_memory"] = round(figures["cpu_ms_a_turn"] / memory, 2)
            results[f"durable_{name}"] = figures
            print(f"  durable_{name}: {figures}", file=sys.stderr, flush=True)
    return results


async def _steps(store: SessionLog) -> ToolMetrics:
    """Repeat the commit of a reply with a device call."""
    await store.open()
    claim = await store.claim(SessionKey("bench", "s-1"))
    times = []
    for number in range(STEPS):
        start = time.perf_counter()
        await store.append(claim, f"commit-{number}", _step(claim.token, number))
        times.append(time.perf_counter() - start)
    await store.aclose()
    return {f"step_{name}": value for name, value in scenarios.milliseconds(times[STEPS // 10 :]).items()}


def _step(token: str, number: int) -> bytes:
    arguments = '{"id":"a-77"}'
    call = ToolCall(f"call-{number}", "agent.status", arguments)
    checked = Call(
        id=call.call_id,
        name=call.name,
        arguments=arguments,
        source="device",
        effect="read",
        started_at=1,
        claim=token,
    )
    reply = ReplyLogged(message=AssistantMessage(text="I look.", calls=(call,)), calls=(checked,))
    return encode(Commit(claim=token, at=1, records=(reply,)))


async def _turns(url: str, *, pinned: bool, seconds: float) -> ToolMetrics:
    async with AnthropicService(api_keys=None, keep_requests=0) as service:
        async with conductor(service.base_url, pinned=pinned, SESSION_STORE_URL=url) as server:
            figures = await scenarios.standard_turns(server, service, SESSIONS, seconds)
            figures["tracebacks"] = server.tracebacks()
    return figures


# -- the cost of the gate for a call, in this process

CALLS = 5_000
_EFFECTS: tuple[RuleEffect, ...] = ("deny", "ask", "allow")
RULES = tuple(
    Rule(effect=effect, tool=f"tool_{number}.*", args={"path": {"glob": "/srv/*"}} if number % 2 else {})
    for number, effect in enumerate(_EFFECTS * 4)
)
SECRETS = ("a-key-that-nobody-should-see-1", "a-token-that-nobody-should-see-2")
ANSWER = {"time": "2026-03-01T12:00:00+00:00", "weekday": "Sunday", "time_zone": "Europe/Berlin"}
ARGUMENTS = '{"timezone":"Europe/Berlin"}'


class _Clock(Toolset):
    """A safe tool that costs nothing itself."""

    spec = ToolSpec(
        name="clock",
        description="Tells the time.",
        input_schema={"type": "object", "properties": {"timezone": {"type": "string", "maxLength": 64}}},
        source="builtin",
        risk="safe",
        effect="read",
    )

    def specs(self) -> Sequence[ToolSpec]:
        return (self.spec,)

    async def call(self, name: str, arguments: Mapping[str, Any], context: CallContext) -> ToolOutcome:
        return succeeded(ANSWER)


def gate_costs() -> ToolMetrics:
    """Measure a safe call: validated, permitted under rules, redacted and shaped, beyond running it."""
    clock = _Clock()
    limits = Limits(calls_per_minute=1e12)
    executor = ToolExecutor([clock], limits, Gate(rules=RULES), Redactor(SECRETS))
    call, outcome = ToolCall("call_1", "clock", ARGUMENTS), succeeded(ANSWER)

    def whole_call() -> None:
        assert isinstance(executor.prepare(call), PreparedCall)
        executor.to_result("call_1", outcome)

    def bare() -> None:
        assert outcome.content

    return {"cpu_us_a_safe_call": round((_cpu(whole_call) - _cpu(bare)) * 1e6, 1), "rules": len(RULES)}


def _cpu(work: Callable[[], None]) -> float:
    """Measure the CPU seconds of one run, the best of five series."""
    best = float("inf")
    for _ in range(5):
        start = time.process_time()
        for _ in range(CALLS):
            work()
        best = min(best, time.process_time() - start)
    return best / CALLS


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
