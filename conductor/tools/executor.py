"""The one way a tool is called: find, validate, permit, limit, run, redact, shorten."""

from __future__ import annotations

import asyncio
import difflib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog

from conductor.messages import ToolCall, ToolResult
from conductor.models.base import ToolDefinition
from conductor.settings import Limits
from conductor.tools.base import CallContext, ToolOutcome, Toolset, ToolSpec, failed, succeeded
from conductor.tools.shorten import shorten
from conductor.tools.validation import Valid, validate

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Ready:
    """A call that was found, validated and permitted; ``arguments`` are the coerced ones."""

    call: ToolCall
    spec: ToolSpec
    toolset: Toolset
    arguments: Mapping[str, Any]
    notes: tuple[str, ...] = ()


class ToolExecutor:
    """The tools of one session, and the gate that every call of them passes."""

    def __init__(self, toolsets: Sequence[Toolset], limits: Limits) -> None:
        self._limits = limits
        self._tools = {spec.name: (spec, toolset) for toolset in toolsets for spec in toolset.specs()}
        self.definitions: tuple[ToolDefinition, ...] = tuple(
            spec.definition for spec, _ in self._tools.values()
        )

    def spec(self, name: str) -> ToolSpec | None:
        """Find a tool's definition by its name."""
        found = self._tools.get(name)
        return None if found is None else found[0]

    def prepare(self, call: ToolCall) -> Ready | ToolOutcome:
        """Find, validate and permit; an outcome means that nothing is run."""
        found = self._tools.get(call.name)
        if found is None:
            return failed("not_found", self._unknown(call.name))
        spec, toolset = found
        checked = validate(spec, call.arguments, self._limits.max_arguments_bytes)
        if not isinstance(checked, Valid):
            return checked
        # Permissions come here: rules -> allow | ask | deny, before anything is sent or run.
        return Ready(call, spec, toolset, checked.arguments, checked.notes)

    async def run(self, ready: Ready, context: CallContext) -> ToolOutcome:
        """Run a prepared call within its time limit; whatever goes wrong becomes an outcome."""
        started = time.monotonic()
        try:
            # A device call's limit depends on what the device is busy with; the session's lane keeps it.
            limit = None if ready.spec.source == "device" else self.timeout(ready.spec)
            async with asyncio.timeout(limit):
                outcome = await ready.toolset.call(ready.spec.name, ready.arguments, context)
        except TimeoutError:
            outcome = self.timed_out(ready.spec.effect, 0.0)
        except Exception:
            # The tool's own bug must not end the turn; the model gets a result it can read.
            log.exception("tool failed", tool=ready.spec.name, call=context.call_id)
            outcome = failed("internal_error", "The tool failed.")
        return _stamped(outcome, time.monotonic() - started, ready.notes)

    def timeout(self, spec: ToolSpec) -> float:
        """Give a tool's time limit in seconds."""
        if spec.timeout_s is not None:
            return spec.timeout_s
        return self._limits.interactive_timeout if spec.interactive else self._limits.tool_timeout

    @staticmethod
    def timed_out(effect: str, took_s: float) -> ToolOutcome:
        """Make the outcome of a call whose time is over: nobody knows whether it happened."""
        return failed(
            "unknown",
            _UNKNOWN if effect != "read" else _NO_ANSWER,
            reason="tool_result_timeout",
            took_s=took_s,
        )

    def settle(self, call_id: str, outcome: ToolOutcome) -> ToolResult:
        """Shape an outcome into what the model reads, shortened where it is long."""
        data = outcome.data
        limit = self._limits.max_observation_bytes
        if isinstance(data, str):
            outcome = msgspec.structs.replace(outcome, data=shorten(data, limit))
        elif outcome.metadata.data_size_bytes > limit:
            text = msgspec.json.encode(data).decode()
            outcome = msgspec.structs.replace(outcome, data=shorten(text, limit))
        if outcome.error_message is not None:
            outcome = msgspec.structs.replace(outcome, error_message=shorten(outcome.error_message, limit))
        return ToolResult(call_id, outcome.content, is_error=not outcome.success)

    def _unknown(self, name: str) -> str:
        close = difflib.get_close_matches(name, self._tools, 1)
        hint = f" Did you mean {close[0]}?" if close else ""
        return f"There is no tool {name[:128]!r}.{hint} Nothing was run."


_UNKNOWN = (
    "No result came in time. The call may have happened, or may still happen. "
    "Do not repeat it, and do not tell the user that it succeeded or failed."
)
_NO_ANSWER = "No result came in time. Do not assume what it would have been."


def _stamped(outcome: ToolOutcome, took_s: float, notes: tuple[str, ...]) -> ToolOutcome:
    """Add how long it took, and what was changed about the arguments."""
    took_ms = outcome.metadata.execution_time_ms or round(took_s * 1000)
    notes = (*notes, *outcome.metadata.notes)
    metadata = msgspec.structs.replace(outcome.metadata, execution_time_ms=took_ms, notes=notes)
    return msgspec.structs.replace(outcome, metadata=metadata)


def device_outcome(result: str | None, error: str | None, took_s: float) -> ToolOutcome:
    """Make the outcome of what the device answered; a non-null ``error`` wins, and a result is not parsed."""
    if error is not None:
        return failed("internal_error", error, reason="device_error", took_s=took_s)
    return succeeded(result, took_s=took_s)


def interrupted_outcome(effect: str, *, sent: bool, reason: str) -> ToolOutcome:
    """Make the outcome of a call whose turn ended before its result came.

    ``reason`` goes to the model: ``interrupted``, ``turn_timeout``, ``connection_lost`` …
    """
    if not sent:
        return failed(
            "cancelled", "The turn ended before this call was started. Nothing was run.", reason=reason
        )
    if effect == "read":
        return failed("cancelled", "The turn ended before the result came.", reason=reason)
    return failed("unknown", _UNKNOWN, reason=reason)
