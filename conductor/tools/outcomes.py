"""Outcomes of calls: done, failed, denied, not answered, cancelled, interrupted, or without a result.

`without_result` alone decides what is said of a call whose result did not come or cannot be read.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec
from pydantic_core import to_json, to_jsonable_python

from conductor.images import Picture, Taken
from conductor.messages import Image, ToolResult

if TYPE_CHECKING:  # a type only
    from conductor.events.client import ToolResultEvent

Risk: TypeAlias = Literal["safe", "medium", "high"]
Effect: TypeAlias = Literal["read", "write", "irreversible"]
OnInterrupt: TypeAlias = Literal["cancel", "keep"]
Caution: TypeAlias = Literal["may_have_happened", "untrusted"]
"""A warning before a question: it may have happened already, or a stranger's text may cause it."""
ErrorType: TypeAlias = Literal[
    "none",
    "not_found",
    "validation_failed",
    "permission_denied",
    "approval_timeout",
    "cancelled",
    "unknown",
    "rate_limited",
    "io_error",
    "parse_error",
    "tool_error",
    "internal_error",
]
"""A failure that the tool reports is a ``tool_error``; a fault in code is an ``internal_error``."""

Scope: TypeAlias = Literal["once", "session", "always"]
Outcome: TypeAlias = Literal["allowed", "denied", "edited", "expired", "superseded"]

DEFINITION_CHANGED = "The tool's definition changed while the user was asked. Nothing was run."
SCOPES: tuple[Scope, ...] = ("once", "session", "always")


