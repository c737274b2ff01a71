"""The only way to call a tool: find, validate, permit, limit, run, redact, truncate."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import msgspec
import structlog

from conductor.messages import ToolCall, ToolResult
from conductor.models.base import ToolDefinition
from conductor.rate_limit import TokenBucket
from conductor.settings import Limits
from conductor.tools.base import CallContext, PersonQuestion, Toolset, ToolSpec
from conductor.tools.media import without_media
from conductor.tools.outcomes import (
    NotStarted,
    ToolOutcome,
    broke_off,
    edits,
    failed,
    marked_untrusted,
    succeeded,
    timeout_outcome,
    truncate,
    with_timing,
    without_result,
)
from conductor.tools.permissions import Gate, Verdict
from conductor.tools.redaction import Redactor
from conductor.tools.rules import Rule
from conductor.tools.taint import TrackedFields
from conductor.tools.validation import Valid, validate

log = structlog.get_logger(__name__)

# A huge text is cut to this multiple of the limit before it is redacted.
_REDACTED_LIMITS = 4
# Characters before that cut that are dropped: the cut may go through a secret.
_CUT_CHARS = 8_192
Permit: TypeAlias = Callable[[ToolSpec, Mapping[str, Any]], Verdict]
"""Decides about a call with validated arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedCall:
    """A call that was found, validated and permitted; ``arguments`` are coerced.

    ``toolset`` runs it; None for a tool of the device, which runs there.
    """

    call: ToolCall
    spec: ToolSpec
    toolset: Toolset | None
    arguments: Mapping[str, Any]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ApprovalNeeded:
    """A call that needs a person's consent, and the reasons."""

    ready: PreparedCall
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class DryRun:
    """A call that is only described."""

    ready: PreparedCall


