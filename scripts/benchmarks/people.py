"""Measures the cost of identity, budgets and webhooks in alternating runs, and how soon a phone is wanted."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import scenarios
from benchmarks.nodes import conductor
from benchmarks.scenarios import ToolMetrics
from benchmarks.talker import Talker
from tests.models import AnthropicService, BenchPersona, Reply
from tests.server.receiver import Receiver, receiving
from tests.server.test_jwt import AUDIENCE, ISSUER, jwks, token

SESSIONS, ROUNDS = 20, 5
WANTED = 20
"""Calls for phones that are not connected."""
PEOPLE = {
    "AUTH": "jwt",
    "JWT_ISSUER": ISSUER,
    "JWT_AUDIENCE": AUDIENCE,
    "JWT_KEYS": "keys.json",
    "DAILY_TOKEN_BUDGET": "1000000000",
    "SUBJECT_TURNS_PER_MIN": "100000",
}


async def people(*, pinned: bool, seconds: float) -> dict[str, ToolMetrics]:
    """Compare standard turns: plain; with all of it; with receivers that refuse, and that hang."""
    runs: dict[str, list[ToolMetrics]] = {}
    with tempfile.TemporaryDirectory(prefix="conductor-people-") as name:
        folder = Path(name)
        (folder / "keys.json").write_bytes(jwks("EdDSA"))
        for _ in range(ROUNDS):
            for kind in ("plain", "all", "refusing", "hanging"):
                figures = await _turns(kind, folder, pinned=pinned, seconds=seconds)
                runs.setdefault(kind, []).append(figures)
        phone = await _wanted(folder, pinned=pinned)
    medians = {
        f"people_{kind}": {
            key: round(statistics.median(figures[key] for figures in measured), 3)
            for key in ("cpu_ms_a_turn", "p50_ms", "p99_ms", "errors")
        }
        for kind, measured in runs.items()
    }
    plain, full = (medians[f"people_{kind}"]["cpu_ms_a_turn"] for kind in ("plain", "all"))
    medians["people_all"]["cpu_over_plain"] = round(full / plain, 3)
    return {**medians, "people_wanted": phone}


async def _turns(kind: str, folder: Path, *, pinned: bool, seconds: float) -> ToolMetrics:
    async with AnthropicService(api_keys=None, keep_requests=0) as service, receiving() as receiver:
        receiver.status = 500 if kind == "refusing" else 204
        receiver.hangs = asyncio.Event() if kind == "hanging" else None
        options = _options(kind, receiver, folder)
        async with conductor(service.base_url, pinned=pinned, **options) as server:
            if kind != "plain":
                server.headers = _bearer
            return await scenarios.standard_turns(server, service, SESSIONS, seconds)


def _options(kind: str, receiver: Receiver, folder: Path) -> dict[str, str]:
    if kind == "plain":
        return {}
    files = {"CONFIG_DIR": str(receiver.file(folder).parent), "JWT_KEYS": str(folder / "keys.json")}
    return PEOPLE | files


def _bearer(session_id: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token('EdDSA', sub=session_id, exp=time.time() + 3600)}"}


async def _wanted(folder: Path, *, pinned: bool) -> ToolMetrics:
    times: list[float] = []
    async with AnthropicService(api_keys=None, keep_requests=0) as service, receiving() as receiver:
        file = receiver.file(folder, events=["device.wanted"])
        async with conductor(service.base_url, pinned=pinned, CONFIG_DIR=str(file.parent)) as server:
            for number in range(WANTED):
                request_seen, disconnected = asyncio.Event(), asyncio.Event()

                def reply(
                    request: dict[str, Any],
                    request_seen: asyncio.Event = request_seen,
                    disconnected: asyncio.Event = disconnected,
                ) -> Reply:
                    request_seen.set()
                    return replace(BenchPersona(1, 1)(request), hold=disconnected)

                service.default = reply
                talker = Talker(server.url, f"wanted-{number}")
                await talker.connect()
                talker.say("go")
                await asyncio.wait_for(request_seen.wait(), 60)
                talker.socket.cut()
                await asyncio.sleep(0.1)  # the server sees that
                start = time.perf_counter()
                disconnected.set()
                while len(receiver.events) <= number:  # noqa: ASYNC110 -- of another process
                    await asyncio.sleep(0.001)
                times.append(time.perf_counter() - start)
    return {**scenarios.milliseconds(times), "max_ms": round(max(times) * 1000, 3)}
