"""The tools whose schemas a service refuses: a service takes no request with one of them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import lru_cache

import msgspec
import structlog

from conductor.models.base import ModelRequest, ToolDefinition
from conductor.plugins.models.rendering import names_of
from conductor.plugins.models.service_errors import ServiceProblem, refused_tool

# Seconds after which a refused tool is offered again.
REFUSED_S = 600.0
_MOST = 256

log = structlog.get_logger(__name__)


class RefusedTools:
    """The tools that one service refused in the last `REFUSED_S` seconds, by name and schema."""

    def __init__(self) -> None:
        self._until: dict[bytes, float] = {}

    def add(self, request: ModelRequest, problem: ServiceProblem) -> bool:
        """Record the tool that the service means; False if that is unknown."""
        names = names_of(request)
        index = refused_tool(problem, [names.to_service(tool.name) for tool in request.tools])
        if index is None:
            return False
        tool = request.tools[index]
        log.warning("tool left out: the model service refuses its schema", tool=tool.name)
        if len(self._until) >= _MOST:
            del self._until[next(iter(self._until))]
        self._until[_key(tool)] = asyncio.get_running_loop().time() + REFUSED_S
        return True

    def without(self, request: ModelRequest) -> ModelRequest:
        """Leave the refused tools out of a request."""
        now = asyncio.get_running_loop().time()
        if not any(until > now for until in self._until.values()):
            return request
        tools = [tool for tool in request.tools if self._until.get(_key(tool), 0.0) <= now]
        return replace(request, tools=tools)


@lru_cache(maxsize=1024)
def _key(tool: ToolDefinition) -> bytes:
    return msgspec.json.encode((tool.name, tool.input_schema))