class ToolExecutor:
    """The server's tools, the device's for one session, and the checks of every call."""

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
        self._device: Mapping[str, ToolSpec] = {}
        self.definitions: tuple[ToolDefinition, ...] = tuple([spec.definition for spec in self.specs])

    def scoped(
        self,
        rates: dict[str, TokenBucket],
        grants: Callable[[], Sequence[Rule]] = tuple,
        device: Sequence[ToolSpec] = (),
    ) -> ToolExecutor:
        """Make the executor of one session or person, which shares the server's tools with this one."""
        executor = copy(self)
        executor.gate, executor._rates = replace(self.gate, grants=grants), rates
        executor._device = {spec.name: spec for spec in device if self.gate.offers(spec)}
        own = [spec.definition for spec in executor._device.values()]
        executor.definitions = (*[d for d in self.definitions if d.name not in executor._device], *own)
        return executor

    @property
    def specs(self) -> list[ToolSpec]:
        servers = [spec for spec, _ in self._tools.values() if spec.name not in self._device]
        return [*servers, *self._device.values()]

    def spec(self, name: str) -> ToolSpec | None:
        """Find a tool's definition by its name."""
        entry = self._find(name)
        return None if entry is None else entry[0]

    def _find(self, name: str) -> tuple[ToolSpec, Toolset | None] | None:
        spec = self._device.get(name)
        return self._tools.get(name) if spec is None else (spec, None)

    def prepare(
        self, call: ToolCall, permit: Permit | None = None
    ) -> PreparedCall | ApprovalNeeded | DryRun | ToolOutcome:
        """Find, validate and permit a call; an outcome means that it is not run.

        ``permit`` decides by the conversation, the default by the gate's rules only.
        """
        entry = self._find(call.name)
        if entry is None:
            return failed("not_found", f"There is no tool {call.name[:128]!r}. Nothing was run.")
        spec, toolset = entry
        # Validation comes before permission: rules match coerced arguments.
        checked = validate(spec, call.arguments)
        if not isinstance(checked, Valid):
            return checked
        # After validation: a model that corrects its arguments is not in a loop.
        if self._is_too_often(spec):
            return failed("rate_limited", _TOO_OFTEN)
        ready = PreparedCall(
            call=call, spec=spec, toolset=toolset, arguments=checked.arguments, notes=checked.notes
        )
        verdict = (permit or self._permit)(spec, checked.arguments)
        if verdict.effect == "deny":
            why = " ".join(verdict.reasons)
            return failed("permission_denied", f"{why} Nothing was run.", reason="policy")
        if call.repaired and spec.risk == "high" and verdict.effect == "allow":
            verdict = replace(verdict, effect="ask", reasons=(_REPAIRED,), warn=True)
        # After the rules: a call that they deny must not look allowed in a dry run.
        if self.gate.is_dry(spec):
            return DryRun(ready)
        return ApprovalNeeded(ready, verdict) if verdict.effect == "ask" else ready

    def edited(self, ready: PreparedCall, arguments: Mapping[str, Any]) -> PreparedCall | str:
        """Replace a call's arguments; returns a text if they are not valid."""
        text = msgspec.json.encode(arguments).decode()
        checked = validate(ready.spec, text)
        if not isinstance(checked, Valid):
            return checked.error_message or "The arguments are not valid."
        # The model must know, or it would report its own arguments to the person.
        notes = (*checked.notes, *filter(None, [edits(ready.arguments, checked.arguments)]))
        return replace(ready, arguments=checked.arguments, notes=notes)

    def restore(self, call: ToolCall, arguments: Mapping[str, Any]) -> PreparedCall | None:
        """Prepare a recorded call with its approved ``arguments``; None if its tool no longer exists."""
        entry = self._find(call.name)
        if entry is None:
            return None
        spec, toolset = entry
        # Approved arguments run unchanged: a second validation might change them.
        return PreparedCall(call=call, spec=spec, toolset=toolset, arguments=arguments)

    def redacted(self, value: Any) -> Any:
        """Redact a JSON value."""
        return self._redactor.value(value)

    async def preview(self, ready: PreparedCall) -> str:
        """Describe the effect of a call, redacted and truncated; empty if the tool cannot in time."""
        if ready.spec.preview is None:
            return ""
        try:
            async with asyncio.timeout(_PREVIEW_S):
                return self._safe_text(await ready.spec.preview(ready.arguments))
        except Exception:
            log.exception("preview failed", tool=ready.spec.name)
            return ""

    async def dry_run(self, ready: PreparedCall) -> ToolOutcome:
        """Make the outcome of a call that is only described."""
        data = {"dry_run": True, "would_call": ready.spec.name, "arguments": ready.arguments}
        would = await self.preview(ready)
        note = "Dry run: nothing was run. Tell the user what would have been done."
        return succeeded({**data, "would": would} if would else data, notes=(*ready.notes, note))

    async def run(self, ready: PreparedCall, context: CallContext) -> ToolOutcome:
        """Run a call of a tool of the server within its time limit; every failure becomes an outcome."""
        assert ready.toolset is not None, "the device runs its own tools"
        started, effect = time.monotonic(), ready.spec.effect
        limit = self.timeout(ready.spec)
        timer = asyncio.timeout(limit)
        try:
            async with timer:
                ask = partial(_ask_paused, timer, limit, context.ask)
                context = replace(context, alive=_alive(timer, limit), ask=ask)
                context, tracked = _tracked(ready.spec, context)
                result: object = await ready.toolset.call(ready.spec.name, ready.arguments, context)
            outcome = result if isinstance(result, ToolOutcome) else _no_outcome(ready.spec, result)
            if any(fields.is_untrusted for fields in tracked):
                outcome = marked_untrusted(outcome)
        except NotStarted as error:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise asyncio.CancelledError from error  # not by the timer
            outcome = without_result(
                "not_run", str(error), effect=effect, reason="not_started", error_type="cancelled"
            )
        except Exception as error:
            if isinstance(error, TimeoutError) and timer.expired():
                outcome = timeout_outcome(effect, 0.0)
            else:
                # A bug in a tool must not end the turn.
                log.exception("tool failed", tool=ready.spec.name, call=context.call_id)
                outcome = broke_off("The tool failed.", effect=effect, error_type="internal_error")
        return with_timing(outcome, time.monotonic() - started, ready.notes)

    def timeout(self, spec: ToolSpec) -> float:
        """Return a tool's time limit in seconds."""
        if spec.timeout_s is not None:
            return spec.timeout_s
        return self._limits.interactive_timeout if spec.interactive else self._limits.tool_timeout

    def to_result(self, call_id: str, outcome: ToolOutcome, *, untrusted: bool = False) -> ToolResult:
        """Redact and truncate an outcome for the model; ``untrusted``: third parties wrote it.

        Pictures and other data in base64 are described.
        """
        data, limit = without_media(outcome.data), self._limits.max_observation_bytes
        # A value that is too long is cut as text: half of a JSON value is not JSON.
        if not isinstance(data, str) and outcome.metadata.data_size_bytes > limit:
            text = msgspec.json.encode(data)
            data = text.decode() if len(text) > limit else data
        data = self._safe_text(data) if isinstance(data, str) else self._redactor.value(data)
        message = None if outcome.error_message is None else self._safe_text(outcome.error_message)
        notes = tuple(map(self._safe_text, outcome.metadata.notes))
        metadata = msgspec.structs.replace(outcome.metadata, notes=notes)
        outcome = msgspec.structs.replace(outcome, data=data, error_message=message, metadata=metadata)
        return outcome.to_result(call_id, untrusted=untrusted)

    def _safe_text(self, text: str) -> str:
        # Redaction comes before truncation: a cut secret would not be recognised.
        limit = self._limits.max_observation_bytes
        text = without_media(text.encode("utf-8", "replace").decode())
        if len(text) <= _REDACTED_LIMITS * limit:
            return truncate(self._redactor.text(text), limit)
        total_bytes = len(text.encode(errors="replace"))
        redacted = self._redactor.text(text[: _REDACTED_LIMITS * limit])
        return truncate(redacted[: max(0, len(redacted) - _CUT_CHARS)], limit, total_bytes)

    def _permit(self, spec: ToolSpec, arguments: Mapping[str, Any]) -> Verdict:
        return self.gate.decide(spec, arguments, tainted=False, may_have_happened=False)

    def _is_too_often(self, spec: ToolSpec) -> bool:
        per_minute, now = self._limits.calls_per_minute, self.gate.now()
        rate = self._rates.get(spec.name)
        if rate is None:
            rate = self._rates[spec.name] = TokenBucket(per_minute / 60, per_minute, now)
        return rate.take(now) > 0


