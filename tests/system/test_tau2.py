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
from benchmarks.tau2 import PYTHON, Options, Task, key, run, score

pytestmark = pytest.mark.extended

PAY: tuple[str, dict[str, Any]] = ("assistant.pay", {"bill": "B1"})
READ: tuple[str, dict[str, Any]] = ("assistant.bills", {})
PAID = key(*PAY)


def finished(kind: str = "free", hash: str = "paid", unknown: bool = False, **runs: int) -> dict[str, int]:
    task = Task("shop", "1", kind, [READ, PAY], frozenset({PAY[0]}))
    task.runs, task.hash, task.gold = Counter({PAID: runs.get("paid", 0)}), hash, "paid"
    task.unknown = {"call-1"} if unknown else set()
    return {name: count for name, count in score([task]).items() if count}


def test_the_score_finds_each_fault() -> None:
    assert finished(paid=1) == {}
    assert finished(paid=2) == {"doubles": 1}
    assert finished(paid=0, hash="open") == {"lost": 1}
    assert finished(paid=1, hash="other") == {"wrong hashes": 1}
    assert finished("denied", paid=1) == {"doubles": 1}
    assert finished(paid=0, hash="open", unknown=True) == {"unknown": 1}


@pytest.mark.skipif(not PYTHON.exists(), reason="scripts/tau2 installs the package once")
def test_a_calm_run_loses_nothing() -> None:
    options = Options(Plan(0, 0, 0, 0), "sqlite", seed=3, tasks=20, domains=["telecom"])
    with Parent() as parent:
        figures = asyncio.run(run(options, parent))
    bad = {name: figures[name] for name in ("wrong hashes", "doubles", "lost", "stuck")}
    assert not any(bad.values()), figures
    assert figures["tasks"] == 20
