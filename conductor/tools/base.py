"""Definitions of tools, and the interface of a toolset."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol

import msgspec

from conductor.models.base import ToolDefinition
from conductor.tools.outcomes import Effect, OnInterrupt, Risk, ToolOutcome
from conductor.tools.schema import model_schema, own_names


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
        """Return data about the person for a session that begins with these words; empty without any.

        The model reads it as a note that outsiders may have written.
        """
        return ""

    def health(self) -> Mapping[str, bool]:
        """Return for each remote server of the tools whether it is ready."""
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
