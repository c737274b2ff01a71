"""The device's tools: their list."""

from __future__ import annotations

from conductor.tools.base import ToolSpec
from conductor.tools.device import DeviceToolset

SPEC = ToolSpec("agent.status", "Tell an agent's state.", {"type": "object"})


def test_the_specs_are_copied() -> None:
    specs = [SPEC]
    toolset = DeviceToolset(specs)
    specs.clear()
    assert list(toolset.specs()) == [SPEC]
    assert list(DeviceToolset([]).specs()) == []
