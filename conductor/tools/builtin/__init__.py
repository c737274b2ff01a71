"""The tools that run in the server itself: one file each, and one line each in `standard_tools`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from conductor.tools.base import CallContext, ToolOutcome, ToolSpec, failed
from conductor.tools.builtin.calculator import Calculator
from conductor.tools.builtin.clock import CurrentTime, utc_now


class BuiltinTool(Protocol):
    """A tool with its definition."""

    @property
    def spec(self) -> ToolSpec:
        """Give the definition; its ``source`` is ``builtin``."""
        ...

    async def run(self, arguments: Mapping[str, Any], context: CallContext) -> ToolOutcome:
        """Run with validated arguments. A failure is an outcome, not an exception."""
        ...


def standard_tools(now: Callable[[], datetime] = utc_now) -> tuple[BuiltinTool, ...]:
    """Make the tools that need no setting; ``now`` gives the time with its offset."""
    return (
        CurrentTime(now),
        Calculator(),
    )


class BuiltinToolset:
    """A `Toolset` of built-in tools."""

    def __init__(self, tools: Iterable[BuiltinTool] | None = None) -> None:
        self._tools = {tool.spec.name: tool for tool in (standard_tools() if tools is None else tools)}
        self._specs = tuple(tool.spec for tool in self._tools.values())

    def specs(self) -> Sequence[ToolSpec]:
        """List the tools, in the order of the registry."""
        return self._specs

    async def call(self, name: str, arguments: Mapping[str, Any], context: CallContext) -> ToolOutcome:
        """Run a tool with validated arguments."""
        tool = self._tools.get(name)
        if tool is None:
            return failed("not_found", f"There is no built-in tool {name[:128]!r}. Nothing was run.")
        return await tool.run(arguments, context)
