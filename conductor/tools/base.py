"""Definitions of tools, outcomes of calls, and the interface of a toolset."""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import msgspec

from conductor.messages import ToolResult
from conductor.models.base import ToolDefinition
from conductor.tools.schema import model_schema, own_names

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


def canonical_json(value: Any) -> bytes:
    """Sorted keys, no spaces, UTF-8: equal values give equal bytes."""
    return msgspec.json.encode(value, order="sorted")


def matcher(pattern: str) -> Callable[[str], bool]:
    """Compile a glob, in which ``*`` is the only wildcard, to a test of whole strings."""
    return matcher_of(pattern.split("*"))


def matcher_of(parts: Sequence[str]) -> Callable[[str], bool]:
    """Compile a glob that is split at its wildcards."""
    first, *middle = parts
    if not middle:
        return first.__eq__
    last = middle.pop()

    def matches(text: str) -> bool:
        # Each part is searched after the part before it: linear time, no backtracking.
        position, end = len(first), len(text) - len(last)
        if position > end or not text.startswith(first) or not text.endswith(last):
            return False
        for part in middle:
            position = text.find(part, position, end)
            if position < 0:
                return False
            position += len(part)
        return True

    return matches


@dataclass(frozen=True, kw_only=True)
class ToolSpec:
    """A tool's definition.

    ``name`` is the dotted name of the wire. ``source`` is where it runs: ``device``, ``builtin``, or
    ``mcp:<server>``. ``timeout_s`` is the tool's own time limit in seconds, or None for the setting's.
    ``interactive``: a person acts in it, so its limit is minutes and the turn's clock stops. ``approval`` is
    declared: ``never`` skips the default of its risk, ``ask`` always asks. ``open_world``: it reaches beyond
    this machine and the device, to the web or a cloud. ``untrusted``: third parties write its results, which
    may contain instructions. ``title`` is the name for people, ``spoken`` a template that describes a call
    ("delete {count} photos from {album}"). ``needs_session``: it works on stored fields of a session or its
    person. ``sensitive`` returns the reason if a call must ask, ``preview`` describes its effect.
    """

    name: str
    description: str
    input_schema: Mapping[str, Any]
    source: str = "device"
    risk: Risk = "medium"
    effect: Effect = "write"
    timeout_s: float | None = None
    interactive: bool = False
    mode: Literal["sync", "async"] = "sync"
    on_interrupt: OnInterrupt = "keep"
    approval: Literal["never", "ask"] | None = None
    open_world: bool = False
    untrusted: bool = False
    title: str | None = None
    spoken: str | None = None
    needs_session: bool = False
    sensitive: Callable[[Mapping[str, Any]], str | None] | None = None
    preview: Callable[[Mapping[str, Any]], Awaitable[str]] | None = None

    @cached_property
    def definition(self) -> ToolDefinition:
        return ToolDefinition(self.name, self.description, model_schema(self.input_schema), self.title)

    @cached_property
    def own_names(self) -> Mapping[str, str]:
        """The arguments whose names services refuse: the model's name -> the tool's."""
        return own_names(self.input_schema)

    @cached_property
    def fingerprint(self) -> str:
        """Hex SHA-256 of the canonical definition: a changed tool is a different tool."""
        identity = (self.name, self.description, self.input_schema, self.source, self.risk, self.effect)
        behaviour = (self.timeout_s, self.interactive, self.mode, self.on_interrupt, self.approval)
        # Functions cannot be compared, and belong to the server.
        parts = [*identity, *behaviour, self.open_world, self.untrusted, self.title, self.spoken]
        return hashlib.sha256(canonical_json(parts)).hexdigest()


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
    """The outcome of a call, as the model reads it. ``timestamp`` is epoch milliseconds."""

    success: bool
    data: Any
    error_message: str | None
    error_type: ErrorType
    metadata: ToolMetadata

    def to_result(self, call_id: str, *, untrusted: bool = False) -> ToolResult:
        """Make the result that the history keeps; ``untrusted``: third parties wrote it."""
        return ToolResult(call_id, self.content, not self.success, untrusted or self.metadata.untrusted)

    @property
    def content(self) -> str:
        return msgspec.json.encode(self).decode()