_TOO_OFTEN = "This tool was called too often in the last minute. Nothing was run. Answer with what you have."
# Seconds for a preview: a disk may hang.
_PREVIEW_S = 2.0
_REPAIRED = "The model's call was not valid JSON and was repaired, so it may differ from its intent."


def _no_outcome(spec: ToolSpec, result: object) -> ToolOutcome:
    why = f"the toolset returned {type(result).__name__} in place of a ToolOutcome"
    log.error("tool result not readable", tool=spec.name, error=why)
    return without_result("ran", why, effect=spec.effect, reason="unreadable")


def _tracked(spec: ToolSpec, context: CallContext) -> tuple[CallContext, list[TrackedFields]]:
    """Track what a tool stores and reads, unless it is the server's own, which marks single items."""
    if spec.source == "builtin" or context.fields is None or context.person is None:
        return context, []
    fields = TrackedFields(context.fields, tainted=context.tainted)
    person = TrackedFields(context.person, tainted=context.tainted)
    return replace(context, fields=fields, person=person), [fields, person]


def _alive(timer: asyncio.Timeout, seconds: float) -> Callable[[], None]:
    """Make the function that restarts a time limit, also from the thread of a tool."""
    loop = asyncio.get_running_loop()

    def alive() -> None:
        with suppress(RuntimeError):  # the server has stopped meanwhile
            loop.call_soon_threadsafe(_extend, timer, seconds)

    return alive


def _extend(timer: asyncio.Timeout, seconds: float) -> None:
    if not timer.expired():
        timer.reschedule(asyncio.get_running_loop().time() + seconds)


async def _ask_paused(
    timer: asyncio.Timeout,
    seconds: float,
    ask: Callable[[PersonQuestion], Awaitable[Mapping[str, Any] | None]],
    question: PersonQuestion,
) -> Mapping[str, Any] | None:
    timer.reschedule(None)  # a person may take minutes; the question has its own limit
    try:
        return await ask(question)
    finally:
        _extend(timer, seconds)
