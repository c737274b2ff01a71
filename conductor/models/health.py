"""The health of a model: short requests that try it out, and a circuit breaker."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from conductor.errors import ModelError
from conductor.messages import ToolCall, UserMessage
from conductor.models.base import Finished, ModelEvent, ModelProvider, ModelRequest, ToolDefinition, is_json
from conductor.models.failures import ToolsRefused, failure

# Failures in a row that open the breaker, and the seconds until one request may try again.
MAX_FAILURES = 3
OPEN_S = 15.0
# The longest rest of a service, whatever its retry-after says.
MAX_REST_S = 300.0
# Seconds for a health check, which is one token, and for the probe for tool calls.
CHECK_TIMEOUT_S = 5.0
PROBE_TIMEOUT_S = 60.0

PROBE_TOOL = ToolDefinition(
    "get_weather",
    "Tell the weather of a place.",
    {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
)
PROBE_TEXT = "What is the weather in Berlin? Call the tool get_weather."


class CircuitBreaker:
    """Opens after failures in a row; then it lets one request through every `OPEN_S` seconds.

    A service that says when to come back rests until then: it gets no request.
    """

    def __init__(self) -> None:
        self._failures = 0
        self._used_at = 0.0
        self._rests_until = 0.0

    @property
    def allows(self) -> bool:
        """Whether a request may be sent now."""
        now = asyncio.get_running_loop().time()
        return not self.rest_s and (self._failures < MAX_FAILURES or now >= self._used_at + OPEN_S)

    @property
    def rest_s(self) -> float:
        """The seconds until the service may be asked again; 0.0 while it does not rest."""
        return max(0.0, self._rests_until - asyncio.get_running_loop().time())

    def rest(self, seconds: float) -> None:
        """Send no request for the seconds that the service named, at most `MAX_REST_S`."""
        self._rests_until = asyncio.get_running_loop().time() + min(seconds, MAX_REST_S)

    def begin(self) -> None:
        """Record that a request is sent: for now no other follows through an open breaker."""
        self._used_at = asyncio.get_running_loop().time()

    def end(self, *, succeeded: bool) -> None:
        """Record the end of a request."""
        self._failures = 0 if succeeded else self._failures + 1
        self.begin()

    def trip(self) -> None:
        """Open at once."""
        self._failures = MAX_FAILURES
        self.begin()


async def is_healthy(provider: ModelProvider) -> bool:
    """Return whether a request of one token is answered in time."""
    request = ModelRequest("", [UserMessage("Hello")], may_retry=False, max_tokens=1)
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S), aclosing(provider.stream(request)) as events:
            async for _ in events:
                return True  # closing it stops the service
    except (ModelError, TimeoutError):
        pass
    return False


async def calls_tools(provider: ModelProvider) -> bool:
    """Return whether a model that is offered one tool calls it. Raises `ModelError` if that is unknown."""
    request = ModelRequest(
        "",
        [UserMessage(PROBE_TEXT)],
        [PROBE_TOOL],
        silence_s=PROBE_TIMEOUT_S,
        may_retry=False,
    )
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S), aclosing(provider.stream(request)) as events:
            calls = [event async for event in events if isinstance(event, ToolCall)]
    except ToolsRefused:
        return False
    except TimeoutError:
        raise failure("timeout") from None
    except ModelError as error:
        if error.reason == "malformed":  # the service could not read the call
            return False
        raise
    return any(call.name == PROBE_TOOL.name and is_json(call.arguments) for call in calls)


def is_malformed(event: ModelEvent, calls: list[ToolCall]) -> bool:
    """Return whether a complete reply ends with invalid calls."""
    return (
        isinstance(event, Finished)
        and event.stop == "tool_use"
        and (not calls or not all(is_json(call.arguments) for call in calls))
    )
