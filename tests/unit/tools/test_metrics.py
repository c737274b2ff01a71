"""The tools' metrics: correct counts, and a bounded number of names."""

from __future__ import annotations

from typing import get_args

import pytest

from conductor.tools.metrics import (
    MAX_DEVICE_TOOLS,
    MAX_TOOLS,
    CountedOutcome,
    ToolMetrics,
)
from conductor.tools.outcomes import ErrorType

SPAWN = {"tool": "agent.spawn", "source": "device"}


def tools(metrics: ToolMetrics) -> set[tuple[str, str]]:
    """List the names and sources of the tools that have metrics."""
    samples = (sample for family in metrics.registry.collect() for sample in family.samples)
    return {(sample.labels["tool"], sample.labels["source"]) for sample in samples if "tool" in sample.labels}


def calls(metrics: ToolMetrics, tool: str, source: str, error_type: ErrorType = "none") -> float | None:
    """Return the number of a tool's calls."""
    labels = {"tool": tool, "source": source, "error_type": error_type}
    return metrics.registry.get_sample_value("conductor_tool_calls_total", labels)


# -- what is counted


def test_calls_are_counted_by_tool_source_and_error_type() -> None:
    metrics = ToolMetrics()
    for error_type in ("none", "unknown", "none", "io_error", "unknown"):
        metrics.count_call("agent.spawn", "device", error_type, 0.1)
    metrics.count_call("agent.spawn", "mcp:a", "none", 0.1)
    counts = {kind: calls(metrics, "agent.spawn", "device", kind) for kind in get_args(ErrorType)}
    assert {kind: count for kind, count in counts.items() if count} == {
        "none": 2,
        "unknown": 2,
        "io_error": 1,
    }
    assert calls(metrics, "agent.spawn", "mcp:a") == 1


def test_a_call_that_was_not_run_has_no_time() -> None:
    metrics = ToolMetrics()
    metrics.count_call("agent.spawn", "device", "none", 0.0)
    metrics.count_call("agent.spawn", "device", "permission_denied", None)
    assert metrics.registry.get_sample_value("conductor_tool_run_seconds_count", SPAWN) == 1


@pytest.mark.parametrize("outcome", get_args(CountedOutcome))
def test_approvals_are_counted_by_outcome_and_only_a_persons_decision_has_a_time(
    outcome: CountedOutcome,
) -> None:
    metrics = ToolMetrics()
    metrics.count_request("agent.spawn", "device")
    metrics.count_decision("agent.spawn", "device", outcome, 4.0)
    value = metrics.registry.get_sample_value
    assert value("conductor_tool_approvals_asked_total", SPAWN) == 1
    assert value("conductor_tool_approvals_decided_total", {**SPAWN, "outcome": outcome}) == 1
    times = value("conductor_tool_decide_seconds_count", SPAWN)
    assert times == (1 if outcome in ("allowed", "denied", "edited") else None)


# -- names come from clients


def test_names_that_clients_choose_leave_room_for_the_servers_own_tools() -> None:
    metrics = ToolMetrics()
    for number in range(10 * MAX_TOOLS):
        metrics.count_call(f"made.up.{number}", "device", "none", 0.1)
    metrics.count_call("calculator", "builtin", "none", 0.1)
    assert calls(metrics, "calculator", "builtin") == 1
    assert len(tools(metrics)) == MAX_DEVICE_TOOLS + 2
    for number in range(MAX_TOOLS):
        metrics.count_request(f"made.up.{number}", "mcp:x")
        metrics.count_decision(f"made.up.{number}", "mcp:x", "allowed", 1.0)
    assert len(tools(metrics)) == MAX_TOOLS + 1


@pytest.mark.parametrize("name", ["a\x00b", "a\ud83db"])
def test_characters_that_no_scraper_takes_are_replaced(name: str) -> None:
    metrics = ToolMetrics()
    metrics.count_call(name, "device", "none", 0.1)
    assert tools(metrics) == {("a?b", "device")}