class ToolMetadata(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Facts about an outcome; ``reason`` is the cause of an error or of an unknown outcome.

    ``untrusted``: part of it was stored while text of third parties could have steered the model.
    """

    execution_time_ms: int
    data_size_bytes: int
    timestamp: int
    reason: str = ""
    notes: tuple[str, ...] = ()
    untrusted: bool = False


class ToolOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a call, as the model reads it. ``timestamp`` is epoch milliseconds.

    A toolset gives ``pictures``; the session checks them and makes ``images`` of them.
    """

    success: bool
    data: Any
    error_message: str | None
    error_type: ErrorType
    metadata: ToolMetadata
    images: tuple[Image, ...] = ()
    pictures: tuple[Picture, ...] = ()

    def to_result(self, call_id: str, *, untrusted: bool = False) -> ToolResult:
        """Make the result that the history keeps; ``untrusted``: third parties wrote it."""
        return ToolResult(
            call_id=call_id,
            content=self.content,
            is_error=not self.success,
            untrusted=untrusted or self.metadata.untrusted,
            images=self.images,
        )

    @property
    def content(self) -> str:
        fields = {name: getattr(self, name) for name in _READ}
        return msgspec.json.encode(fields).decode()


# The fields of an outcome that a model reads as text.
_READ = ("success", "data", "error_message", "error_type", "metadata")


def succeeded(
    data: Any,
    *,
    took_s: float = 0.0,
    notes: Sequence[str] = (),
    untrusted: bool = False,
    pictures: Sequence[Picture] = (),
) -> ToolOutcome:
    """Make the outcome of a call that succeeded; ``untrusted`` as in `ToolMetadata`."""
    size = len(data.encode()) if isinstance(data, str) else len(msgspec.json.encode(data))
    outcome = ToolOutcome(
        success=True,
        data=data,
        error_message=None,
        error_type="none",
        metadata=_metadata(took_s, size, "", notes),
        pictures=tuple(pictures),
    )
    return marked_untrusted(outcome) if untrusted else outcome


def marked_untrusted(outcome: ToolOutcome) -> ToolOutcome:
    """Mark an outcome as ``untrusted``."""
    replace = msgspec.structs.replace
    return replace(outcome, metadata=replace(outcome.metadata, untrusted=True))


def with_images(outcome: ToolOutcome, taken: Taken) -> ToolOutcome:
    """Add the images that were taken to an outcome, and a note of each that was refused."""
    replace, metadata = msgspec.structs.replace, outcome.metadata
    if taken.refusals:
        metadata = replace(metadata, notes=(*metadata.notes, *taken.refusals))
    return replace(outcome, metadata=metadata, images=taken.images, pictures=())


def failed(error_type: ErrorType, message: str, *, reason: str = "", took_s: float = 0.0) -> ToolOutcome:
    """Make the outcome of a call that failed, or whose outcome is unknown (``unknown``)."""
    return ToolOutcome(
        success=False,
        data=None,
        error_message=message,
        error_type=error_type,
        metadata=_metadata(took_s, 0, reason, ()),
    )


def device_outcome(event: ToolResultEvent, took_s: float) -> ToolOutcome:
    """Make the outcome that a device reports; ``error`` wins, and the result is not parsed."""
    if event.error is not None:
        return failed("tool_error", event.error, reason="device_error", took_s=took_s)
    return succeeded(event.result, took_s=took_s)


def _metadata(took_s: float, size: int, reason: str, notes: Sequence[str]) -> ToolMetadata:
    return ToolMetadata(
        execution_time_ms=round(took_s * 1000),
        data_size_bytes=size,
        timestamp=time.time_ns() // 1_000_000,
        reason=reason,
        notes=tuple(notes),
    )


def truncate(text: str, limit_bytes: int, total_bytes: int | None = None) -> str:
    """Cut a text to ``limit_bytes`` of UTF-8, marker included; the marker says how much is missing.

    ``total_bytes`` is the size of the complete text if ``text`` is only its beginning. Cuts between
    characters. A text within the limit is returned unchanged. Below some 50 bytes only the marker remains,
    which may then exceed the limit.
    """
    if total_bytes is None and len(text) * 4 <= limit_bytes:  # no character takes more than four bytes
        return text
    encoded = text.encode(errors="replace")
    if total_bytes is None and len(encoded) <= limit_bytes:
        return text
    size = len(encoded) if total_bytes is None else max(total_bytes, len(encoded))
    # The marker is as long as possible when everything is missing; it is reserved before the cut.
    reserved = len(_shortened(size, size))
    head = encoded[: max(0, limit_bytes - reserved)].decode(errors="ignore")
    return head + _shortened(size - len(head.encode()), size)


def _shortened(missing: int, total: int) -> str:
    return f"\n[shortened: {missing:,} of {total:,} bytes are missing]"


Fate: TypeAlias = Literal["not_run", "ran", "unknown"]
"""The end of a call without a readable result.

``not_run`` is proved: no thread took the call, no connection was made, or the service refused it. ``ran``: it
ran, and only its result cannot be read. ``unknown``: neither is known.
"""


class NotStarted(Exception):
    """Raised by a toolset for a call that has not started, also when the call is cancelled in a queue.

    The text is one sentence for the model.
    """


def without_result(
    fate: Fate,
    why: str,
    *,
    effect: str,
    reason: str,
    error_type: ErrorType = "io_error",
    took_s: float = 0.0,
) -> ToolOutcome:
    """Make the outcome of a call without a readable result; ``why`` is a sentence for the model.

    ``error_type`` is used where nothing can have changed: the call did not run, or only reads.
    """
    match fate:
        case "not_run":
            return failed(error_type, f"{why} Nothing was run.", reason=reason, took_s=took_s)
        case "ran":
            note = f"The call ran; its result could not be read ({why.rstrip('.')}). Do not repeat it."
            return succeeded(None, took_s=took_s, notes=(note,))
        case "unknown":
            if effect == "read":
                return failed(error_type, why, reason=reason, took_s=took_s)
            return failed("unknown", f"{why} {_MAY_HAVE_HAPPENED}", reason=reason, took_s=took_s)


_MAY_HAVE_HAPPENED = (
    "The call may have happened, or may still happen. "
    "Do not repeat it, and do not tell the user that it succeeded or failed."
)


def returned(value: Any, effect: str, notes: Sequence[str] = ()) -> ToolOutcome:
    """Make the outcome of a call that ran and returned a value: JSON, or what pydantic makes of it."""
    try:
        plain = to_jsonable_python(value)  # a generator gives its values once
        text = to_json(plain, inf_nan_mode="strings")
        if text != to_json(plain, inf_nan_mode="constants"):
            notes = (*notes, _NOT_FINITE)
        return succeeded(msgspec.json.decode(text), notes=notes)
    # Bytes or a text that is not UTF-8, an object that holds itself, an object of another kind.
    except (ValueError, TypeError, OverflowError, RecursionError):
        why = f"a value of the type {type(value).__name__} is not JSON"
        return without_result("ran", why, effect=effect, reason="unreadable")


_NOT_FINITE = "Numbers that are not finite are given as the texts NaN, Infinity and -Infinity."


def broke_off(message: str, *, effect: str, error_type: ErrorType, reason: str = "") -> ToolOutcome:
    """Make the outcome of a call that reported a failure in the middle of its work."""
    if effect != "read":
        message = f"{message} It may have done its work, or a part of it."
    return failed(error_type, message, reason=reason)


# Statuses of a service that does not begin with a request.
_NOT_BEGUN = frozenset({501, 503, 505})


def fate_of_status(status: int) -> Fate:
    """Return, by an HTTP status, whether the request was carried out.

    After 408, 502 and 504 the service may still work on it; 500 does not say how far it came.
    """
    if status < 400:
        return "ran"
    is_open = status == 408 or (status >= 500 and status not in _NOT_BEGUN)
    return "unknown" if is_open else "not_run"


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
    """Name the arguments that the person changed, for the model; empty without any."""
    changed = {
        name: {"before": before.get(name), "after": after.get(name)}
        for name in sorted({*before, *after})
        if name not in before or name not in after or before[name] != after[name]
    }
    if not changed:
        return ""
    return f"The user changed the arguments before allowing the call: {msgspec.json.encode(changed).decode()}"


def timeout_outcome(effect: str, took_s: float, *, was_sent: bool = True) -> ToolOutcome:
    """Make the outcome of a call whose time limit ended; its effect is unknown if it was sent."""
    if not was_sent:
        return without_result(
            "not_run",
            "The device was not connected in time; tell the user so.",
            effect=effect,
            reason="device_not_connected",
            error_type="cancelled",
            took_s=took_s,
        )
    return without_result(
        "unknown",
        "No result came in time. Do not assume what it would have been."
        if effect == "read"
        else "No result came in time.",
        effect=effect,
        reason="tool_result_timeout",
        error_type="unknown",
        took_s=took_s,
    )


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
        why = "The turn ended before this call was started."
        return without_result("not_run", why, effect=effect, reason=reason, error_type="cancelled")
    why = "The turn ended before the result came."
    return without_result("unknown", why, effect=effect, reason=reason, error_type="cancelled")


def with_timing(outcome: ToolOutcome, took_s: float, notes: tuple[str, ...]) -> ToolOutcome:
    """Add the execution time and the notes on changed arguments."""
    took_ms = outcome.metadata.execution_time_ms or round(took_s * 1000)
    notes = (*notes, *outcome.metadata.notes)
    metadata = msgspec.structs.replace(outcome.metadata, execution_time_ms=took_ms, notes=notes)
    return msgspec.structs.replace(outcome, metadata=metadata)
