"""The errors that Conductor raises, each with the code that a client gets.

A *message* is for people: it contains no secret, path, stack trace or body of a service's answer. A *code* is
stable.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

ErrorCode = Literal[
    "invalid_event",
    "unsupported_protocol_version",
    "invalid_transcript",
    "session_mismatch",
    "rate_limited",
    "model_provider_failed",
    "turn_timeout",
    "tool_round_limit_exceeded",
    "unauthorized",
    "store_unavailable",
    "internal_error",
]

# One line for client developers about each code; docs/protocol-reference.md shows them.
CODE_MEANINGS: Mapping[ErrorCode, str] = MappingProxyType(
    {
        "invalid_event": "The frame is no valid event; the message says why. The connection stays open.",
        "unsupported_protocol_version": "The event's protocolVersion is newer than the server.",
        "invalid_transcript": "The transcript has no words; no turn was started.",
        "session_mismatch": "The event names another session than the one that the connection serves.",
        "rate_limited": "Too much came at once; retryAfterMs, where it is there, says when to come back.",
        "model_provider_failed": "The language model's service failed; the turn has ended.",
        "turn_timeout": "The turn took longer than its time limit, and has ended.",
        "tool_round_limit_exceeded": "The turn used up its tool calls; the model answers with what it has.",
        "unauthorized": "The client may not do this.",
        "store_unavailable": "The server cannot save the conversation now; nothing was changed.",
        "internal_error": "The server made a mistake; its log says more.",
    }
)

ModelFailure = Literal[
    "authentication",
    "rate_limited",
    "overloaded",
    "timeout",
    "context_too_long",
    "refused",
    "connection",
    "protocol",
    "undecodable",
    "malformed",
]


class ConductorError(Exception):
    """Base of Conductor's errors; ``code`` is the code in an ``error`` event."""

    code: ErrorCode = "internal_error"


class SettingsError(ConductorError):
    """A user's mistake in a setting, an option or a file, as one sentence; the exit code is ``exit_code``."""

    exit_code = 2


class ModelError(ConductorError):
    """The model service failed for a ``reason``; ``retry_after`` is in seconds.

    The router adds the ``profile`` that failed.
    """

    code: ErrorCode = "model_provider_failed"

    def __init__(self, reason: ModelFailure, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.reason: ModelFailure = reason
        self.retry_after = retry_after
        self.profile: str | None = None


class BudgetSpent(ConductorError):
    """A person has used up the budget of today (``DAILY_TOKEN_BUDGET`` and others)."""

    code: ErrorCode = "rate_limited"


class StoreError(ConductorError):
    """The session store did not take a commit."""


class StoreUnavailable(StoreError):
    """The store could not be reached, or did not answer in time."""

    code: ErrorCode = "store_unavailable"


class Unreadable(StoreUnavailable):
    """The store answered, and what it holds of one session cannot be read."""


class Fenced(StoreError):
    """Another claim owns the session; this one must send nothing more.

    ``gone``: no claim owns it, because the session was deleted or has expired.
    """

    def __init__(self, message: str, *, gone: bool = False) -> None:
        super().__init__(message)
        self.gone = gone


class Conflict(StoreError):
    """The session's revision moved, to ``revision``, although this claim still owns it."""

    def __init__(self, message: str, revision: int = -1) -> None:
        super().__init__(message)
        self.revision = revision


class Rollback(StoreError):
    """The store lost commits that it had acknowledged (a failover)."""


class TooManySessions(StoreError):
    """The server or the subject has too many sessions for a new one; existing ones continue.

    ``RETRY_S`` is sent as ``retryAfterMs``, an estimate.
    """

    code: ErrorCode = "rate_limited"
    RETRY_S = 60.0
