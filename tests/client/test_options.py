"""A client's options: capabilities of ``session.start`` and read-only tools."""

from __future__ import annotations

from typing import Any

import pytest

from conductor.client.options import DEFAULT_CAPABILITIES, ClientOptions


def options(**settings: Any) -> ClientOptions:
    return ClientOptions("ws://x", "s-1", **settings)


@pytest.mark.parametrize(
    ("settings", "approvals", "capabilities"),
    [
        ({}, False, [*DEFAULT_CAPABILITIES]),
        ({"tools": ({"name": "a"},)}, True, [*DEFAULT_CAPABILITIES, "tools", "approval"]),
        ({"capabilities": ()}, True, ["approval"]),
        ({"capabilities": ("approval",)}, True, ["approval"]),
    ],
)
def test_session_start_names_the_capabilities(
    settings: dict[str, Any], approvals: bool, capabilities: list[str]
) -> None:
    assert options(**settings).start_event(approvals=approvals).capabilities == capabilities


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
def test_a_tool_is_read_only_by_its_declaration(tool: Any, reads: bool) -> None:
    assert options(tools=(tool,)).is_read_only("a") is reads
