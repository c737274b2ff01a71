"""The tools on the device: listed by a catalog or by the client itself, run by ``tool.call``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from conductor.tools.base import CallContext, ToolOutcome, ToolSpec
from conductor.tools.pending import Pending


class DeviceToolset:
    """The device's tools. A call waits for the ``tool.result`` that the session will see.

    The ``tool.call`` itself goes out with the commit that records it, all calls of a reply together.
    """

    def __init__(self, specs: Sequence[ToolSpec], pending: Pending) -> None:
        self._specs = tuple(specs)
        self._pending = pending

    def specs(self) -> Sequence[ToolSpec]:
        """List the tools offered now."""
        return self._specs

    async def call(self, name: str, arguments: Mapping[str, Any], context: CallContext) -> ToolOutcome:
        """Wait for the device's answer."""
        return await self._pending.wait(context.call_id)
