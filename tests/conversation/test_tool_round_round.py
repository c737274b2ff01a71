"""The calls of one reply: which are run, and that each gets one result in the model's order."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping
from typing import Any

import pytest

from conductor.conversation.tool_round import ToolRound, prepare_round
from conductor.messages import ToolCall, ToolResult
from conductor.settings import Limits
from conductor.stores.base import AppendLog, ForgetCall, OpenCall
from conductor.tools.base import ToolSpec
from conductor.tools.device import DeviceToolset, PendingCalls
from conductor.tools.executor import ToolExecutor
from conductor.tools.permissions import Verdict
from conductor.tools.rules import RuleEffect
from tests.conversation.helpers import CATALOG, LocalTools, limits


def executor(bounds: Limits) -> ToolExecutor:
    return ToolExecutor([LocalTools(), DeviceToolset(CATALOG, PendingCalls())], bounds)


def prepare(
    calls: list[ToolCall], *, max_calls: int = 40, complete: bool = True, **changed: Any
) -> ToolRound:
    bounds = limits(**changed)
    return asyncio.run(prepare_round(executor(bounds), calls, bounds, max_calls=max_calls, complete=complete))


def errors(prepared: ToolRound) -> dict[str, str]:
    return {call_id: json.loads(r.content)["error_type"] for call_id, r in prepared.results.items()}


def calls(*names: str) -> list[ToolCall]:
    return [ToolCall(f"c{number}", name, "{}") for number, name in enumerate(names)]


def test_permitted_calls_are_ready_and_invalid_calls_have_results() -> None:
    prepared = prepare(
        [*calls("device.look", "local.sum", "nobody.home"), ToolCall("c3", "device.do", '{"x":"many"}')]
    )
    assert [ready.call.call_id for ready in prepared.ready] == ["c0", "c1"]
    assert [ready.call.call_id for ready in prepared.device_calls] == ["c0"]
    assert errors(prepared) == {"c2": "not_found", "c3": "validation_failed"}
    assert all(result.is_error for result in prepared.results.values())


def test_gated_calls_wait_and_denied_calls_have_results() -> None:
    def permit(spec: ToolSpec, arguments: Mapping[str, Any]) -> Verdict:
        effects: dict[str, RuleEffect] = {"device.do": "ask", "local.sum": "deny"}
        return Verdict(effects.get(spec.name, "allow"), ("Because.",), None, warn=False)

    bounds = limits()
    requested = [*calls("device.look", "device.do", "local.sum"), ToolCall("c3", "device.do", '{"x":"7"}')]
    prepared = asyncio.run(
        prepare_round(executor(bounds), requested, bounds, permit, max_calls=40, complete=True)
    )
    assert [ready.call.call_id for ready in prepared.ready] == ["c0"]
    assert [ready.ready.call.call_id for ready in prepared.gated] == ["c1", "c3"]
    assert [ready.verdict.reasons for ready in prepared.gated] == [("Because.",)] * 2
    assert [ready.call.call_id for ready in prepared.device_calls] == ["c0"], "nothing that asks is sent"
    assert errors(prepared) == {"c2": "permission_denied"}
    assert prepared.refused == {"c2"}
    assert not prepared.all_refused
    opened = [o.call for o in prepared.open("t1") if isinstance(o, OpenCall)]
    assert [(c.source, c.effect) for c in opened] == [
        ("device", "read"),
        ("device", "write"),
        ("none", "read"),
        ("device", "write"),
    ]
    assert [c.notes for c in opened] == [(), (), (), ('x: "7" was read as 7',)]


@pytest.mark.parametrize(
    ("names", "refused"), [(["local.sum"], True), (["local.sum", "nobody.home"], False), ([], False)]
)
def test_a_round_is_refused_if_all_its_calls_are(names: list[str], refused: bool) -> None:
    def permit(spec: ToolSpec, arguments: Mapping[str, Any]) -> Verdict:
        return Verdict("deny", ("Because.",), None, warn=False)

    bounds = limits()
    prepared = asyncio.run(
        prepare_round(executor(bounds), calls(*names), bounds, permit, max_calls=40, complete=True)
    )
    assert prepared.all_refused == refused


def test_no_call_of_a_cut_off_reply_is_prepared() -> None:
    prepared = prepare(calls("device.look", "local.sum"), complete=False)
    assert prepared.ready == []
    assert errors(prepared) == {"c0": "parse_error", "c1": "parse_error"}


@pytest.mark.parametrize(("max_calls", "by_round", "ran"), [(2, 15, 2), (40, 3, 3), (40, 15, 5)])
def test_calls_beyond_the_limit_are_not_run(max_calls: int, by_round: int, ran: int) -> None:
    prepared = prepare(calls(*["local.sum"] * 5), max_calls=max_calls, max_calls_per_round=by_round)
    assert len(prepared.ready) == ran
    assert list(errors(prepared).values()) == ["rate_limited"] * (5 - ran)


def test_opening_records_the_source_and_effect_of_each_call() -> None:
    prepared = prepare(calls("device.do", "local.sum", "nobody.home"))
    opened = [o.call for o in prepared.open("t1") if isinstance(o, OpenCall)]
    assert [(c.call_id, c.source, c.effect, c.turn_id) for c in opened] == [
        ("c0", "device", "write", "t1"),
        ("c1", "builtin", "read", "t1"),
        ("c2", "none", "read", "t1"),
    ]
    assert [c.result is not None for c in opened] == [False, False, True]


def test_closing_logs_one_result_for_each_call_in_order() -> None:
    rng = random.Random(5)
    for _ in range(200):
        prepared = prepare(
            calls(*(rng.choice(("device.do", "nobody.home")) for _ in range(rng.randint(1, 6))))
        )
        for ready in rng.sample(prepared.ready, rng.randint(0, len(prepared.ready))):
            prepared.results[ready.call.call_id] = ToolResult(ready.call.call_id, "ok")
        operations = prepared.close()
        logged = [o.entry for o in operations if isinstance(o, AppendLog)]
        ids = [ready.call_id for ready in prepared.calls]
        assert [entry.call_id for entry in logged if isinstance(entry, ToolResult)] == ids
        assert [o.call_id for o in operations if isinstance(o, ForgetCall)] == ids


def test_validation_yields_to_other_tasks() -> None:
    async def passes() -> int:
        bounds, count = limits(), 0

        async def tick() -> None:
            nonlocal count
            while True:
                await asyncio.sleep(0)
                count += 1

        ticking = asyncio.create_task(tick())
        await prepare_round(executor(bounds), calls(*["local.sum"] * 5), bounds, max_calls=40, complete=True)
        ticking.cancel()
        return count

    assert asyncio.run(passes()) >= 3
