"""The audit log: a JSON line for each decision about a call, each answer of a person, each end of a call."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import structlog

from conductor.errors import SettingsError
from conductor.tools.base import ToolSpec
from conductor.tools.outcomes import ToolOutcome
from conductor.tools.permissions import Verdict
from conductor.tools.rules import arguments_digest, describe

log = structlog.get_logger(__name__)


class AuditLog:
    """A file of lines that several processes may share.

    It is opened for each line, so that it can be rotated. Raises `SettingsError` if it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._append(b"")
        except OSError as error:
            raise SettingsError(f"AUDIT_LOG: {path} cannot be written: {error.strerror}.") from None

    def write(self, record: Mapping[str, Any]) -> None:
        """Add a line; logs an error if it cannot be written."""
        try:
            self._append(msgspec.json.encode(record) + b"\n")
        except OSError as error:
            log.error("audit line lost", error=error.strerror, event_name=record.get("event"))

    def _append(self, line: bytes) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)


class SessionAudit:
    """Records the calls of one session; does nothing without a log.

    Arguments are identified by `arguments_digest`, as in approvals.
    """

    def __init__(self, log: AuditLog | None, subject: str, session_id: str) -> None:
        self._log = log
        self._session = {"subject": subject, "session": session_id}

    def record_decision(self, spec: ToolSpec, arguments: Mapping[str, Any], verdict: Verdict) -> None:
        """Record the verdict about a call, with its rule and reasons."""
        rule = None if verdict.rule is None else describe(verdict.rule)
        self._write(
            "decision", spec, arguments, decision=verdict.effect, rule=rule, reasons=list(verdict.reasons)
        )

    def record_answer(self, spec: ToolSpec, arguments: Mapping[str, Any], outcome: str, channel: str) -> None:
        """Record the result of a question to the person, and where it came from."""
        self._write("answer", spec, arguments, outcome=outcome, by=channel)

    def record_end(self, spec: ToolSpec, arguments: Mapping[str, Any], outcome: ToolOutcome) -> None:
        """Record the end of a call that was run."""
        took = outcome.metadata.execution_time_ms
        self._write("call", spec, arguments, error_type=outcome.error_type, ms=took)

    def _write(self, event: str, spec: ToolSpec, arguments: Mapping[str, Any], **more: Any) -> None:
        if self._log is None:
            return
        digest = arguments_digest(spec.name, arguments)
        entry = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "event": event,
            **self._session,
        }
        self._log.write({**entry, "tool": spec.name, "source": spec.source, "digest": digest, **more})
