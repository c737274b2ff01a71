"""A service's reply as the turn gets it: the calls that its model wrote as words are calls."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

import structlog

from conductor.messages import ToolCall
from conductor.models.base import Finished, ModelEvent, ModelRequest, TextDelta, may_call
from conductor.plugins.models.text_protocol.written import WrittenCalls

log = structlog.get_logger(__name__)


async def checked(
    events: AsyncGenerator[ModelEvent, None], request: ModelRequest
) -> AsyncGenerator[ModelEvent, None]:
    """Pass a reply on; calls in its text become calls, unless the service has found calls itself."""
    tools = {tool.name: tool.input_schema for tool in request.tools} if may_call(request) else {}
    written, has_calls = WrittenCalls(tools), False
    async with aclosing(events):
        async for event in events:
            if not tools:
                yield event
            elif isinstance(event, TextDelta):
                if words := written.feed(event.text):
                    yield TextDelta(words)
            elif isinstance(event, ToolCall):
                has_calls = True
                yield event
            else:
                for last in _last_events(written, event, has_calls=has_calls):
                    yield last


def _last_events(written: WrittenCalls, finished: Finished, *, has_calls: bool) -> list[ModelEvent]:
    words = written.end()
    events: list[ModelEvent] = [TextDelta(words)] if words else []
    if has_calls or not (written.calls or written.is_lost):
        return [*events, finished]
    log.info("call written as words", is_read=not written.is_lost)
    # A call that the limit cut off does not run.
    is_whole = finished.stop == "end_turn" or written.is_lost
    return [*events, *written.calls, replace(finished, stop="tool_use" if is_whole else finished.stop)]
