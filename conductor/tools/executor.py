"""The one way a tool is called: find, validate, permit, limit, run, redact, shorten."""

from __future__ import annotations

import asyncio
import difflib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import msgspec
import structlog

from conductor.bounds import TokenBucket
from conductor.messages import ToolCall, ToolResult
from conductor.models.base import ToolDefinition
from conductor.settings import Limits
from conductor.tools.approvals import edits
from conductor.tools.base import CallContext, ToolOutcome, Toolset, ToolSpec, failed, succeeded
from conductor.tools.gate import Gate
from conductor.tools.permissions import Verdict
from conductor.tools.redaction import Redactor
from conductor.tools.shorten import shorten
from conductor.tools.validation import Valid, validate

log = structlog.get_logger(__name__)

_LOOKED_AT = 4
"""So many times as much is redacted as may be shown ..."""
_CUT_THROUGH = 8_192
"""... and so many characters before that cut are not shown: a secret may be cut through there."""
Permit: TypeAlias = Callable[[ToolSpec, Mapping[str, Any]], Verdict]
"""Decides about a call with validated arguments."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A call that was found, validated and permitted; ``arguments`` are the coerced ones."""

    call: ToolCall
    spec: ToolSpec
    toolset: Toolset
    arguments: Mapping[str, Any]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Asked:
    """A call that runs only if a person says so, and why."""

    ready: Ready
    verdict: Verdict


class ToolExecutor:
    """The tools of one session, and the gate that every call of them passes."""

    def __init__(
        self,
        toolsets: Sequence[Toolset],
        limits: Limits,
        gate: Gate | None = None,
        redactor: Redactor | None = None,
        rates: dict[str, TokenBucket] | None = None,
    ) -> None:
        self._limits = limits
        self.gate = gate or Gate()
        self._redactor = redactor or Redactor(())
        self._rates = {} if rates is None else rates
        self._tools = {
            spec.name: (spec, toolset)
            for toolset in toolsets
            for spec in toolset.specs()
            if self.gate.offers(spec)
        }
        self.definitions: tuple[ToolDefinition, ...] = tuple(
            spec.definition for spec, _ in self._tools.values()
        )

    def spec(self, name: str) -> ToolSpec | None:
        """Find a tool's definition by its name."""
        found = self._tools.get(name)
        return None if found is None else found[0]

    def prepare(self, call: ToolCall, permit: Permit | None = None) -> Ready | Asked | ToolOutcome:
        """Find, validate and permit; an outcome means that nothing is run.

        Without ``permit``, which knows the conversation, the gate's rules alone decide.
        """
        found = self._tools.get(call.name)
        if found is None:
            return failed("not_found", self._unknown(call.name))
        spec, toolset = found
        checked = validate(spec, call.arguments, self._limits.max_arguments_bytes)
        if not isinstance(checked, Valid):
            return checked
        if self._is_too_often(spec):
            return failed("rate_limited", _TOO_OFTEN)
        ready = Ready(call, spec, toolset, checked.arguments, checked.notes)
        verdict = (permit or self._permit)(spec, checked.arguments)
        if verdict.effect == "deny":
            why = " ".join(verdict.reasons)
            return failed("permission_denied", f"{why} Nothing was run.", reason="policy")
        if self.gate.is_dry(spec):
            return _dry_run(ready)
        return Asked(ready, verdict) if verdict.effect == "ask" else ready

    def edited(self, ready: Ready, arguments: Mapping[str, Any]) -> Ready | str:
        """Give a call other arguments; a text says what is wrong with them."""
        text = msgspec.json.encode(arguments).decode()
        checked = validate(ready.spec, text, self._limits.max_arguments_bytes)
        if not isinstance(checked, Valid):
            return checked.error_message or "The arguments are not valid."
        notes = (*checked.notes, edits(ready.arguments, checked.arguments))
        return replace(ready, arguments=checked.arguments, notes=notes)

    def again(
        self, call: ToolCall, notes: tuple[str, ...], arguments: Mapping[str, Any] | None = None
    ) -> Ready | None:
        """Make a call ready that was prepared before; None if there is no such tool for it any more.

        ``arguments`` are those it was to be run with, where a person has seen them.
        """
        found = self._tools.get(call.name)
        if found is None:
            return None
        spec, toolset = found
        if arguments is None:
            checked = validate(spec, call.arguments, self._limits.max_arguments_bytes)
            if not isinstance(checked, Valid):
                return None
            arguments = checked.arguments
        return Ready(call, spec, toolset, arguments, notes)

    def redacted(self, value: Any) -> Any:
        """Take secrets out of a JSON value."""
        return self._redactor.value(value)

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
        # What is to be noted about a call of the device is kept with its record.
        notes = () if ready.spec.source == "device" else ready.notes
        return stamped(outcome, time.monotonic() - started, notes)

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

    def settle(self, call_id: str, outcome: ToolOutcome, *, untrusted: bool = False) -> ToolResult:
        """Shape an outcome into what the model reads: without secrets, shortened where it is long.

        ``untrusted`` says that strangers wrote it.
        """
        data, limit = outcome.data, self._limits.max_observation_bytes
        if not isinstance(data, str) and outcome.metadata.data_size_bytes > limit:
            data = msgspec.json.encode(data).decode()
        data = self._shown(data) if isinstance(data, str) else self._redactor.value(data)
        if data is not outcome.data:
            outcome = msgspec.structs.replace(outcome, data=data)
        if outcome.error_message is not None:
            message = self._shown(outcome.error_message)
            outcome = msgspec.structs.replace(outcome, error_message=message)
        if outcome.metadata.notes:
            notes = tuple(self._shown(note) for note in outcome.metadata.notes)
            metadata = msgspec.structs.replace(outcome.metadata, notes=notes)
            outcome = msgspec.structs.replace(outcome, metadata=metadata)
        return ToolResult(call_id, outcome.content, not outcome.success, untrusted)

    def _shown(self, text: str) -> str:
        """Redact a text, then shorten it; of a huge one only as much is looked at as might be shown."""
        limit = self._limits.max_observation_bytes
        if len(text) <= _LOOKED_AT * limit:
            return shorten(self._redactor.text(text), limit)
        whole = len(text.encode(errors="replace"))
        shown = self._redactor.text(text[: _LOOKED_AT * limit])
        return shorten(shown[: max(0, len(shown) - _CUT_THROUGH)], limit, whole)

    def _permit(self, spec: ToolSpec, arguments: Mapping[str, Any]) -> Verdict:
        return self.gate.judge(spec, arguments, tainted=False, may_have_happened=False)

    def _is_too_often(self, spec: ToolSpec) -> bool:
        per_minute, now = self._limits.calls_per_minute, self.gate.now()
        rate = self._rates.get(spec.name)
        if rate is None:
            rate = self._rates[spec.name] = TokenBucket(per_minute / 60, per_minute, now)
        return rate.take(now) > 0

    def _unknown(self, name: str) -> str:
        close = difflib.get_close_matches(name, self._tools, 1)
        hint = f" Did you mean {close[0]}?" if close else ""
        return f"There is no tool {name[:128]!r}.{hint} Nothing was run."


