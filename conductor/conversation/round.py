"""The calls of one reply, from the model's wish to one result each in the log."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from conductor.conversation.history import lost_result
from conductor.messages import ToolCall, ToolResult
from conductor.settings import Limits
from conductor.stores.base import AppendLog, CallRecord, ForgetCall, OpenCall, Operation
from conductor.tools.base import ToolOutcome, failed
from conductor.tools.executor import Asked, Permit, Ready, ToolExecutor

_CUT_OFF = (
    "The reply reached its length limit inside this call's arguments, so they were cut off. Nothing was run. "
    "Call it again with shorter arguments."
)


@dataclass(slots=True)
class Round:
    """The calls of one reply.

    ``ready`` are to be run, ``asked`` wait for a person; ``results`` are those known so far. ``refused`` are
    the ids of calls that a rule or a person did not allow.
    """

    calls: tuple[ToolCall, ...]
    ready: list[Ready] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    results: dict[str, ToolResult] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)

    @property
    def device_calls(self) -> list[Ready]:
        """Those of the ready calls that the device runs."""
        return [one for one in self.ready if one.spec.source == "device"]

    @property
    def all_refused(self) -> bool:
        """Whether nothing of it was allowed."""
        return len(self.refused) == len(self.calls) > 0

    def open(self, turn_id: str) -> list[Operation]:
        """Make the operations that record every call, before any of them is sent or run."""
        now = time.time_ns() // 1_000_000
        known = {one.call.call_id: one for one in (*self.ready, *(asked.ready for asked in self.asked))}
        questions = {asked.ready.call.call_id for asked in self.asked}
        operations: list[Operation] = []
        for call in self.calls:
            ready = known.get(call.call_id)
            source, effect = (ready.spec.source, ready.spec.effect) if ready is not None else ("none", "read")
            notes = ready.notes if ready is not None else ()
            result = self.results.get(call.call_id)
            untrusted = ready is not None and ready.spec.untrusted
            consent: Literal["", "asked"] = "asked" if call.call_id in questions else ""
            record = CallRecord(
                call.call_id, call.name, turn_id, source, effect, now, result, notes, untrusted, consent
            )
            operations.append(OpenCall(record))
        return operations

    def close(self) -> list[Operation]:
        """Make the operations that log one result for each call, in the model's order."""
        log = [AppendLog(self.results.get(call.call_id) or lost_result(call.call_id)) for call in self.calls]
        return [*log, *(ForgetCall(call.call_id) for call in self.calls)]


def prepare_round(
    executor: ToolExecutor,
    calls: Sequence[ToolCall],
    limits: Limits,
    permit: Permit | None = None,
    *,
    room: int,
    whole: bool,
) -> Round:
    """Send each call through the gate.

    ``room`` is how many more calls this turn may make. Where the reply is not ``whole``, because it reached
    its length limit, nothing is run (models, "Anthropic", rule 7).
    """
    prepared = Round(tuple(calls))
    room = min(room, limits.max_calls_per_round)
    for number, call in enumerate(calls):
        checked: Ready | Asked | ToolOutcome
        if not whole:
            checked = failed("parse_error", _CUT_OFF)
        elif number >= room:
            checked = failed(
                "rate_limited", f"Too many calls at once; the first {room} were run, not this one."
            )
        else:
            checked = executor.prepare(call, permit)
        if isinstance(checked, Ready):
            prepared.ready.append(checked)
        elif isinstance(checked, Asked):
            prepared.asked.append(checked)
        else:
            prepared.results[call.call_id] = executor.settle(call.call_id, checked)
            if checked.error_type == "permission_denied":
                prepared.refused.add(call.call_id)
    return prepared
