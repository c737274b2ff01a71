"""The replay of tau2's actions: its score finds each fault, and a short run has none."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))

from benchmarks.chaos_faults import Plan
from benchmarks.chaos_nodes import Parent
from benchmarks.tau2 import run
from benchmarks.tau2_callers import PYTHON, Options
from benchmarks.tau2_score import FAULTS, Task, key, outcome_of, score

pytestmark = pytest.mark.extended

PAY: tuple[str, dict[str, Any]] = ("assistant.pay", {"bill": "B1"})
READ: tuple[str, dict[str, Any]] = ("assistant.bills", {})


def finished(
    outcome: str | None, runs: int, kind: str = "free", hash: str = "same", retried: bool = False
) -> dict[str, int]:
    task = Task("shop", "1", kind, [READ, PAY], frozenset({PAY[0]}))
    task.outcomes = {"call-0": (0, "ran")} | ({} if outcome is None else {"call-1": (1, outcome)})
    calls = {"call-1": runs} if runs else {}
    if retried:
        calls["call-2"] = 1
    task.runs, task.keys = Counter(calls), dict.fromkeys(calls, key(*PAY))
    task.hash, task.gold = hash, "same"
    return {name: count for name, count in score([task]).items() if count}


def test_the_score_finds_each_fault() -> None:
    assert finished("ran", 1) == {}
    assert finished("ran", 2) == {"doubled": 1}
    assert finished("ran", 1, retried=True) == {"doubled": 1, "false": 1}
    assert finished("ran", 0) == {"false": 1}
    assert finished("ran", 1, hash="other") == {"wrong hashes": 1}
    assert finished(None, 0) == {"lost": 1}
    assert finished(None, 1) == {"lost": 1, "false": 1}
    assert finished("unknown", 0) == finished("unknown", 1) == {"unknown": 1}
    assert finished("cancelled", 0) == {"cancelled": 1}
    assert finished("cancelled", 1) == {"false": 1, "cancelled": 1}
    assert finished("permission_denied", 0, "denied") == {}
    assert finished("permission_denied", 1, "denied") == {"without consent": 1, "false": 1}


def test_a_stuck_task_is_judged_by_its_database_and_by_its_writes() -> None:
    task = Task("shop", "1", "free", [READ, PAY, PAY], frozenset({PAY[0]}), is_stuck=True)
    task.outcomes = {"call-0": (0, "ran"), "call-1": (1, "ran")}
    task.runs, task.keys = Counter({"call-1": 1, "call-2": 1}), dict.fromkeys(("call-1", "call-2"), key(*PAY))
    task.hash, task.gold = "same", "other"
    assert task.effects == [1, 2], "the model was not told of the second one yet"
    assert {name for name, count in score([task]).items() if count} == {"stuck", "wrong hashes"}


def test_what_the_model_was_told_is_read_from_a_result() -> None:
    assert outcome_of('{"success":true,"data":"paid","error_type":"none"}') == "ran"
    assert outcome_of([{"type": "text", "text": "paid"}]) == "ran"
    assert outcome_of('{"success":false,"error_type":"internal_error"}') == "ran"
    assert outcome_of('{"success":false,"error_type":"tool_error"}') == "ran"
    assert outcome_of('{"success":false,"error_type":"unknown"}') == "unknown"
    part = "The call was cancelled when part of it had been done."
    assert outcome_of(f'{{"error_type":"cancelled","error_message":"{part}"}}') == "unknown"
    assert outcome_of('{"error_type":"cancelled"}') == "cancelled"


@pytest.mark.skipif(not PYTHON.exists(), reason="scripts/tau2 installs the package once")
def test_a_calm_run_loses_nothing() -> None:
    options = Options(Plan(0, 0, 0, 0), "sqlite", seed=3, tasks=20, domains=["telecom"])
    with Parent() as parent:
        figures = asyncio.run(run(options, parent))
    assert not any(figures[name] for name in FAULTS), figures
    assert figures["tasks"] == 20
