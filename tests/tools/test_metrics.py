"""The tools' figures: counted right, close enough, and no larger however many names there are."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.samples import Sample

from conductor.tools.base import ErrorType
from conductor.tools.metrics import (
    BOUNDS_S,
    MAX_DEVICE_TOOLS,
    MAX_NAME_CHARS,
    MAX_TOOLS,
    OTHERS,
    Decision,
    ToolMetrics,
)

SEED = 20_260_101
# The largest error of a quantile, as a share of its value.
ERROR = 0.251


def rows(figures: ToolMetrics) -> dict[str, dict[str, Any]]:
    """Find the tools' figures by name."""
    return {row["tool"]: row for row in figures.snapshot()["tools"]}


def exact(values: list[float], share: float) -> float:
    """Find a quantile by looking at all values (nearest rank)."""
    return sorted(values)[max(1, math.ceil(share * len(values))) - 1]


# -- what is counted


def test_nothing_was_counted_at_first() -> None:
    figures = ToolMetrics(lambda: datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    assert figures.snapshot() == {
        "since": "2026-01-02T03:04:05+00:00",
        "totals": {
            "calls": 0,
            "successes": 0,
            "errors": {},
            "approvals": {"asked": 0, **dict.fromkeys(get_args(Decision), 0)},
        },
        "tools": [],
    }


def test_a_call_that_took_no_time_at_all_has_run() -> None:
    figures = ToolMetrics()
    figures.called("calculator", "builtin", "none", 0.0)
    figures.called("agent.spawn", "device", "permission_denied", None)
    took = {tool: row["run_ms"]["max"] for tool, row in rows(figures).items()}
    assert took == {"calculator": 0.0, "agent.spawn": None}


def test_calls_successes_and_errors_by_type_are_counted_by_tool() -> None:
    figures = ToolMetrics()
    for error_type in ("none", "unknown", "none", "io_error", "unknown"):
        figures.called("agent.spawn", "device", error_type, 0.1)
    figures.called("calculator", "builtin", "none", 0.1)
    spawn, calculator = rows(figures)["agent.spawn"], rows(figures)["calculator"]
    assert (spawn["calls"], spawn["successes"]) == (5, 2)
    assert list(spawn["errors"].items()) == [("io_error", 1), ("unknown", 2)]
    assert (calculator["calls"], calculator["successes"], calculator["errors"]) == (1, 1, {})
    totals = figures.snapshot()["totals"]
    assert (totals["calls"], totals["successes"]) == (6, 3)
    assert totals["errors"] == {"io_error": 1, "unknown": 2}


def test_a_call_that_was_not_run_counts_but_has_no_time() -> None:
    figures = ToolMetrics()
    figures.called("agent.spawn", "device", "permission_denied", None)
    row = rows(figures)["agent.spawn"]
    assert row["calls"] == 1 and row["run_ms"] == {"p50": None, "p99": None, "max": None}


def test_run_times_are_milliseconds() -> None:
    figures = ToolMetrics()
    for _ in range(98):
        figures.called("agent.spawn", "device", "none", 0.2)
    for seconds in (3.0, 7.123):
        figures.called("agent.spawn", "device", "none", seconds)
    run_ms = rows(figures)["agent.spawn"]["run_ms"]
    assert run_ms["p50"] == pytest.approx(200, rel=ERROR)
    assert run_ms["p99"] == pytest.approx(3000, rel=ERROR)
    assert run_ms["max"] == 7123


@pytest.mark.parametrize("outcome", get_args(Decision))
def test_what_came_of_a_question_is_counted_by_kind(outcome: Decision) -> None:
    figures = ToolMetrics()
    figures.asked("agent.spawn", "device")
    figures.asked("agent.spawn", "device")
    figures.decided("agent.spawn", "device", outcome, 4.0)
    expected = {"asked": 2, **dict.fromkeys(get_args(Decision), 0), outcome: 1}
    assert rows(figures)["agent.spawn"]["approvals"] == expected
    assert figures.snapshot()["totals"]["approvals"] == expected


def test_only_a_persons_decision_has_a_time_to_decide() -> None:
    figures = ToolMetrics()
    no_answers: tuple[Decision, ...] = ("expired", "superseded", "refused")
    for outcome in no_answers:
        figures.decided("agent.spawn", "device", outcome, 600.0)
    assert rows(figures)["agent.spawn"]["decide_ms"] == {"p50": None, "p99": None}
    answers: tuple[Decision, ...] = ("allowed", "denied", "edited")
    for outcome in answers:
        figures.decided("agent.spawn", "device", outcome, 4.0)
    assert rows(figures)["agent.spawn"]["decide_ms"] == pytest.approx({"p50": 4000, "p99": 4000}, rel=ERROR)


def test_the_same_name_from_two_sources_is_two_tools() -> None:
    figures = ToolMetrics()
    figures.called("search", "mcp:b", "none", 0.1)
    figures.called("search", "mcp:a", "none", 0.1)
    figures.called("add", "mcp:b", "none", 0.1)
    found = [(row["tool"], row["source"]) for row in figures.snapshot()["tools"]]
    assert found == [("add", "mcp:b"), ("search", "mcp:a"), ("search", "mcp:b")]


def test_a_snapshot_is_json_and_does_not_change_later() -> None:
    figures = ToolMetrics()
    figures.called("agent.spawn", "device", "unknown", 0.1)
    figures.decided("agent.spawn", "device", "denied", 1.0)
    snapshot = figures.snapshot()
    before = json.dumps(snapshot, allow_nan=False)
    figures.called("agent.spawn", "device", "unknown", 0.1)
    figures.decided("agent.spawn", "device", "denied", 1.0)
    assert json.dumps(snapshot) == before


# -- names come from clients


def test_more_tools_than_are_kept_are_summed_up() -> None:
    figures = ToolMetrics()
    for number in range(MAX_TOOLS + 25):
        figures.called(f"tool.{number:04}", "mcp:x", "none", 0.1)
        figures.called(f"tool.{number:04}", "mcp:x", "io_error", 0.1)
    tools = figures.snapshot()["tools"]
    assert len(tools) == MAX_TOOLS + 1
    assert (tools[-1]["tool"], tools[-1]["source"], tools[-1]["calls"]) == (OTHERS, "", 50)
    assert figures.snapshot()["totals"]["calls"] == 2 * (MAX_TOOLS + 25)
    assert figures.snapshot()["totals"]["errors"] == {"io_error": MAX_TOOLS + 25}


@pytest.mark.parametrize(
    "count",
    [
        lambda figures: figures.asked("one.more", "device"),
        lambda figures: figures.decided("one.more", "device", "refused", 1.0),
    ],
)
def test_others_are_there_for_questions_alone_too(count: Callable[[ToolMetrics], None]) -> None:
    figures = ToolMetrics()
    for number in range(MAX_DEVICE_TOOLS):
        figures.called(f"tool.{number}", "device", "none", 0.1)
    assert OTHERS not in rows(figures)
    count(figures)
    assert OTHERS in rows(figures)


def test_names_that_clients_make_up_leave_room_for_the_servers_own_tools() -> None:
    figures = ToolMetrics()
    for number in range(10 * MAX_TOOLS):
        figures.called(f"made.up.{number}", "device", "none", 0.1)
    figures.called("calculator", "builtin", "none", 0.1)
    assert rows(figures)["calculator"]["calls"] == 1
    assert len(rows(figures)) == MAX_DEVICE_TOOLS + 2


def test_a_tool_that_is_named_like_the_others_is_not_theirs() -> None:
    figures = ToolMetrics()
    figures.called(OTHERS, "device", "none", 0.1)
    (row,) = figures.snapshot()["tools"]
    assert (row["tool"], row["source"]) == (OTHERS, "device")


def test_long_names_are_cut() -> None:
    figures = ToolMetrics()
    for ending in "ab":
        figures.called("x" * MAX_NAME_CHARS + ending, "device", "none", 0.1)
    assert list(rows(figures)) == ["x" * MAX_NAME_CHARS]
    assert rows(figures)["x" * MAX_NAME_CHARS]["calls"] == 2


@pytest.mark.parametrize("name", ["a\x00b", "a\nb", "a\x1bb", "a\ud83db"])
def test_what_no_scraper_takes_is_replaced(name: str) -> None:
    figures = ToolMetrics()
    figures.called(name, "device", "none", 0.1)
    assert list(rows(figures)) == ["a?b"]


def test_label_sets_are_bounded() -> None:
    figures = ToolMetrics()
    for number in range(2 * MAX_TOOLS):
        for source in ("device", "mcp:x"):
            for error_type in get_args(ErrorType):
                figures.called(f"made.up.{number}", source, error_type, 0.1)
            figures.asked(f"made.up.{number}", source)
            for outcome in get_args(Decision):
                figures.decided(f"made.up.{number}", source, outcome, 1.0)
    found = {
        family.name: sum(_is_count(one) for one in family.samples) for family in figures.registry.collect()
    }
    tools = MAX_TOOLS + 1
    assert found == {
        "conductor_tool_calls": tools * len(get_args(ErrorType)),
        "conductor_tool_approvals_asked": tools,
        "conductor_tool_approvals_decided": tools * len(get_args(Decision)),
        "conductor_approvals": len(get_args(Decision)),
        "conductor_tool_run_seconds": tools,
        "conductor_tool_decide_seconds": tools,
    }


def _is_count(sample: Sample) -> bool:
    return sample.name.endswith(("_total", "_count"))


# -- quantiles


SHAPES: dict[str, Callable[[random.Random], float]] = {
    "all alike": lambda rng: 0.25,
    "network": lambda rng: rng.lognormvariate(-2.5, 1.0),
    "two ways": lambda rng: rng.choice([0.004, 12.0]) * rng.uniform(0.9, 1.1),
    "evenly over four decades": lambda rng: 10 ** rng.uniform(-3, 1),
    "people": lambda rng: rng.expovariate(1 / 8.0) + 0.3,
}


def run_ms(values: list[float]) -> dict[str, float]:
    """Count calls that took ``values`` seconds; give their times."""
    figures = ToolMetrics()
    for value in values:
        figures.called("agent.spawn", "device", "none", value)
    found: dict[str, float] = rows(figures)["agent.spawn"]["run_ms"]
    return found


def assert_close(values: list[float]) -> None:
    """Compare the quantiles of times in seconds with the exact ones."""
    found = run_ms(values)
    assert found["p50"] == pytest.approx(1000 * exact(values, 0.5), rel=ERROR), f"seed {SEED}"
    assert found["p99"] == pytest.approx(1000 * exact(values, 0.99), rel=ERROR), f"seed {SEED}"
    assert found["max"] == round(1000 * max(values), 3)


@pytest.mark.parametrize("shape", SHAPES)
def test_quantiles_are_within_25_percent(shape: str) -> None:
    rng = random.Random(SEED)
    assert_close([SHAPES[shape](rng) for _ in range(5_000)])


@given(st.lists(st.floats(BOUNDS_S[0], BOUNDS_S[-1]), min_size=1, max_size=200))
def test_quantiles_of_any_times_are_within_25_percent(values: list[float]) -> None:
    assert_close(values)


def test_buckets_suit_tools_that_take_a_millisecond_to_ten_minutes() -> None:
    assert BOUNDS_S[0] == 0.001 and BOUNDS_S[-1] == 650
    assert all(high / low <= 5 / 3 + 1e-9 for low, high in pairwise(BOUNDS_S))


def test_times_beyond_the_buckets_count_as_their_ends() -> None:
    assert run_ms([0.0001, 0.0002, 5.0])["p50"] == 1
    assert run_ms([0.0001, 0.0002]) == {"p50": 0.2, "p99": 0.2, "max": 0.2}
    assert run_ms([1_000.0, 9_000.0]) == {"p50": 9_000_000, "p99": 9_000_000, "max": 9_000_000}
    figures = ToolMetrics()
    figures.decided("agent.spawn", "device", "allowed", 9_000.0)
    assert rows(figures)["agent.spawn"]["decide_ms"] == {"p50": 650_000, "p99": 650_000}
