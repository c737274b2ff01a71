"""Pending approvals as they are stored with the session, and the outcomes of undecided calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

import msgspec

from conductor.tools.base import Caution, Risk, ToolOutcome, failed

Scope: TypeAlias = Literal["once", "session", "always"]
Outcome: TypeAlias = Literal["allowed", "denied", "edited", "expired", "superseded"]

DEFINITION_CHANGED = "The tool's definition changed while the user was asked. Nothing was run."
SCOPES: tuple[Scope, ...] = ("once", "session", "always")


class Approval(msgspec.Struct, frozen=True):
    """A call that waits for a person's decision.

    ``digest`` binds a decision to the tool and its arguments. ``expires_ms`` is epoch milliseconds.
    ``presented``: its spoken prompt was played to the end. ``presentations`` counts the prompts, ``unclear``
    the answers that were neither yes nor no. ``fingerprint`` is the tool's definition. ``preview`` describes
    the effect of the call, if the tool can.
    """

    approval_id: str
    batch_id: str
    call_id: str
    turn_id: str
    tool: str
    arguments: Mapping[str, Any]
    digest: str
    risk: Risk
    reasons: tuple[str, ...]
    scopes: tuple[Scope, ...]
    expires_ms: int
    presented: bool = False
    presentations: int = 0
    unclear: int = 0
    fingerprint: str = ""
    cautions: tuple[Caution, ...] = ()
    preview: str = ""

    @property
    def expires_at(self) -> str:
        """The end of its validity in the time format of the wire."""
        time = datetime.fromtimestamp(self.expires_ms / 1000, UTC)
        return f"{time:%Y-%m-%dT%H:%M:%S}.{self.expires_ms % 1000:03d}Z"


def encode_approvals(approvals: Sequence[Approval]) -> str:
    """Encode the open approvals for a session's field; empty without approvals."""
    return msgspec.json.encode(list(approvals)).decode() if approvals else ""


def decode_approvals(text: str) -> tuple[Approval, ...]:
    """Decode `encode_approvals`. Raises ValueError for any other text."""
    return msgspec.json.decode(text, type=tuple[Approval, ...]) if text else ()


def denied(words: str | None, reason: str = "denied") -> ToolOutcome:
    """Make the outcome of a denied call; ``words`` are the person's."""
    quote = f" The user said: {words!r}." if words else ""
    return failed(
        "permission_denied",
        f"The user did not allow this call.{quote} Nothing was run. Do not ask for it again.",
        reason=reason,
    )


def not_answered(
    reason: Literal["expired", "unclear", "screen", "superseded", "interrupted"],
) -> ToolOutcome:
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
