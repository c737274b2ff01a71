"""A client's options: what ``session.start`` names, and which tools only read."""

from __future__ import annotations

from typing import Any

import pytest

from conductor.client.options import DEFAULT_CAPABILITIES, ClientOptions


def options(**more: Any) -> ClientOptions:
    return ClientOptions("ws://x", "s-1", **more)


@pytest.mark.parametrize(
    ("given", "approvals", "capabilities"),
    [
        ({}, False, [*DEFAULT_CAPABILITIES]),
        ({"tools": ({"name": "a"},)}, True, [*DEFAULT_CAPABILITIES, "tools", "approval"]),
        ({"resume": False}, False, [*DEFAULT_CAPABILITIES[1:]]),
        ({"capabilities": ()}, True, ["approval"]),
        ({"capabilities": ("approval",)}, True, ["approval"]),
        ({"capabilities": ("resume",), "resume": False}, False, []),
    ],
)
def test_the_start_names_what_the_app_can_do(
    given: dict[str, Any], approvals: bool, capabilities: list[str]
) -> None:
    assert options(**given).start_event(approvals=approvals).capabilities == capabilities


@pytest.mark.parametrize(
    ("tool", "reads"),
    [
        ({"name": "a", "annotations": {"readOnlyHint": True}}, True),
        ({"name": "a", "annotations": {"readOnlyHint": "true"}}, False),
        ({"name": "a", "annotations": None}, False),
        ({"name": "b", "annotations": {"readOnlyHint": True}}, False),
        ("a", False),
    ],
)
def test_a_tool_reads_only_where_its_declaration_says_so(tool: Any, reads: bool) -> None:
    assert options(tools=(tool,)).is_read_only("a") is reads
