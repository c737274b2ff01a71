"""What it costs to keep sessions: the time of a commit, and the CPU of a turn beside one in memory."""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from benchmarks import scenarios
from benchmarks.nodes import RedisServer, redis_program
from benchmarks.process import conductor
from benchmarks.scenarios import ToolMetrics, milliseconds
from conductor.messages import AssistantMessage, ToolCall
from conductor.stores.base import (
    AppendLog,
    CallRecord,
    OpenCall,
    Operation,
    OutboundRecord,
    PutOutbound,
    SessionKey,
    SessionStore,
    SetField,
)
from conductor.stores.redis import RedisStore
from conductor.stores.sqlite import SqliteStore
from tests.stand_ins.anthropic_service import AnthropicService

STEPS = 2_000
SESSIONS = 50


async def durable(*, pinned: bool, seconds: float) -> dict[str, ToolMetrics]:
    """Measure a step of each engine, and standard turns with each."""
    results: dict[str, ToolMetrics] = {}
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="conductor-bench-")))
        stores: dict[str, tuple[str, SessionStore | None]] = {
            "memory": ("memory://", None),
            "sqlite": (f"sqlite:///{folder}/turns.db", SqliteStore(folder / "steps.db")),
        }
        if redis_program() is None:
            print("  durable: no redis-server here, so Redis is left out", file=sys.stderr)
        else:
            redis = RedisServer(folder / "redis")
            await redis.start()
            stack.push_async_callback(redis.stop)
            stores["redis"] = (redis.url, RedisStore(redis.url, prefix="steps"))
        for name, (url, store) in stores.items():
            figures = await _steps(store) if store is not None else {}
            figures |= await _turns(url, pinned=pinned, seconds=seconds)
            if results:
                memory = results["durable_memory"]["cpu_ms_a_turn"]
                figures["cpu_over_memory"] = round(figures["cpu_ms_a_turn"] / memory, 2)
            results[f"durable_{name}"] = figures
            print(f"  durable_{name}: {figures}", file=sys.stderr, flush=True)
    return results


async def _steps(store: SessionStore) -> ToolMetrics:
    """Commit what a reply with a call of the device commits, again and again."""
    await store.open()
    claim = await store.claim(SessionKey("bench", "s-1"))
    times = []
    for number in range(STEPS):
        began = time.perf_counter()
        await store.commit(claim, f"commit-{number}", _step(number))
        times.append(time.perf_counter() - began)
    await store.aclose()
    return {f"step_{name}": value for name, value in milliseconds(times[STEPS // 10 :]).items()}


def _step(number: int) -> list[Operation]:
    call = ToolCall(f"call-{number}", "agent.status", '{"id":"a-77"}')
    frame = msgspec.Raw(b'{"id":"evt","type":"tool.call","payload":{"callId":"call","name":"agent.status"}}')
    return [
        AppendLog(AssistantMessage("I look.", (call,))),
        OpenCall(CallRecord(call.call_id, call.name, "turn-1", "device", "read", 0)),
        PutOutbound(OutboundRecord(f"evt-{number}", "call", call.call_id, "turn-1", 0, frame, "read")),
        SetField("turn", '{"turn_id":"turn-1","cause":"transcript","rounds":1,"calls":1}'),
    ]


async def _turns(url: str, *, pinned: bool, seconds: float) -> ToolMetrics:
    async with AnthropicService(api_keys=None, keep_requests=0) as service:
        async with conductor(service.base_url, pinned=pinned, SESSION_STORE_URL=url) as server:
            figures = await scenarios.standard_turns(server, service, SESSIONS, seconds)
            figures["tracebacks"] = server.tracebacks()
    return figures
