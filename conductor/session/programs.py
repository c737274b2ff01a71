"""The calls of a person's programs, which wait for their turn."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING

from conductor.conversation.records import Record
from conductor.conversation.turns import ended
from conductor.conversation.view import lost_result
from conductor.events.envelope import new_call_id
from conductor.messages import ToolCall, ToolResult
from conductor.tools.outcomes import failed

if TYPE_CHECKING:  # its parts are below it
    from conductor.session.session import Session

# Calls of programs that wait for their turn.
MAX_REQUESTS = 16


async def request(session: Session, name: str, arguments: str) -> ToolResult:
    """Make a call for a program of the person after the running turn; ``arguments`` is JSON.

    It passes the same rules and questions as a call of the model. Cancelling stops it. It is refused if
    too many wait, or the server is about to stop.
    """
    live, call = session.view.live, ToolCall(new_call_id(), name, arguments)
    if live.stop.draining or session.is_closed or len(live.programs.requests) >= MAX_REQUESTS:
        refused = failed("rate_limited", "Too many calls wait, or the server stops. Nothing was run.")
        return session.gate.executor.to_result(call.call_id, refused)
    answer = session.expect(call.call_id)
    live.programs.requests = [*live.programs.requests, call]
    session.changed()
    try:
        result: ToolResult = await answer
        return result
    finally:
        if answer.cancelled():
            session.pending.pop(call.call_id, None)
            session.spawn(session.commits.insist(partial(_cancelled, session, call)))
        forget(session, {call.call_id})


def drop(session: Session, call_id: str) -> None:
    """Answer a call that will not be made."""
    forget(session, {call_id})
    session.answer(call_id, lost_result(call_id))


def forget(session: Session, call_ids: Collection[str]) -> None:
    """Let calls wait no longer: they have started, or will not."""
    live = session.view.live
    if waiting := live.programs.requests:
        live.programs.requests = [call for call in waiting if call.call_id not in call_ids]


def _cancelled(session: Session, call: ToolCall) -> list[Record]:
    is_running = session.state.open_call(call.call_id) is not None
    return [ended(session.view, "interrupted")] if is_running else []
