"""The scripts of the services' stand-ins, and an answer as the bytes of the Messages API.

The events and their order are those of the service's documented streaming format; nothing was recorded.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import msgspec

JsonObject: TypeAlias = dict[str, Any]


class Refused(Exception):
    """A request that the service answers with an error."""

    def __init__(self, message: str, status: int = 400, error_type: str = "invalid_request_error") -> None:
        super().__init__(message)
        self.status = status
        self.error_type = error_type


@dataclass(frozen=True)
class Call:
    """A tool_use block; ``arguments`` as text is sent as it is, whole or not. ``id`` is made if not given."""

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    id: str | None = None

    @property
    def raw(self) -> str:
        """The arguments as the model writes them."""
        return (
            self.arguments
            if isinstance(self.arguments, str)
            else msgspec.json.encode(self.arguments).decode()
        )


@dataclass(frozen=True)
class Thought:
    """A thinking block."""

    text: str
    redacted: bool = False


@dataclass(frozen=True)
class Break:
    """A fault of a stream after ``after`` deltas.

    ``error`` sends an error event, ``cut`` aborts the connection, ``stall`` sends nothing more until the
    client leaves, ``garbage`` sends an invalid event, ``end`` ends the response properly but without its last
    events.
    """

    kind: Literal["error", "cut", "stall", "garbage", "end"]
    after: int = 0
    error_type: str = "overloaded_error"


@dataclass(frozen=True)
class Reply:
    """One answer with status 200: its thinking, its text, its calls, or ``blocks`` in any order instead.

    ``chunks`` is how ``text`` is cut into deltas (default: words), ``argument_size`` the characters of one
    ``input_json_delta``. ``delay_s`` goes before each delta; ``hold`` is waited for before delta ``hold_at``,
    ``hold_end`` between the last event and the response's end. ``split_bytes`` writes the stream in pieces of
    this number of bytes, each an HTTP chunk. ``pings`` puts a ping before each
    delta.
    """

    text: str = ""
    calls: tuple[Call, ...] = ()
    stop_reason: str | None = None
    thinking: str | None = None
    redacted: str | None = None
    blocks: tuple[Thought | str | Call, ...] = ()
    chunks: Sequence[str] | None = None
    argument_size: int = 20
    delay_s: float = 0.0
    first_delay_s: float = 0.0
    hold: asyncio.Event | None = None
    hold_at: int = 0
    hold_end: asyncio.Event | None = None
    pings: bool = False
    split_bytes: int | None = None
    content_type: str = "text/event-stream; charset=utf-8"
    broken: Break | None = None
    usage: Mapping[str, int] = field(default_factory=dict)

    @property
    def stop(self) -> str:
        """The stop reason, as given or as the content implies."""
        calls = any(isinstance(block, Call) for block in self.content)
        return self.stop_reason or ("tool_use" if calls else "end_turn")

    @property
    def content(self) -> tuple[Thought | str | Call, ...]:
        """The blocks in their order."""
        if self.blocks:
            return self.blocks
        thoughts = [Thought(self.thinking)] if self.thinking is not None else []
        thoughts += [Thought(self.redacted, redacted=True)] if self.redacted is not None else []
        return (*thoughts, *([self.text] if self.text else []), *self.calls)


@dataclass(frozen=True)
class HttpFailure:
    """An answer with an error status; ``body`` replaces the documented shape."""

    status: int
    error_type: str = "api_error"
    message: str = "Scripted failure"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None


Answer: TypeAlias = Reply | HttpFailure
ServiceScript: TypeAlias = Answer | Callable[[JsonObject], Answer]


@dataclass(frozen=True)
class Piece:
    """Some bytes of a stream; ``delta`` says that they are one delta, before which the reply may wait."""

    data: bytes
    delta: bool = False


def words(text: str) -> list[str]:
    """Cut a text into deltas that end after each space."""
    parts = text.split(" ")
    return [part + " " for part in parts[:-1]] + [part for part in parts[-1:] if part]


def signature_of(thinking: str, binding: str = "") -> str:
    """Sign a thinking block, so that a changed one is known later without remembering it."""
    return f"sig_{seal(thinking + binding)}.{binding}"


def redacted_data(thinking: str, binding: str = "") -> str:
    """Stand for encrypted thinking; its last 64 characters are a checksum."""
    data = f"red_{thinking.encode().hex()}.{binding}."
    return data + seal(data)


def seal(text: str) -> str:
    """Make a checksum that only the service knows how to make."""
    return hashlib.sha256(b"thinking:" + text.encode()).hexdigest()


def as_held(block: JsonObject) -> JsonObject:
    """Give a block of `anthropic_binding.content_of` as a message holds it.

    Arguments that are not whole become ``{}``.
    """
    if block["type"] != "tool_use":
        return block
    try:
        value = msgspec.json.decode(block["raw"])
    except msgspec.DecodeError:
        value = {}
    return {"type": "tool_use", "id": block["id"], "name": block["name"], "input": value}


def whole_message(
    reply: Reply, content: Iterable[JsonObject], message_id: str, model: str, usage: Mapping[str, int]
) -> JsonObject:
    """Give the answer to a request that does not stream."""
    message = _message(message_id, model, usage)
    return {**message, "content": [as_held(block) for block in content], "stop_reason": reply.stop}


def _message(message_id: str, model: str, usage: Mapping[str, int]) -> JsonObject:
    return {
        "id": f"msg_{message_id}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": dict(usage),
    }


def stream_pieces(
    reply: Reply, content: Iterable[JsonObject], message_id: str, model: str, usage: Mapping[str, int]
) -> Iterator[Piece]:
    """Give the whole stream of a reply, `Break` aside, event by event."""

    def event(name: str, body: JsonObject, delta: bool = False) -> Piece:
        data = msgspec.json.encode({"type": name, **body}).decode()
        return Piece(f"event: {name}\ndata: {data}\n\n".encode(), delta)

    ping = event("ping", {})
    message = _message(message_id, model, {**usage, "output_tokens": 1})
    yield event("message_start", {"message": message})
    yield ping
    for index, block in enumerate(content):
        start, deltas = _parts(block, reply)
        yield event("content_block_start", {"index": index, "content_block": start})
        for delta in deltas:
            if reply.pings:
                yield ping
            yield event("content_block_delta", {"index": index, "delta": delta}, delta=True)
        yield event("content_block_stop", {"index": index})
    stop = {"stop_reason": reply.stop, "stop_sequence": None}
    output_usage = {"output_tokens": usage["output_tokens"]}
    yield event("message_delta", {"delta": stop, "usage": output_usage})
    yield event("message_stop", {})


def _parts(block: JsonObject, reply: Reply) -> tuple[JsonObject, list[JsonObject]]:
    """Split a block into its start and its deltas."""
    kind = block["type"]
    if kind == "thinking":
        deltas = [{"type": "thinking_delta", "thinking": part} for part in words(block["thinking"])]
        deltas.append({"type": "signature_delta", "signature": block["signature"]})
        return {"type": "thinking", "thinking": "", "signature": ""}, deltas
    if kind == "redacted_thinking":
        return block, []
    if kind == "text":
        parts = reply.chunks if reply.chunks is not None else words(block["text"])
        return {"type": "text", "text": ""}, [{"type": "text_delta", "text": part} for part in parts]
    raw, size = block["raw"], reply.argument_size
    parts = [""] + [raw[at : at + size] for at in range(0, len(raw), size)]  # the service begins with ""
    start = {"type": "tool_use", "id": block["id"], "name": block["name"], "input": {}}
    return start, [
        {"type": "input_json_delta", "partial_json": part} for part in parts if raw != "{}" or not part
    ]