_UNKNOWN = (
    "No result came in time. The call may have happened, or may still happen. "
    "Do not repeat it, and do not tell the user that it succeeded or failed."
)
_TOO_OFTEN = "This tool was called too often in the last minute. Nothing was run. Answer with what you have."
_NO_ANSWER = "No result came in time. Do not assume what it would have been."


def _dry_run(ready: Ready) -> ToolOutcome:
    """Say what a call would do."""
    would = ready.spec.describe(ready.arguments) if ready.spec.describe is not None else None
    data = {"dry_run": True, "would_call": ready.spec.name, "arguments": ready.arguments}
    note = "Dry run: nothing was run. Tell the user what would have been done."
    return succeeded({**data, "would": would} if would else data, notes=(*ready.notes, note))


def stamped(outcome: ToolOutcome, took_s: float, notes: tuple[str, ...]) -> ToolOutcome:
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


JOB_ACCEPTED = "accepted"
"""The reason of an outcome that is none yet."""


def job_outcome(job_id: str, took_s: float) -> ToolOutcome:
    """Make the outcome of a call that goes on as a job."""
    note = "The job has begun and is not finished. Its result will come later; do not claim it."
    outcome = succeeded({"status": "accepted", "jobId": job_id}, took_s=took_s, notes=(note,))
    metadata = msgspec.structs.replace(outcome.metadata, reason=JOB_ACCEPTED)
    return msgspec.structs.replace(outcome, metadata=metadata)


def cancelled_outcome(
    effect: Literal["none", "partial", "complete"], result: str | None, took_s: float
) -> ToolOutcome:
    """Make the outcome of a call that the device cancelled, as far as it had got."""
    if effect == "complete":
        note = "The call was to be cancelled, but had happened already."
        return succeeded(result, took_s=took_s, notes=(note,))
    if effect == "none":
        return failed("cancelled", "The call was cancelled. Nothing was done.", reason="none", took_s=took_s)
    done = f" What was done: {result}" if result else ""
    message = f"The call was cancelled when part of it had been done. Do not repeat it.{done}"
    return failed("cancelled", message, reason="partial", took_s=took_s)


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
