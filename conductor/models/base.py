"""The interface between a turn and a model service."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import is_
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, runtime_checkable

import msgspec

from conductor.messages import Message, Note, ToolCall, UserMessage

StopReason: TypeAlias = Literal[
    "end_turn", "tool_use", "max_tokens", "refusal", "pause_turn", "context_window"
]


@dataclass(frozen=True, slots=True, eq=False)
class ToolDefinition:
    """A tool as a model sees it. ``name`` is dotted; a provider maps it to an accepted name.

    ``title`` is the name for people; services have no field for it.

    Definitions compare by identity, so a cache can use them as keys.
    """

    name: str
    description: str
    input_schema: Mapping[str, Any]
    title: str | None = None


Kept: TypeAlias = dict[Hashable, tuple[Sequence[Message], Any]]
"""Folds by their keys, each with the messages that it has taken (`folded`)."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One request to a model.

    ``messages`` is a valid history (`conductor.messages`) that ends with a user's message, a note or tool
    results. ``tool_choice`` "none" forbids calls but keeps the tools in the request. ``silence_s`` bounds the
    time without a byte from the service. No retry begins after ``deadline_s``, and without ``may_retry`` none
    begins at all; the whole request is bounded by its caller, who closes it. ``max_tokens`` replaces the
    provider's limit. The reply ends before the first of the texts ``stop``, if the service supports them.
    Only the router reads ``profile``, the session's choice, and ``avoid``, a profile whose reply to this
    request broke off. Requests with the same ``cache_key`` begin alike, which helps some services find their
    cached prefix. The requests of a turn share ``kept``, for `folded`. ``images`` are the
    kept images of the messages, by id; None for a model that does not see.
    """

    system: str
    messages: Sequence[Message]
    tools: Sequence[ToolDefinition] = ()
    tool_choice: Literal["auto", "none"] = "auto"
    silence_s: float = 30.0
    deadline_s: float = 120.0
    may_retry: bool = True
    max_tokens: int | None = None
    stop: Sequence[str] = ()
    profile: str | None = None
    avoid: str | None = None
    cache_key: str | None = None
    images: Mapping[str, bytes] | None = field(default_factory=dict, compare=False, repr=False)
    kept: Kept = field(default_factory=dict, compare=False, repr=False)


class Fold(Protocol):
    """What is made of a history, one message at a time."""

    def add(self, message: Message) -> None:
        """Take the next message."""
        ...


F = TypeVar("F", bound=Fold)


def folded(request: ModelRequest, key: Hashable, new: Callable[[], F]) -> F:
    """Fold the request's messages by ``new()``, or go on from the fold that ``request.kept`` has at ``key``.

    A fold is used again only for a history that begins with the same message objects. ``key`` names
    everything else that the fold depends on.
    """
    done, fold = request.kept.pop(key, ((), None))
    if fold is None or len(done) > len(request.messages) or not all(map(is_, done, request.messages)):
        done, fold = (), new()
    for message in request.messages[len(done) :]:
        fold.add(message)
    request.kept[key] = request.messages, fold
    return fold  # type: ignore[no-any-return]  # the key's


_HALF = re.compile("[\\ud800-\\udfff]")

# Tokens of a reply that may hold calls: arguments need more than spoken words.
TOKENS_WITH_TOOLS = 4096
CHARS_PER_TOKEN = 3.5
"""Estimated low for English prose and JSON, so that tokens are estimated high."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one reply, as reported by the service; ``input_tokens`` are without the cached tokens."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
        )

    @property
    def read_tokens(self) -> int:
        """All tokens of the request."""
        return self.input_tokens + self.cache_read_tokens + self.cache_write_tokens


def token_count(value: Any) -> int:
    """Read a service's token count; 0 for an invalid one."""
    return int(value) if isinstance(value, int | float) and 0 <= value < 2**53 else 0


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More text of the reply."""

    text: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a complete reply. ``opaque`` is stored in the `AssistantMessage` and sent back with it.

    The router adds ``profile``, ``provider``, ``model``, and the ``cost`` by the profile's prices.
    """

    stop: StopReason
    usage: Usage = field(default_factory=Usage)
    opaque: str | None = None
    profile: str | None = None
    provider: str | None = None
    model: str | None = None
    cost: float = 0.0


ModelEvent: TypeAlias = TextDelta | ToolCall | Finished


CACHE_S = 300.0
"""Seconds that a prompt cache keeps a prompt after its last use."""


class ModelProvider(Protocol):
    """A model service.

    ``stream`` yields the reply as it arrives and ends with exactly one `Finished`. Each `ToolCall` is yielded
    once, even if the service repeats it; its ``arguments`` are complete JSON only if the stop reason is
    ``tool_use``. A reply without words and calls is no failure. Closing the iterator (``aclose``) stops the
    request at the service at once. Raises `ModelError`. The provider retries (429, 5xx, 529, connection, a
    malformed call) only before the first event; the turn repeats the request once if a reply breaks off
    later.
    """

    name: str

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Stream the reply to ``request.messages``."""
        ...

    async def start(self) -> None:
        """Prepare for the first request."""
        ...

    async def aclose(self) -> None:
        """Close connections."""
        ...


@runtime_checkable
class CacheWarmer(Protocol):
    """A `ModelProvider` whose service can cache a prompt before the first request with it."""

    async def warm(self, request: ModelRequest) -> Finished | None:
        """Have the request's prompt, tools and messages cached; give the usage, None if it is of no use.

        Raises `ModelError`.
        """
        ...


async def warm(provider: ModelProvider, request: ModelRequest) -> Finished | None:
    """Have a prompt cached (`CacheWarmer`); None if the provider cannot."""
    return await provider.warm(request) if isinstance(provider, CacheWarmer) else None


class StreamDecoder(Protocol):
    """Turns the bytes of one reply into model events; ``finished`` is true after `Finished`."""

    finished: bool

    def feed(self, chunk: bytes) -> Iterable[ModelEvent]:
        """Decode the next bytes; events before an error may be given. Raises `ModelError`."""
        ...

    def end(self) -> Iterable[ModelEvent]:
        """Return the last events after the last bytes. Raises `ModelError` if the reply is incomplete."""
        ...


def may_call(request: ModelRequest) -> bool:
    """Return whether the reply may hold calls."""
    return bool(request.tools) and request.tool_choice == "auto"


def limit_of(request: ModelRequest, max_tokens: int) -> int:
    """Return the limit of a reply in tokens.

    With calls it is ``min(4 * max_tokens, 4096)`` or more: a limit for spoken answers cuts arguments off. A
    request's own limit stays.
    """
    if request.max_tokens is not None:
        return request.max_tokens
    return max(max_tokens, min(4 * max_tokens, TOKENS_WITH_TOOLS)) if may_call(request) else max_tokens


def running_turn(messages: Sequence[Message]) -> int:
    """Return the index after the user's last message or note; the running turn's replies begin there."""
    for index in range(len(messages), 0, -1):
        if isinstance(messages[index - 1], UserMessage | Note):
            return index
    return 0


def whole_characters(text: str) -> str:
    """Join the two halves of a character beyond 16 bits, and replace a lone half by U+FFFD."""
    if text.isascii() or not _HALF.search(text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def is_json(text: str) -> bool:
    """Return whether a text is complete JSON."""
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False
    return True