def succeeded(
    data: Any, *, took_s: float = 0.0, notes: Sequence[str] = (), untrusted: bool = False
) -> ToolOutcome:
    """Make the outcome of a call that succeeded; ``untrusted`` as in `ToolMetadata`."""
    size = len(data.encode()) if isinstance(data, str) else len(msgspec.json.encode(data))
    outcome = ToolOutcome(
        success=True,
        data=data,
        error_message=None,
        error_type="none",
        metadata=_metadata(took_s, size, "", notes),
    )
    return marked_untrusted(outcome) if untrusted else outcome


def marked_untrusted(outcome: ToolOutcome) -> ToolOutcome:
    """Mark an outcome as ``untrusted``."""
    replace = msgspec.structs.replace
    return replace(outcome, metadata=replace(outcome.metadata, untrusted=True))


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


class SessionFields(Protocol):
    """Small texts that are stored with the session or the person, by name."""

    def get(self, name: str) -> str | None:
        """Read a field."""
        ...

    async def refresh(self) -> None:
        """Read what other processes have written. Raises `StoreError`."""
        ...

    async def update(self, name: str, change: Callable[[str | None], str]) -> None:
        """Replace a field by the result of ``change``, atomically; an empty text deletes it.

        Raises `StoreError` and the exceptions of ``change``.
        """
        ...


@dataclass(frozen=True, slots=True)
class PersonQuestion:
    """A question of a running tool to the person: ``message``, and an object's ``schema`` for the answer."""

    source: str
    message: str
    schema: Mapping[str, Any]


async def no_answer(question: PersonQuestion) -> Mapping[str, Any] | None:
    """Answer a question where no person can."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallContext:
    """A tool's view of its session and of the person (``subject``) of the session.

    ``fields`` are stored with the session, ``person`` across the person's sessions. ``tainted``: third
    parties may have steered the call, or written its arguments. ``alive`` restarts the time limit on
    progress. ``ask`` asks the person and returns the fields of the answer, or None without an answer; the
    time limit pauses.
    """

    session_id: str
    call_id: str
    time_zone: str | None = None
    locale: str | None = None
    fields: SessionFields | None = None
    person: SessionFields | None = None
    subject: str = ""
    tainted: bool = False
    alive: Callable[[], None] = field(default=lambda: None, compare=False)
    ask: Callable[[PersonQuestion], Awaitable[Mapping[str, Any] | None]] = field(
        default=no_answer, compare=False
    )


class Toolset(ABC):
    """The tools that run in one place. A subclass needs `specs` and `call`; the other members have defaults.

    The factory of an entry point, ``from_settings(settings)``, makes it without side effects: it may be
    called only to check the settings.
    """

    @abstractmethod
    def specs(self) -> Sequence[ToolSpec]:
        """List the tools offered now."""

    @abstractmethod
    async def call(self, name: str, arguments: Mapping[str, Any], context: CallContext) -> ToolOutcome:
        """Run a tool with validated arguments. A failure is an outcome, not an exception."""

    def all_specs(self) -> Sequence[ToolSpec]:
        """List the tools that other settings would offer, too: the operator's rules may name them."""
        return self.specs()

    def secrets(self) -> Sequence[str]:
        """List texts that are redacted in results and logs."""
        return ()

    def memories(self, person: SessionFields, words: str) -> str:
        """Give data about the person for a session that begins with these words; empty without any.

        The model reads it as a note that outsiders may have written.
        """
        return ""

    def health(self) -> Mapping[str, bool]:
        """Tell for each remote server of the tools whether it is ready."""
        return {}

    async def start(self, on_change: Callable[[], None]) -> None:  # noqa: B027 - a default
        """Start background work, once the server listens; ``on_change`` is called when `specs` changes."""

    async def ready(self) -> None:  # noqa: B027 - a default
        """Wait for the first attempt to reach remote servers. Raises `SettingsError` if one is down."""

    def reload(self, new: Toolset) -> Toolset:
        """Return the toolset to use after a reload: ``new``, made from the present settings, or itself."""
        return self

    async def aclose(self) -> None:  # noqa: B027 - a default
        """Stop the background work."""
