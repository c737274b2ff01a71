"""Outcomes of calls that were denied, not answered, cancelled or interrupted, or that the device ran."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from conductor.tools.base import ToolOutcome, failed, succeeded

Scope: TypeAlias = Literal["once", "session", "always"]
Outcome: TypeAlias = Literal["allowed", "denied", "edited", "expired", "superseded"]

DEFINITION_CHANGED = "The tool's definition changed while the user was asked. Nothing was run."
SCOPES: tuple[Scope, ...] = ("once", "session", "always")


def definition_changed() -> ToolOutcome:
    """Make the outcome of a call whose tool is missing, or has changed since it was asked about."""
    return failed("permission_denied", DEFINITION_CHANGED, reason="definition_changed")


def denied(words: str | None) -> ToolOutcome:
    """Make the outcome of a denied call; ``words`` are the person's."""
    quote = f" The user said: {words!r}." if words else ""
    return failed(
        "permission_denied",
        f"The user did not allow this call.{quote} Nothing was run. Do not ask for it again.",
        reason="denied",
    )


NoAnswer: TypeAlias = Literal["expired", "unclear", "screen", "superseded", "interrupted"]


def not_answered(reason: NoAnswer) -> ToolOutcome:
    """Make the outcome of a call without a decision."""
    return failed("approval_timeout", _NOT_ANSWERED[reason], reason=reason)


_NOT_ANSWERED = {
    "expired": "The user did not answer in time; do not assume consent. Nothing was run.",
    "unclear": "The user's answers were neither a clear yes nor a clear no; do not assume consent. "
    "Nothing was run.",
    "screen": "This call cannot be allowed by voice, and the app shows no questions on its screen. "
    "Nothing was run.",
    "superseded": "The user did not answer the question and asked for something else; do not assume consent. "
    "Nothing was run.",
    "interrupted": "The turn ended before the user answered; do not assume consent. Nothing was run.",
}


def edits(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Tell the model which arguments the person changed."""
    changed = {
        name: {"before": before.get(name), "after": after.get(name)}
        for name in sorted({*before, *after})
        if name not in before or name not in after or before[name] != after[name]
    }
    return f"The user changed the arguments before allowing the call: {msgspec.json.encode(changed).decode()}"


def timeout_outcome(effect: str, took_s: float, *, was_sent: bool = True) -> ToolOutcome:
    """Make the outcome of a call that timed out; its effect is unknown if it was sent."""
    if not was_sent:
        return failed("cancelled", _NO_DEVICE, reason="device_not_connected", took_s=took_s)
    text = _NO_ANSWER if effect == "read" else _UNKNOWN
    return failed("unknown", text, reason="tool_result_timeout", took_s=took_s)


_UNKNOWN = (
    "No result came in time. The call may have happened, or may still happen. "
    "Do not repeat it, and do not tell the user that it succeeded or failed."
)
_NO_DEVICE = "The device was not connected in time. Nothing was run. Tell the user so."
_NO_ANSWER = "No result came in time. Do not assume what it would have been."


def device_outcome(result: str | None, error: str | None, took_s: float) -> ToolOutcome:
    """Make the outcome of a ``tool.result``; ``error`` wins, and the result is not parsed."""
    if error is not None:
        return failed("internal_error", error, reason="device_error", took_s=took_s)
    return succeeded(result, took_s=took_s)


JOB_ACCEPTED = "accepted"
"""The reason of a job's preliminary outcome."""


def job_outcome(job_id: str, took_s: float) -> ToolOutcome:
    """Make the preliminary outcome of a call that has become a job."""
    note = "The job has started and is not finished. Its result will come later; do not claim it."
    outcome = succeeded({"status": "accepted", "jobId": job_id}, took_s=took_s, notes=(note,))
    metadata = msgspec.structs.replace(outcome.metadata, reason=JOB_ACCEPTED)
    return msgspec.structs.replace(outcome, metadata=metadata)


def cancelled_outcome(
    effect: Literal["none", "partial", "complete"], result: str | None, took_s: float
) -> ToolOutcome:
    """Make the outcome of a call that the device cancelled, with its effect."""
    if effect == "complete":
        note = "The call was to be cancelled, but had happened already."
        return succeeded(result, took_s=took_s, notes=(note,))
    if effect == "none":
        return failed("cancelled", "The call was cancelled. Nothing was done.", reason="none", took_s=took_s)
    detail = f" What was done: {result}" if result else ""
    message = f"The call was cancelled when part of it had been done. Do not repeat it.{detail}"
    return failed("cancelled", message, reason="partial", took_s=took_s)


def interrupted_outcome(effect: str, *, was_sent: bool, reason: str) -> ToolOutcome:
    """Make the outcome of a call whose turn ended before its result came.

    ``reason`` goes to the model: ``interrupted``, ``turn_timeout``, ``connection_lost`` …
    """
    if not was_sent:
        return failed(
            "cancelled", "The turn ended before this call was started. Nothing was run.", reason=reason
        )
    if effect == "read":
        return failed("cancelled", "The turn ended before the result came.", reason=reason)
    return failed("unknown", _UNKNOWN, reason=reason)
